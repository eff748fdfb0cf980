"""The commands, and the only place that turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import click

from toolkit_installer import __version__
from toolkit_installer.cli import output
from toolkit_installer.cli.options import argv, build
from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.argv import Given
from toolkit_installer.cli.options.model import Option
from toolkit_installer.cli.options.resolve import Sources
from toolkit_installer.cli.options.table import BY_NAME, DRIVER_TIMEOUT, OPTIONS, STATUS_JSON, UNLESS_INSTALLED
from toolkit_installer.errors import ExitCode, InstallerError, UsageError
from toolkit_installer.settings import Program

_HELP_FLAGS = ("-h", "--help")
_VERSION_FLAGS = ("-v", "--version")
_PRINTING_COMMANDS = frozenset({"plan", "status", "detect"})
_INTERRUPTED = 130  # what shells report for a program that SIGINT ended

_Values = dict[str, Sequence[str]]
_Job = Callable[[_Values], int]


def main(program: Program, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Do what the command line asks for and return the exit code; no exception leaves.

    `arguments` are those after the program's name; `environment` is the process's own unless another is given.
    """
    variables = dict(os.environ if environment is None else environment)
    try:
        status = _invoke(_top_command(program, variables), program, arguments)
        output.finish()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError as error:
        if _only_prints(program, arguments) and output.reader_is_gone():
            return ExitCode.DONE
        return _explain(error, arguments, variables)
    except Exception as error:  # noqa: BLE001  # the last line of defence: whatever it is gets a message and a code
        return _explain(error, arguments, variables)
    return status


def _invoke(command: click.Command, program: Program, arguments: Sequence[str]) -> int:
    """Run a command without click's own main(), which exits by itself on some errors."""
    try:
        with command.make_context(program.value, list(arguments)) as context:
            return int(command.invoke(context))
    except click.exceptions.Exit as done:  # --help and --version
        return done.exit_code


# --- commands, made of the option table ---


class _OwnHelp(click.Command):
    """A command whose help is click's own, but for how it is printed."""

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002  # click's
        return _shows(_HELP_FLAGS, lambda context: output.show_own(context.get_help()))


class _Command(_OwnHelp):
    """A command whose flags may be written in all the ways that the field writes them."""

    def __init__(self, name: str, page: cli_help.Page, program: Program, environment: Mapping[str, str]) -> None:
        job = _job(name, program, environment)
        super().__init__(
            name,
            callback=lambda **given: job(
                {
                    key: [value] if isinstance(value, str) else value
                    for key, value in given.items()
                    if value not in (None, ())
                }
            ),
        )
        self._page = page
        self._program = program
        self._rows = (*OPTIONS, *(row for row in page.options if row.name not in BY_NAME))
        self._emphasise = _emphasis(environment)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:  # six commands have eighty options each, and one of them is asked for
            destination = build.destination_name(self._program)
            self.params = [
                click.Argument([build.DESTINATION], required=False, metavar=f"[{destination}]"),
                # as texts: `build` knows what they mean
                *(
                    click.Option([row.name, *(f"--{name}" for name in row.long_names)], multiple=True, type=str)
                    for row in self._rows
                ),
                _version_option(),
            ]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, argv.canonical(args, argv.grammar_of(self._rows)))

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        usage = f"{ctx.command_path} [OPTIONS] [{build.destination_name(self._program)}]"
        formatter.write(
            cli_help.render(self._page, usage, self._program, width=_help_width(), emphasise=self._emphasise)
        )


