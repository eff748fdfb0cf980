"""Edits and rendering of the Go templates from which k3s and RKE2 make containerd's configuration. Pure.

Templates are not TOML, so they are edited as text. One block is appended, between two marked lines, and removed again
with every other byte unchanged. Where the distribution may register a runtime of the same name itself (it looks for the
toolkit when it starts), a condition of the template omits ours: with two tables of one name containerd does not start.

A rendering predicts what k3s and RKE2 make of a template at their next start, as far as its text shows. Two kinds of
actions are rendered: the distribution's own template ("base"), and the conditions of our block. The base is the part of
the generated file that is not text of its template. If that template has changed since, only the tables that every base
has are certain, and the rest is omitted. A template with other actions is not rendered.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import msgspec

from toolkit_installer.documents import toml_document, toml_text
from toolkit_installer.documents.changes import DocumentError, Path, Table, lookup
from toolkit_installer.engines.containerd import config
from toolkit_installer.engines.containerd.config import TableAdditions
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    FILE_VERSIONS,
    GRPC,
    IMAGES,
    PLUGINS,
    SHORT,
    build_shape,
    check_version,
    read_executable,
    runtimes_in,
)
from toolkit_installer.engines.ownership import MARKER, Ownership, parents
from toolkit_installer.errors import ConfigurationError

BASE = b'{{ template "base" . }}\n'
"""A template with the same result as no template (docs.k3s.io, "Advanced Options", "Base template")."""

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

_EMPTIED_TABLES = Ownership(
    created=tuple(table for plugin in PLUGINS for table in parents((*build_shape(plugin).runtimes, "")))
)
"""Tables to remove together with their last runtime: the base has them, or containerd needs none for its own runc."""


def version_of(content: bytes, usual: int) -> int:
    """Return the version of the configuration that a template makes: its own version line, else its base's, else 1.

    Raises ConfigurationError for an unknown version.
    """
    base = remove_block(content)
    known = document(base)
    if known is not None and "version" in known:
        return check_version(known["version"])
    said = re.search(_VERSION, base) if known is None else None
    if said is not None:
        return check_version(int(said["number"]))
    return usual if uses_base(content) else 1


def uses_base(content: bytes) -> bool:
    """Return whether a template includes the distribution's own template."""
    return bool(re.search(_USES_BASE, content))


def is_ours(content: bytes) -> bool:
    """Return whether a template was created for our block: it contains nothing else."""
    base = remove_block(content)
    return base != content and base.strip() in (b"", BASE.strip())


def document(content: bytes) -> Table | None:
    """Return a template's text without its actions, parsed as TOML; None if it is not TOML."""
    try:
        return toml_document.parse(_mask_actions(content)[0])
    except DocumentError:
        return None


