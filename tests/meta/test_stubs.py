"""The generated classes of the messages are those of our protos."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import stubs


@pytest.mark.parametrize("proto", stubs.PROTOS, ids=lambda proto: proto.name)
def test_the_stubs_are_current(proto: Path, tmp_path: Path) -> None:
    stubs.generate(proto, tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(made) == [f"{proto.stem}_pb2.py", f"{proto.stem}_pb2.pyi"]
    for name, text in made.items():
        assert (proto.parent / name).read_text() == text, "make stubs generates them anew"


def test_there_are_two() -> None:
    assert [proto.name for proto in stubs.PROTOS] == ["cri.proto", "nri.proto"]
