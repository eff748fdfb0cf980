"""Stores the receipt and the original files on the node; recovers files that a killed run was replacing.

Another container, with other mounts, may finish or revert the work, or a process of the node itself. So a receipt on
disk has the node's own paths; the store translates them to those by which this process opens the files, and back. The
toolkit's folder is not translated: engines' files name it, so it must have the same path here.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Mapping

import msgspec

from toolkit_installer import log
from toolkit_installer.documents import changes
from toolkit_installer.engines.api import choose_quarantine, get_adapter
from toolkit_installer.engines.common.serving import PROCESS_NAMES
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError, InstallerError, located
from toolkit_installer.node import processes
from toolkit_installer.node.files import Recovered, swap_name
from toolkit_installer.node.locks import lock_folder
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import PathTranslator
from toolkit_installer.node.root import NodeError, Root, list_trusted_users
from toolkit_installer.node.writing import own_metadata, temporary_name
from toolkit_installer.receipt import schema
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, OriginalFile, Receipt, State
from toolkit_installer.toolkit import layout


def refuse_strangers(node: Node, receipt: Receipt | None, paths: Iterable[str]) -> None:
    """Raise ConfigurationError for files next to those at `paths` that have our names and are not our runs'.

    Recovery would take them for versions that a killed run displaced, and restore them. A killed run left a receipt
    that says so; one that ended left no such files. Raises NodeError.
    """
    if receipt is not None and receipt.state is not State.INSTALLED:
        return
    ours = {file.path: file.known for file in receipt.files()} if receipt is not None else {}
    for path in paths:
        folder, name = os.path.split(path)
        swap = os.path.join(folder, swap_name(name))
        temporary = os.path.join(folder, temporary_name(name))
        status, beside = node.files.own_status(temporary), node.files.own_status(swap)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise _in_the_way(temporary, path)
        regular = beside is not None and stat.S_ISREG(beside.st_mode)
        if beside is not None and not (regular and node.files.digest(swap) in ours.get(path, ())):
            raise _in_the_way(swap, path)


def _in_the_way(path: str, file: str) -> ConfigurationError:
    return ConfigurationError(
        f"is in the way: a new version of {file} gets this name, and no run of this installer left it there",
        path=path,
        hint="look at what it is and who made it; then move it away",
    )


def needs_recovery(node: Node, receipt: Receipt | None, store: str) -> bool:
    """Return whether a killed run left work for `recover`. Only reads. Raises NodeError."""
    if any(node.files.half_made(folder) for folder in _own_folders(receipt, store)):
        return True
    places = [os.path.split(path) for path in (receipt.file_paths() if receipt is not None else ())]
    beside = (os.path.join(folder, named(name)) for folder, name in places for named in (temporary_name, swap_name))
    return any(node.files.own_status(path) is not None for path in beside)


def recover(node: Node, receipt: Receipt | None, store: str) -> None:
    """Make each managed file one whole version, and remove temporary files next to it and in our own folders.

    `store`: the receipt's folder. Raises NodeError, ConfigurationError.
    """
    sweep(node, receipt, store)
    if receipt is None:
        return
    for engine in receipt.engines:
        recover_engine(node, engine, store)
    recover_specifications(node, receipt)


def sweep(node: Node, receipt: Receipt | None, store: str) -> None:
    """Remove temporary files from our own folders. Raises NodeError."""
    for folder in _own_folders(receipt, store):
        node.files.sweep_folder(folder)


def _own_folders(receipt: Receipt | None, store: str) -> list[str]:
    if receipt is None:
        return [store]
    return [store, *(os.path.join(receipt.toolkit_folder, inner) for inner in ("", *layout.FOLDERS))]


def recover_engine(node: Node, engine: EngineRecord, store: str) -> None:
    """Recover an engine's files. Raises as `recover` does."""
    for file in engine.files:
        _recover(node, file, choose_quarantine(get_adapter(engine.name), store))


def recover_specifications(node: Node, receipt: Receipt) -> None:
    """Recover the CDI specifications. Raises as `recover` does."""
    for file in receipt.specifications:
        _recover(node, file, None)


