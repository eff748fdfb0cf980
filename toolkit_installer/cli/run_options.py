"""Options that a command takes from the run that waits on the node, or else from the receipt.

Without options, `plan`, `report`, `status` and `uninstall` are about the existing installation. Options that the caller
gives take precedence, and are logged if they differ from the run's.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.cli.options import resolve
from toolkit_installer.cli.options.build import DESTINATION, find_place
from toolkit_installer.cli.options.model import HelpSection, Kind, Step
from toolkit_installer.cli.options.resolve import Given, OptionSources, OptionValue
from toolkit_installer.cli.options.table import BY_NAME, OPTIONS
from toolkit_installer.errors import InstallerError, UsageError
from toolkit_installer.node import locks, places, processes, trust
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.receipt import trust as receipts
from toolkit_installer.receipt.schema import EngineRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.revert import uninstall
from toolkit_installer.settings import AUTO, PID_FILES, EngineName, Method, Program

_Values = Mapping[str, Sequence[str]]
_PLACE = frozenset({"node_root", "host_root", "install_dir", "pid_file", "log_format", "debug"})
"""Where the node is, and how the command itself prints: only the caller decides that."""
_OF_A_CLEANUP = frozenset({"keep_toolkit", "remove_toolkit", "allow_restart"})
"""What a cleanup may do: only the caller decides that."""
_OF_WAITING = frozenset({"no_daemon", "cleanup", "ready_file", "metrics_textfile", "metrics_address", "on_drift"})
_STRINGS = frozenset({"toolkit_args", "runtime_args"})
"""Strings of options, which are taken one by one."""
_NOT_TAKEN = _PLACE | _OF_A_CLEANUP | _OF_WAITING | _STRINGS
_PAYLOAD = "source_root"
_INSTALLER_PATHS = frozenset({_PAYLOAD, "driver_root_ctr_path", "dev_root_ctr_path", "service_account"})
"""Paths in the run's own file system, not the node's."""
_PATHS = frozenset({Kind.PATH, Kind.ROOT, Kind.EXECUTABLE, Kind.LOCAL_PATH})
_IN_THE_IMAGE = ("/artifacts/deb", "/artifacts/rpm")


class _WaitingRun(msgspec.Struct, frozen=True):
    """A run that waits: its process, and the name, options and variables that it was started with."""

    process: Process
    program: Program
    values: _Values
    environment: Mapping[str, str]


def complete_options(
    values: _Values, environment: Mapping[str, str], program: Program, names: Collection[str]
) -> dict[str, Sequence[str]]:
    """Return the option texts of a command, with those of `names` that the run has and the caller did not give.

    `values` are the caller's by option name. Options that are taken, or that differ, are logged. If no run is known, or
    the caller's options are invalid, they are returned unchanged: the code that parses them reports the error.
    """
    given = dict(values)
    where = find_place(values, environment, program)
    wanted = [name for name in names if name in BY_NAME and name not in _NOT_TAKEN and _is_of_the_node(name)]
    if where is None:
        return given
    try:
        own = OptionSources(values, environment, program).resolve_all(None, None)
        node = Node.open(where.node_root, where.host_root)
        folder = values.get(DESTINATION, [own.text("install_dir")])[0]
        with log.suppress_lines():  # the command itself reports a receipt that cannot be used
            receipt = receipts.load_if_usable(node, ReceiptStore(node, folder))
        run = _find_waiting_run(
            node, [where.pid_file, *([receipt.pid_file] if receipt is not None else []), *PID_FILES]
        )
    except (InstallerError, OSError):
        return given
    if run is not None:
        engines = tuple(str(record.name) for record in receipt.served_engines()) if receipt is not None else ()
        return _complete_from_run(given, environment, run, own.by_name, wanted, where.node_root, engines)
    is_told = any(
        own.is_given(name) for name in BY_NAME if name not in _NOT_TAKEN | {_PAYLOAD} and _is_of_the_node(name)
    )
    if receipt is None or is_told:
        return given
    taken = {name: texts for name, texts in _derive_options(receipt).items() if name in wanted}
    _log_taken("the receipt", taken, None)
    return given | taken


def _is_of_the_node(name: str) -> bool:
    return BY_NAME[name].section is not HelpSection.KUBERNETES


def _complete_from_run(
    given: dict[str, Sequence[str]],
    environment: Mapping[str, str],
    run: _WaitingRun,
    own: Mapping[str, OptionValue],
    wanted: Iterable[str],
    node_root: str | None,
    engines: tuple[str, ...],
) -> dict[str, Sequence[str]]:
    """Return the caller's options, completed with the run's; `engines` are the receipt's."""
    try:
        sources = OptionSources(run.values, run.environment, run.program)
        words = sources.resolve(BY_NAME["runtime"]).value
        one = EngineName(str(words[0])) if isinstance(words, tuple) and len(words) == 1 and words[0] != "auto" else None
        theirs = sources.resolve_all(one, one).by_name
    except UsageError:
        return given  # another release, which accepts other values
    taken: dict[str, Sequence[str]] = {}
    runtime = own["runtime"]
    configured = engines if words == (AUTO,) else words
    if _is_given_by_caller("runtime", runtime, given, environment, run) and runtime.value not in (configured, (AUTO,)):
        # the run's file, socket and handlers are those of another engine
        wanted = [name for name in wanted if name != "method" and BY_NAME[name].step is not Step.RUNTIME]
    for name in wanted:
        option = _translate(name, theirs[name], run, node_root)
        if option is None:
            continue
        if _is_given_by_caller(name, own[name], given, environment, run):
            if own[name].value != option.value:
                _log_difference(name, own[name], option)
        elif option.value != own[name].value:
            taken[name] = (option.text,)
    _log_taken("the run that waits", taken, run.process.pid)
    return given | taken


