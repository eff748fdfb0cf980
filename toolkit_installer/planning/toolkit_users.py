"""Find what still needs the toolkit's binaries: containers, handlers that engines offer, and CDI specifications.

A container is stopped and deleted through the runtime that started it, so the runtime has to stay while the engine
keeps the container's bundle, or a monitor of it runs. A container that only an engine's database has, such as a stopped
pod (`docker ps --all`), is deleted without the runtime, and needs its handler before it can be started again: it does
not count.

Containers are reported by their pod and namespace, or by docker's name for them. Those names come from the author of
the pod: one is used only if it has the form that Kubernetes or docker requires, so that no other text reaches a log. A
name that cannot be read is left out, and stops nothing.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from toolkit_installer import log
from toolkit_installer.documents import changes
from toolkit_installer.engines.api import EngineSilentError, LiveState, get_adapter
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.common.serving import EngineBrokenError
from toolkit_installer.engines.detect.unit_files import TABLE
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes, sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import flag_value
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import Reader, read_bounded
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.node.trust import TrustLevel
from toolkit_installer.planning import files_naming
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.settings import EngineName

_QUERY_SECONDS = 5.0


def is_still_needed(node: Node, folder: str, engines: Sequence[EngineRecord]) -> bool:
    """Return whether something still needs the toolkit in `folder`, and log what does. Raises NodeError.

    The caller has to remove our own specification first.

    `engines`: those that had handlers, which they may still offer, whatever their files say by now. All other engines
    on the node are queried as well: another program may have registered the toolkit with them.
    """
    others, closed = _list_other_engines(node, engines)
    live = [words for record in (*engines, *others) for words in _list_engine_users(node, folder, record)]
    found = [*live, *closed, *_find_hidden_offers(node, folder), *list_users(node, folder)]
    for holder in found:
        log.get().warning(
            "The toolkit is still needed; `uninstall` removes it later", key="toolkit-needed", folder=folder, why=holder
        )
    return bool(found)


@Query(ignored=("ours",))
def list_users(node: Node, folder: str, ours: Mapping[str, Container[str]] | None = None) -> list[str]:
    """Return the containers and specifications that refer to the toolkit in `folder`, as text. Raises NodeError.

    `ours`: specifications to ignore, by path, as long as they have one of these SHA-256.
    """
    return [*list_container_users(node, folder), *_list_specification_users(node, folder, ours or {})]


def _list_other_engines(node: Node, known: Sequence[EngineRecord]) -> tuple[list[EngineRecord], list[str]]:
    """Return engines on usual sockets without a record, and texts about unreadable ones. Raises NodeError."""
    seen = {node.files.canonical(record.socket) for record in known}
    found, unseen = [], []
    usual = [(row.engine, row.socket) for row in TABLE if row.refused is None]
    for engine, socket in dict.fromkeys((*usual, *serving.find_served_sockets(node))):
        try:
            place = node.files.canonical(socket)
        except NodeError as error:
            if error.number != errno.EACCES:
                raise
            # a user's own docker, and root's containerd next to it
            unseen.append(f"{engine} may listen on {socket} (this user may not look there, root may) and offer it")
            continue
        if place not in seen and sockets.is_listening(node.root, socket):
            found.append(EngineRecord(engine, socket, None, (), None, ()))
        seen.add(place)
    return found, unseen


def _find_hidden_offers(node: Node, folder: str) -> list[str]:
    """Return the handlers that engines offer with a wiped command line and no socket of a usual name.

    All their sockets are tried: an engine has several, and answers on one of them.
    """
    found = []
    for engine, process, bound in serving.find_unnamed_engines(node):
        for socket in bound:
            try:
                live = get_adapter(engine).ask(node, socket, _QUERY_SECONDS)
            except EngineBrokenError:
                break  # it runs without its CRI, and offers no handler
            except EngineSilentError:
                continue
            found += _offered(engine, live, folder, {})
            break
        else:
            # an engine without a socket yet reads its files when it starts
            words = "has wiped its command line and answers on none of its sockets: it may still offer the handlers"
            found += [f"{process.name} (PID {process.pid}) {words}"] if bound else []
    return found


def _list_engine_users(node: Node, folder: str, record: EngineRecord) -> list[str]:
    """Return the handlers in the folder that a live engine offers, or why that is unknown."""
    try:
        live = get_adapter(record.name).ask(node, record.socket, _QUERY_SECONDS)
    except EngineBrokenError:
        return []  # it runs without its CRI, and offers no handler; its containers are searched separately
    except EngineSilentError:
        if not sockets.is_listening(node.root, record.socket):
            return []  # it reads its files when it starts
        return [f"{record.name} listens on {record.socket} and does not answer: it may still offer the handlers"]
    return _offered(record.name, live, folder, dict(record.handlers))


def _offered(engine: EngineName, live: LiveState, folder: str, ours: Mapping[str, str]) -> list[str]:
    """Return the handlers in the folder that an engine lists, or that its containers are not visible."""
    if live.process is None:
        return [f"the containers of {engine} cannot be seen from here (hostPID: true), and may run with it"]
    return [
        f"{engine} still offers the handler {name}: restart it"
        for name, path in live.handlers.items()
        if is_beneath(path or ours.get(name), folder) and name not in live.own
    ]


def _list_specification_users(node: Node, folder: str, ours: Mapping[str, Container[str]]) -> list[str]:
    """Return the CDI specifications that name something in the folder, as a hook or a mount."""
    found: dict[str, str] = {}
    for files in node.readers():
        for place in files_naming.CDI_FOLDERS:
            for path in (f"{place}/{name}" for name in files.list(place) if name.endswith((".json", ".yaml"))):
                if not files.is_file(path):
                    continue
                try:
                    specification = files.read_file(path)
                except ConfigurationError as error:
                    found[path] = f"the CDI specification {path} cannot be read, and may name it: {error}"
                    continue
                if specification is None or not files_naming.names_toolkit(files, folder, specification.content):
                    continue
                digest = changes.sha256(specification.content)
                if digest not in ours.get(specification.path, ()):
                    found[path] = f"the CDI specification {path} names it"
    return list(found.values())


STATE_FOLDERS = tuple(dict.fromkeys(row.state for row in TABLE if row.state is not None))
"""containerd's `state`: its own, and those of docker and of the distributions that bring one along."""

