"""Whether the installed runtimes could give a container the GPU: what they depend on beside the engine and the driver.

NVIDIA's runtime starts containers by a low-level runtime of its config.toml, and in the mode `cdi` it looks for the
devices of one kind in CDI specifications. Where either is missing, the engine serves the handler all the same, and
each container fails.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit_installer.documents import shown
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import trust
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.toolkit import wrappers

_CDI_RUNTIME = "nvidia-container-runtime.cdi"
_CHOOSING_RUNTIME = "nvidia-container-runtime"
"""It takes the mode that config.toml names."""
_KIND = "nvidia.com/gpu"
_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Where NVIDIA's runtime looks, and for which kind, where its config.toml says nothing."""
_SPECIFICATIONS = (".yaml", ".json")
_KIND_SAID = rb"""(?m)(?:^|[{,])[ \t]*["']?kind["']?[ \t]*:[ \t]*["']?([^"'\s,]+)"""


def settings_of(node: Node, receipt: Receipt) -> Mapping[str, Any]:
    """Return the `nvidia-container-runtime` table of the installed config.toml; {} for none that can be read."""
    try:
        content = node.files.content(f"{receipt.toolkit_folder}/{wrappers.CONFIG_NAME}")
        table = tomllib.loads((content or b"").decode()).get("nvidia-container-runtime")
    except (ConfigurationError, ValueError, RecursionError):
        return {}  # it is damaged, which is said of the toolkit's files
    return table if isinstance(table, dict) else {}


def no_low_level_runtime(node: Node, settings: Mapping[str, Any], engines: Sequence[int]) -> str | None:
    """Return in words that none of the low-level runtimes is there that NVIDIA's runtime would use; None: one is.

    `engines` are the PIDs of the engines that run: one may see another root than the node's.
    """
    named = settings.get("runtimes")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    roots = [node.programs.root, *(Root(f"/proc/{pid}/root") for pid in engines)]
    if not names or any(_is_there(node, roots, name) for name in names):
        return None
    looked_for = ", ".join(map(shown.named, names))
    return f"none of the low-level runtimes is there that NVIDIA's runtime looks for: {looked_for}"


def _is_there(node: Node, roots: Sequence[Root], name: str) -> bool:
    if posixpath.isabs(name):
        return any(trust.is_program(root, name) for root in roots)
    return node.programs.find_program(name) is not None


def without_devices(node: Node, settings: Mapping[str, Any], handlers: Mapping[str, str]) -> dict[str, str]:
    """Return the handlers that find no CDI devices on this node, and why; `handlers` map names to executables."""
    by_cdi = [name for name, path in handlers.items() if _is_by_cdi(path, settings)]
    if not by_cdi:
        return {}
    modes = settings.get("modes")
    cdi = modes.get("cdi") if isinstance(modes, dict) else None
    table = cdi if isinstance(cdi, dict) else {}
    kind, folders = table.get("default-kind", _KIND), table.get("spec-dirs", _FOLDERS)
    if not isinstance(kind, str) or not isinstance(folders, list | tuple) or _is_specified(node, kind, folders):
        return {}
    why = f"no CDI specification of the kind {kind} is in {' or '.join(map(str, folders))}"
    return dict.fromkeys(by_cdi, why)


def _is_by_cdi(path: str, settings: Mapping[str, Any]) -> bool:
    program = posixpath.basename(path)
    return program == _CDI_RUNTIME or (program == _CHOOSING_RUNTIME and settings.get("mode") == "cdi")


def _is_specified(node: Node, kind: str, folders: list[Any] | tuple[Any, ...]) -> bool:
    for reader in node.readers():
        for folder in folders:
            for name in reader.list(str(folder)):
                if name.endswith(_SPECIFICATIONS) and kind.encode() in _kinds(reader.content(f"{folder}/{name}")):
                    return True
    return False


def _kinds(specification: bytes | None) -> list[bytes]:
    return re.findall(_KIND_SAID, specification or b"")
