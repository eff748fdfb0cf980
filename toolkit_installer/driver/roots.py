"""Finding the driver's root on the node, and proving by a run of its nvidia-smi that the driver is usable."""

from __future__ import annotations

import contextlib
import os
import posixpath

import msgspec

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, DriverNotReadyError, InstallerError
from toolkit_installer.events import EventKind, publish
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import PATH, ProgramError, Programs, ProgramTimeoutError
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.settings import AUTO, ToolkitSettings
from toolkit_installer.toolkit.payload import LIBRARY_FOLDERS
from toolkit_installer.toolkit.wrappers import CONFIG_NAME

CONTAINER_ROOT = "/run/nvidia/driver"
"""The node's path of a driver container's `/`."""
VALIDATIONS = "/run/nvidia/validations"
CONTAINER_READY = f"{VALIDATIONS}/.driver-ctr-ready"
"""Written by the start-up probe of the GPU Operator's driver container once nvidia-smi has worked in it."""
DRIVER_READY = f"{VALIDATIONS}/driver-ready"
"""Written by the GPU Operator's validator: shell variables with the driver root and the device root."""

_PROGRAM = "nvidia-smi"
_SIGNS = (
    *(f"{folder}/{_PROGRAM}" for folder in PATH.split(":")),
    *(f"{folder}/libnvidia-ml.so.1" for folder in LIBRARY_FOLDERS),  # a link to the file of the driver's own version
    "/dev/nvidiactl",
)
"""Files of a driver; the last exists once the kernel module is loaded."""
_QUERY = ("--query-gpu=driver_version", "--format=csv,noheader")
PROOF_SECONDS = 60.0
"""Timeout of nvidia-smi: without a persistence daemon it initialises every GPU first, in seconds for each."""
_LONGEST_SAID = 200


class Driver(msgspec.Struct, frozen=True):
    """A driver's roots, as found or configured; an empty field is unknown.

    `root` and `dev_root` are the node's paths, `seen_at` and `dev_seen_at` the paths where the installer sees them.
    """

    root: str
    seen_at: str = ""
    dev_root: str = ""
    dev_seen_at: str = ""
    version: str = ""


class DriverSearch(msgspec.Struct, frozen=True):
    """The result of a search for a driver: the driver, or a reason for each root why it has no usable one."""

    driver: Driver | None
    missing: tuple[str, ...] = ()
    nothing_there: bool = False
    """No root has nvidia-smi: apparently no driver was ever installed."""
    hangs: bool = False
    """Whether nvidia-smi exceeded its timeout in one of the roots."""


class _NotUsableError(Exception):
    """The driver is not usable in a root; the message has the reason."""


class _HangsError(_NotUsableError):
    """nvidia-smi exceeded its timeout."""


class _NoDriverError(_NotUsableError):
    """The root has no nvidia-smi."""


def resolve_driver(toolkit: ToolkitSettings, node: Node) -> tuple[Driver, bool]:
    """Return the driver's roots, as configured or found, and whether no driver is usable.

    While no driver is usable, a node that has the toolkit keeps the root that it was installed with: a driver that is
    being replaced is no reason to change anything. On other nodes, raises DriverNotReadyError.
    """
    if not is_automatic(toolkit):
        places = (toolkit.driver_root, toolkit.driver_root_ctr_path, toolkit.dev_root, toolkit.dev_root_ctr_path)
        return Driver(*places), False
    seen = find_driver(node, toolkit)
    found = seen.driver
    if found is None:
        root = find_installed_root(node, toolkit.folder)
        if root is None:
            raise DriverNotReadyError(
                f"no driver is usable on this node: {'; '.join(seen.missing)}",
                hint="--wait-for-driver waits for one; --driver-root names a root that is used unseen",
            )
        log_driver_gone(root, seen.missing)
        found = _complete_roots(node, toolkit, Driver(root), _seen_at(node, toolkit, Driver(root)))
    else:
        log_driver_found(found)
    return found, seen.driver is None


def log_driver_found(found: Driver) -> None:
    """Log that a driver is usable."""
    log.get().info(
        "Found the driver", key="driver-found", root=found.root, dev_root=found.dev_root, version=found.version
    )


