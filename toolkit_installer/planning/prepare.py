"""Run all steps before the first write: resolve, observe, plan, preflight.

The preflight checks what on the node, or in an engine's own binary, would make the plan fail. No handler is removed
from an engine whose pods need it to be stopped and deleted.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Collection, Mapping

import msgspec

from toolkit_installer.driver import roots
from toolkit_installer.engines.api import EngineSilentError, LiveState, get_adapter
from toolkit_installer.engines.detect import decide, own_container
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError, EngineDownError, EngineRejectedError, located
from toolkit_installer.node import files, machine, processes, signals
from toolkit_installer.node import root as node_root
from toolkit_installer.node.node import Node
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import Tree
from toolkit_installer.node.root import list_trusted_users
from toolkit_installer.planning import other_installer
from toolkit_installer.planning import plan as plan_of
from toolkit_installer.planning.observe import observe
from toolkit_installer.planning.plan import EngineWork, Facts, Plan, Target, build_plan
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import EngineRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import Method, ReloadMode, Settings
from toolkit_installer.toolkit import payload


class Prepared(msgspec.Struct, frozen=True):
    """The target, facts and plan of a run."""

    target: Target
    facts: Facts
    plan: Plan

    @property
    def receipt(self) -> Receipt | None:
        """The receipt from before this run."""
        return self.facts.receipt

    @property
    def driver_away(self) -> bool:
        """No driver is usable: files generated for the previous driver are kept."""
        return self.target.driver_away or (
            self.facts.generated is not None and self.facts.generated.failure is not None
        )

    @property
    def originals(self) -> Mapping[str, bytes]:
        """The backups to store beside the receipt, which cleanup restores, by SHA-256."""
        bases = [wanted.base for work in self.plan.engines for wanted in work.desired.files]
        bases += [work.base for work in self.plan.specifications]
        return {**self.facts.originals, **{file_records.digest_of(base): base for base in bases if base is not None}}


def resolve_target(settings: Settings, node: Node, receipt: Receipt | None) -> Target:
    """Resolve what the settings leave open, without writing; `receipt` is the one from before this run.

    Raises PayloadError, DriverNotReadyError; ConfigurationError if the node contradicts the settings or its engine
    cannot be determined; UsageError for handlers that cannot be registered.
    """
    driver, away = roots.resolve_driver(settings.toolkit, node)
    source = payload.source_root(
        settings.toolkit.source_root,
        settings.toolkit.package_type,
        node.programs.find_program("rpm") is not None,
        node_root.is_folder,
    )
    contents = payload.find_payload(Tree(source), source, machine.architecture())
    recorded = [each.name for each in receipt.served_engines()] if receipt is not None else []
    found = decide.detect_engines(node, settings, recorded=recorded) if settings.configure_engine else ()
    engines = tuple(Request.of(each, contents.executables, settings.toolkit.folder) for each in found)
    return Target(settings, driver, contents, engines, away)


def prepare(receipt: Receipt | None, settings: Settings, node: Node, store: ReceiptStore) -> Prepared:
    """Return the plan after the preflight; `receipt` is the one from before this run. Changes nothing.

    Raises PayloadError, ConfigurationError, UsageError, DriverNotReadyError, EngineDownError.
    """
    seen = prepare_unchecked(receipt, settings, node, store)
    preflight(node, seen.target, seen.facts, seen.plan)
    return seen


def prepare_unchecked(receipt: Receipt | None, settings: Settings, node: Node, store: ReceiptStore) -> Prepared:
    """Return the plan without a preflight. Raises the same errors."""
    with processes.cache_names():
        target = resolve_target(settings, node, receipt)
        facts = observe(node, target, receipt, store)
    # not inside the block: files in use, which must stay, are searched once all else is known
    refuse_contradictions(node, facts)
    with signals.interruptible():  # nothing is written meanwhile, and large files take long
        return Prepared(target, facts, build_plan(target, facts))


_SHELL = "/bin/sh"
_SIGNS = ("/etc/os-release", "/usr/lib/os-release", "/bin")
"""Paths that every system has: a root without any is not a system, but a few folders of one, or a fake."""
_ELSEWHERE = "choose a folder on another file system with --toolkit-install-dir, such as /opt/nvidia or /var/lib/nvidia"


def preflight(node: Node, target: Target, facts: Facts, made: Plan) -> None:
    """Raise ConfigurationError, UsageError or EngineDownError if the plan could not be carried out.

    Changes nothing; checks nothing if there is nothing to change.
    """
    for work in made.engines if target.settings.require_live else ():
        _require_live(work)
    found = {seen.request.target.name: seen for seen in facts.engines}
    for work in made.engines:  # not every engine found is to be changed
        seen = found[work.name]
        _refuse_deadly_signal(work)
        if work.changes and work.inspection.live is not None:
            goes = made.choice.method is not Method.HANDLERS
            is_ours = handlers_of_ours(seen.request.toolkit_folder, seen.recorded)
            refuse_stranding(node, work, is_ours, "or keep the handlers" if goes else "or keep the handler's name")
        if work.changes or work.reload_why:
            try_out(node, work)
    if target.settings.nri is not None:
        decide.refuse_without_nri(node)
    if not made.empty:
        require_places(node, target, made)


@Query(recorded=False)
def try_out(node: Node, work: EngineWork) -> None:
    """Let the live daemon's own binary read the new configuration. Raises ConfigurationError if it refuses that."""
    get_adapter(work.name).try_out(node, work.inspection, work.desired)


