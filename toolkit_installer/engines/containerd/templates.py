"""Go templates of which k3s and RKE2 make containerd's configuration, edited by text: they are no TOML. Pure.

One block is appended, between two marked lines, and taken out again with every other byte left as it is. Where the
distribution may register a runtime of the same name itself (it looks for the toolkit when it starts), ours is left out
by a condition of the template: two tables of one name, and containerd does not start.
"""

from __future__ import annotations

import re
import tomllib

from toolkit_installer.documents import toml_document, toml_values
from toolkit_installer.documents.changes import DocumentError, Path, Table
from toolkit_installer.engines.containerd import config
from toolkit_installer.engines.containerd.config import Part
from toolkit_installer.engines.containerd.tables import PLUGINS, executable, made_version, shape
from toolkit_installer.engines.ownership import MARKER, Ownership, parents
from toolkit_installer.errors import ConfigurationError

BASE = b'{{ template "base" . }}\n'
"""A template that makes what the distribution makes without one (docs.k3s.io, "Advanced Options", "Base template")."""

_BEGIN = f"# {MARKER}"
_ADDED_LINE_END = " The line end before this line, too."
_END = "# End of what toolkit-installer added."
_BLOCK = (
    rb"(?P<end>\r?\n)?"
    + re.escape(_BEGIN.encode())
    + rb"(?P<own>"
    + re.escape(_ADDED_LINE_END.encode())
    + rb")?\r?\n(?:.*\n)*?"
    + re.escape(_END.encode())
    + rb"(?:\r?\n|\Z)"
)
_USES_BASE = rb'\{\{-?\s*template\s+"base"'
_EXTRA_RUNTIMES = b".ExtraRuntimes"
_TABLE = rb"(?m)^[ \t]*\[(?P<path>[^\[\]\n]+)\]"
_BINARY = rb"(?m)^[ \t]*BinaryName[ \t]*=[ \t]*[\"'](?P<path>[^\"'\n]*)[\"']"
_CONDITION = r'\{\{ if not \(index \.ExtraRuntimes "(?P<name>[^"]+)"\)\.BinaryName \}\}'
_CONDITION_END = "{{ end }}"
_RUNTIMES = "runtimes"
_VERSION = rb"(?m)^[ \t]*version[ \t]*=[ \t]*(?P<number>[0-9]+)"
_ACTION = rb"(?s)\{\{(?:(?!\{\{).)*?\}\}"

_EMPTIED = Ownership(created=tuple(table for plugin in PLUGINS for table in parents((*shape(plugin).runtimes, ""))))
"""The tables that go with the last runtime in them: the base has them, or containerd's own runc does without."""


def version_of(content: bytes, usual: int) -> int:
    """Return the version of the configuration that a template makes: as it says, else its base's, else 1.

    Raises ConfigurationError for one that nobody knows here.
    """
    base = without_block(content)
    known = document(base)
    if known is not None and "version" in known:
        return made_version(known["version"])
    said = re.search(_VERSION, base) if known is None else None
    if said is not None:
        return made_version(int(said["number"]))
    return usual if uses_base(content) else 1


def uses_base(content: bytes) -> bool:
    """Tell whether a template has the distribution's own in it."""
    return bool(re.search(_USES_BASE, content))


def is_ours(content: bytes) -> bool:
    """Tell whether a template has a block of ours and nothing else: it was created for it."""
    base = without_block(content)
    return base != content and base.strip() in (b"", BASE.strip())


def document(content: bytes) -> Table | None:
    """Return what the text of a template says as TOML, its actions aside; None where it is no TOML then."""
    try:
        return toml_document.parse(_masked(content)[0])
    except DocumentError:
        return None