def _recover(node: Node, file: FileRecord, quarantine_folder: str | None) -> None:
    """Recover one file; another program's version that must not stay in the folder is quarantined."""
    recovered = node.files.recover(file.path, file.known, quarantine_folder)
    if recovered is Recovered.REMOVED:
        log.get().info("Tidied up", key="tidied-up", file=file.path, what=recovered)
    elif recovered is not Recovered.NOTHING:
        log.get().warning("Saved an edit", key="edit-saved", file=file.path, what=recovered)


_RECEIPT = schema.FILE
_ORIGINALS = "originals"
_REQUEST = "order.json"
_ATTEMPTS = 10
"""How often creating the folder is tried while another instance creates or removes it."""
_PRIVATE_FOLDER = 0o700
_PRIVATE_FILE = 0o600


class ReceiptStore:
    """The folder `<install dir>/.toolkit-installer`: mode 0700, its files 0600."""

    def __init__(self, node: Node, install_dir: str) -> None:
        self._node = node
        self.files = node.files
        self.folder = f"{self.files.canonical(install_dir)}/{schema.FOLDER}"
        self.lock_fd: int | None = None
        """The descriptor that holds the folder's lock, perhaps inherited; None while it is not locked."""

    def exists(self) -> bool:
        """Return whether the folder exists."""
        return self.files.own_status(self.folder) is not None

    def require_private(self) -> None:
        """Raise ConfigurationError if others can write to the folder: its content decides what root writes."""
        status = self.files.own_status(self.folder)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigurationError("is not a folder", path=self.folder, hint="remove it")
        if status.st_uid not in list_trusted_users() or status.st_mode & 0o022:
            raise ConfigurationError(
                "others can write to the receipt's folder, so the receipt cannot be trusted",
                path=self.folder,
                hint="look at who made it; remove it if it is not this installer's",
            )

    def lock(self) -> None:
        """Lock the folder, which must exist. Raises AlreadyRunningError, ConfigurationError."""
        if self.lock_fd is not None and self.files.is_at(self.folder, self.lock_fd):
            return  # somebody may have removed the folder that is locked, and made another one
        self.require_private()
        fd = lock_folder(self.files, self.folder, private=True)
        if self.lock_fd is not None:
            os.close(self.lock_fd)
        self.lock_fd = fd

    def prepare(self) -> tuple[str, ...]:
        """Create the folder if it is missing, and lock it; return its parent folders that a run created.

        They are in order, the outermost first. Raises AlreadyRunningError, ConfigurationError, NodeError.
        """
        install_dir = os.path.dirname(self.folder)
        ours = self.files.folders_of_ours(install_dir)
        for _ in range(_ATTEMPTS - 1):
            try:
                self._prepare(install_dir)
            except NodeError as error:
                if error.number not in (errno.ENOENT, errno.EEXIST):
                    raise
                # another instance makes or removes the same folder just now: it is made anew, or met at its lock
            else:
                return ours
        self._prepare(install_dir)
        return ours

    def _prepare(self, install_dir: str) -> None:
        created: tuple[str, ...] = ()
        try:
            created = self.files.make_folders(install_dir)
            created += self.files.make_folders(self.folder, _PRIVATE_FOLDER)
            self.lock()
        except AlreadyRunningError:
            raise  # they are the other instance's by now
        except InstallerError:
            for folder in reversed(created):
                self.files.remove_folder(folder)
            raise

    def load(self) -> Receipt | None:
        """Return the receipt with paths as seen from here, None if there is none.

        Raises ConfigurationError for a receipt that cannot be used.
        """
        self.require_private()
        path = f"{self.folder}/{_RECEIPT}"
        found = self.files.read_file(path)
        if found is None:
            return None
        with located(path):
            return _translate_from_node(self._node, schema.decode(found.content))

    def save(self, receipt: Receipt, originals: Mapping[str, bytes]) -> None:
        """Make the receipt durable, after the originals that it names.

        Raises ConfigurationError before anything is written for a receipt that `load` would refuse.
        """
        content = self.encode_for_node(receipt)
        for digest in sorted(receipt.originals() & originals.keys()):
            path = f"{self.folder}/{_ORIGINALS}/{digest}"
            if self.files.digest(path) != digest:
                self.files.make_folders(os.path.dirname(path), _PRIVATE_FOLDER)
                self._write(path, originals[digest])
            else:  # by a run that may have been killed before its entry was on the disk
                self.files.flush_folder(os.path.dirname(path))
        self._write(f"{self.folder}/{_RECEIPT}", content)

    def encode_for_node(self, receipt: Receipt) -> bytes:
        """Return the receipt's text, with the node's own paths.

        Raises ConfigurationError for a receipt that `load` would refuse, and for a file whose path on the node is
        unknown.
        """
        return self._encode_readable(_translate_to_node(self._node, receipt))

    def require_recordable(self, receipt: Receipt) -> None:
        """Raise ConfigurationError as `encode_for_node` does.

        Folders are omitted: they are created for the files, and have paths on the node if those have.
        """
        self._encode_readable(receipt)
        self.encode_for_node(msgspec.structs.replace(receipt, folders=(), pid_folders=()))

    def _encode_readable(self, receipt: Receipt) -> bytes:
        content = schema.encode(receipt)
        with located(f"{self.folder}/{_RECEIPT}"):
            schema.require_readable(content, receipt)
        return content

    def tidy(self, receipt: Receipt) -> None:
        """Remove the originals that the receipt does not name, and their folder if it names none. Raises NodeError."""
        folder = f"{self.folder}/{_ORIGINALS}"
        wanted = receipt.originals()
        for name in self.files.list(folder):
            if name not in wanted:
                self.files.remove(f"{folder}/{name}")
        if not wanted:
            self.files.remove_folder(folder)

    def is_tidy(self, receipt: Receipt) -> bool:
        """Return whether the receipt names all originals: a run may have been killed before it removed the others.

        Raises NodeError.
        """
        folder = f"{self.folder}/{_ORIGINALS}"
        wanted = receipt.originals()
        return wanted.issuperset(self.files.list(folder)) and (bool(wanted) or self.files.own_status(folder) is None)

    def load_original(self, file: OriginalFile) -> bytes:
        """Return an original's content. Raises ConfigurationError if it is missing or damaged."""
        path = self.original_path(file)
        found = self.files.read_file(path)
        if found is None or changes.sha256(found.content) != file.sha256:
            raise ConfigurationError(
                "the copy of the original file is missing or damaged",
                path=path,
                hint="move the receipt's folder away and run `uninstall`, with the run's --runtime and --config, if "
                "it had them: what is ours is recognised without it",
            )
        return found.content

    def original_path(self, file: OriginalFile) -> str:
        """Return the path of an original's content."""
        return f"{self.folder}/{_ORIGINALS}/{file.sha256}"

    def leave_request(self, text: bytes) -> None:
        """Write a request of `uninstall` to the run that holds the lock."""
        self._write(f"{self.folder}/{_REQUEST}", text)

    def take_request(self) -> bytes | None:
        """Return the request and remove it; None if there is none."""
        path = f"{self.folder}/{_REQUEST}"
        found = self.files.read_file(path)
        if found is not None:
            self.files.remove(path)
            return found.content
        return None

    def forget(self) -> None:
        """Remove a folder without a receipt, and its parent folders that a run created. Raises NodeError."""
        self.clear()
        for folder in reversed(self.files.folders_of_ours(os.path.dirname(self.folder))):
            self.files.remove_folder(folder)

    def clear(self) -> None:
        """Remove the receipt, then the originals, then the folder."""
        self.files.remove(f"{self.folder}/{_RECEIPT}")
        for name in self.files.list(f"{self.folder}/{_ORIGINALS}"):
            self.files.remove(f"{self.folder}/{_ORIGINALS}/{name}")
        self.files.remove_folder(f"{self.folder}/{_ORIGINALS}")
        for name in self.files.list(self.folder):
            self.files.remove(f"{self.folder}/{name}")
        self.files.remove_folder(self.folder)
        if self.lock_fd is not None:
            os.close(self.lock_fd)
            self.lock_fd = None

    def _write(self, path: str, content: bytes) -> None:
        self.files.overwrite(path, content, own_metadata(_PRIVATE_FILE))