def log_driver_gone(root: str, missing: tuple[str, ...], hint: str | None = None) -> None:
    """Publish that no driver is usable any more and that the installed root stays."""
    publish(
        EventKind.DRIVER_GONE,
        "No driver is usable now: the installed root stays",
        level="warning",
        root=root,
        missing=missing,
        hint=hint,
    )


def is_automatic(toolkit: ToolkitSettings) -> bool:
    """Return whether any of the driver's paths is AUTO, to be found. If not, all are used as configured, unchecked."""
    return AUTO in (toolkit.driver_root, toolkit.driver_root_ctr_path, toolkit.dev_root, toolkit.dev_root_ctr_path)


@Query(ignored=("seconds",))
def find_driver(node: Node, toolkit: ToolkitSettings, seconds: float = PROOF_SECONDS) -> DriverSearch:
    """Search the configured root, or else the usual roots in order, for a driver that is usable now.

    nvidia-smi has a timeout of `seconds` in each root. Raises Stopped.
    """
    missing: dict[str, str] = {}
    nothing_there, hangs = True, False
    for place, marker in _list_places(node, toolkit):
        if place.root in missing:
            continue
        try:
            return DriverSearch(_prove_usable(node, toolkit, place, marker, seconds))
        except _NotUsableError as reason:
            missing[place.root] = f"{place.root}: {reason}"
            nothing_there &= isinstance(reason, _NoDriverError)
            hangs |= isinstance(reason, _HangsError)
    return DriverSearch(None, tuple(missing.values()), nothing_there, hangs)


def paths_to_watch(node: Node, toolkit: ToolkitSettings) -> tuple[str, ...]:
    """Return paths, in the installer's mount namespace, some of which change when a driver comes, goes or changes."""
    said_by = (CONTAINER_READY, DRIVER_READY) if toolkit.driver_root == AUTO else ()
    found = [reader.root.outside(path) for reader in node.readers() for path in said_by]
    for place, _ in _list_places(node, toolkit):
        for view in _candidates(node, toolkit, place):
            root = Root(os.path.realpath(view))
            for path in _SIGNS:
                with contextlib.suppress(NodeError):  # a path that leads nowhere belongs to no driver
                    found.append(root.outside(root.canonical(path)))
    return tuple(dict.fromkeys(found))


def _list_places(node: Node, toolkit: ToolkitSettings) -> list[tuple[Driver, str]]:
    """Return the possible roots, the likelier first, each with a file that must exist as well, or ""."""
    if toolkit.driver_root != AUTO:
        return [(Driver(toolkit.driver_root), "")]
    marker = CONTAINER_READY if _present(node, VALIDATIONS) else ""
    said = _read_operator_roots(node)
    return [*([(said, "")] if said is not None else []), (Driver(CONTAINER_ROOT), marker), (Driver("/"), "")]


def _prove_usable(node: Node, toolkit: ToolkitSettings, place: Driver, marker: str, seconds: float) -> Driver:
    """Return the driver in a root once nvidia-smi has proved it usable. Raises _NotUsableError."""
    seen_at = _seen_at(node, toolkit, place)
    programs = Programs(Root(os.path.realpath(seen_at)))
    program = _program(programs)
    if program is None:
        raise _NoDriverError(f"there is no {_PROGRAM}" if os.path.isdir(seen_at) else "there is no such folder")
    if marker and not _present(node, marker):
        raise _NotUsableError(f"the driver container has not said that it is ready, in {marker}")
    try:
        done = programs.run([program, *_QUERY], seconds=seconds)
    except ProgramTimeoutError as error:
        raise _HangsError(error.reason) from error
    except (NodeError, ProgramError) as error:
        raise _NotUsableError(error.reason) from error
    except InstallerError as error:
        raise _NotUsableError(str(error)) from error
    said = done.output.decode(errors="replace").strip()
    if done.status != 0:
        words = " ".join((said or done.errors or "it says nothing").split())
        raise _NotUsableError(f"{_PROGRAM} ends with {done.status}: {words[:_LONGEST_SAID]}")
    found = _complete_roots(node, toolkit, place, seen_at)
    return msgspec.structs.replace(found, version=said.partition("\n")[0][:_LONGEST_SAID])


