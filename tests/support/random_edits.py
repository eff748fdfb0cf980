"""Random configurations of the engines, and what operators may do to them while we are installed."""

from __future__ import annotations

import json
import random
import tomllib
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from toolkit_installer.documents.changes import ABSENT, Change, Path, Remove, Set, Table, apply_changes, is_same, lookup
from toolkit_installer.documents.toml_text import write, write_key
from toolkit_installer.engines.containerd.tables import FILE_VERSIONS, table_of

NAMES = ("nvidia", "nvidia-cdi", "nvidia-legacy")
THEIRS = ("crun", "kata", "runsc")
SCALARS = st.sampled_from([1, -7, True, "text", "", 'say "x"', "ü", [], ["x", "y"]])


def edits(runtimes: Path, default: Path, others: list[Path], entry: Any) -> st.SearchStrategy[list[Change]]:
    """Return what an operator may do: to lines next to ours, to runtimes, theirs or ours, and to the default."""
    mine = st.sampled_from(THEIRS).map(lambda name: (*runtimes, name))
    ours = st.sampled_from(NAMES).map(lambda name: (*runtimes, name))
    return st.lists(
        st.one_of(
            st.builds(Set, st.sampled_from(others), SCALARS),
            st.builds(Remove, st.sampled_from(others)),
            st.builds(Set, mine, st.just(entry("/opt/other"))),
            st.builds(Remove, mine),
            st.builds(Set, ours, st.just(entry("/opt/mine"))),
            st.builds(Remove, ours),
            st.builds(Set, st.just(default), st.sampled_from(("runc", *THEIRS))),
            st.builds(Remove, st.just(default)),
        ),
        min_size=1,
        max_size=4,
    )


def alone(base: Table, runtimes: Path, default: Path, changes: list[Change], *, as_default: bool) -> Table:
    """Return what the edit makes of the document without us, said by rules of the test's own.

    A change of a key that we had set counts; one that takes ours away says nothing of what stood there before, but
    that it is gone.
    """
    result = apply_changes(base, tuple(changes))
    before, after = lookup(base, runtimes), lookup(result, runtimes)
    if not isinstance(before, dict) and after == {}:
        result = apply_changes(result, (Remove(runtimes) if before is ABSENT else Set(runtimes, before),))
    named, was = lookup(result, default), lookup(base, default)
    touched = any(change.path == default for change in changes)
    known = before if isinstance(before, dict) else {}
    may_dangle = as_default or was in NAMES  # ours, or the name of a handler that somebody takes away with ours
    if may_dangle and not touched and was in known and was not in (after if isinstance(after, dict) else {}):
        assert named == was
        result = apply_changes(result, (Remove(default),))  # no engine starts with a default that is not there
    return result


# --- docker ---


def docker_entry(path: str) -> Table:
    return {"path": path}


@st.composite
def docker_documents(draw: st.DrawFn) -> bytes:
    document: Table = draw(st.dictionaries(st.sampled_from(["log-driver", "debug", "data-root", "x"]), SCALARS))
    names = draw(st.lists(st.sampled_from([*THEIRS, *NAMES]), unique=True, max_size=4))
    if bool(names) or draw(st.booleans()):
        document["runtimes"] = {name: docker_entry(f"/usr/bin/{name}") for name in names}
    if draw(st.booleans()):
        document["default-runtime"] = draw(st.sampled_from(["runc", *names]))
    keys = draw(st.permutations(list(document)))
    indent = draw(st.sampled_from([None, 2, "\t"]))
    text = json.dumps({key: document[key] for key in keys}, indent=indent) + draw(st.sampled_from(["", "\n"]))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"]))).encode()


DOCKER_EDITS = edits(("runtimes",), ("default-runtime",), [("log-driver",), ("debug",), ("new",)], docker_entry)


# --- containerd ---


def containerd_entry(path: str) -> Table:
    return {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": path}}


def rendered(table: Table, path: Path, choose: random.Random, *, inline: bool) -> list[str]:
    """Return the sections of a table, each with its own keys, in the order in which they were made."""
    lines = [f"[{'.'.join(map(write_key, path))}]{choose.choice(('', ' # said'))}"] if path else []
    later: list[str] = []
    for key, value in table.items():
        if isinstance(value, dict) and not (inline and choose.random() < 0.3):
            later += rendered(value, (*path, key), choose, inline=inline)
        else:
            lines.append(f"{choose.choice(('', '  '))}{write_key(key)} = {write(value)}")
    return ["".join(f"{line}\n" for line in lines), *later]


@st.composite
def containerd_documents(draw: st.DrawFn) -> tuple[bytes, int]:
    """Return a config.toml with its tables in any order, and its version."""
    version = draw(st.sampled_from([2, 3]))
    table: Table = {}
    names = draw(st.lists(st.sampled_from([*THEIRS, *NAMES, "runc"]), unique=True, max_size=4))
    if names:
        table["runtimes"] = {name: containerd_entry(f"/usr/bin/{name}") for name in names}
        if draw(st.booleans()):
            table["default_runtime_name"] = draw(st.sampled_from(names))
    plugin = {"sandbox_image": "pause"} if draw(st.booleans()) else {}
    document: Table = {
        "version": version,
        **draw(st.dictionaries(st.sampled_from(["oom_score", "state"]), SCALARS)),
        "debug": {"level": "info"},
        "plugins": {"io.other": {"a": 1}, FILE_VERSIONS[version].plugin: {**plugin, "containerd": table}},
    }
    choose = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311  # no secret
    root, *sections = rendered(document, (), choose, inline=draw(st.booleans()))
    choose.shuffle(sections)
    text = "".join([root, *sections])
    try:
        assume(is_same(tomllib.loads(text), document))
    except tomllib.TOMLDecodeError:
        assume(condition=False)  # an inline table that a header would have to extend
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"]))).encode(), version


def containerd_edits(version: int) -> st.SearchStrategy[list[Change]]:
    table = table_of(FILE_VERSIONS[version].plugin)
    others: list[Path] = [
        ("oom_score",),
        ("debug", "level"),
        ("plugins", "io.other", "b"),
        (*table[:2], "sandbox_image"),
    ]
    return edits((*table, "runtimes"), (*table, "default_runtime_name"), others, containerd_entry)


def without_kept(document: Table, before: Table, runtimes: Path) -> Table:
    """Leave the built-in runc out where only we named it: it stays beside a runtime that somebody added meanwhile."""
    built_in = (*runtimes, "runc")
    ours = {"runtime_type": "io.containerd.runc.v2"}
    if "io.containerd.grpc.v1.cri" in runtimes:
        ours["sandbox_mode"] = "podsandbox"
    if lookup(before, runtimes) is ABSENT and is_same(lookup(document, built_in), ours):
        return apply_changes(document, (Remove(built_in),))
    return document