def locked(store: ReceiptStore) -> bool:
    """Lock the receipt's folder; return False if there is none. Raises AlreadyRunningError, ConfigurationError."""
    try:
        store.lock()
    except NodeError as error:
        if error.number != errno.ENOENT:
            raise
        return False
    return True


_MOUNT = "mount the node's / at /host (`--host-root`), read-only is enough, or start the container with `hostPID: true`"
OTHER_WAY = (
    "nothing was changed, and the receipt stays; run this with the node's / mounted and `--node-root`, or in a "
    "container with the mounts of the run that wrote the receipt"
)
"""What to do where this container does not see what a receipt names."""
_Move = Callable[[str], str]


def _translate_to_node(node: Node, receipt: Receipt) -> Receipt:
    """Return a receipt as it is written: with the node's own paths.

    Raises ConfigurationError for a file of an engine, and for a specification, that the node has no name for.
    """
    if node.whole:
        return receipt
    places = PathTranslator(node)
    _refuse_folder_elsewhere(places, receipt.toolkit_folder)

    def known(path: str) -> str:
        return places.on_node(path) or path

    def required(path: str) -> str:
        name = places.on_node(path)
        if name is None and not _is_the_node(node):
            raise _unknown_on_node(path)
        return name or path

    return _replace_paths(receipt, file=required, socket=known, other=known)


