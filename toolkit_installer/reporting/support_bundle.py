"""The parts of a support bundle: configurations, receipt, toolkit, logs, kernel; packed into one archive. Reads only.

The parts are independent: a part that cannot be read is reported and does not affect the others. What is masked in a
part depends on the kind of the part, such as another program's configuration file.
"""

from __future__ import annotations

import enum
import gzip
import io
import json
import stat
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from toolkit_installer import foreign_words
from toolkit_installer.documents import diff
from toolkit_installer.documents.masking import mask
from toolkit_installer.engines import registry
from toolkit_installer.engines.api import Inspection, LiveState, get_adapter
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.detect import decide
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node import machine
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import schema, trust
from toolkit_installer.receipt.schema import FileRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import versions
from toolkit_installer.settings import Settings
from toolkit_installer.toolkit import wrappers

LOG_LINES = 300
_OWN_UNIT = "toolkit-installer.service"
_KUBELET_UNIT = "kubelet.service"
_SECRET_FIELDS = frozenset({"ours", "prior", "xattrs", "sha256", "written"})
"""Fields of the receipt with parts of engines' files, or with digests, against which passwords could be tried."""

ABOUT = """This is a report of toolkit-installer about one node, for whoever is to find out what is wrong with it.

Of other people's files, command lines and variables, the values of keys that are known to be harmless are shown, and
**** stands for all others. Services' logs are shown but for these values. Look through the files all the same before
you hand them on: logs may say what stands in no file, and there are names of hosts, registries and files.

status.json     how the node stands (docs/status.md)
diagnose.txt    illnesses of the node: file and line, what each causes, what ends it (docs/diagnose.md)
plan.txt        what `run`, with the options and variables that `report` was given, would change
detect.json     which engine is found, and why
about.json      versions, and the time
missing.txt     which parts could not be made, and why; absent if there are all
engines/        of each engine: what it answers, its files, and how they differ from before the installation
toolkit/        the toolkit's configuration, and a list of its files
receipt.txt     what the installer remembers; values from engines' files are left out
journal/        the last lines of the services' logs
kernel.txt      what the kernel says of itself
"""


class TextKind(enum.Enum):
    """The kinds of a report's texts, which decide what is masked."""

    OWN = "this program's own words"
    CLEAN = "this program's own words, with values that are shown alone"
    FILE = "somebody's file"
    WORDS = "a program's words"


_SHOWN: Mapping[TextKind, Callable[[str], str]] = {
    TextKind.OWN: foreign_words.mask_own_text,
    TextKind.CLEAN: str,
    TextKind.FILE: mask,
    TextKind.WORDS: foreign_words.mask_program_text,
}


class BundleTexts:
    """A collection of a report's texts, by file name, and of those that could not be made."""

    def __init__(self) -> None:
        self.texts: dict[str, tuple[TextKind, str]] = {}
        self.missing: dict[str, str] = {}

    def add(self, name: str, part: TextKind, make: Callable[[], str | None]) -> None:
        """Make and store a text; `make` returns None if there is nothing to report."""
        try:
            text = make()
        except (InstallerError, OSError) as error:
            self.missing[name] = str(error)
            return
        if text is not None:
            self.texts[name] = (part, text)

    def mask_texts(self) -> dict[str, str]:
        """Return all texts with secrets masked, and a list of the missing ones."""
        if self.missing:
            self.texts["missing.txt"] = (
                TextKind.OWN,
                "".join(f"{name}: {why}\n" for name, why in self.missing.items()),
            )
        return {"README.txt": ABOUT, **{name: _SHOWN[part](text) for name, (part, text) in self.texts.items()}}


def explain_blocked_queries(node: Node, settings: Settings, receipt: Receipt | None) -> str | None:
    """Return why the engines must not be queried: a request would start one that was stopped. None: all may be."""
    sockets = {(record.name, record.socket) for record in (receipt.served_engines() if receipt is not None else ())}
    for row in registry.ENGINES:
        if row.started_by_socket:
            sockets.add((row.name, settings.settings_of(row.name).socket or row.distributions[-1].socket))
    stopped = sorted(socket for name, socket in sockets if serving.is_socket_activated(node, name, socket))
    if not stopped:
        return None
    return f"the engine on {', '.join(stopped)} does not run, and systemd would start it for whoever asks it"


def collect_parts(node: Node, settings: Settings, store: ReceiptStore, bundle: BundleTexts) -> None:
    """Add all parts to `bundle` that need only the node."""
    receipt: Receipt | None = None
    try:
        receipt = trust.load(node, store)
    except InstallerError as error:
        bundle.missing["receipt.txt"] = str(error)
    bundle.add("about.json", TextKind.OWN, lambda: _format_json(_collect_versions(node)))
    bundle.add(
        "kernel.txt",
        TextKind.WORDS,
        lambda: "".join(f"=== {name}\n{text}\n" for name, text in machine.collect_facts().items()),
    )
    bundle.add(
        "receipt.txt", TextKind.OWN, lambda: _format_json(_mask_receipt(receipt)) if receipt is not None else None
    )
    folder = receipt.toolkit_folder if receipt is not None else settings.toolkit.folder
    bundle.add("toolkit/files.txt", TextKind.OWN, lambda: _list_folder(node, folder))
    bundle.add("toolkit/config.toml", TextKind.FILE, partial(_read_file, node, f"{folder}/{wrappers.CONFIG_NAME}"))
    units = _collect_engines(node, settings, store, receipt, bundle)
    for unit in dict.fromkeys([*units, _KUBELET_UNIT, _OWN_UNIT]):
        bundle.add(f"journal/{unit}.txt", TextKind.WORDS, partial(node.services.log, unit, LOG_LINES))


