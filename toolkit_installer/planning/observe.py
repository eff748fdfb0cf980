"""Inspect the node: the engines and their CDI support, the installed toolkit, the CDI specifications.

Only reads; the plan decides. Paths are resolved on the node.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
from functools import partial

import msgspec

from toolkit_installer.engines import registry
from toolkit_installer.engines.api import Engine, Inspection, LiveState, RecordedFile, get_adapter
from toolkit_installer.engines.common import command_line, losses
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import DriverNotReadyError
from toolkit_installer.node import machine, signals
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Tree
from toolkit_installer.planning import installed
from toolkit_installer.planning.installed import Copies, Generated, InstalledFile, inspect_file
from toolkit_installer.planning.method import CdiSupport, Choice, choose_method, explain_unreadable, find_obstacle
from toolkit_installer.planning.plan import EngineFacts, Facts, Target, ToolkitFacts, find_mismatches
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import EngineRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import Method
from toolkit_installer.toolkit import layout, wrappers

_CLOCK_SECONDS = 2.0
"""Tolerance of a process' start time: the kernel gives the time of its own boot in whole seconds."""


def observe(node: Node, target: Target, receipt: Receipt | None, store: ReceiptStore) -> Facts:
    """Inspect everything that the target names; `receipt` is the one from before this run.

    Raises ConfigurationError, PayloadError, DriverNotReadyError, NodeError.
    """
    originals: dict[str, bytes] = {}
    engines = tuple(_inspect_engine(node, each, receipt, store, originals) for each in target.engines)
    asked, folder = target.settings.method, target.settings.toolkit.cdi.folder
    looked_at = engines if asked is not Method.HANDLERS else ()
    cdi_support = tuple(inspect_cdi_support(node, each.request, each.inspection, receipt, folder) for each in looked_at)
    choice = choose_method(asked, cdi_support)
    generated = _generate_specification(target, choice)
    recorded = receipt.specifications if receipt is not None else ()
    paths = [record.path for record in recorded] + ([generated.path] if generated is not None else [])
    specifications = installed.read_specifications(node, store, paths)
    return Facts(
        receipt,
        originals,
        engines,
        _inspect_toolkit(node, target, receipt),
        specifications,
        generated,
        cdi_support,
        choice,
    )


def _inspect_engine(
    node: Node, request: Request, receipt: Receipt | None, store: ReceiptStore, originals: dict[str, bytes]
) -> EngineFacts:
    name = request.target.name
    engine = get_adapter(name)
    recorded = receipt.engine(name) if receipt is not None else None
    records = load_records(engine, recorded, store, originals)
    # the files are parsed, which takes long if they are large
    with losses.name_backups_in_errors(records), signals.interruptible():
        inspection = engine.inspect(node, request.target)
    reload = engine.choose_reload(node, inspection, request.settings)
    base_runtimes = partial(
        command_line.locate_low_level_runtimes, node, toolkit_folder=request.toolkit_folder, engine=inspection.process
    )
    dangers = engine.describe_reload_risks(node, inspection, reload)
    return EngineFacts(
        request, inspection, recorded, records, reload, dangers, has_read_files(inspection, recorded), base_runtimes
    )


def load_records(
    engine: Engine, recorded: EngineRecord | None, store: ReceiptStore, originals: dict[str, bytes]
) -> dict[str, RecordedFile]:
    """Return the receipt's records of an engine's files, by path; add their backups to `originals`."""
    result = {}
    for file in recorded.files if recorded is not None else ():
        before, kept = None, ""
        if file.before is not None:
            before, kept = store.load_original(file.before), store.original_path(file.before)
            originals[file.before.sha256] = before
        result[file.path] = file_records.to_recorded_file(engine, file, before, recorded, kept)
    return result


def has_read_files(inspection: Inspection, recorded: EngineRecord | None) -> bool:
    """Return whether an engine was started after the last change of its files, and so has read them.

    Whatever the clock says, as it may have been set: the process that ran when a run changed the files has not read
    them.
    """
    process = inspection.process
    changed = [file.found.identity.ctime_ns / 1e9 for file in inspection.files if file.found is not None]
    if process is None or len(changed) < len(inspection.files):
        return False
    if recorded is not None and recorded.unread_by == process.identity:
        return False
    return max(changed) + _CLOCK_SECONDS < process.started <= machine.now() + _CLOCK_SECONDS


def _generate_specification(target: Target, choice: Choice) -> Generated | None:
    """Return the CDI specification for the driver, and the device nodes to create first."""
    asked = target.settings.toolkit.cdi
    if not asked.enabled and choice.method is Method.HANDLERS:
        return None
    from toolkit_installer.driver import cdi

    generator = cdi.SpecificationGenerator(target.payload, target.settings.toolkit, target.driver)
    try:
        missing = generator.missing_nodes()
        return Generated(asked.path, generator.specification(nodes_to_come=bool(missing)), missing)
    except DriverNotReadyError as error:
        return Generated(asked.path, failure=error)


