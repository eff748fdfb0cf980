"""Captures of nodes: recording the answers of a node to queries, and replaying them.

While a node is captured, everything is queried that a plan may query with any options. Nothing is written. A replay
answers the queries of a plan from a capture, which may be damaged or hostile, and never reads this machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from toolkit_installer.applying import gpu_containers, impact
from toolkit_installer.applying.reload_gate import ReloadBudget
from toolkit_installer.documents import changes
from toolkit_installer.engines import registry
from toolkit_installer.engines.api import Engine, LiveState, get_adapter
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.detect import own_container
from toolkit_installer.engines.detect.unit_files import TABLE
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.fleet import archive, values
from toolkit_installer.fleet.archive import Archive, ProgramRun
from toolkit_installer.fleet.masking import AnswerMasker, KeyedMasker
from toolkit_installer.fleet.values import CapturedAnswer, NotReadableError, RawAnswer
from toolkit_installer.node import machine, processes, queries, signals
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import Programs
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import CONFIG_LIMIT, Reader
from toolkit_installer.node.root import NodeError, Root, list_trusted_users
from toolkit_installer.planning import prepare
from toolkit_installer.planning.plan import EngineWork
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import diagnosis
from toolkit_installer.reporting.support_bundle import explain_blocked_queries
from toolkit_installer.run import dry_run
from toolkit_installer.run.dry_run import DryRun
from toolkit_installer.settings import AUTO, Settings, WithoutGpu

Answers = dict[str, dict[str, CapturedAnswer]]
"""By the query's name, and by its arguments."""

_UNREADABLE: Final = (errno.EACCES, errno.EPERM, errno.EIO)
_PROCESS_NAMES: Final = ("containerd-shim", "conmon", "kubelet", "cri-dockerd")
"""Prefixes of the names of processes that are searched for, besides the engines'; a node has hundreds of others."""
_VARIABLES: Final = frozenset({"HOME", "PATH", "XDG_CONFIG_HOME"})
_CRIO_VARIABLES: Final = "CONTAINER_"