def _program(programs: Programs) -> str | None:
    """Return nvidia-smi's path below the root, None for an empty file, which is a mount point in a container."""
    try:
        path = programs.find_program(_PROGRAM)
        refusal = programs.refusal(_PROGRAM) if path is None else None
        if refusal is not None:
            raise _NotUsableError(str(refusal))
        if path is None or not os.path.getsize(programs.root.outside(programs.root.canonical(path))):
            return None
    except NodeError as error:
        raise _NotUsableError(str(error)) from error
    except FileNotFoundError:
        return None  # just removed
    return path


@Query()
def _seen_at(node: Node, toolkit: ToolkitSettings, place: Driver) -> str:
    """Return where the installer sees a root of the node: the configured path, else the first that has nvidia-smi."""
    candidates = _candidates(node, toolkit, place)
    for candidate in candidates:
        try:
            if _program(Programs(Root(os.path.realpath(candidate)))) is not None:
                return candidate
        except _NotUsableError:
            return candidate
    return candidates[-1]


def _candidates(node: Node, toolkit: ToolkitSettings, place: Driver) -> list[str]:
    if toolkit.driver_root_ctr_path != AUTO:
        return [toolkit.driver_root_ctr_path]
    return [*_operator_views(node, place.seen_at), *_views(node, place.root)]


def _operator_views(node: Node, seen_at: str) -> list[str]:
    """Return where the GPU Operator's containers see a root; the installer's container may have the same mounts."""
    return [seen_at] if seen_at and not node.whole else []


def _views(node: Node, root: str) -> list[str]:
    """Return where the installer may see a folder of the node."""
    whole = node.programs.root
    on_node = posixpath.normpath(whole.outside(whole.canonical(root)))
    # single folders are mounted under their own names; the container's own / is not the node's
    mounted = [] if node.whole or root == "/" else [root]
    return [*mounted, on_node]


@Query()
def _complete_roots(node: Node, toolkit: ToolkitSettings, place: Driver, seen_at: str) -> Driver:
    """Return a driver's roots. The device root is the driver root if that has a dev/, else the node's."""
    own = os.path.isdir(os.path.join(seen_at, "dev"))
    dev_root = toolkit.dev_root if toolkit.dev_root != AUTO else place.dev_root or (place.root if own else "/")
    dev_seen_at = toolkit.dev_root_ctr_path
    if dev_seen_at == AUTO:
        said = _operator_views(node, place.dev_seen_at) if place.dev_root == dev_root else []
        views = [*said, *_views(node, dev_root)]
        with_devices = [view for view in views if os.path.isdir(os.path.join(view, "dev"))]
        dev_seen_at = seen_at if dev_root == place.root else [*with_devices, views[-1]][0]
    return Driver(place.root, seen_at, dev_root, dev_seen_at)


def _read_operator_roots(node: Node) -> Driver | None:
    """Return the roots that the GPU Operator's validator wrote, None if none. Raises NodeError, ConfigurationError."""
    said_by = (reader.content(DRIVER_READY) for reader in node.readers())
    content = next((found for found in said_by if found is not None), b"")
    pairs = [line.strip().partition("=") for line in content.decode(errors="replace").splitlines()]
    said = {name: value.strip("\"'") for name, equals, value in pairs if equals}
    paths = {name: posixpath.normpath(value) for name, value in said.items() if value.startswith("/")}
    keys = ("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH", "NVIDIA_DEV_ROOT", "DEV_ROOT_CTR_PATH")  # as in a Driver
    return Driver(*(paths.get(key, "") for key in keys)) if keys[0] in paths else None


def find_installed_root(node: Node, folder: str) -> str | None:
    """Return the driver root in the installed toolkit's config.toml, None if there is none."""
    from toolkit_installer.documents import toml_document  # noqa: PLC0415  # not needed while a driver is usable

    content = node.files.content(posixpath.join(folder, CONFIG_NAME))
    try:
        document = toml_document.parse(content or b"")
    except ConfigurationError:  # damaged: the run is about to rewrite it
        return None
    cli = document.get("nvidia-container-cli")
    root = cli.get("root") if isinstance(cli, dict) else None
    return root if isinstance(root, str) and root.startswith("/") else None


def _present(node: Node, path: str) -> bool:
    return any(reader.status(path) is not None for reader in node.readers())