TASKS = "io.containerd.runtime.v2.task"
"""Below a state folder: NAMESPACE/CONTAINER is the bundle of a container that is not deleted."""
RUNTIME_FILE = "runtime"
"""In a bundle: the `BinaryName` that started the container; its shim, or the shim's successor, deletes it so."""

_LONGEST_NAME = 64 * 1024
"""Bytes. Far more than the path of a runtime takes."""

SHIM = "containerd-shim"
"""The first shim's name, and the prefix of its successors' names."""
_RUNC_ROOT = "runtime-runc"
"""Where docker up to 19.03 has runc keep its containers; a handler's are in `runtime-HANDLER`."""
MONITOR = "conmon"


class _ExistingContainer(msgspec.Struct, frozen=True):
    """A container that is not deleted. `runtime` is None if unknown.

    `pid` is the PID of its shim or monitor, or of another shim of the same engine; None if there is no such process.
    """

    name: str
    runtime: str | None
    pid: int | None
    told_by: str
    bundle: Bundle | None = None

    @property
    def words(self) -> str:
        """The container as text, with its pod or docker's name for it."""
        return f"the container {self.name}{find_name(self.name, self.bundle).words} ({self.told_by})"


def list_container_users(node: Node, folder: str) -> list[str]:
    """Return the containers that are stopped and deleted through a runtime in the folder, as text, each once."""
    needed: dict[str, str] = {}
    # first those with a shim, as these have a PID and bundles do not
    for container in [*_find_watched(), *_bundles(node)]:
        if container.pid is not None and has_other_root(node, container.pid, container.runtime or folder):
            continue  # in a pod, any process may be root's and named like a shim
        if container.runtime is None:
            needed.setdefault(container.name, f"{container.words} may run with it")
        elif is_beneath(container.runtime, folder) and is_same_file(node, container.pid, container.runtime):
            needed.setdefault(container.name, f"{container.words} runs with {container.runtime}")
    return list(needed.values())