def select_processes(found: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the processes whose names a plan searches for."""
    # the kubelets that are part of another process are those of containerd's distributions, which the registry has not
    embedded = (name for row in TABLE for name in row.kubelets)
    wanted = (*_PROCESS_NAMES, *embedded, *(name for engine in registry.ENGINES for name in engine.processes))
    return [(pid, name) for pid, name in found if name.startswith(wanted)]


def select_variables(found: dict[str, str]) -> dict[str, str]:
    """Return the environment variables that a plan reads."""
    return {name: value for name, value in found.items() if name in _VARIABLES or name.startswith(_CRIO_VARIABLES)}


_SELECTIONS: Final[Mapping[Query, Callable[[Any], Any]]] = {
    queries.DECLARED[processes.names]: select_processes,
    queries.DECLARED[processes.environment]: select_variables,
}
"""The parts to record of answers in node/, where neither engines nor their variables are known."""
_PROGRAM: Final = queries.DECLARED[Programs.run]
_STATE: Final = queries.DECLARED[serving.fetch_state]
_TRIAL: Final = queries.DECLARED[prepare.try_out]
_SLEEP: Final = queries.DECLARED[signals.sleep]
_MONOTONIC: Final = queries.DECLARED[machine.monotonic]


def make_run(arguments: list[Any]) -> ProgramRun:
    """Return the program run with these distinguishing arguments of `Programs.run`."""
    programs, command, given, numbers = arguments
    assert isinstance(programs, Programs)  # noqa: S101  # it is a method of theirs
    return ProgramRun.of(programs.root.folder, command, given, {number: _read_open_file(number) for number in numbers})


def _read_open_file(fd: int) -> bytes:
    """Return the content of an open file without moving its position."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


class AnswerRecorder:
    """Records the answers of one node. It changes neither queries nor answers."""

    def __init__(self) -> None:
        self._within = False
        """Whether a query runs: the queries that it makes itself are part of its own answer."""
        self._answers: dict[Query, dict[str, CapturedAnswer]] = {}
        self._values: dict[tuple[Query, str], Any] = {}
        """A repeated query gets the same answer again: processes come and go, and a capture is of one instant."""
        self._runs: dict[str, ProgramRun] = {}
        self.unread: dict[str, str] = {}
        """Paths that could not be read, with the reasons."""

    def answer(self, query: Query, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run the query, record its answer or error, and return or raise it."""
        if self._within or not query.recorded:
            return query.function(*arguments, **named)
        self._within = True
        try:
            line = self._line(query, arguments, named)  # before the run: a program reads the files that it inherits
            known = (query, line)
            if known in self._values and not query.polled:
                return self._values[known]
            value = self._values[known] = query.function(*arguments, **named)
            keep = _SELECTIONS.get(query, query.keep)
            self._keep(query, line, CapturedAnswer(values.encode(value if keep is None else keep(value))))
        except (InstallerError, OSError) as error:
            self._keep(query, line, CapturedAnswer(failure=values.encode_error(error)))
            self._note_unread(error)
            raise
        finally:
            self._within = False
        return value

    def mask_answers(self, masker: KeyedMasker | None, root: str) -> tuple[Answers, dict[str, str]]:
        """Return all recorded answers, secrets masked unless `masker` is None, and substitutes for contents' digests.

        The substitutes are by the SHA-256 of the masked contents. `root` is the node's.
        """
        masking = AnswerMasker(masker, root)
        for query, answers in self._answers.items():
            for line, answer in answers.items():
                masking.collect(query.secrecy, line, answer, self._runs.get(line))
        for run in self._runs.values():
            masking.mask_run(run)
        masking.settle()
        found: Answers = {}
        for query, answers in self._answers.items():
            found[query.name] = {}
            for line, answer in answers.items():
                ran = self._runs.get(line)
                arguments = masking.mask_line(line) if ran is None else masking.mask_run(ran).line
                masked = masking.mask(query.secrecy, line, answer, ran)
                found[query.name][values.escape(arguments)] = values.escape_answer(masked)
        ordered = {name: dict(sorted(found[name].items())) for name in sorted(found)}
        return ordered, dict(sorted(masking.digests.items()))

    def _line(self, query: Query, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
        distinguishing = query.select_arguments(arguments, named)
        if query is not _PROGRAM:
            return archive.make_line(distinguishing)
        run = make_run(distinguishing)
        self._runs[run.line] = run
        return run.line

    def _keep(self, query: Query, line: str, answer: CapturedAnswer) -> None:
        self._answers.setdefault(query, {})[line] = answer

    def _note_unread(self, error: InstallerError | OSError) -> None:
        number = error.number if isinstance(error, NodeError) else error.errno if isinstance(error, OSError) else None
        if number in _UNREADABLE:
            path = error.path if isinstance(error, InstallerError) else error.filename
            self.unread.setdefault(str(path), str(error))


# --- everything that a plan may query ---

Show = Callable[[Node, Settings, DryRun], object]
"""Builds the output of `plan`, which queries the node as well."""


def query_everything(node: Node, settings: Settings, show: Show) -> None:
    """Make all queries: first those of a plan with these settings, then those of plans with others.

    Raises ConfigurationError if a query would start an engine. A plan's refusal is no error: a replay refuses the same.
    """
    _refuse_starting(node, settings)
    list_trusted_users()  # otherwise queried for symlinks alone, which another payload may have
    for each in _vary(settings):
        with contextlib.suppress(InstallerError):
            _plan(node, each, show)
    with contextlib.suppress(InstallerError):
        own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
        diagnosis.diagnose(node, settings)


def _refuse_starting(node: Node, settings: Settings) -> None:
    """Raise ConfigurationError if a query would start an engine that an administrator stopped."""
    store = ReceiptStore(node, settings.toolkit.install_dir)
    why = explain_blocked_queries(node, settings, trust.load_if_usable(node, store))
    if why is not None:
        raise ConfigurationError(f"{why}: nothing is captured", hint="start it, or mask its socket unit")


def _vary(settings: Settings) -> Iterator[Settings]:
    """Yield these settings, and others that lead to further queries."""
    yield settings
    replaced = msgspec.structs.replace
    yield replaced(settings, without_gpu=WithoutGpu.IDLE)
    # another payload is compared with the files themselves, not with their digests in the receipt
    yield replaced(settings, toolkit=replaced(settings.toolkit, verify_payload=True))
    sought = dict.fromkeys(("driver_root", "driver_root_ctr_path", "dev_root", "dev_root_ctr_path"), AUTO)
    yield replaced(settings, toolkit=replaced(settings.toolkit, **sought))
    for runtimes in ((), *((name,) for name in registry.names())):
        if runtimes != settings.runtimes:
            yield replaced(settings, runtimes=runtimes)


def _plan(node: Node, settings: Settings, show: Show) -> None:
    """Make the queries of a plan with these settings. Raises InstallerError if it would be refused."""
    own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
    holds = dry_run.find_running_installer(settings, node)
    found = dry_run.simulate_run(settings, node)
    show(node, settings, msgspec.structs.replace(found, stops=holds or found.stops))
    if found.seen is None:
        return
    for further in _list_further(node, settings, found.seen):
        with contextlib.suppress(InstallerError):  # one refusal does not keep the others from being queried
            further()


def _list_further(node: Node, settings: Settings, seen: Prepared) -> Iterator[Callable[[], object]]:
    """Yield calls with the queries that a plan makes only to change files, reload an engine or remove files."""
    folder, store = seen.plan.toolkit.folder, ReceiptStore(node, settings.toolkit.install_dir)
    yield partial(prepare.require_places, node, seen.target, seen.plan, unchanged=True)
    yield partial(dry_run.require_recordable, settings, node, store, seen)
    yield ReloadBudget(node.files, settings.pid_file, settings.reload_budget).require_reload
    yield partial(machine.read_time_zone, node)
    for work in seen.plan.engines:
        for file in (*work.inspection.files, *(wanted.file for wanted in work.desired.files)):
            # which of them is changed, and when it last was, may matter only for another version of the engine
            yield partial(node.files.status, file.path)
            yield partial(node.files.missing_folders, posixpath.dirname(file.path))
        yield partial(impact.find_impact, node, work.name, work.inspection, work.reload, folder)
        if work.inspection.live is not None:
            adapter = get_adapter(work.name)
            yield partial(adapter.stranded, node, work.inspection, (), lambda live: set(live.handlers))
    for by_default in (False, True):
        yield partial(gpu_containers.find_busy_reasons, node, folder, by_default=by_default)
    yield seen.facts.toolkit.in_use
    changing = {wanted.path for work in seen.plan.engines for wanted in work.desired.files}
    yield partial(seen.facts.toolkit.named, changing)


# --- replay ---

_LONGEST_ANSWER: Final = CONFIG_LIMIT + 1024 * 1024
"""Bytes: a file of the node has at most CONFIG_LIMIT, besides its path and attributes."""
_LONGEST_SHOWN: Final = 80


class NotCapturedError(Exception):
    """The capture has no answer to a query of the plan. No InstallerError, so that no caller handles it."""


class DamagedError(Exception):
    """The capture has an answer that no node gives. No InstallerError, so that no caller handles it."""


class Replayer:
    """Answers queries from one capture.

    `here` are folders of this machine that are read as they are, as payloads are. `versions` are the versions to assume
    for engines, by their names.
    """

    def __init__(self, archive: Archive, here: Collection[str] = (), versions: Mapping[str, str] | None = None) -> None:
        self._archive = archive
        self._here = tuple(here)
        self._waited = 0.0
        """Seconds that callers have slept."""
        self._no_programs = False
        self.versions: Mapping[str, str] = versions or {}
        self.captured: dict[str, str] = {}
        """The captured versions of the engines for which another is assumed."""
        self.untried: dict[str, None] = {}
        """Engines whose own binary a run would try on the new configuration, while the capture has no answer."""

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Answer all queries, and those for contents' digests, inside the block."""
        with queries.intercepted(self), changes.substitute_digests(self._archive.digests):
            yield

    def answer(self, query: Query, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the node's answer, or raise its error. Raises NotCapturedError, DamagedError."""
        if not query.recorded:
            return self._answer_unrecorded(query, arguments, named)
        if self._here and self._is_here(arguments[0] if arguments else None):
            return query.function(*arguments, **named)
        if self._no_programs and query is _PROGRAM:
            raise NotCapturedError("not captured: what another version's binary says")
        distinguishing = query.select_arguments(arguments, named)
        line = make_run(distinguishing).line if query is _PROGRAM else archive.make_line(distinguishing)
        raw = self._archive.answers.get(query.name, {}).get(values.escape(line))
        if raw is None:
            raise NotCapturedError(f"not captured: {archive.describe_line(query.name, line)}")
        try:
            return _decode(raw, query)
        except NotReadableError as error:
            raise DamagedError(f"is damaged: {query.name}: {error}") from error

    def _answer_unrecorded(self, query: Query, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Answer a query that captures have no answer to: waiting takes no time, and engines have assumed versions."""
        if query is _MONOTONIC:
            return self._waited
        if query is _SLEEP:
            self._waited += query.select_arguments(arguments, named)[0]
            return None
        if query is _STATE:
            return self._assume_version(*arguments, **named)
        return self._try_out(*arguments, **named) if query is _TRIAL else query.function(*arguments, **named)

    def _assume_version(self, engine: Engine, node: Node, socket: str, seconds: float) -> LiveState:
        """Return the engine's captured state, with the assumed version if there is one."""
        live: LiveState = _STATE.function(engine, node, socket, seconds)
        if engine.name not in self.versions:
            return live
        self.captured[str(engine.name)] = live.version
        return msgspec.structs.replace(live, version=self.versions[engine.name])

    def _try_out(self, node: Node, work: EngineWork) -> None:
        """Let the captured binary read the configuration; if it has not read this one, or is another, note that."""
        self._no_programs = work.name in self.versions
        try:
            _TRIAL.function(node, work)
        except NotCapturedError:
            self.untried[str(work.name)] = None
        finally:
            self._no_programs = False

    def _is_here(self, first: Any) -> bool:
        return any(_is_beneath(place, folder) for place in _places(first) for folder in self._here)


def _decode(raw: RawAnswer, query: Query) -> Any:
    """Return the node's answer, or raise its error. Raises NotReadableError for an answer that no node gives."""
    if len(raw.value) > _LONGEST_ANSWER:
        raise NotReadableError(f"an answer of more than {_LONGEST_ANSWER} bytes, and no file may have as many")
    try:
        value = values.decode(raw, query.answer_type)
    except OSError as error:
        if not query.os_errors:
            raise NotReadableError("an error of the system, for which it has one of its own") from error
        raise
    except InstallerError as error:
        if error.exit_code is ExitCode.BUG and not (query.polled and isinstance(error, serving.NoAnswerError)):
            raise NotReadableError(f"an error {type(error).__name__}, which no node leads to here") from error
        raise
    if query.is_valid is not None and not query.is_valid(value):
        raise NotReadableError(f"{str(value)[:_LONGEST_SHOWN]!r}, which no node answers")
    return value


def _places(first: Any) -> Iterator[str]:
    """Yield the folder or path that the first argument of a query names, if any."""
    if isinstance(first, str):
        yield first
    elif isinstance(first, Reader):
        yield first.root.folder
    elif isinstance(first, Root):
        yield first.folder


def _is_beneath(place: str, folder: str) -> bool:
    straight = posixpath.normpath(place)  # a capture may name a path that leads out of the folder again
    return straight == folder or straight.startswith(f"{folder.rstrip('/')}/")
