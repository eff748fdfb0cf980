"""The commands as click objects, built from the table of options and the help pages.

A command makes settings from the texts of its options, and calls its function in `actions`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from toolkit_installer.cli import output
from toolkit_installer.cli.options import build, resolve
from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.help import Page
from toolkit_installer.cli.options.model import Option
from toolkit_installer.cli.options.resolve import OptionSources, find_near_misses, find_nearest
from toolkit_installer.cli.options.table import (
    BY_NAME,
    DELETION_TIMEOUT,
    DRIVER_TIMEOUT,
    EACH,
    ENGINE_VERSION,
    HTML,
    KEEP_SECRETS,
    KEY_FILE,
    OPTIONS,
    PAYLOAD,
    REFRESH_TIMEOUT,
    STATUS_CHECK,
    STATUS_JSON,
    UNLESS_INSTALLED,
)
from toolkit_installer.settings import Program

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


SEVERAL = "..."
"""Suffix of the name of an argument that may be given several times."""
_Values = dict[str, Sequence[str]]

_OWN_OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "plan": {"as_json": STATUS_JSON},
    "status": {"as_json": STATUS_JSON, "check": STATUS_CHECK},
    "refresh": {"seconds": REFRESH_TIMEOUT},
    "detect": {"as_json": STATUS_JSON},
    "diagnose": {"as_json": STATUS_JSON},
    "wait-driver": {"seconds": DRIVER_TIMEOUT, "unless_installed": UNLESS_INSTALLED},
    "delete-daemonset": {"seconds": DELETION_TIMEOUT},
    "capture": {"keep_secrets": KEEP_SECRETS, "key_file": KEY_FILE},
    "replay": {
        "as_json": STATUS_JSON,
        "each": EACH,
        "payload": PAYLOAD,
        "engine_versions": ENGINE_VERSION,
        "html": HTML,
    },
    "compare": {"as_json": STATUS_JSON},
}
"""Options of single commands besides the settings, by the parameters of their functions in `actions`."""


_ABOUT_THE_INSTALLATION = frozenset({"plan", "report", "status", "uninstall"})
"""The commands that take options that were not given from the run that waits (`run_options`)."""


def _complete_values(name: str, values: _Values, environment: Mapping[str, str], program: Program) -> _Values:
    """Return the option texts, with those that the run on the node has and the caller did not give."""
    from toolkit_installer import log  # noqa: PLC0415  # see below
    from toolkit_installer.cli import run_options  # noqa: PLC0415  # see below

    log_format, debug = build.read_log_options(values, environment)
    log.configure(log_format, debug=debug, stream=sys.stderr, environment=environment)
    return run_options.complete_options(
        values, environment, program, [row.name for row in cli_help.COMMANDS[name].options]
    )


def parameter(argument: str) -> str:
    """Return the name of the parameter that receives an argument."""
    return argument.removesuffix(SEVERAL).lower()


def make_job(name: str, program: Program, environment: Mapping[str, str]) -> Callable[[_Values], int]:
    """Return a function that runs the command `name` with the texts of its options."""

    def job(values: _Values) -> int:
        options = _OWN_OPTIONS.get(name, {})
        if name in _ABOUT_THE_INSTALLATION:
            values = _complete_values(name, values, environment, program)
        argument = parameter(cli_help.COMMANDS[name].argument or "")
        sources = OptionSources(values, environment, program)
        own: dict[str, object] = {parameter: sources.resolve(option).value for parameter, option in options.items()}
        beside = {
            *map(parameter, (cli_help.COMMANDS[name].argument or "").split()),
            *(option.name for option in options.values()),
        }
        given = {key: texts for key, texts in values.items() if key not in beside}
        installing = name in {"run", "plan", "capture"}
        looks = name in {"wait-driver", "status"}
        settings = build.build(given, environment, program, installing=installing, looking_for_driver=looks)
        if name == "report":
            looking = build.build(given, environment, program, installing=False, looking_for_driver=True)
            own |= {argument: values[argument][0], "looking": looking}
        if name == "capture":
            own |= {argument: values[argument][0], "given": given, "environment": environment}
        if name == "replay":
            own |= {argument: tuple(values[argument]), "given": given}
        if name == "compare":
            own |= {"before": values["before"][0], "after": values["after"][0]}
        if name == "delete-daemonset":
            own["deletion"] = build.build_deletion(values[argument][0], given, environment, program)
        # late: --help and a mistyped flag need none of these imports
        from toolkit_installer import log  # noqa: PLC0415

        log.configure(settings.log_format, debug=settings.debug, stream=sys.stderr, environment=environment)
        if name in {"run", "plan"}:
            _report_near_misses(environment)
        from toolkit_installer.cli import actions  # noqa: PLC0415

        return int(getattr(actions, name.replace("-", "_"))(settings, **own))

    return job


def _report_near_misses(environment: Mapping[str, str]) -> None:
    """Warn of misspelt variables: once, and not each time that a waiting run wakes."""
    from toolkit_installer import log  # noqa: PLC0415
    from toolkit_installer.node import idling  # noqa: PLC0415

    for variable, meant in find_near_misses(environment) if idling.RESUME not in environment else ():
        log.get().warning(
            "No option has this variable: it changes nothing", key="variable-unknown", variable=variable, meant=meant
        )


HELP_FLAGS = ("-h", "--help")
FULL_HELP_FLAG = "--help-all"
VERSION_FLAGS = ("-v", "--version")
ALIASES: Mapping[str, str] = {"install": "run"}
COMPLETE_VARIABLE = "_TOOLKIT_INSTALLER_COMPLETE"
"""The variable that a completion script sets to request completions."""


class _OwnHelp(click.Command):
    """A command whose help is click's own, except how it is printed."""

    def get_help_option(self, ctx: click.Context) -> click.Option:  # noqa: ARG002  # click's
        return _shows(HELP_FLAGS, lambda context: output.show_own(context.get_help()))


