"""Which files engines read: by their usual places, by how they were started, and by what other files name."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from toolkit_installer import log
from toolkit_installer.documents import mentions
from toolkit_installer.engines.common.serving import PROCESS_NAMES
from toolkit_installer.engines.containerd import files as containerd_files
from toolkit_installer.engines.containerd import root_file
from toolkit_installer.engines.detect.table import TABLE, UNIT_FOLDERS
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName

_ROWS = [row for row in TABLE if row.refused is None]
"""The rows whose engine could run the toolkit; the files of others may belong to local users."""
_ENGINES = ("docker", "containerd", "crio")
_OTHERS = (
    "/etc/containerd/conf.d/*.toml",
    "/etc/crio/crio.conf.d/*",
    "/etc/crio/crio.conf.d/*/*",
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*.conf",
    "/usr/share/containers/containers.conf",
    "/usr/share/containers/containers.conf.d/*.conf",
    *(f"/etc/default/{engine}" for engine in _ENGINES),
    *(f"/etc/sysconfig/{engine}*" for engine in _ENGINES),
    *(f"/etc/conf.d/{engine}" for engine in _ENGINES),
    "/etc/containers/containers.conf.modules/*.conf",
    "/usr/share/containers/containers.conf.modules/*.conf",
    "/root/.config/containers/containers.conf",
    "/root/.config/containers/containers.conf.d/*.conf",
    "/etc/buildkit/buildkitd.toml",
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/share/containers/oci/hooks.d/*.json",
    "/etc/containers/oci/hooks.d/*.json",
)
"""Drop-ins and hooks by their usual places; podman reads hooks and runtimes as well (containers.conf(5))."""
_UNIT_FOLDERS = (
    *UNIT_FOLDERS,
    *(f"/{place}/systemd/system.{kind}" for kind in ("control", "attached") for place in ("etc", "run")),
    *(f"/run/systemd/{kind}" for kind in ("transient", "generator.early", "generator", "generator.late")),
)
"""All that systemd.unit(5) has in its "Unit File Load Path"."""
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Where engines look for CDI specifications (CDI's SPEC.md, "CDI JSON definition")."""
_FOLDERS = {"hooks_dir": "*.json", "cdi_spec_dirs": "*", "cdi-spec-dirs": "*"}
"""Keys that name folders, and the files in them that are read."""
_FOLDER_LIST = rf"""["']?\b({"|".join(_FOLDERS)})["']?\s*[=:]\s*\[([^\]\[]{{0,4096}})\]"""
_QUOTED = r"""["']([^"'\n]+)["']"""
_FLAG = (
    r"""(?:^|[\s"'=])(?:--?config(?:-file)?|-c|CONTAINER_CONFIG|CONTAINERS_CONF(?:_OVERRIDE)?)(?:[= ]|\s|\\\n)\s*"""
    r"""(?:"(/[^"\n]+)|'(/[^'\n]+)|(/[^\s"'\\]+))"""
)
"""How a command line, or a variable, names an engine's file."""
_QUOTED_FLAG = r"""(["'])--?config(?:-file)?=(/[^"'\n]+)\1"""
"""The same, all of it in quotes: then blanks are part of the path."""
_ENVIRONMENT_FILE = r"(?m)^[ \t]*EnvironmentFile[ \t]*=[ \t]*-?(/[^\n]*)"
"""How a unit names a file with variables for its command line (systemd.exec(5))."""
_FLAG_FOLDER = (
    r"""(?i)(?:--?|CONTAINER_|(?<=\s)-(?=d))(config[-_]dir|hooks[-_]dir|cdi[-_]spec[-_]dirs?|d)"""
    r"""(?:[= ]|\s|\\\n)\s*["']?(/[^\s"'\\]+)"""
)
"""How a command line, or a variable, names a folder whose files are all read."""
_FOLLOWED = frozenset({"base_runtime_spec", "ConfigPath", "runtime_config_path"})
"""Keys whose value is a file that is read as well."""
_IMPORTS = r"(?m)^[ \t]*imports[ \t]*=\s*\[([^\]]{0,4096})\]"
"""Imports in what is no TOML: a template, or a broken file."""


def usual() -> Iterator[str]:
    """Yield where engines have their files, as patterns."""
    for row in _ROWS:
        yield row.config
        if row.drop_in is not None:
            yield posixpath.join(posixpath.dirname(row.drop_in), "*")
        yield from (posixpath.join(posixpath.dirname(row.config), pattern) for pattern in row.beside)
        for unit in (posixpath.join(folder, name) for folder in _UNIT_FOLDERS for name in row.units):
            yield from (unit, f"{unit}.d/*.conf")
    # what is said for services of all kinds
    yield from (posixpath.join(folder, "service.d", "*.conf") for folder in _UNIT_FOLDERS)
    yield from _OTHERS


def told(node: Node) -> Iterator[str]:
    """Yield the files that the node's engines were started with."""
    for process in processes.named(frozenset().union(*PROCESS_NAMES.values())):
        if not node.is_home_of(process):
            continue
        yield from _flagged(" ".join(process.arguments))
        if process.hidden and process.name in PROCESS_NAMES[EngineName.CONTAINERD]:
            try:
                config = root_file.told_config(process)
            except ConfigurationError as error:
                log.get().warning(
                    "What an engine reads cannot be looked at for the toolkit",
                    key="engine-files-unreadable",
                    reason=error.reason,
                )
                continue
            yield from (config,) if config is not None else ()


def _flagged(text: str) -> Iterator[str]:
    """Yield the files, and the files in the folders, that a command line names."""
    yield from ("".join(match) for match in re.findall(_FLAG, text))
    for kind, folder in re.findall(_FLAG_FOLDER, text):
        yield posixpath.join(folder, _FOLDERS.get(kind.lower().replace("-", "_"), "*"))
    yield from (path for _, path in re.findall(_QUOTED_FLAG, text))
    yield from (path.strip() for path in re.findall(_ENVIRONMENT_FILE, text))


def named_by(content: bytes, path: str) -> Iterator[str]:
    """Yield what a file of an engine imports, and the files in the folders that it names."""
    text = content.decode(errors="replace")
    try:
        yield from containerd_files.imports(content, path)
    except ConfigurationError:  # a template, or broken: what it imports is imported all the same, or will be
        for listed in re.findall(_IMPORTS, text):
            yield from (
                posixpath.normpath(posixpath.join(posixpath.dirname(path), each))
                for each in re.findall(_QUOTED, listed)
            )
    yield from _flagged(text)
    for key, value in mentions.pairs(content):
        if value.startswith("/") and key in _FOLDERS:
            yield posixpath.join(value, _FOLDERS[key])
        elif value.startswith("/") and key in _FOLLOWED:
            yield value
    for match in re.finditer(_FOLDER_LIST, text):
        yield from (
            posixpath.join(each, _FOLDERS[match[1]]) for each in re.findall(_QUOTED, match[2]) if each[:1] == "/"
        )