def remove_handlers(content: bytes, toolkit_folder: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a template without the runtimes whose executable lies in our toolkit folder, whichever program wrote them.

    The second value has a note if the text around the actions cannot be edited and so stays.
    """
    if toolkit_folder.encode() not in content:
        return content, ()
    if document(content) is not None:
        text, actions, prefix = _mask_actions(content)
        edited, _ = config.remove_ours_from_text(text, _EMPTIED_TABLES, toolkit_folder)
        result = _unmask_actions(edited, actions, prefix)
        if result is not None:
            return result, ()
    return content, ("it names the toolkit, and its text cannot be edited around the template's actions: that stays",)


def _mask_actions(content: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return a template with its actions replaced by numbers, and the actions.

    A number on a line without other text becomes a comment. The third value is the prefix of each number, which occurs
    nowhere else in the text.
    """
    prefix = b"7305"
    while prefix in content:
        prefix += b"1"
    actions = re.findall(_ACTION, content)
    numbers = iter(range(len(actions)))
    text = re.sub(_ACTION, lambda _: b"%s%06d" % (prefix, next(numbers)), content)
    alone = rb"(?m)^(?P<indent>[ \t]*)(?P<numbers>(?:%s[0-9]{6}[ \t]*)+)(?=\r?$)" % prefix
    return re.sub(alone, rb"\g<indent># \g<numbers>", text), actions, prefix


def _unmask_actions(text: bytes, actions: list[bytes], prefix: bytes) -> bytes | None:
    """Return the template with its actions restored, None if an edit has removed or moved an action."""
    number = rb"%s([0-9]{6})" % prefix
    if [int(each) for each in re.findall(number, text)] != list(range(len(actions))):
        return None
    text = re.sub(rb"(?m)^([ \t]*)# (?=(?:%s[ \t]*)+\r?$)" % number, rb"\1", text)
    return re.sub(number, lambda found: actions[int(found[1])], text)


def refuse_duplicates(content: bytes, found: frozenset[str]) -> None:
    """Raise ConfigurationError, with the line, for a template with a runtime that its base will have as well.

    `found`: the runtimes that the distribution registers itself once the toolkit is there. containerd would not start
    with two tables of one name, whichever program wrote the first.
    """
    base = remove_block(content)
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
    """Return whether the template's result includes the runtimes that the distribution registers itself."""
    return bool(re.search(_USES_BASE, base)) or _EXTRA_RUNTIMES in base


def add_block(content: bytes, part: TableAdditions) -> bytes:
    """Return a template with the part's runtimes. Raises ConfigurationError for a runtime that it has already."""
    base = remove_block(content)
    if _BEGIN.encode() in base:
        raise ConfigurationError(
            "has lost the end of what was added to it",
            line=base.count(b"\n", 0, base.index(_BEGIN.encode())) + 1,
            hint=f"take out what is ours from there on, or put the line {_END!r} after it",
        )
    own = find_own_runtimes(content, part)
    conditional = is_conditional(base)
    lines: list[str] = []
    for name, entry in part.handlers:
        if name in own:
            continue
        table = _table((*build_shape(part.plugin).runtimes, name), entry, "")
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


def remove_block(content: bytes) -> bytes:
    """Return a template without our block; all other bytes are unchanged."""

    def rest(found: re.Match[bytes]) -> bytes:
        return b"" if found["own"] is not None else (found["end"] or b"")

    return re.sub(_BLOCK, rest, content)


def parse_block(content: bytes, present: frozenset[str]) -> Table:
    """Return our block's additions, parsed, if the distribution itself registers the runtimes in `present`."""
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


def find_own_runtimes(content: bytes, part: TableAdditions) -> frozenset[str]:
    """Return the runtimes of the part that the template itself has with our executable: an administrator added them.

    Raises ConfigurationError, with the line, for a runtime with another executable.
    """
    base = remove_block(content)
    wanted = dict(part.handlers)
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
        if binary is None or binary["path"].decode(errors="replace") != read_executable(wanted[name]):
            raise ConfigurationError(
                f"has a runtime {name!r} of its own, and a second one would keep containerd from starting",
                line=base.count(b"\n", 0, table.start()) + 1,
                hint="take it out of the template, or register under another name with --runtime-name",
            )
        found.add(name)
    return frozenset(found)


def _runtime_of(header: bytes, *, inner: bool = False) -> str | None:
    """Return the runtime whose table a header opens, or (`inner`) is inside of; None for other headers."""
    path = []
    try:
        table = tomllib.loads(f"[{header.decode()}]")
    except ValueError:
        return None  # an action of the template produces the name
    while table:
        ((key, table),) = table.items()
        path.append(key)
    place = path.index(_RUNTIMES) + 1 if _RUNTIMES in path else len(path)
    if place >= len(path) or (not inner and place != len(path) - 1):
        return None
    return path[place]


def _table(path: Path, entry: Table, indent: str) -> list[str]:
    lines = [f"{indent}[{'.'.join(map(toml_text.write_key, path))}]"]
    tables: list[str] = []
    for key, value in entry.items():
        if isinstance(value, dict):
            tables += _table((*path, key), value, f"{indent}  ")
        else:
            lines.append(f"{indent}  {toml_text.write_key(key)} = {toml_text.write(value)}")
    return [*lines, *tables]


_RENDERED_ACTION = re.compile(rb"(?s)\{\{(?P<before>-\s)?(?P<words>(?:(?!\{\{).)*?)(?P<after>\s-)?\}\}")
_BASE = re.compile(rb'\s*template\s+"base"\s+\.\s*')
_COMMENT = re.compile(rb"(?s)\s*/\*.*\*/\s*")
_RENDERED_CONDITION = re.compile(rb'\s*if not \(index \.ExtraRuntimes "(?P<name>[^"]+)"\)\.BinaryName\s*')
_RENDERED_END = re.compile(rb"\s*end\s*")
_HEADER = re.compile(rb"(?m)^# File generated by (?:k3s|rke2)\b")
"""The first line of each base."""
_RENDERED_TABLE = re.compile(rb"(?m)^[ \t]*\[(?P<path>[^\[\]\n]+)\][ \t]*(?:#.*)?\r?$")
_REGISTRY = "registry"
_CERTIFICATES = "certs.d"
"""The folder for registries next to the generated file; only the base names it."""


class Piece(msgspec.Struct, frozen=True):
    """Some text of the result, and its line in the template. `base`: the text comes from the base."""

    text: bytes
    line: int
    base: bool = False


class Rendered(msgspec.Struct, frozen=True):
    """The file that a template makes."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> bytes:
        """The whole result."""
        return b"".join(piece.text for piece in self.pieces)

    def template_line(self, line: int | None) -> int | None:
        """Return the template's line for a line of the result; for a line of the base, its action's line."""
        before = 0
        for piece in self.pieces if line is not None else ():
            after = before + piece.text.count(b"\n")
            if line is not None and (line <= after or piece is self.pieces[-1]):
                return piece.line if piece.base else piece.line + line - 1 - before
            before = after
        return None


def render(template: bytes, base: bytes, plugin: str) -> Rendered | None:
    """Return a template's result with this base, None for a template with actions that only the distribution knows.

    The distribution's next start registers the base's own runtimes: our block omits those.
    """
    try:
        registered = runtimes_in(toml_document.parse(base), plugin)
    except DocumentError:
        registered = {}
    pieces = _pieces(template, registered)
    if pieces is None:
        return None
    return Rendered(tuple(msgspec.structs.replace(each, text=base) if each.base else each for each in pieces))


def recover_base(generated: bytes, template: bytes, version: int) -> bytes:
    """Return the distribution's own template as last rendered, as far as the generated file shows it.

    `template`: the current one on the node, without our block. `version`: that of its base. If the generated file shows
    nothing of the base, the tables that every base has are returned.
    """
    made = remove_block(generated)
    header = _HEADER.search(made)
    if header is None or toml_document.parse(made).get("version", 1) != version:
        return _minimal_base(version)
    last, end = _find_last_common_table(made)
    pieces = _pieces(template, {})
    if pieces is not None and sum(each.base for each in pieces) == 1:
        place = next(index for index, each in enumerate(pieces) if each.base)
        before, after = (b"".join(each.text for each in part) for part in (pieces[:place], pieces[place + 1 :]))
        whole, after = made.rstrip(), after.rstrip()
        between = slice(len(before), len(whole) - len(after))
        is_made_of_it = whole.startswith(before) and whole.endswith(after)
        if is_made_of_it and between.start <= header.start() and max(header.start(), last) < between.stop:
            return made[between]
    return made[header.start() : end]


def _find_last_common_table(made: bytes) -> tuple[int, int]:
    """Return the start and end of the last table that every base has; text after it may come from a template."""
    headers = list(_RENDERED_TABLE.finditer(made))
    ends = [*(found.start() for found in headers), len(made)][1:]
    known = (
        (found.start(), end)
        for found, end in zip(headers, ends, strict=True)
        if _is_anchor(found["path"], made[found.start() : end])
    )
    return max(known, default=(0, len(made)))


def _is_anchor(header: bytes, text: bytes) -> bool:
    """Return whether every base has this table: runc's, or the registry's with the distribution's own folder."""
    try:
        table = tomllib.loads(text.decode())
        path = _path(tomllib.loads(f"[{header.decode()}]"))
    except ValueError:
        return False
    runc = tuple((*build_shape(plugin).runtimes, BUILT_IN_RUNTIME) for plugin in PLUGINS)
    if any(path[: len(each)] == each for each in runc):
        return True
    folder = lookup(table, (*path, "config_path"))
    own = isinstance(folder, str) and folder.endswith(f"/agent/etc/containerd/{_CERTIFICATES}")
    return own and path in (("plugins", IMAGES, _REGISTRY), ("plugins", GRPC, _REGISTRY))


def _path(table: Table) -> tuple[str, ...]:
    """Return the keys that lead to the innermost of nested tables."""
    return next(((key, *_path(inner)) for key, inner in table.items()), ())


def _minimal_base(version: int) -> bytes:
    """Return the tables that each base of this version has (k3s-io/k3s, pkg/agent/templates)."""
    plugin = FILE_VERSIONS[version].plugin
    names = {plugin: None} if plugin == SHORT else dict.fromkeys(("io.containerd.internal.v1.opt", GRPC, plugin))
    runc = f"[plugins.{plugin!r}.containerd.runtimes.{BUILT_IN_RUNTIME}]"
    lines = [
        *([f"version = {version}"] if plugin != SHORT else []),
        *(f"[plugins.{name!r}]" for name in names),
        runc,
        '  runtime_type = "io.containerd.runc.v2"',
        f"{runc[:-1]}.options]",
        "",
    ]
    return "\n".join(lines).encode()


def _pieces(template: bytes, registered: Table) -> tuple[Piece, ...] | None:
    """Return a template's text in order, with an empty piece for the base; None if it has an unknown action."""
    return None if (found := list(_iterate_pieces(template, registered)))[-1] is None else tuple(filter(None, found))


def _iterate_pieces(template: bytes, registered: Table) -> Iterator[Piece | None]:
    """Yield the pieces; an unknown action yields None and ends the iteration."""
    place, trim, skipping, inside = 0, False, False, False
    for action in (*_RENDERED_ACTION.finditer(template), None):
        text = template[place : action.start() if action is not None else len(template)]
        start = place + (len(text) - len(text.lstrip()) if trim else 0)
        text = text.lstrip() if trim else text
        text = text.rstrip() if action is not None and action["before"] else text
        if not skipping:
            yield Piece(text, template.count(b"\n", 0, start) + 1)
        if action is None:
            return
        condition = _RENDERED_CONDITION.fullmatch(action["words"])
        if condition is not None and not inside:
            inside, skipping = True, condition["name"].decode() in registered
        elif inside and _RENDERED_END.fullmatch(action["words"]):
            inside, skipping = False, False
        elif _BASE.fullmatch(action["words"]):
            yield Piece(b"", template.count(b"\n", 0, action.start()) + 1, base=True)
        elif not _COMMENT.fullmatch(action["words"]):
            yield None
            return
        place, trim = action.end(), bool(action["after"])