class _Command(_OwnHelp):
    """A command that accepts every spelling of flags that is in use (see `argv`)."""

    def __init__(self, name: str, page: Page, program: Program, environment: Mapping[str, str]) -> None:
        job = make_job(name, program, environment)
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
        if not self.params:  # six commands have eighty options each, and only one command runs
            self.params = [
                *self._arguments(),
                # as texts, which `build` parses
                *map(_option, self._rows),
                _shows((FULL_HELP_FLAG,), lambda context: output.show_own(self.help_text(context, full=True))),
                _version_option(),
            ]
        return super().get_params(ctx)

    def _arguments(self) -> list[click.Argument]:
        """Return the command's arguments: those that it requires, or the optional install folder."""
        if self._page.argument is not None:
            return [
                click.Argument(
                    [parameter(name)], metavar=name, nargs=-1 if name.endswith(SEVERAL) else 1, required=True
                )
                for name in self._page.argument.split()
            ]
        destination = build.destination_name(self._program)
        return [click.Argument([build.DESTINATION], required=False, metavar=f"[{destination}]")]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, resolve.normalize_arguments(args, resolve.grammar_of(self._rows)))

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(self.help_text(ctx, full=False))

    def help_text(self, context: click.Context, *, full: bool) -> str:
        """Return the help, with the most used options or with all."""
        arguments = " ".join(argument.make_metavar(context) for argument in self._arguments())
        usage = f"{context.command_path} [OPTIONS] {arguments}"
        return cli_help.render(
            self._page, usage, self._program, width=output.columns(), emphasise=self._emphasise, full=full
        )


class _Group(_OwnHelp, click.Group):
    """The program with several commands."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        program = Program.TOOLKIT_INSTALLER
        super().__init__(
            program.value,
            commands=[
                *(_Command(name, page, program, environment) for name, page in cli_help.COMMANDS.items()),
                *_about_the_program(),
            ],
            params=[_version_option()],
            no_args_is_help=False,
        )
        self._emphasise = _emphasis(environment)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            output.show_on_stderr(click.unstyle(self.get_help(ctx)))
            raise click.UsageError("no command is given", ctx)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise _unknown(error.command_name, [*self.commands, *ALIASES], ctx) from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's
        formatter.write(cli_help.render_commands(width=output.columns(), emphasise=self._emphasise))


def _unknown(name: str, commands: Sequence[str], context: click.Context) -> click.UsageError:
    """Return the error for an unknown command. Only the nearest is suggested: never the opposite as well."""
    return click.UsageError(f"there is no command {name!r}{_suggest(name, commands)}", context)


def _suggest(word: str, words: Sequence[str]) -> str:
    """Return a suggestion of the word that was probably meant; empty if none is near."""
    meant = find_nearest(word, words)
    return f": did you mean {meant!r}?" if meant is not None else ""


def _option(row: Option) -> click.Option:
    """Return the click option for a row. All values are texts, which `build` parses."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        from toolkit_installer.cli import completion  # noqa: PLC0415  # for completion only

        return completion.complete_value(row, begun)

    names = [row.name, *(f"--{name}" for name in row.long_names)]
    return click.Option(names, multiple=True, type=str, hidden=row.hidden, shell_complete=complete)