def _is_given_by_caller(
    name: str, option: OptionValue, given: _Values, environment: Mapping[str, str], run: _WaitingRun
) -> bool:
    """Return whether the caller gave an option: a variable that the run's container has, too, does not count."""
    if name in given:
        return True
    label = option.label
    return label is not None and (label not in environment or environment[label] != run.environment.get(label))


def _translate(name: str, option: OptionValue, run: _WaitingRun, node_root: str | None) -> OptionValue | None:
    """Return the run's option as it would be given here, None if it cannot be."""
    same = trust.shares_mounts(run.process.pid)
    if name == _PAYLOAD:
        return _find_payload(option, run, same=same)
    if option.value is None or (option.label is None and name != "runtime"):
        return None  # a default, which applies here, too
    if BY_NAME[name].kind in _PATHS and option.value != AUTO and not same:
        theirs = "node_root" in run.values or "NODE_ROOT" in run.environment
        ours = node_root is not None or not places.is_marked_as_container()
        return option if theirs and ours and name not in _INSTALLER_PATHS else None  # both give the node's own path
    return option


def _find_payload(option: OptionValue, run: _WaitingRun, *, same: bool) -> OptionValue | None:
    """Return the folder of the run's payload as seen from here, None if it is the usual one, or not visible."""
    paths = [str(option.value)] if option.value is not None else list(_IN_THE_IMAGE)
    if same:
        return option if option.value is not None else None
    if any(map(os.path.isdir, _IN_THE_IMAGE)):
        return None  # this image has its own payload
    seen = (processes.root_of(run.process).outside(path) for path in paths)
    found = next(filter(os.path.isdir, seen), None)
    return OptionValue(found, found, "the payload of the run") if found is not None else None


def _derive_options(receipt: Receipt) -> dict[str, Sequence[str]]:
    """Return the options with which a run would install what the receipt records. Pure."""
    engines: list[EngineRecord] = receipt.served_engines()
    if not engines:
        return {}
    options: dict[str, Sequence[str]] = {"runtime": (",".join(engine.name for engine in engines),)}
    options["method"] = (str(Method.CDI if receipt.cdi else Method.HANDLERS),)
    if receipt.engines and receipt.engines[0].handlers:
        record = receipt.engines[0]
        options["set_as_default"] = ("true" if record.default is not None else "false",)
        options["runtime_name"] = (record.default or record.handlers[0][0],)
    return options


def _find_waiting_run(node: Node, paths: Iterable[str]) -> _WaitingRun | None:
    """Return the run of this program that holds one of the PID files, None if none is visible from here.

    Raises NodeError.
    """
    from toolkit_installer.reporting import saved_state  # noqa: PLC0415  # only where a run may wait

    for path in dict.fromkeys(paths):
        pid = locks.find_instance(node.files, path)
        process = processes.inspect_process(pid) if pid is not None else None
        if process is None or not uninstall.is_python(process) or not uninstall.is_installer(node, path, process):
            continue
        saved = saved_state.of_run(process.pid)
        words = saved.command if saved is not None and saved.command else process.arguments
        if (started := _parse_command_line(words)) is not None:
            return _WaitingRun(process, started[0], started[1], processes.environment(process))
    return None


def _parse_command_line(words: Sequence[str]) -> tuple[Program, _Values] | None:
    """Return the program's name and the options in its command line, None for another program's. Pure."""
    for index, word in enumerate(words):
        name = posixpath.basename(word)
        if name in ("__main__.py", "toolkit_installer"):
            program = Program.TOOLKIT_INSTALLER
        elif name in set(Program):
            program = Program(name)
        else:
            continue
        rest = list(words[index + 1 :])
        if program is Program.TOOLKIT_INSTALLER:
            rest = rest[1:]  # the command
        values: dict[str, list[str]] = {}
        for token in resolve.read_arguments(rest, resolve.grammar_of(OPTIONS)):
            if isinstance(token, Given):
                values.setdefault(token.option.name, []).append(token.text)
        return program, values
    return None


def _log_taken(source: str, taken: _Values, pid: int | None) -> None:
    if not taken:
        return
    options = " ".join(f"{BY_NAME[name].flags[0]}={','.join(texts)}" for name, texts in taken.items())
    log.get().info("Took the options that were not given", key="options-taken", source=source, pid=pid, options=options)


def _log_difference(name: str, own: OptionValue, theirs: OptionValue) -> None:
    log.get().warning(
        "An option differs from that of the run that waits",
        key="option-differs",
        option=BY_NAME[name].flags[0],
        given=own.text,
        waiting=theirs.text,
    )