def _find_watched() -> list[_ExistingContainer]:
    """Return the containers with a live shim or conmon on the whole machine, then those of the same engines."""
    found: list[_ExistingContainer] = []
    engines: dict[tuple[int, int], int] = {}
    for pid, name, standing in processes.find_matching(lambda name: name.startswith(SHIM) or name == MONITOR):
        if standing is TrustLevel.UNSEEN:  # root's, and this installer runs as a user
            found.append(_hidden(pid))
            continue
        try:
            seen = processes.inspect_visible(pid)
            arguments = list(seen.arguments) if seen is not None else []
            own = _find_monitor_container(pid, arguments) if name == MONITOR else _find_shim_container(pid, arguments)
            if seen is not None and seen.hidden and not own:
                own = [_ExistingContainer(f"of PID {pid}", None, pid, "whose command line is wiped")]
            found += own
            if name != MONITOR:
                around = os.stat(f"/proc/{pid}/cwd/..")  # the folder around the shim's bundle
                engines.setdefault((around.st_dev, around.st_ino), pid)
        except PermissionError:
            found.append(_hidden(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile, and needs nothing
    return [*found, *(container for pid in engines.values() for container in _find_siblings(pid))]


def _hidden(pid: int) -> _ExistingContainer:
    return _ExistingContainer(f"of PID {pid}", None, pid, "this user may not look, root may")


def _find_shim_container(pid: int, arguments: list[str]) -> list[_ExistingContainer]:
    """Return the container in whose bundle a containerd shim works; of a pod, the first. Raises PermissionError."""
    place = f"/proc/{pid}/cwd"
    try:
        name = os.path.basename(os.readlink(place))
    except (FileNotFoundError, ProcessLookupError):
        return []  # it ended meanwhile
    runtime = read_text(f"{place}/{RUNTIME_FILE}")
    if runtime is not None:
        return [_ExistingContainer(name, runtime, pid, f"PID {pid}", Bundle(place, f"/proc/{pid}/root"))]
    workdir = flag_value(arguments, "-workdir")
    if workdir is None:
        return []  # it has not started its container yet
    # the shim of containerd before 1.3 and docker before 20.10: only its containerd knows the runtime
    if os.path.basename(flag_value(arguments, "-runtime-root") or "") == _RUNC_ROOT:
        return []
    return [_ExistingContainer(os.path.basename(workdir), None, pid, f"PID {pid}")]


def _find_siblings(pid: int) -> list[_ExistingContainer]:
    """Return the containers of the shim's engine: the rest of its pod, and those whose own shim has died."""
    place = f"/proc/{pid}/cwd"
    try:
        tasks = os.path.dirname(os.path.dirname(os.readlink(place)))
        names = os.listdir(f"{place}/..") if os.path.basename(tasks) == TASKS else []
    except OSError:
        return []  # it ended meanwhile
    found = ((name, read_text(f"{place}/../{name}/{RUNTIME_FILE}")) for name in names)
    return [
        _ExistingContainer(name, runtime, pid, "its bundle is there", Bundle(f"{place}/../{name}", f"/proc/{pid}/root"))
        for name, runtime in found
        if runtime is not None
    ]


def read_text(path: str) -> str | None:
    """Return a small file's text; None if it is missing, too large, or not a regular file."""
    try:
        return read_bounded(path, _LONGEST_NAME).decode(errors="replace").strip()
    except (OSError, ConfigurationError):
        return None


def _find_monitor_container(pid: int, arguments: list[str]) -> list[_ExistingContainer]:
    """Return the container of a conmon (conmon(8))."""
    runtime = flag_value(arguments, "-r", "--runtime")
    if runtime is None:
        return []
    root = f"/proc/{pid}/root"
    folder = flag_value(arguments, "-b", "--bundle")
    bundle = Bundle(f"{root}{folder}", root) if folder is not None and posixpath.isabs(folder) else None
    return [_ExistingContainer(flag_value(arguments, "-c", "--cid") or "", runtime, pid, f"PID {pid}", bundle)]


def _bundles(node: Node) -> Iterator[_ExistingContainer]:
    """Yield the containers with bundles in the usual places, even without a running engine or shim."""
    for files in node.readers():
        for state in STATE_FOLDERS:
            try:
                yield from _bundles_below(files, posixpath.join(state, TASKS))
            except NodeError as error:
                if error.number != errno.EACCES:
                    raise
                # a user's own docker, and another user's next to it
                yield _ExistingContainer(f"below {state}", None, None, "this user may not look there, root may")


def _bundles_below(files: Reader, tasks: str) -> Iterator[_ExistingContainer]:
    for bundle in (
        posixpath.join(tasks, namespace, name)
        for namespace in files.list(tasks)
        for name in files.list(posixpath.join(tasks, namespace))
    ):
        found = files.read_file(posixpath.join(bundle, RUNTIME_FILE))
        if found is not None:
            runtime = found.content.decode(errors="replace").strip()
            place = Bundle(files.root.outside(files.canonical(bundle)), files.root.folder)
            yield _ExistingContainer(posixpath.basename(bundle), runtime, None, f"its bundle {bundle} is there", place)


def has_other_root(node: Node, pid: int, path: str) -> bool:
    """Return whether the process has a `/` of its own without `path`, so that it cannot run that file."""
    try:
        if Reader(Root(f"/proc/{pid}/root")).status(path) is not None:
            return False
        own = os.stat(f"/proc/{pid}/root/")
        homes = (node.root.folder, node.programs.root.folder, "/")
        return not any(os.path.samestat(own, os.stat(home)) for home in homes)
    except (OSError, NodeError):
        return False  # it ended meanwhile, or may not be inspected: unknown


def is_same_file(node: Node, pid: int | None, path: str) -> bool:
    """Return whether the process's runtime is the file on this node, not another one with the same path."""
    if pid is None:
        return True
    try:
        theirs = os.stat(f"/proc/{pid}/root{path}")
    except OSError:
        return True  # unknown, so it counts as needing the toolkit
    ours = node.files.status(path)
    return ours is not None and (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


_LONGEST = 4 * 1024 * 1024
"""Bytes. A specification has all environment, mounts and seccomp rules in it."""
_SPECIFICATION = "config.json"
"""In a bundle (OCI Runtime Specification, bundle.md)."""
_KEYS = (
    # containerd: pkg/cri/annotations, since 1.5
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"),
    # CRI-O's annotations, and the labels that cri-dockerd sets: k8s.io/kubelet/pkg/types/labels.go
    ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"),
)
"""Namespace, pod and container."""
_KINDS = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
"""Annotations of containerd (pkg/cri/annotations) and of CRI-O (pkg/annotations) for a container's type."""
_SANDBOX = "sandbox"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""RFC 1123's forms, which Kubernetes requires of namespaces, containers and pods ("Object Names and IDs")."""
_DOCKERS_NAME = r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,252}"
_DOCKERS_ID = r"[0-9a-f]{64}"
_DOCKERS_FOLDER = "/var/lib/docker/containers"
"""dockerd's data root unless it is configured otherwise; below it, by ID, the saved state of each container."""
_DOCKERS_FILE = "config.v2.json"


class Bundle(msgspec.Struct, frozen=True):
    """A bundle's folder as the installer sees it, and the folder where it sees the `/` of the engine's paths."""

    folder: str
    root: str


class ContainerName(msgspec.Struct, frozen=True):
    """The names of a container: its pod and its name there, or docker's name for it. Empty: unknown."""

    pod: str = ""
    """NAMESPACE/NAME."""
    container: str = ""
    docker: str = ""

    @property
    def words(self) -> str:
        """The text to append to a container's ID."""
        if self.pod:
            return f" of pod {self.pod}" + (f" ({self.container})" if self.container else "")
        return f", which docker calls {self.docker}," if self.docker else ""


def find_name(identity: str, bundle: Bundle | None) -> ContainerName:
    """Return the names of a container."""
    if bundle is None:
        return ContainerName()
    said = specification(bundle)
    told = _parse_pod(said.get("annotations"))
    if told.pod or not re.fullmatch(_DOCKERS_ID, identity):
        return told
    folders = dict.fromkeys([_DOCKERS_FOLDER, *_dockers_folders(said, identity)])
    for folder in folders:
        remembered = _read_object(f"{bundle.root.rstrip('/')}{folder}/{identity}/{_DOCKERS_FILE}")
        configured = remembered.get("Config")
        told = _parse_pod(configured.get("Labels") if isinstance(configured, dict) else None)
        name = remembered.get("Name")
        if not told.pod and isinstance(name, str) and re.fullmatch(_DOCKERS_NAME, name.removeprefix("/")):
            told = ContainerName(docker=name.removeprefix("/"))
        if told != ContainerName():
            return told
    return ContainerName()


def get_specification_path(bundle: Bundle) -> str:
    """Return the path of a container's specification, as the installer sees it."""
    return f"{bundle.folder}/{_SPECIFICATION}"


def specification(bundle: Bundle) -> Mapping[str, Any]:
    """Return a container's specification, {} if it cannot be read."""
    return _read_object(get_specification_path(bundle))


def is_sandbox(bundle: Bundle) -> bool | None:
    """Return whether a container only holds a pod's namespaces; None if it has no specification."""
    return is_sandbox_specification(specification(bundle))


def is_sandbox_specification(specification: Mapping[str, Any]) -> bool | None:
    """Return whether a specification is of such a container, None if it is empty. Pure."""
    if not specification:
        return None
    annotations = specification.get("annotations")
    return isinstance(annotations, dict) and any(annotations.get(key) == _SANDBOX for key in _KINDS)


def _parse_pod(said: Any) -> ContainerName:
    """Return the pod that annotations or labels name, and its container if they name that as well."""
    labels: Mapping[str, Any] = said if isinstance(said, dict) else {}
    for keys in _KEYS:
        namespace, pod, container = (value if isinstance(value := labels.get(key), str) else "" for key in keys)
        if re.fullmatch(_LABEL, namespace) and re.fullmatch(_SUBDOMAIN, pod):
            return ContainerName(f"{namespace}/{pod}", container if re.fullmatch(_LABEL, container) else "")
    return ContainerName()


def _dockers_folders(specification: Mapping[str, Any], identity: str) -> list[str]:
    """Return the folders of dockerd's containers, from the sources of the files that it mounts into this one.

    Such a path contains the container's own ID, which is random and new: no path could be prepared in advance.
    """
    mounts = specification.get("mounts")
    sources = [mount.get("source") for mount in mounts if isinstance(mount, dict)] if isinstance(mounts, list) else []
    folders = [posixpath.dirname(source) for source in sources if isinstance(source, str) and source.startswith("/")]
    return [posixpath.dirname(folder) for folder in folders if posixpath.basename(folder) == identity]


def _read_object(path: str) -> Mapping[str, Any]:
    """Return a file's JSON object, {} if it cannot be read."""
    try:
        found = json.loads(read_bounded(path, _LONGEST))
    except (OSError, ConfigurationError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