def _inspect_toolkit(node: Node, target: Target, receipt: Receipt | None) -> ToolkitFacts:
    folder = target.settings.toolkit.folder
    # without a receipt: the leftovers of an earlier installer
    recorded = receipt.toolkit_files if receipt is not None else layout.find_installer_files(node.files.list(folder))
    source = Tree(target.payload.root)
    wanted = layout.list_sources(target.payload)
    names = dict.fromkeys([*wanted, *recorded])
    copies = Copies(node, folder, source)
    # before any content is read, so that a later change does not go unnoticed
    taken = (copies.taken(name, path) for name, path in wanted.items() if path is not None)
    present_before = tuple(each for each in taken if each is not None)
    copied = receipt.copies if receipt is not None and not target.settings.toolkit.verify_payload else ()
    known = {each.name: each.source for each in present_before if each in copied}
    states = {name: inspect_file(node, folder, name, known.get(name)) for name in names}
    present = {name: state for name, state in states.items() if state is not None}

    def in_use() -> bool:
        from toolkit_installer.planning import toolkit_users

        return bool(toolkit_users.list_users(node, folder, installed.list_our_digests(receipt)))

    def named(changing: Collection[str]) -> frozenset[str]:
        from toolkit_installer.planning import files_naming

        naming = files_naming.find_naming_files(node, folder, instead=changing)
        return frozenset(path for each in naming for path in (each.path, node.files.canonical(each.path)))

    # hash only what is compared: a first install has no files there
    to_read = {path for name, path in wanted.items() if path is not None and name in present and name not in known}
    digests = {path: source.digest(path) for path in to_read}
    made = _find_known_content(node, folder, present, receipt)
    return ToolkitFacts(folder, tuple(recorded), present, digests, present_before, made, in_use, named)


def _find_known_content(
    node: Node, folder: str, present: Mapping[str, InstalledFile], receipt: Receipt | None
) -> dict[str, bytes]:
    """Return config.toml by its recipe, if the file still holds what the recipe gave when it was written."""
    standing = present.get(wrappers.CONFIG_NAME)
    contents = receipt.contents if receipt is not None else ()
    known = next((each for each in contents if each.name == wrappers.CONFIG_NAME), None)
    if known is None or known.recipe is None or standing is None or standing.digest != known.sha256:
        return {}
    content = node.files.content(f"{folder}/{wrappers.CONFIG_NAME}")
    return {known.recipe: content} if content is not None and file_records.digest_of(content) == known.sha256 else {}


def inspect_cdi_support(
    node: Node, request: Request, inspection: Inspection, receipt: Receipt | None, folder: str
) -> CdiSupport:
    """Return an engine's CDI support as found; `folder` is for our specification. Raises NodeError."""
    live = inspection.live
    listed = live.handlers.keys() - live.own if live is not None else set()
    base = add_record(CdiSupport(request.target.name, folder=folder), receipt)
    handlers = tuple(sorted({*base.handlers, *(listed & request.served.keys())}))
    return add_answer(node, msgspec.structs.replace(base, handlers=handlers), live, inspection.silence)


def add_record(base: CdiSupport, receipt: Receipt | None) -> CdiSupport:
    """Return `base` with the receipt's facts about its engine."""
    if receipt is None:
        return base
    record = receipt.engine(base.engine)
    return msgspec.structs.replace(
        base,
        recorded=receipt.reads_cdi(base.engine),
        ours=receipt.has_switched_cdi(base.engine),
        handlers=tuple(name for name, _ in record.handlers) if record is not None else (),
    )


def installed_method(receipt: Receipt) -> Method | None:
    """Return the method of the installation, None if no engine was configured or found to read CDI."""
    if not receipt.served_engines():
        return None
    return Method.CDI if receipt.cdi else Method.HANDLERS


def add_answer(node: Node, base: CdiSupport, live: LiveState | None, silence: str) -> CdiSupport:
    """Return `base` with the facts from its engine's present answer. Raises NodeError."""
    if registry.get_row(base.engine).shim_sockets:
        from toolkit_installer.engines.detect import kubelet  # no other engine needs it

        base = msgspec.structs.replace(base, by_shim=kubelet.reaches_docker_by_shim(node))
    if live is None:
        return msgspec.structs.replace(base, silence=silence)
    looked_into = live.cdi_folders or live.cdi_folders_if_on
    reads = any(node.files.canonical(each) == node.files.canonical(base.folder) for each in looked_into)
    return msgspec.structs.replace(
        base,
        version=live.version or "of an unknown release",
        folders=live.cdi_folders,
        if_on=live.cdi_folders_if_on,
        reads_it=reads,
    )


def find_unserved(node: Node, receipt: Receipt | None, engine: EngineRecord, live: LiveState) -> list[str]:
    """Return messages about recorded handlers or CDI that a live engine does not serve. Raises NodeError."""
    wrong = find_mismatches(live, dict(engine.handlers), engine.default)
    if receipt is None or not receipt.reads_cdi(engine.name):
        return wrong
    for file in receipt.specifications:
        base = CdiSupport(engine.name, folder=posixpath.dirname(file.path))
        support = add_answer(node, base, live, "")
        content = node.files.content(file.path)
        said = "CDI is off in it" if support.off else find_obstacle(support)
        if not said and content is None:
            said = f"there is no specification in {file.path}"
        elif not said and content is not None and (why := explain_unreadable(support, content)):
            said = f"{file.path} {why}"
        wrong += [said] if said else []
    return wrong if receipt.specifications else [*wrong, "there is no CDI specification for it"]