def _translate_from_node(node: Node, receipt: Receipt) -> Receipt:
    """Return a receipt with the paths by which this process opens what it names.

    Raises ConfigurationError for a file of an engine, and for a specification, that is not seen here.
    """
    if node.whole:
        return receipt
    places = PathTranslator(node)

    def known(path: str) -> str:
        return places.seen_here(path) or path

    def socket(path: str) -> str:
        return places.reachable(path) or path

    def required(path: str) -> str:
        here = places.seen_here(path, given=False)
        if here is None and not _is_the_node(node):
            raise ConfigurationError(f"names {path} of the node, which is not seen in this container", hint=OTHER_WAY)
        return here or path

    return _replace_paths(receipt, file=required, socket=socket, other=known)


def _replace_paths(receipt: Receipt, *, file: _Move, socket: _Move, other: _Move) -> Receipt:
    """Return a receipt with other paths: of engines' files and specifications, of sockets, and of all else. Pure."""

    def moved_files(files: tuple[FileRecord, ...]) -> tuple[FileRecord, ...]:
        return tuple(msgspec.structs.replace(each, path=file(each.path)) for each in files)

    def moved_engines(engines: tuple[EngineRecord, ...]) -> tuple[EngineRecord, ...]:
        places = ({"socket": socket(each.socket), "files": moved_files(each.files)} for each in engines)
        return tuple(msgspec.structs.replace(each, **moved) for each, moved in zip(engines, places, strict=True))

    moved = {
        "folders": tuple(map(other, receipt.folders)),
        "pid_file": other(receipt.pid_file),
        "pid_folders": tuple(map(other, receipt.pid_folders)),
        "engines": moved_engines(receipt.engines),
        "specifications": moved_files(receipt.specifications),
        "cdi": moved_engines(receipt.cdi),
    }
    return msgspec.structs.replace(receipt, **moved)


def _is_the_node(node: Node) -> bool:
    """Tell whether an engine runs in this very container: then it is the node, for that."""
    engines = processes.find_by_name(frozenset[str]().union(*PROCESS_NAMES.values()))
    return any(processes.has_root(each, Root(node.root.folder)) for each in engines)


def _unknown_on_node(path: str) -> ConfigurationError:
    """Return the error for a file that would be written, and that the node has no name for."""
    return ConfigurationError(
        "lies in this container, and what the node calls it is not known: nobody else could take it back",
        path=path,
        hint=f"nothing was changed; mount the node's {posixpath.dirname(path)} here (if that is a symlink on the node, "
        f"the folder that it leads to, at that folder's own path), and {_MOUNT}; or mount the node's / and use "
        "--node-root",
    )


def _refuse_folder_elsewhere(places: PathTranslator, folder: str) -> None:
    """Raise ConfigurationError where the node is known to call the toolkit's folder otherwise: handlers name it."""
    name = places.on_node(folder)
    if name is not None and name != folder:
        raise ConfigurationError(
            f"is the node's {name}, and engines would be told to run {folder}/…, which the node does not have",
            path=folder,
            hint=f"nothing was changed; mount the node's {posixpath.dirname(name)} at the same path here, and name "
            "that with --toolkit-install-dir",
        )