# --- the commands about the program ---


def _about_the_program() -> list[click.Command]:
    return [
        _OwnHelp("help", callback=_show_help, params=[click.Argument(["command"], required=False)]),
        _OwnHelp("version", callback=lambda: _show_version(click.get_current_context())),
        _OwnHelp(
            "completion",
            callback=_show_completion,
            params=[click.Argument(["shell"], required=False, shell_complete=_complete_shell)],
        ),
    ]


def _show_help(command: str | None) -> int:
    context = click.get_current_context().find_root()
    group = context.command
    if command is None:
        output.show_own(group.get_help(context))
        return 0
    assert isinstance(group, _Group)  # noqa: S101  # this command belongs to the group
    _, found, _ = group.resolve_command(context, [command])
    assert found is not None  # noqa: S101  # resolve_command raises
    with click.Context(found, parent=context, info_name=command) as own:
        output.show_own(found.get_help(own))
    return 0


def _complete_shell(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    from toolkit_installer.cli import completion  # noqa: PLC0415  # for completion only

    return [shell for shell in completion.SHELLS if shell.startswith(begun)]


def _show_completion(shell: str | None) -> int:
    from toolkit_installer.cli import completion  # noqa: PLC0415  # for completion only

    context = click.get_current_context()
    known = f"{', '.join(completion.SHELLS[:-1])} and {completion.SHELLS[-1]} are known"
    if shell is None:
        raise click.UsageError(f"for which shell? {known}", context)
    if shell not in completion.SHELLS:
        meant = _suggest(shell, completion.SHELLS) or f": {known}"
        raise click.UsageError(f"there is no completion for {shell!r}{meant}", context)
    output.show_own(completion.script(shell, context.find_root().command, COMPLETE_VARIABLE))
    return 0


def complete(environment: Mapping[str, str]) -> int | None:
    """Print the completions and return 0 if a shell requests them, else return None."""
    if COMPLETE_VARIABLE not in environment:
        return None
    from toolkit_installer.cli import completion  # noqa: PLC0415  # for completion only

    if (shell := completion.parse_instruction(environment[COMPLETE_VARIABLE])) is None:
        return None
    output.show_own(completion.complete_line(shell, _Group(environment)))
    return 0


def top_command(program: Program, environment: Mapping[str, str]) -> click.Command:
    """Return the program with several commands, or under an old name the single command that it is."""
    if program is Program.TOOLKIT_INSTALLER:
        return _Group(environment)
    return _Command("run", cli_help.OLD_NAMES[program], program, environment)


def _shows(flags: Sequence[str], show: Callable[[click.Context], object]) -> click.Option:
    """Return an option that prints something instead of running the command."""

    def callback(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:  # noqa: FBT001  # click's
        if asked:
            show(context)
            context.exit()

    return click.Option([*flags], is_flag=True, is_eager=True, expose_value=False, callback=callback)


def _version_option() -> click.Option:
    return _shows(VERSION_FLAGS, _show_version)


def _show_version(_context: click.Context) -> int:
    from toolkit_installer.reporting import versions  # noqa: PLC0415  # every other start does without it

    output.show([f"{Program.TOOLKIT_INSTALLER} {versions.own_version()}", versions.describe_image_payload()])
    return 0


def _emphasis(environment: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that makes text bold, unless `environment` forbids it; click undoes it without a terminal."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return str
    return lambda text: click.style(text, bold=True)
