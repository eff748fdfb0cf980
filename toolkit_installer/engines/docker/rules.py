"""What dockerd refuses in a daemon.json although the text is in order. Pure.

`dockerd --validate` (from 23.0 on) knows only some of it: tried on 26.1 and 28.5, it takes a second `runc` and a
default that does not exist, and the daemon then rejects the reload, and exits at its next start.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any

from toolkit_installer.documents import json_document, shown
from toolkit_installer.documents.changes import ABSENT, Path, lookup
from toolkit_installer.engines.api import Live
from toolkit_installer.engines.docker import config
from toolkit_installer.engines.ownership import BUILT_IN
from toolkit_installer.errors import ConfigurationError

_KEEPS_ALIASES = (25, 0)
"""The first release of dockerd that has its own aliases of runc after any SIGHUP (moby's daemon/reload_unix.go)."""
_TAKES_MARK = 23
"""The first major release of dockerd that reads past a byte order mark."""
_LISTS = {
    "add-runtime": "runtimes",
    "authorization-plugin": "authorization-plugins",
    "cdi-spec-dir": "cdi-spec-dirs",
    "default-address-pool": "default-address-pools",
    "default-network-opt": "default-network-opts",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
}
"""Flags that may be repeated, and their keys in daemon.json; all others are called alike (dockerd(8))."""
_SHORT = {"D": "debug", "G": "group", "H": "hosts", "l": "log-level", "p": "pidfile", "s": "storage-driver"}


def refuse(content: bytes, seen: bytes | None = None) -> None:
    """Raise ConfigurationError for what dockerd does not take. It has been checked for its types.

    The line is the one in `seen`: the text as it stands there, where `content` is the one to come.
    """
    seen = content if seen is None else seen
    document = json_document.parse(content)
    runtimes = document.get("runtimes") or {}
    if BUILT_IN in runtimes:
        raise _wrong(seen, (*config.RUNTIMES, BUILT_IN), "is dockerd's own runtime and cannot be another one")
    default = document.get("default-runtime") or BUILT_IN
    if default != BUILT_IN and default not in runtimes and not _may_be_a_shim(default):
        raise _wrong(seen, config.DEFAULT, f"names a runtime that does not exist: {shown.quoted(default)}")


def takes(content: bytes) -> bool:
    """Tell whether dockerd would start with this text, which `parse_checked` or `refuse` has refused.

    It takes a key that stands twice, or in other letters, and merges what they say.
    """
    try:
        document = json.loads(content.removeprefix(codecs.BOM_UTF8) or b"{}", object_pairs_hook=_merged)
    except (ValueError, RecursionError):
        return False
    runtimes = document.get("runtimes", {}) if isinstance(document, dict) else None
    default = document.get("default-runtime", "") if isinstance(document, dict) else None
    if not isinstance(runtimes, dict) or not isinstance(default, str) or BUILT_IN in runtimes:
        return False
    known = all(isinstance(entry, dict) for entry in runtimes.values())
    return known and (default in ("", BUILT_IN, *runtimes) or _may_be_a_shim(default))


def _merged(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object as dockerd reads it: Go takes a key in any case, and merges objects under the same key."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        key = name.lower() if name.lower() in ("runtimes", "default-runtime", "path") else name
        before = found.get(key)
        found[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return found


def _may_be_a_shim(name: str) -> bool:
    """Tell whether dockerd looks a runtime of that name up only when a container asks for it."""
    return "." in name or "/" in name


def deadly_default(content: bytes, release: tuple[int, int] | None) -> str | None:
    """Return the default runtime of which a dockerd dies that is signalled on this text; None: it survives.

    A SIGHUP on a text that names `runtimes`, as all do that it is sent on, replaces all runtimes that dockerd has. Up
    to 24.0 those go with them that dockerd registered itself when it started, `io.containerd.runc.v2` and
    `io.containerd.runtime.v1.linux`, and a default that is not there any more ends it by a panic. Tried: 20.10 dies, 26
    and 28 keep every name. `release` is None where it is not known: then it is taken for an old one.
    """
    document = json_document.parse(content)
    default = document.get("default-runtime") or BUILT_IN
    if (release is not None and release >= _KEEPS_ALIASES) or not _may_be_a_shim(default):
        return None
    return None if default in (document.get("runtimes") or {}) else default


def refuse_signal(content: bytes, live: Live, seen: bytes | None = None) -> None:
    """Raise ConfigurationError for a text on which the running dockerd dies of a SIGHUP; `seen` as in `refuse`."""
    default = deadly_default(content, live.release)
    if default is not None:
        raise ConfigurationError(
            f'"default-runtime" is {shown.quoted(default)}, which dockerd {live.version} itself registers when it '
            "starts, and forgets at a SIGHUP: it would die of one",
            line=_line(content if seen is None else seen, config.DEFAULT),
            hint="use --restart-mode systemd --allow-restart, or --restart-mode none and restart docker yourself",
        )


def refuse_mark(content: bytes, version: str) -> None:
    """Raise ConfigurationError for a byte order mark before a dockerd that takes none: 20.10 does not, 26 and 28 do."""
    first = version.partition(".")[0]
    if content.startswith(codecs.BOM_UTF8) and first.isascii() and first.isdigit() and int(first) < _TAKES_MARK:
        raise ConfigurationError(
            f"begins with a byte order mark, which dockerd {version} does not take: it would not start again",
            line=1,
            hint="nothing was changed; save the file as UTF-8 without it",
        )


def refuse_conflicts(content: bytes, arguments: Sequence[str], seen: bytes | None = None) -> None:
    """Raise ConfigurationError for a key that the running dockerd was given as a flag, too; `seen` as in `refuse`."""
    seen = content if seen is None else seen
    document = json_document.parse(content)
    for word in arguments[1:]:
        flag = word.partition("=")[0]
        name = flag.lstrip("-")
        key = _SHORT.get(name[:1]) if not flag.startswith("--") else _LISTS.get(name, name)
        if flag.startswith("-") and key in document:
            raise ConfigurationError(
                f'dockerd was started with {flag}, and "{key}" stands here too: it takes no file that repeats a flag, '
                "and would not start again",
                line=_line(seen, (key,)),
                hint="nothing was changed; give it in one of the two places",
            )


def flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a running dockerd but for its program and its --config-file."""
    kept: list[str] = []
    words = iter(arguments[1:])
    for word in words:
        if word == "--config-file":
            next(words, None)
        elif not word.startswith("--config-file="):
            kept.append(word)
    return kept


def _line(content: bytes, path: Path) -> int | None:
    return None if lookup(json_document.parse(content), path) is ABSENT else json_document.line_of(content, path)


def _wrong(content: bytes, path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(
        f'"{".".join(path)}" {what}',
        line=_line(content, path),
        hint="nothing was changed; correct it: dockerd would reject the file, and would not start again",
    )
