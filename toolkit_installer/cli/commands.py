"""The commands, and the only place that turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from toolkit_installer import __version__
from toolkit_installer.cli import output
from toolkit_installer.cli.options import argv, build
from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.argv import Given
from toolkit_installer.cli.options.model import Option
from toolkit_installer.cli.options.resolve import Sources, answer_of
from toolkit_installer.cli.options.table import BY_NAME, DRIVER_TIMEOUT, OPTIONS, STATUS_JSON, UNLESS_INSTALLED
from toolkit_installer.errors import ExitCode, InstallerError, UsageError
from toolkit_installer.settings import Program, Settings

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


class _Command(click.Command):
    """A command whose flags may be written in all the ways that the field writes them."""

    def __init__(
        self, name: str, page: cli_help.Page, job: _Job, program: Program, environment: Mapping[str, str]
    ) -> None:
        super().__init__(
            name,
            callback=lambda **given: job({key: texts for key, value in given.items() if (texts := _texts(value))}),
            context_settings={"help_option_names": list(_HELP_FLAGS)},
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
                *(_click_option(row) for row in self._rows),
                _version_option(),
            ]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, argv.canonical(args, argv.grammar_of(self._rows)))

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002  # click's
        return _help_option()

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        usage = f"{ctx.command_path} [OPTIONS] [{build.destination_name(self._program)}]"
        formatter.write(
            cli_help.render(self._page, usage, self._program, width=_help_width(), emphasise=self._emphasise)
        )


class _Group(click.Group):
    """The program that has several commands."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        program = Program.TOOLKIT_INSTALLER
        jobs = _jobs(program, environment)
        super().__init__(
            program.value,
            commands=[
                _Command(name, page, jobs[name], program, environment) for name, page in cli_help.COMMANDS.items()
            ],
            params=[_version_option()],
            no_args_is_help=False,
            context_settings={"help_option_names": list(_HELP_FLAGS)},
        )
        self._emphasise = _emphasis(environment)

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002  # click's
        return _help_option()

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's
        formatter.write(cli_help.render_commands(width=_help_width(), emphasise=self._emphasise))


def _top_command(program: Program, environment: Mapping[str, str]) -> click.Command:
    if program is Program.TOOLKIT_INSTALLER:
        return _Group(environment)
    return _Command("run", cli_help.OLD_NAMES[program], _jobs(program, environment)["run"], program, environment)


def _click_option(row: Option) -> click.Option:
    """Take every option as texts: `build` knows what they mean."""
    return click.Option([row.name, *(f"--{name}" for name in row.long_names)], multiple=True, type=str)


def _help_option() -> click.Option:
    """Return click's own, but for how it prints."""

    def show(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:  # noqa: FBT001  # click's
        if asked:
            output.show_own(context.get_help())
            context.exit()

    return click.Option([*_HELP_FLAGS], is_flag=True, is_eager=True, expose_value=False, callback=show)


def _version_option() -> click.Option:
    def show(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:  # noqa: FBT001  # click's
        if asked:
            from toolkit_installer.lifecycle import versions  # noqa: PLC0415  # what every other start can do without

            output.show([f"{Program.TOOLKIT_INSTALLER} {__version__}", versions.image_payload()])
            context.exit()

    return click.Option([*_VERSION_FLAGS], is_flag=True, is_eager=True, expose_value=False, callback=show)


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


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


def _jobs(program: Program, environment: Mapping[str, str]) -> Mapping[str, _Job]:
    """Return what each command does.

    The lifecycle is imported late: --help and a mistyped flag need none of what it brings along.
    """

    def run(values: _Values) -> int:
        settings = _configured(values, environment, program, installing=True)
        from toolkit_installer.cli import actions  # noqa: PLC0415  # see above

        return actions.run(settings)

    def plan(values: _Values) -> int:
        settings = _configured(values, environment, program, installing=True)
        from toolkit_installer.cli import actions  # noqa: PLC0415  # see above

        return actions.plan(settings)

    def uninstall(values: _Values) -> int:
        settings = _configured(values, environment, program, installing=False)
        from toolkit_installer.cli import actions  # noqa: PLC0415  # see above

        return actions.uninstall(settings)

    def status(values: _Values) -> int:
        as_json = answer_of(STATUS_JSON, tuple(values.pop(STATUS_JSON.name, ("false",))), STATUS_JSON.flags[0])
        settings = _configured(values, environment, program, installing=False)
        from toolkit_installer.cli import actions  # noqa: PLC0415  # see above

        return actions.status(settings, as_json=as_json.value is True)

    def detect(values: _Values) -> int:
        as_json = answer_of(STATUS_JSON, tuple(values.pop(STATUS_JSON.name, ("false",))), STATUS_JSON.flags[0])
        settings = _configured(values, environment, program, installing=False)
        from toolkit_installer.cli import actions  # noqa: PLC0415  # see above

        return actions.detect(settings, as_json=as_json.value is True)

    def wait_driver(values: _Values) -> int:
        sources = Sources(values, environment, program)
        seconds = sources.answer(DRIVER_TIMEOUT).value
        unless_installed = sources.answer(UNLESS_INSTALLED).value is True
        for own in (DRIVER_TIMEOUT, UNLESS_INSTALLED):
            values.pop(own.name, None)
        settings = _configured(values, environment, program, installing=False, looking_for_driver=True)
        from toolkit_installer.cli import actions  # noqa: PLC0415  # see above

        return actions.wait_driver(
            settings,
            seconds=seconds if isinstance(seconds, float) else None,
            unless_installed=unless_installed,
        )

    commands = {"run": run, "plan": plan, "uninstall": uninstall, "status": status, "detect": detect}
    return {**commands, "wait-driver": wait_driver}


def _configured(
    values: _Values,
    environment: Mapping[str, str],
    program: Program,
    *,
    installing: bool,
    looking_for_driver: bool = False,
) -> Settings:
    """Build the settings, and log as they say from now on."""
    settings = build.build(values, environment, program, installing=installing, looking_for_driver=looking_for_driver)
    from toolkit_installer import log  # noqa: PLC0415  # --help needs no log

    log.configure(settings.log_format, debug=settings.debug, stream=sys.stderr, environment=environment)
    return settings


# --- when it goes wrong ---


def _explain(error: Exception, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Log the error as one line and return its exit code."""
    from toolkit_installer import log  # noqa: PLC0415  # --help needs no log
    from toolkit_installer.documents.secrets import mask  # noqa: PLC0415  # see above

    values = _given_anywhere(arguments)
    debug = build.wants_debug(values, environment)
    log_format = build.log_format(values, environment)
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

        output.show_aside(mask("".join(traceback.format_exception(error)).rstrip()))
    return ExitCode.BUG


def _given_anywhere(arguments: Sequence[str]) -> _Values:
    """Find the options in a command line that may make no sense as a whole."""
    values: _Values = {}
    for token in argv.read(arguments, argv.grammar_of(OPTIONS)):
        if isinstance(token, Given):
            values[token.option.name] = (token.text,)
    return values


def _only_prints(program: Program, arguments: Sequence[str]) -> bool:
    """Whether the command changes nothing, so that it may stop as soon as nobody reads what it says."""
    if set(arguments) & {*_HELP_FLAGS, *_VERSION_FLAGS}:
        return True
    return program is Program.TOOLKIT_INSTALLER and bool(_PRINTING_COMMANDS & set(arguments[:1]))
