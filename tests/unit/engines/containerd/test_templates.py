"""Go templates of which containerd's configuration is made: what stands in one is told by its line."""

from __future__ import annotations

import pytest

from toolkit_installer.engines.containerd import templates
from toolkit_installer.engines.containerd.config import TableAdditions
from toolkit_installer.engines.containerd.tables import FILE_VERSIONS, build_shape
from toolkit_installer.errors import ConfigurationError

PLUGIN = FILE_VERSIONS[3].plugin
OURS = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/usr/local/nvidia/toolkit/runtime"}}
PART = TableAdditions(PLUGIN, (("nvidia", OURS),), None)


def template(name: str, *before: str) -> bytes:
    """Return a template with a runtime of somebody's; `before`: lines that stand above its table."""
    runtime = (
        f"[{'.'.join((*build_shape(PLUGIN).runtimes[:1], repr(PLUGIN), *build_shape(PLUGIN).runtimes[2:], name))}]"
    )
    lines = ('{{ template "base" . }}', *before, runtime, '  runtime_type = "io.containerd.kata.v2"')
    return "".join(f"{line}\n" for line in lines).encode()


ABOVE = pytest.mark.parametrize("above", [(), ("# ours",), ("", "[debug]", '  level = "info"', "")], ids=len)


@ABOVE
def test_a_runtime_of_somebodys_with_our_name_is_told_by_its_line(above: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="has a runtime 'nvidia' of its own") as raised:
        templates.find_own_runtimes(template("nvidia", *above), PART)
    assert raised.value.line == 2 + len(above)
    assert templates.find_own_runtimes(template("nvidia-2", *above), PART) == frozenset()


@ABOVE
def test_a_runtime_that_the_distribution_adds_too_is_told_by_its_line(above: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="the distribution adds its own") as raised:
        templates.refuse_duplicates(template("nvidia", *above), frozenset({"nvidia"}))
    assert raised.value.line == 2 + len(above)
    templates.refuse_duplicates(template("nvidia", *above), frozenset({"kata"}))


@ABOVE
def test_a_block_that_has_lost_its_end_is_told_by_the_line_where_it_begins(above: tuple[str, ...]) -> None:
    theirs = template("kata", *above)
    whole = templates.add_block(theirs, PART)
    torn = b"".join(whole.splitlines(keepends=True)[:-1])
    with pytest.raises(ConfigurationError, match="has lost the end") as raised:
        templates.add_block(torn, PART)
    assert raised.value.line == theirs.count(b"\n") + 1