def without_handlers(content: bytes, toolkit_folder: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a template without the runtimes whose executable lies in our toolkit folder, whoever wrote them.

    The second value says what stays because the text around the actions cannot be edited.
    """
    if toolkit_folder.encode() not in content:
        return content, ()
    if document(content) is not None:
        text, actions, prefix = _masked(content)
        edited, _ = config.without_us(text, _EMPTIED, toolkit_folder)
        result = _unmasked(edited, actions, prefix)
        if result is not None:
            return result, ()
    return content, ("it names the toolkit, and its text cannot be edited around the template's actions: that stays",)


def _masked(content: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return a template with a number for each action, in a comment where the line has nothing else; and the actions.

    The third value begins each of the numbers, and nothing else in the text.
    """
    prefix = b"7305"
    while prefix in content:
        prefix += b"1"
    actions = re.findall(_ACTION, content)
    numbers = iter(range(len(actions)))
    text = re.sub(_ACTION, lambda _: b"%s%06d" % (prefix, next(numbers)), content)
    alone = rb"(?m)^(?P<indent>[ \t]*)(?P<numbers>(?:%s[0-9]{6}[ \t]*)+)(?=\r?$)" % prefix
    return re.sub(alone, rb"\g<indent># \g<numbers>", text), actions, prefix


def _unmasked(text: bytes, actions: list[bytes], prefix: bytes) -> bytes | None:
    """Return the template again, None where an edit has removed or moved an action."""
    number = rb"%s([0-9]{6})" % prefix
    if [int(each) for each in re.findall(number, text)] != list(range(len(actions))):
        return None
    text = re.sub(rb"(?m)^([ \t]*)# (?=(?:%s[ \t]*)+\r?$)" % number, rb"\1", text)
    return re.sub(number, lambda found: actions[int(found[1])], text)


def refuse_twice(content: bytes, found: frozenset[str]) -> None:
    """Raise ConfigurationError, with the line, for a template that has a runtime which its base will have as well.

    `found`: those that the distribution registers by itself once the toolkit is there. containerd would not start with
    two tables of one name, whoever wrote the first.
    """
    base = without_block(content)
    if not is_conditional(base):
        return
    for table in re.finditer(_TABLE, base):
        if (name := _runtime_of(table["path"])) in found:
            raise ConfigurationError(
                f"has a runtime {name!r}, and the distribution adds its own once the toolkit is installed and it is "
                "started again: containerd would not start with both",
                line=base.count(b"\n", 0, table.start()) + 1,
                hint="take it out of the template: the distribution finds the toolkit without it",
            )


def is_conditional(base: bytes) -> bool:
    """Tell whether the distribution's own runtimes come into what is made of the template."""
    return bool(re.search(_USES_BASE, base)) or _EXTRA_RUNTIMES in base


def with_block(content: bytes, part: Part) -> bytes:
    """Return a template with the part's runtimes. Raises ConfigurationError for one that has them already."""
    base = without_block(content)
    if _BEGIN.encode() in base:
        raise ConfigurationError(
            "has lost the end of what was added to it",
            line=base.count(b"\n", 0, base.index(_BEGIN.encode())) + 1,
            hint=f"take out what is ours from there on, or put the line {_END!r} after it",
        )
    own = named(content, part)
    conditional = is_conditional(base)
    lines: list[str] = []
    for name, entry in part.made:
        if name in own:
            continue
        table = _table((*shape(part.plugin).runtimes, name), entry, "")
        if any("{{" in line for line in table):
            what = "would have a value with '{{' in it, which a template expands"
            raise ConfigurationError(f"the runtime {name!r} {what}")
        condition = f'{{{{ if not (index .ExtraRuntimes "{name}").BinaryName }}}}'
        lines += [condition, *table, _CONDITION_END] if conditional else table
    own_line_end = bool(base) and not base.endswith(b"\n")
    end = "\r\n" if base.count(b"\r\n") > base.count(b"\n") // 2 else "\n"
    begin = _BEGIN + (_ADDED_LINE_END if own_line_end else "")
    block = end.join([*([""] if own_line_end else []), begin, *lines, _END, ""])
    return base + block.encode()


def without_block(content: bytes) -> bytes:
    """Return a template without our block; all other bytes as they are."""

    def rest(found: re.Match[bytes]) -> bytes:
        return b"" if found["own"] is not None else (found["end"] or b"")

    return re.sub(_BLOCK, rest, content)


def meaning(content: bytes, present: frozenset[str]) -> Table:
    """Return what our block in a template adds where the distribution itself registers the runtimes in `present`."""
    found = re.search(_BLOCK, content)
    lines = []
    skipped = False
    for line in (found[0].decode() if found is not None else "").splitlines():
        condition = re.fullmatch(_CONDITION, line)
        if condition is not None:
            skipped = condition["name"] in present
        elif line == _CONDITION_END:
            skipped = False
        elif not skipped:
            lines.append(line)
    return tomllib.loads("\n".join(lines))


def named(content: bytes, part: Part) -> frozenset[str]:
    """Return which of the runtimes the template has itself, with our executable: somebody wrote them for us.

    Raises ConfigurationError, with the line, for one that runs something else.
    """
    base = without_block(content)
    wanted = dict(part.made)
    found = set()
    for table in re.finditer(_TABLE, base):
        name = _runtime_of(table["path"])
        if name not in wanted:
            continue
        rest = base[table.end() :]
        following = next(
            (each for each in re.finditer(_TABLE, rest) if _runtime_of(each["path"], inner=True) != name), None
        )
        binary = re.search(_BINARY, rest[: following.start()] if following is not None else rest)
        if binary is None or binary["path"].decode(errors="replace") != executable(wanted[name]):
            raise ConfigurationError(
                f"has a runtime {name!r} of its own, and a second one would keep containerd from starting",
                line=base.count(b"\n", 0, table.start()) + 1,
                hint="take it out of the template, or register under another name with --runtime-name",
            )
        found.add(name)
    return frozenset(found)


def _runtime_of(header: bytes, *, inner: bool = False) -> str | None:
    """Return the runtime whose table a header opens, or (`inner`) which it lies within; None for all others."""
    path = []
    try:
        table = tomllib.loads(f"[{header.decode()}]")
    except ValueError:
        return None  # an action of the template makes it
    while table:
        ((key, table),) = table.items()
        path.append(key)
    place = path.index(_RUNTIMES) + 1 if _RUNTIMES in path else len(path)
    if place >= len(path) or (not inner and place != len(path) - 1):
        return None
    return path[place]


def _table(path: Path, entry: Table, indent: str) -> list[str]:
    lines = [f"{indent}[{'.'.join(map(toml_values.write_key, path))}]"]
    tables: list[str] = []
    for key, value in entry.items():
        if isinstance(value, dict):
            tables += _table((*path, key), value, f"{indent}  ")
        else:
            lines.append(f"{indent}  {toml_values.write_key(key)} = {toml_values.write(value)}")
    return [*lines, *tables]
