"""A CDI specification as text: whether any engine can read it, and which files of the node it names. Pure.

There is no parser for YAML here: what NVIDIA's tools and others write is one key on each line.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Final

from toolkit_installer import patterns
from toolkit_installer.engines import cdi

_KIND: Final = rb"""(?m)^["']?kind["']?[ \t]*:"""


def fault_of_form(path: str, text: bytes) -> tuple[int | None, str] | None:
    """Return the line and why no engine can read a specification, None where nothing is wrong with its form."""
    if not text.strip():
        return 1, "is empty"
    if path.endswith(".json"):
        try:
            json.loads(text)
        except ValueError as error:
            return getattr(error, "lineno", 1), f"is not valid JSON: {getattr(error, 'msg', error)}"
        except RecursionError:
            return 1, "is nested too deeply"
    elif (tab := re.search(rb"(?m)^ *\t", text)) is not None:
        return text.count(b"\n", 0, tab.start()) + 1, "is not valid YAML: a tab indents this line"
    if cdi.version_of(text) is None and not re.search(rb'"cdiVersion"', text):
        return 1, "has no cdiVersion"
    return None if re.search(_KIND, text) or re.search(rb'"kind"', text) else (1, "has no kind")


def paths_in(content: bytes) -> list[tuple[int, str]]:
    """Return the lines and paths of the node that a CDI specification names: host paths, and programs of its hooks.

    Of a device node the host path counts where it has one, else its path.
    """
    found: list[tuple[int, str]] = []
    item: dict[str, tuple[int, str]] = {}
    indent = -1

    def close() -> None:
        chosen = item.get("hostPath") or (None if "containerPath" in item else item.get("path"))
        if chosen is not None and posixpath.isabs(chosen[1]):
            found.append(chosen)
        item.clear()

    text = content.decode(errors="replace").strip("\ufeff")
    in_one_line = text.lstrip().startswith("{") and "\n" not in text.strip()
    if in_one_line:
        text = text.replace("{", "\n{").replace(",", ",\n")
    for number, line in enumerate(text.splitlines(), 1):
        member = _MEMBER.match(line)
        depth = len(line) - len(line.lstrip(" -"))
        if depth < indent or line.lstrip().startswith(("- ", "{")):
            close()
        indent = depth
        if member is not None:
            item[member["key"]] = (1 if in_one_line else number, member["value"])
    close()
    return found


_MEMBER: Final = patterns.lazy(
    r"""\s*(?:-\s+|\{\s*)?["']?(?P<key>hostPath|containerPath|path)["']?\s*:\s*["']?(?P<value>[^"',\s]+)"""
)
