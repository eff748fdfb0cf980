"""The help: grouped options, each with its variables and its default, at any width."""

from __future__ import annotations

import functools
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from toolkit_installer.cli.options import capture_pages
from toolkit_installer.cli.options.model import Group, Kind, Option
from toolkit_installer.cli.options.page import INSPECTING, RUNNING, Page
from toolkit_installer.cli.options.table import (
    DELETION_TIMEOUT,
    DRIVER_TIMEOUT,
    OPTIONS,
    REFRESH_TIMEOUT,
    STATUS_CHECK,
    STATUS_JSON,
    UNLESS_INSTALLED,
)
from toolkit_installer.errors import ExitCode
from toolkit_installer.settings import Program

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
_LOOKING = frozenset({"node_root", "host_root", "log_format", "debug"})
"""What every command takes that looks at the node."""
_UNINSTALL_NAMES = _LOOKING | frozenset(
    {"runtime", "pid_file", "ready_file", "keep_toolkit", "remove_toolkit", "without_gpu", "reload_timeout"}
    | {"reload_budget", "allow_restart", "install_dir", "socket", "restart_mode"}
)
_STATUS_NAMES = _LOOKING | frozenset({"install_dir", "pid_file", "ready_file", "source_root"})
_DIAGNOSE_NAMES = _LOOKING | frozenset({"install_dir", "runtime", "socket", "config", "reload_timeout"})
_REFRESH_NAMES = _LOOKING | frozenset({"install_dir", "pid_file", "reload_timeout"})
_DETECT_NAMES = _LOOKING | frozenset({"runtime", "socket", "config", "reload_timeout"})


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
    common=_LOOKING | {"install_dir", "keep_toolkit"},
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
    common=_LOOKING | {"runtime"},
)
_FOR_THE_DRIVER: Mapping[str, str | None] = {
    **dict.fromkeys(("node_root", "host_root", "install_dir", "log_format", "debug")),
    "driver_root": "auto",
    "driver_root_ctr_path": "found with it",
}
"""What `wait-driver` shows of the options of `run`, and what it says of a default that is found."""

WAIT_DRIVER = _short_page(
    about="Wait until the driver is usable, and say meanwhile what is missing: in a driver container's root or on the "
    "node itself, whichever is ready first, nvidia-smi has to work. For an init container. Changes nothing; exits 8 "
    "when --timeout is over.",
    options=(
        DRIVER_TIMEOUT,
        UNLESS_INSTALLED,
        *(
            msgspec.structs.replace(row, default_note=_FOR_THE_DRIVER[row.name] or row.default_note)
            for row in OPTIONS
            if row.name in _FOR_THE_DRIVER
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
        "capture": capture_pages.CAPTURE,
        "replay": capture_pages.REPLAY,
        "compare": capture_pages.COMPARE,
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
"""The commands that look at no node."""


def render(
    page: Page, usage: str, program: Program, *, width: int, emphasise: Callable[[str], str] = str, full: bool = True
) -> str:
    """Return a command's help; `width` is in columns, `emphasise` makes titles and flags stand out.

    With `full` it has all options, else those that most people use.
    """
    lines = [f"{emphasise('Usage:')} {usage}", "", *_paragraph(page.about, width, "  ")]
    shown = page.shown(full=full)
    for group in Group:
        rows = [option for option in shown if option.group is group]
        if rows:
            lines += ["", emphasise(f"{group}:")]
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
    """Return the help of the program that has several commands."""
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
    """Yield the exit codes and examples of a page, and an empty line end."""
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
