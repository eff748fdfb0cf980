"""The help pages of all commands, and their text at any width. Pure.

Options are grouped, each with its variables and its default.
"""

from __future__ import annotations

import functools
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from toolkit_installer.cli.options.model import HelpSection, Kind, Option
from toolkit_installer.cli.options.table import (
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
from toolkit_installer.errors import ExitCode
from toolkit_installer.settings import Program

_PRECEDENCE = (
    "A flag on the command line wins over one in --toolkit-args or --runtime-args, and that over a variable. An empty "
    "variable counts as unset. Of several variables the first that is set counts; one that is named after an engine "
    "counts for that engine only (with --runtime auto: for the engine that is found)."
)
_SPELLING = (
    "Booleans are written true or false (or 1, 0, t, f, yes, no, on, off): --flag, --flag=true, --flag=false. A list "
    "may be given as a comma list, by repeating the flag, or both. A long flag may be written with one dash."
)


INSPECTING = (ExitCode.DONE, ExitCode.BUG, ExitCode.USAGE, ExitCode.BAD_CONFIGURATION)
"""The exit codes of a command that only inspects."""
RUNNING = tuple(code for code in ExitCode if code is not ExitCode.NOT_DELETED)
"""The exit codes of a run, and of a command that reports how a run would end."""


class Page(msgspec.Struct, frozen=True):
    """The help of one command, apart from its usage line."""

    about: str
    examples: tuple[str, ...]
    options: tuple[Option, ...] = OPTIONS
    notes: tuple[str, ...] = (_PRECEDENCE, _SPELLING)
    argument: str | None = None
    """The required arguments, as the usage line names them; None: the optional install folder."""
    common: frozenset[str] | None = None
    """The names of the options that `--help` shows, while `--help-all` shows all; None: both show all."""

    codes: tuple[ExitCode, ...] = INSPECTING
    """The exit codes that the command can end with."""
    codes_note: str = ""
    """A note on the exit codes."""

    def shown(self, *, full: bool) -> list[Option]:
        """Return the options that the help shows."""
        wanted = None if full else self.common
        return [row for row in self.options if not row.hidden and (wanted is None or row.name in wanted)]


_SETTINGS = (
    "Every option and variable of run is accepted too and changes nothing here: each node is replayed with those that "
    "its capture in AFTER was made with."
)
_PLANNING = frozenset({"node_root", "host_root", "log_format", "debug", "runtime"})

CAPTURE = Page(
    about="Keep in FILE, a new one, all that plan looks at on this node, of each engine, so that replay can plan for "
    "it anywhere. FILE may be - for the standard output. Values that may be secret are hidden. Writes nothing else, "
    "reloads nothing, takes no lock; takes the options of run, and needs none.",
    argument="FILE",
    options=(KEEP_SECRETS, KEY_FILE, *OPTIONS),
    common=_PLANNING | {KEEP_SECRETS.name, KEY_FILE.name},
    examples=(
        "toolkit-installer capture --node-root /host /host/tmp/node.capture",
        "toolkit-installer capture --runtime containerd --keep-secrets node.capture",
    ),
)
REPLAY = Page(
    about="Show what run would do on the nodes that ARCHIVE has captures of, without them: the plan of one, or of many "
    "how they would fare, alike ones together. ARCHIVE is a file of capture, or a folder, of which the files that end "
    "in .capture are meant. The options of run stand in for those that the captures were made with. Exits with 0 only "
    "if no node would refuse.",
    argument="ARCHIVE...",
    options=(STATUS_JSON, EACH, PAYLOAD, ENGINE_VERSION, HTML, *OPTIONS),
    common=frozenset(row.name for row in (STATUS_JSON, EACH, PAYLOAD, ENGINE_VERSION, HTML))
    | {"runtime", "set_as_default", "restart_mode", "install_dir", "driver_root", "log_format", "debug"},
    examples=(
        "toolkit-installer replay node.capture",
        "toolkit-installer replay captures/ --set-as-default=false",
        "toolkit-installer replay captures/ --engine-version containerd=2.2",
        "toolkit-installer replay captures/ --payload /srv/toolkit-1.20 --json",
    ),
)
COMPARE = Page(
    about="Show what became of nodes between two sets of captures, such as from before and after a rollout: what "
    "changed that replaying BEFORE with the settings of AFTER did not foretell, managed files that are not what a run "
    "wrote, and nodes that are behind the others. BEFORE and AFTER are each a file of capture, or a folder, of which "
    "the files that end in .capture are meant; nodes are paired by name. Exits with 0 only if nothing of this was "
    "found, and all could be told.",
    argument="BEFORE AFTER",
    options=(STATUS_JSON, *(row for row in OPTIONS if row.name in {"log_format", "debug"})),
    notes=(_SETTINGS,),
    examples=(
        "toolkit-installer compare before/ after/",
        "toolkit-installer compare before/node-7.capture after/node-7.capture --json",
    ),
)


EXIT_CODES: Mapping[ExitCode, str] = types.MappingProxyType(
    {
        ExitCode.DONE: "done",
        ExitCode.BUG: "a bug in this program",
        ExitCode.USAGE: "flags or variables that make no sense, or do not go together",
        ExitCode.BAD_CONFIGURATION: "bad or unsupported configuration on the node; nothing was changed",
        ExitCode.ALREADY_RUNNING: "another instance runs",
        ExitCode.ENGINE_REJECTED: "the engine rejected the change and has its old configuration back",
        ExitCode.ENGINE_DOWN: "the engine did not come back",
        ExitCode.PAYLOAD_INCOMPLETE: "the toolkit in the image is incomplete",
        ExitCode.DRIVER_NOT_READY: "the driver did not become ready in time",
        ExitCode.NOT_DELETED: "the DaemonSet could not be deleted, or was not gone in time",
    }
)

_SHORT_NOTE = (
    "Every other option and variable of run is accepted too and changes nothing here, so that a pod's own arguments "
    "can be used again."
)


_short_page = functools.partial(Page, notes=(_SHORT_NOTE,))
_COMMON = frozenset(
    {"runtime", "method", "source_root", "driver_root", "set_as_default", "no_daemon", "cleanup", "on_drift"}
)
"""The options of `run` that most people use."""
_INSPECTION_OPTIONS = frozenset({"node_root", "host_root", "log_format", "debug"})
"""The options of every command that inspects the node."""
_UNINSTALL_NAMES = _INSPECTION_OPTIONS | frozenset(
    {"runtime", "pid_file", "ready_file", "keep_toolkit", "remove_toolkit", "without_gpu", "reload_timeout"}
    | {"reload_budget", "allow_restart", "install_dir", "socket", "restart_mode"}
)
_STATUS_NAMES = _INSPECTION_OPTIONS | frozenset({"install_dir", "pid_file", "ready_file", "source_root"})
_DIAGNOSE_NAMES = _INSPECTION_OPTIONS | frozenset({"install_dir", "runtime", "socket", "config", "reload_timeout"})
_REFRESH_NAMES = _INSPECTION_OPTIONS | frozenset({"install_dir", "pid_file", "reload_timeout"})
_DETECT_NAMES = _INSPECTION_OPTIONS | frozenset({"runtime", "socket", "config", "reload_timeout"})


def _of(names: frozenset[str]) -> tuple[Option, ...]:
    return tuple(option for option in OPTIONS if option.name in names)


_RUN_ABOUT = (
    "Install the NVIDIA container toolkit on this node, register its handlers with the container engine, make the "
    "engine take them over, and wait. When told to stop (TERM, INT, QUIT), take it all back. "
    "The command refresh makes it look again."
)

RUN = Page(
    about=_RUN_ABOUT,
    examples=(
        "toolkit-installer run --runtime docker",
        "toolkit-installer run --runtime containerd --cleanup never",
        "toolkit-installer run --node-root /host --no-daemon /opt/nvidia",
    ),
    common=_COMMON,
    codes=RUNNING,
)
REFRESH = _short_page(
    about="Make the run that waits on this node, also in another container, look at the node again now: it puts back "
    "what somebody changed. Wait for it, print what it did, and exit with what its work would exit with.",
    options=(REFRESH_TIMEOUT, *_of(_REFRESH_NAMES)),
    examples=("toolkit-installer refresh", "toolkit-installer refresh --node-root /host"),
    codes=RUNNING,
    codes_note="3 also where no run waits here, or it ended meanwhile; 4 where it is stopped or does not answer.",
)
PLAN = Page(
    about="Show what run would do with the same options and variables (a diff of each file with secrets masked, the "
    "files it would copy, the reload), and what would stop it; write nothing. Exits as run would.",
    options=(STATUS_JSON, *OPTIONS),
    examples=("toolkit-installer plan --runtime containerd --node-root /host",),
    common=_COMMON - {"no_daemon", "on_drift"} | {STATUS_JSON.name},
    codes=RUNNING,
)
UNINSTALL = _short_page(
    about="Take back what run changed: while it waits in another process, or after it was killed.",
    options=_of(_UNINSTALL_NAMES),
    common=_INSPECTION_OPTIONS | {"install_dir", "keep_toolkit"},
    examples=("toolkit-installer uninstall --node-root /host",),
    codes=(*INSPECTING, ExitCode.ALREADY_RUNNING, ExitCode.ENGINE_REJECTED, ExitCode.ENGINE_DOWN),
)
STATUS = _short_page(
    about="Say how the node stands: OK, DEGRADED or BROKEN, why, and what to do; then the driver, the toolkit's files, "
    "each engine and its handlers, and whether somebody has changed a managed file since.",
    options=(STATUS_JSON, STATUS_CHECK, *_of(_STATUS_NAMES)),
    examples=("toolkit-installer status --node-root /host", "toolkit-installer status --check --json"),
    codes_note="With --check 0 is OK, 1 is DEGRADED and 2 is BROKEN. An error is 3 then, also of flags or variables.",
)
DETECT = _short_page(
    about="Say what is seen on the node of which engine and distribution, which one run would configure, why, and in "
    "which files. Exits 3 where that cannot be decided.",
    options=(STATUS_JSON, *_of(_DETECT_NAMES)),
    examples=("toolkit-installer detect --node-root /host", "toolkit-installer detect --json"),
)
DIAGNOSE = _short_page(
    about="List the illnesses of this node that no tool reports by itself, whether or not anything is installed: "
    "leftovers of other installers, files that the engine loses or does not read, differing sockets and cgroup "
    "drivers, missing runtimes, libraries and device links, broken CDI specifications. Each with file and line, what "
    "it causes, and what ends it. Changes nothing.",
    options=(STATUS_JSON, *_of(_DIAGNOSE_NAMES)),
    examples=("toolkit-installer diagnose --node-root /host", "toolkit-installer diagnose --json"),
)
REPORT = Page(
    about="Pack into FILE, a new tar.gz, what somebody needs who is to find out what is wrong with a node: how it "
    "stands, what run would change, the engine's files, answers and log, versions. Secrets are masked. FILE may be - "
    "for the standard output. Changes nothing; takes the options of run, and needs none.",
    argument="FILE",
    examples=(
        "toolkit-installer report /tmp/report.tar.gz",
        "toolkit-installer report --node-root /host /host/tmp/report.tar.gz",
    ),
    common=_INSPECTION_OPTIONS | {"runtime"},
)
_DRIVER_OPTIONS: Mapping[str, str | None] = {
    **dict.fromkeys(("node_root", "host_root", "install_dir", "log_format", "debug")),
    "driver_root": "auto",
    "driver_root_ctr_path": "found with it",
}
"""The options of `run` that `wait-driver` shows, with a note on defaults that are found on the node."""

WAIT_DRIVER = _short_page(
    about="Wait until the driver is usable, and say meanwhile what is missing: in a driver container's root or on the "
    "node itself, whichever is ready first, nvidia-smi has to work. For an init container. Changes nothing; exits 8 "
    "when --timeout is over.",
    options=(
        DRIVER_TIMEOUT,
        UNLESS_INSTALLED,
        *(
            msgspec.structs.replace(row, default_note=_DRIVER_OPTIONS[row.name] or row.default_note)
            for row in OPTIONS
            if row.name in _DRIVER_OPTIONS
        ),
    ),
    examples=(
        "toolkit-installer wait-driver --node-root /host --unless-installed",
        "toolkit-installer wait-driver --timeout 600",
    ),
    codes=(*INSPECTING, ExitCode.DRIVER_NOT_READY),
)
DELETE_DAEMONSET = _short_page(
    about="Delete the DaemonSet NAME, and wait until its pods have given their nodes back and are gone. For a pod in "
    "the same namespace that runs before all else is uninstalled: what the pods need, such as their permissions, has "
    "to stay that long. Ends with 0 where there is no such DaemonSet; looks at no node, and changes none itself.",
    argument="NAME",
    options=(DELETION_TIMEOUT, *_of(frozenset({"service_account", "log_format", "debug"}))),
    examples=("toolkit-installer delete-daemonset toolkit-installer --timeout 540",),
    codes=(ExitCode.DONE, ExitCode.BUG, ExitCode.USAGE, ExitCode.NOT_DELETED),
)
OLD_NAMES: Mapping[Program, Page] = types.MappingProxyType(
    {
        program: Page(
            about=f"{_RUN_ABOUT} This is toolkit-installer run, with the defaults of {program}.",
            examples=(
                f"{program} /usr/local/nvidia",
                f"{program} --no-daemon --runtime docker --root /opt/nvidia",
                f'{program} -r containerd -u "--restart-mode systemd" /opt/nvidia',
            ),
            common=_COMMON,
            codes=RUNNING,
        )
        for program in (Program.NVIDIA_TOOLKIT, Program.NVIDIA_CTK_INSTALLER)
    }
)

COMMANDS: Mapping[str, Page] = types.MappingProxyType(
    {
        "run": RUN,
        "refresh": REFRESH,
        "plan": PLAN,
        "uninstall": UNINSTALL,
        "status": STATUS,
        "detect": DETECT,
        "diagnose": DIAGNOSE,
        "report": REPORT,
        "capture": CAPTURE,
        "replay": REPLAY,
        "compare": COMPARE,
        "wait-driver": WAIT_DRIVER,
        "delete-daemonset": DELETE_DAEMONSET,
    }
)

ABOUT_THE_PROGRAM: Mapping[str, str] = types.MappingProxyType(
    {
        "help": "Show this help, or that of the command that is named.",
        "version": "Show the version of the installer, and of the toolkit that its image has.",
        "completion": "Print what has bash, zsh or fish complete commands, options and their words, such as in: "
        "source <(toolkit-installer completion bash)",
    }
)
"""The commands that inspect no node."""


def render(
    page: Page, usage: str, program: Program, *, width: int, emphasise: Callable[[str], str] = str, full: bool = True
) -> str:
    """Return a command's help; `width` is in columns, `emphasise` highlights titles and flags.

    With `full` it has all options, else the most used ones.
    """
    lines = [f"{emphasise('Usage:')} {usage}", "", *_paragraph(page.about, width, "  ")]
    shown = page.shown(full=full)
    for section in HelpSection:
        rows = [option for option in shown if option.section is section]
        if rows:
            lines += ["", emphasise(f"{section}:")]
        for option in rows:
            lines += ["", *_option(option, program, width, emphasise)]
    others = len(page.shown(full=True)) - len(shown)
    all_of_them = [("--help-all", f"Show the other {others} options too.")] if others else []
    lines += _common_options("Other:", emphasise, all_of_them)
    lines += ["", emphasise("Notes:")]
    for note in page.notes:
        lines += ["", *_paragraph(note, width, "  ")]
    return "\n".join([*lines, *_end(page.codes, page.codes_note, page.examples, width, emphasise)])


def render_commands(*, width: int, emphasise: Callable[[str], str] = str) -> str:
    """Return the help of the program with several commands."""
    program = Program.TOOLKIT_INSTALLER
    lines = [f"{emphasise('Usage:')} {program} COMMAND [OPTIONS] [INSTALL_DIR]", ""]
    lines += _paragraph(
        "Makes a node able to run GPU containers, and never leaves it worse than it found it.", width, "  "
    )
    lines += ["", emphasise("Commands:")]
    abouts = {**{name: page.about for name, page in COMMANDS.items()}, **ABOUT_THE_PROGRAM}
    for name, about in abouts.items():
        called = f"{name}, install" if name == "run" else name
        lines += ["", emphasise(f"  {called}"), *_paragraph(about, width, "      ")]
    lines += ["", f"  {program} COMMAND --help lists the command's options."]
    lines += _common_options("Options:", emphasise)
    return "\n".join([*lines, *_end(tuple(ExitCode), "", RUN.examples, width, emphasise)])


def _common_options(title: str, emphasise: Callable[[str], str], more: Iterable[tuple[str, str]] = ()) -> Iterator[str]:
    yield from ("", emphasise(title))
    for flags, about in (("-h, --help", "Show this help."), *more, ("-v, --version", "Show the version.")):
        yield from ("", emphasise(f"  {flags}"), f"      {about}")


def _end(
    codes: Iterable[ExitCode], note: str, examples: Iterable[str], width: int, emphasise: Callable[[str], str]
) -> Iterator[str]:
    """Yield the exit codes and examples of a page, and a final empty line."""
    yield from ("", emphasise("Exit codes:"), "")
    yield from (f"  {code.value}  {EXIT_CODES[code]}" for code in codes)
    yield from ("", *_paragraph(note, width, "  ")) if note else ()
    yield from ("", emphasise("Examples:"), "", *(f"  {example}" for example in examples), "")


def _option(option: Option, program: Program, width: int, emphasise: Callable[[str], str]) -> Iterator[str]:
    flags = ", ".join(sorted(option.flags, key=lambda flag: flag.startswith("--")))
    placeholder = "|".join(option.choices) if option.kind is Kind.CHOICE else option.kind.value
    spelling = _paragraph(f"{flags} {placeholder}", width, "  ", "      ")
    yield from (emphasise(line) for line in spelling)
    yield from _paragraph(option.help, width, "      ")
    who = f"variable{'s' if len(option.variables) > 1 else ''}: {', '.join(option.variables)}"
    default = option.default_note or option.default_under(program)
    facts = [*([who] if option.variables else []), f"default: {'none' if default is None else default}"]
    together = f"[{'; '.join(facts)}]"
    if len(together) + len("      ") <= width:
        yield f"      {together}"
    else:
        yield from _paragraph(f"[{facts[0]};", width, "      ", "         ")
        yield from _paragraph(f"{facts[1]}]", width, "       ", "         ")


def _paragraph(text: str, width: int, indent: str, further: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent if further is None else further,
        break_long_words=False,
        break_on_hyphens=False,
    )