class _Group(_OwnHelp, click.Group):
    """The program that has several commands."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        program = Program.TOOLKIT_INSTALLER
        super().__init__(
            program.value,
            commands=[_Command(name, page, program, environment) for name, page in cli_help.COMMANDS.items()],
            params=[_version_option()],
            no_args_is_help=False,
        )
        self._emphasise = _emphasis(environment)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's
        formatter.write(cli_help.render_commands(width=_help_width(), emphasise=self._emphasise))


def _top_command(program: Program, environment: Mapping[str, str]) -> click.Command:
    if program is Program.TOOLKIT_INSTALLER:
        return _Group(environment)
    return _Command("run", cli_help.OLD_NAMES[program], program, environment)


def _shows(flags: Sequence[str], show: Callable[[click.Context], None]) -> click.Option:
    """Return an option that shows something in place of what the command does."""

    def callback(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:  # noqa: FBT001  # click's
        if asked:
            show(context)
            context.exit()

    return click.Option([*flags], is_flag=True, is_eager=True, expose_value=False, callback=callback)


def _version_option() -> click.Option:
    def show(_context: click.Context) -> None:
        from toolkit_installer.lifecycle import versions  # noqa: PLC0415  # what every other start can do without

        output.show([f"{Program.TOOLKIT_INSTALLER} {__version__}", versions.image_payload()])

    return _shows(_VERSION_FLAGS, show)


def _help_width() -> int:
    import shutil  # noqa: PLC0415  # --help alone needs it, and it brings the compressors along

    columns = shutil.get_terminal_size((cli_help.NARROWEST, 24)).columns
    return min(max(columns, cli_help.NARROWEST), cli_help.WIDEST)


def _emphasis(environment: Mapping[str, str]) -> Callable[[str], str]:
    """Bold, unless asked otherwise; click takes it out again where the output is no terminal."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return str
    return lambda text: click.style(text, bold=True)


# --- what the commands do ---


_OWN_OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "status": {"as_json": STATUS_JSON},
    "detect": {"as_json": STATUS_JSON},
    "wait-driver": {"seconds": DRIVER_TIMEOUT, "unless_installed": UNLESS_INSTALLED},
}
"""What single commands take beside the settings: parameters of their functions in `actions`, and options."""


def _job(name: str, program: Program, environment: Mapping[str, str]) -> _Job:
    """Return what the command `name` does with the texts of its options."""

    def job(values: _Values) -> int:
        options = _OWN_OPTIONS.get(name, {})
        sources = Sources(values, environment, program)
        own = {parameter: sources.answer(option).value for parameter, option in options.items()}
        settings = build.build(
            {key: texts for key, texts in values.items() if key not in {option.name for option in options.values()}},
            environment,
            program,
            installing=name in {"run", "plan"},
            looking_for_driver=name == "wait-driver",
        )
        # late: --help and a mistyped flag need none of what these bring along
        from toolkit_installer import log  # noqa: PLC0415

        log.configure(settings.log_format, debug=settings.debug, stream=sys.stderr, environment=environment)
        from toolkit_installer.cli import actions  # noqa: PLC0415

        return int(getattr(actions, name.replace("-", "_"))(settings, **own))

    return job


# --- when it goes wrong ---


def _explain(error: Exception, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Log the error as one line and return its exit code."""
    from toolkit_installer import log  # noqa: PLC0415  # --help needs no log
    from toolkit_installer.documents.secrets import mask  # noqa: PLC0415  # see above

    # of a command line that may make no sense as a whole
    given = (token for token in argv.read(arguments, argv.grammar_of(OPTIONS)) if isinstance(token, Given))
    log_format, debug = build.logging({token.option.name: (token.text,) for token in given}, environment)
    log.configure(log_format, debug=debug, stream=sys.stderr, environment=environment)
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else Program.TOOLKIT_INSTALLER
        error = UsageError(error.format_message(), hint=f"{command} --help lists what is allowed")
    if isinstance(error, InstallerError):
        log.get().error(error.reason, file=error.path, line=error.line, hint=error.hint)
        return error.exit_code
    hint = "please report it" if debug else "please report it, with what --debug shows"
    log.get().error(f"this is a bug: {type(error).__name__}: {mask(str(error))}", hint=hint)
    if debug:
        import traceback  # noqa: PLC0415  # of bugs, and of nothing else

        output.explain(mask("".join(traceback.format_exception(error)).rstrip()))
    return ExitCode.BUG


def _only_prints(program: Program, arguments: Sequence[str]) -> bool:
    """Whether the command changes nothing, so that it may stop as soon as nobody reads what it says."""
    if set(arguments) & {*_HELP_FLAGS, *_VERSION_FLAGS}:
        return True
    return program is Program.TOOLKIT_INSTALLER and bool(_PRINTING_COMMANDS & set(arguments[:1]))