def _collect_engines(
    node: Node, settings: Settings, store: ReceiptStore, receipt: Receipt | None, bundle: BundleTexts
) -> list[str]:
    """Add each engine's answer and files; return the units that may run them."""
    targets: tuple[EngineTarget, ...] = ()
    stopped = explain_blocked_queries(node, settings, receipt)
    try:
        recorded = [each.name for each in receipt.served_engines()] if receipt is not None else []
        targets = decide.detect_engines(node, settings, recorded=recorded) if stopped is None else ()
    except ConfigurationError as error:
        bundle.missing["engines"] = str(error)
    if stopped is not None:
        bundle.missing["engines"] = stopped
    units = [unit for name in registry.names() for unit in registry.find_usual_distribution(name).units]
    for target in targets:
        units += target.distribution.units if target.distribution is not None else ()
        try:
            inspection = get_adapter(target.name).inspect(node, target)
        except InstallerError as error:
            bundle.missing[f"engines/{target.name}"] = str(error)
            continue
        units += [unit for unit in [inspection.process.unit if inspection.process is not None else None] if unit]
        _add_inspection(f"engines/{target.name}", inspection, bundle)
    for record in receipt.engines if receipt is not None else ():
        for file in record.files:
            place = f"engines/{record.name}"
            bundle.add(f"{place}/files{file.path}", TextKind.FILE, partial(_read_file, node, file.path))
            bundle.add(
                f"{place}/since-before{file.path}.diff", TextKind.OWN, partial(_diff_original, node, store, file)
            )
    return units


def _add_inspection(place: str, inspection: Inspection, bundle: BundleTexts) -> None:
    """Add an engine's answer and its files, including imported ones."""
    answer = _describe_live(inspection.live) if inspection.live is not None else {"silent": inspection.silence}
    bundle.add(f"{place}/answer.json", TextKind.OWN, lambda: _format_json({"socket": inspection.socket, **answer}))
    files = [(file.path, file.content) for file in inspection.files]
    for path, content in [*files, *inspection.imported]:
        bundle.add(f"{place}/files{path}", TextKind.FILE, partial(_decode_text, content))


def _describe_live(live: LiveState) -> dict[str, Any]:
    process = live.process
    return {
        "version": live.version,
        "handlers": {name: live.handlers[name] for name in sorted(live.handlers)},
        "default": live.default,
        "own": sorted(live.own),
        "process": None if process is None else {"pid": process.pid, "name": process.name, "unit": process.unit},
    }


def _diff_original(node: Node, store: ReceiptStore, file: FileRecord) -> str | None:
    """Return the difference between a file and its version before the installation."""
    before = store.load_original(file.before) if file.before is not None else None
    return diff.format_diff(file.path, before, node.files.content(file.path)) or None


def _collect_versions(node: Node) -> dict[str, Any]:
    release = node.files.content("/etc/os-release") or node.files.content("/usr/lib/os-release")
    return {
        "toolkit-installer": versions.own_version(),
        "payload": versions.describe_image_payload(),
        "python": sys.version,
        "made": machine.text(machine.now()),
        "node root": node.root.folder,
        "os-release": (_decode_text(release) or "").splitlines(),
    }


def _mask_receipt(receipt: Receipt) -> object:
    return _omit_fields(json.loads(schema.encode(receipt)), _SECRET_FIELDS)


def _omit_fields(value: Any, names: Iterable[str]) -> Any:
    """Return a JSON value in which the values of these names are left out."""
    if isinstance(value, dict):
        return {
            key: "(left out)" if key in names and item else _omit_fields(item, names) for key, item in value.items()
        }
    return [_omit_fields(item, names) for item in value] if isinstance(value, list) else value


def _list_folder(node: Node, folder: str) -> str | None:
    """Return one line for each file of the folder: mode, owner, size, time and name."""
    lines = []
    for name in sorted(node.files.list(folder)):
        status = node.files.own_status(f"{folder}/{name}")
        if status is not None:
            mode, when = stat.filemode(status.st_mode), machine.text(status.st_mtime)
            lines.append(f"{mode} {status.st_uid}:{status.st_gid} {status.st_size:>10} {when} {name}\n")
    return "".join(lines) if lines else None


def _read_file(node: Node, path: str) -> str | None:
    return _decode_text(node.files.content(path))


def _decode_text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="backslashreplace")


def _format_json(value: object) -> str:
    return f"{json.dumps(value, indent=2)}\n"


FOLDER = "toolkit-installer-report"
"""The folder in the archive with all files."""
LONGEST = 1 << 20
"""The limit of a text, in characters. The end of a longer text is kept: the last lines of a log matter most."""
_CUT = "(the beginning was cut off)\n"
_MODE = 0o600


def truncate_text(text: str) -> str:
    """Return a text for the bundle: at most its last LONGEST characters."""
    return text if len(text) <= LONGEST else _CUT + text[-LONGEST:]


def pack_archive(texts: Mapping[str, str], when: float) -> bytes:
    """Return a tar.gz of files with these names and texts; `when` is their time, in seconds since 1970.

    The same texts and time make the same bytes.
    """
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=when) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(texts):
            content = truncate_text(texts[name]).encode(errors="backslashreplace")
            member = tarfile.TarInfo(f"{FOLDER}/{name.lstrip('/')}")
            member.size, member.mtime, member.mode = len(content), int(when), _MODE
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()