def require_places(node: Node, target: Target, made: Plan, *, unchanged: bool = False) -> None:
    """Raise ConfigurationError or UsageError if a path of the plan could not be written.

    `unchanged`: check paths that are not to be changed, too.
    """
    driver_roots = (target.driver.seen_at, target.driver.root)
    own_container.refuse_own_container(node, target.settings, plan_of.list_changed_folders(made.engines), driver_roots)
    wrapped = not made.cdi and target.settings.nri is None  # otherwise no container runs through a wrapper
    if wrapped and (made.toolkit.write or unchanged):
        _refuse_no_shell(node)
    _refuse_toolkit_folder(node, made.toolkit.folder)
    for wanted in (each for work in made.engines for each in work.desired.files if each.changes or unchanged):
        way_out = "--no-runtime-config installs the toolkit and leaves the engine to you"
        _refuse_obstacle(node, wanted.path, way_out)
    for specification in (each for each in made.specifications if each.changes or unchanged):
        _refuse_obstacle(node, specification.path, "--cdi-output-dir chooses another folder")


def _require_live(work: EngineWork) -> None:
    """Raise EngineRejectedError unless the engine answers, and would serve the handlers after the run."""
    live, reload = work.inspection.live, work.reload
    if live is None:
        raise EngineRejectedError(
            f"{work.name} does not answer on its socket: {work.inspection.silence}",
            path=work.inspection.socket,
            hint="nothing was changed; start it, or leave --require-live out: it serves the handlers once it starts",
        )
    takes_over = reload.mode is not ReloadMode.NONE or reload.by_itself
    wrong = plan_of.find_differences(live, work.desired)
    if wrong and not takes_over:
        raise EngineRejectedError(
            f"{work.name} would not serve the handlers, as it is not reloaded: {'; '.join(wrong)}",
            path=work.inspection.socket,
            hint="nothing was changed; leave --restart-mode none out, or --require-live",
        )


def refuse_contradictions(node: Node, facts: Facts) -> None:
    """Raise ConfigurationError if no plan may be made for an engine's files as found."""
    for seen in facts.engines:
        if seen.inspection.elsewhere and seen.inspection.process is not None:
            name, pid = seen.request.target.name, seen.inspection.process.pid
            raise ConfigurationError(
                f"the running {name} (PID {pid}) reads {seen.inspection.elsewhere}, and not this file",
                path=seen.request.target.config,
                hint="nothing was changed; name that one, or leave --config out; where only single folders of the node "
                "are mounted, mount the folder that it is in, and name it as it is seen there",
            )
        for file in seen.inspection.files:
            _refuse_another_installation(node, file.path, file.content, facts.toolkit.folder)
    if facts.generated is not None:
        path, found = facts.specifications.files[facts.generated.path]
        _refuse_another_installation(node, path, found.content if found is not None else None, facts.toolkit.folder)


def _refuse_deadly_signal(work: EngineWork) -> None:
    """Raise ConfigurationError if a signal would end the engine with its planned, base or present files."""
    live = work.inspection.live
    if live is None or not work.reload_why or work.reload.mode is not ReloadMode.SIGNAL:
        return
    for wanted in work.desired.files:
        now = wanted.file.content
        with located(wanted.path):
            for content in (wanted.target, wanted.base, now):
                live.refuse_signal(content, now)


