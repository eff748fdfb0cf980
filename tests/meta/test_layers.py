"""The picture of the layers says what the import contract and the code say."""

from __future__ import annotations

from tests.support import layers


def test_the_picture_is_current() -> None:
    assert layers.PICTURE.read_text() == layers.drawn(), "make layers draws it anew"


def test_every_part_of_the_package_is_in_it() -> None:
    package = layers.PROJECT / "toolkit_installer"
    found = {path.stem for path in package.iterdir() if path.is_file() or any(path.rglob("*.py"))}  # not bytecode alone
    parts = found - {"__init__", "__pycache__", "py"}
    assert {name for row in layers.layers() for name in row} == parts
