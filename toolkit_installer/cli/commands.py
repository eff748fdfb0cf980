"""Runs a command line; the only module that turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from toolkit_installer.cli import output, tree
from toolkit_installer.cli.options import build, resolve
from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.build import Place
from toolkit_installer.cli.options.resolve import Given
from toolkit_installer.cli.options.table import OPTIONS, STATUS_CHECK
from toolkit_installer.errors import ExitCode, InstallerError, UsageError
from toolkit_installer.settings import Program

_PRINTING_COMMANDS = frozenset(
    {"plan", "status", "detect", "diagnose", "replay", "compare", *cli_help.ABOUT_THE_PROGRAM}
)
_CHANGING_COMMANDS = frozenset({"run", "uninstall"})
_UNKNOWN = ExitCode.BAD_CONFIGURATION
"""The lowest exit code of `status --check` without a verdict: 3, which monitoring reads as UNKNOWN."""
_INTERRUPTED = 130  # what shells report for a program that SIGINT ended


def main(program: Program, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run the command line and return the exit code; no exception escapes.

    `arguments` are those after the program's name; `environment` defaults to the process's own.
    """
    variables = dict(os.environ if environment is None else environment)
    try:
        if program is Program.TOOLKIT_INSTALLER and (answered := tree.complete(variables)) is not None:
            return answered
        status = _invoke(tree.top_command(program, variables), program, arguments)
        output.finish()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError as error:
        if _only_prints(program, arguments) and output.reader_is_gone():
            return ExitCode.DONE
        return _explain(error, program, arguments, variables)
    except Exception as error:  # noqa: BLE001  # the last line of defence: every error gets a message and a code
        return _explain(error, program, arguments, variables)
    return status


def _invoke(command: click.Command, program: Program, arguments: Sequence[str]) -> int:
    """Run a command without click's own main(), which exits by itself on some errors."""
    try:
        with command.make_context(program.value, list(arguments)) as context:
            return int(command.invoke(context))
    except click.exceptions.Exit as done:  # --help and --version
        return done.exit_code


# --- errors ---


def _explain(error: Exception, program: Program, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Log the error as one line and return its exit code."""
    from toolkit_installer import foreign_words, log  # noqa: PLC0415  # --help needs no log

    # the command line may be invalid as a whole
    tokens = (
        token for token in resolve.read_arguments(arguments, resolve.grammar_of(OPTIONS)) if isinstance(token, Given)
    )
    given = {token.option.name: (token.text,) for token in tokens}
    log_format, debug = build.read_log_options(given, environment)
    log.configure(log_format, debug=debug, stream=sys.stderr, environment=environment)
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else Program.TOOLKIT_INSTALLER
        error = UsageError(error.format_message(), hint=f"{command} --help lists what is allowed")
    failure = error
    if not isinstance(failure, InstallerError):
        hint = "please report it" if debug else "please report it, with what --debug shows"
        failure = InstallerError(
            f"this is a bug: {type(error).__name__}: {foreign_words.mask_program_text(str(error))}", hint=hint
        )
    _save_failure(failure, _changing_command(program, arguments), build.find_place(given, environment, program))
    code = failure.exit_code
    # lower codes are verdicts of `status --check`
    status = _UNKNOWN if code < _UNKNOWN and _is_check(program, arguments) else code
    log.get().error(
        failure.reason, key=code.event, code=int(status), file=failure.path, line=failure.line, hint=failure.hint
    )
    if failure is not error and debug:
        import traceback  # noqa: PLC0415  # for bugs only

        output.show_on_stderr(foreign_words.mask_program_text("".join(traceback.format_exception(error)).rstrip()))
    return status


def _save_failure(error: InstallerError, command: str | None, place: Place | None) -> None:
    """Save on the node how a command that changes it ended, for `status`.

    `place` is None if a command line, which may be invalid as a whole, does not even name the node: nothing is saved
    then. Nor is a run that found another instance running: the node's state is not its result.
    """
    if command is None or place is None or error.exit_code is ExitCode.ALREADY_RUNNING:
        return
    from toolkit_installer.reporting import outcome  # noqa: PLC0415  # for failures only

    outcome.save_failure(error, command, (place.node_root, place.host_root), place.pid_file, place.ready_file)


def _changing_command(program: Program, arguments: Sequence[str]) -> str | None:
    """Return the name of the command, None if it does not change the node."""
    if program is not Program.TOOLKIT_INSTALLER:
        return "run"
    word = arguments[0] if arguments else ""
    command = tree.ALIASES.get(word, word)
    return command if command in _CHANGING_COMMANDS else None


def _is_check(program: Program, arguments: Sequence[str]) -> bool:
    """Return whether the exit code is read as the verdict of `status --check`, even if `--check` is misspelt."""
    from toolkit_installer.cli.options.resolve import find_nearest  # noqa: PLC0415  # for failures only

    if program is not Program.TOOLKIT_INSTALLER or list(arguments[:1]) != ["status"]:
        return False
    flag = STATUS_CHECK.flags[0]
    return any(find_nearest(word.partition("=")[0], [flag]) is not None for word in arguments if word.startswith("-"))


def _only_prints(program: Program, arguments: Sequence[str]) -> bool:
    """Return whether the command changes nothing, so that it may stop once its output has no reader."""
    if set(arguments) & {*tree.HELP_FLAGS, tree.FULL_HELP_FLAG, *tree.VERSION_FLAGS}:
        return True
    return program is Program.TOOLKIT_INSTALLER and bool(_PRINTING_COMMANDS & set(arguments[:1]))