def _refuse_another_installation(node: Node, path: str, content: bytes | None, folder: str) -> None:
    """Raise ConfigurationError if the file runs programs that this program installed in another folder.

    They would count as the operator's, and cleanup would restore them when their files may be gone.
    """
    for other in other_installer.find_named_installations(node, content, folder):
        raise ConfigurationError(
            f"names programs of another installation, in {other}",
            path=path,
            hint=f"take that one back first: toolkit-installer uninstall {other}",
        )


# --- what a node must allow: a shell, and writable places ---
#
# Immutable systems (Talos, Flatcar, Bottlerocket, ostree) lack some of it. Found half-way, it would cost a change, a
# reload and a rollback.


def _refuse_no_shell(node: Node) -> None:
    """Raise ConfigurationError if the whole node is visible and has no shell for the wrappers."""
    root = node.programs.root
    if root.folder == "/" and not node.whole:
        return  # only folders of the node are mounted here: its shell is not visible
    if not any(node_root.is_present(root.outside(sign)) for sign in _SIGNS):
        return
    if not node.programs.runs(_SHELL):
        raise ConfigurationError(
            "the node has no shell: the toolkit's wrappers are scripts for it, and no container would start",
            path=_SHELL,
            hint="nothing was changed; use the toolkit that the node's own system brings as an extension or package",
        )


def _refuse_toolkit_folder(node: Node, folder: str) -> None:
    """Raise ConfigurationError if the toolkit's folder cannot be written, or its files not be executed."""
    flags = node.files.mount_flags(folder)
    if flags & (os.ST_RDONLY | os.ST_NOEXEC):
        how = "noexec: no container would start through it" if flags & os.ST_NOEXEC else "read-only"
        raise ConfigurationError(
            f"the toolkit's folder is on a file system that is mounted {how}", path=folder, hint=_ELSEWHERE
        )
    # the receipt is next to it
    for place in (folder, posixpath.dirname(folder)):
        _refuse_obstacle(node, f"{node.files.canonical(place)}/.", _ELSEWHERE)


def _refuse_obstacle(node: Node, path: str, way_out: str) -> None:
    obstacle = files.find_obstacle(node.root, path)
    if obstacle is not None:
        obstacle.path = path.removesuffix("/.")
        if obstacle.number == errno.EACCES and list_trusted_users() != {0}:
            obstacle.reason = "this user may not write there"
            obstacle.hint = "nothing was changed; run it as root"
            raise obstacle
        hints = [obstacle.hint] if obstacle.hint else []
        obstacle.hint = "; ".join(["nothing was changed", *hints, way_out])
        raise obstacle


_SHOWN = 10


def handlers_of_ours(
    folder: str, record: EngineRecord | None, staying: Collection[str] = ()
) -> Callable[[LiveState], set[str]]:
    """Return a function that names our handlers in a live engine, except those in `staying`.

    They are found by their path in the toolkit's `folder`, or, if the engine reports no path, by the engine's record.
    """
    recorded = dict(record.handlers) if record is not None else {}

    def ours(live: LiveState) -> set[str]:
        own = {name for name, path in live.handlers.items() if is_beneath(path, folder) and name not in live.own}
        unknown = {name for name, path in live.handlers.items() if path is None and name in recorded}
        return (own | unknown).difference(staying)

    return ours


def refuse_stranding(node: Node, work: EngineWork, is_ours: Callable[[LiveState], set[str]], hint: str) -> None:
    """Raise ConfigurationError if changing the engine's files would strand pods of a handler of ours.

    `hint` says what to do once these pods are gone. Raises EngineDownError if the engine does not list its pods.
    """
    try:
        pods = get_adapter(work.name).stranded(node, work.inspection, work.desired.files, is_ours)
    except EngineSilentError as error:
        raise EngineDownError(
            f"{error.reason}: they may need a handler that is to go", path=error.path, hint=f"look at its log; {hint}"
        ) from error
    if not pods:
        return
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    raise ConfigurationError(
        f"{work.name} could neither stop nor delete pods that were started through a handler that is to go: "
        f"{', '.join(pods[:_SHOWN])}{more}",
        hint=f"nothing of {work.name} was changed; delete these pods, the completed ones too, {hint}",
    )
