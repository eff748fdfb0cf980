"""New files of captures and reports: what is never written over, who may read them, and which keys are taken."""

from __future__ import annotations

import os
import pty
import stat
from pathlib import Path

import pytest

from toolkit_installer.cli import files
from toolkit_installer.cli.output import OutputError
from toolkit_installer.errors import UsageError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "node.capture"


def test_a_new_file_is_whole_and_its_owners_alone(place: Path) -> None:
    files.require_new_file(str(place))
    files.write(str(place), b"x" * (1 << 20))
    assert place.read_bytes() == b"x" * (1 << 20)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["file", "dangling link", "folder"])
def test_nothing_that_is_there_is_written_over(place: Path, kind: str) -> None:
    if kind == "file":
        place.write_bytes(b"theirs")
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(place.parent / "elsewhere")
    with pytest.raises(UsageError, match="is there already"):
        files.require_new_file(str(place))
    with pytest.raises(OutputError, match="cannot be written"):
        files.write(str(place), b"ours")
    assert not (place.parent / "elsewhere").exists()
    assert kind != "file" or place.read_bytes() == b"theirs"


def test_a_file_in_a_folder_that_is_not_there_is_refused(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        files.require_new_file(str(place / "inner"))
    monkeypatch.chdir(tmp_path)
    files.require_new_file("in-this-one")


def test_a_file_that_cannot_be_written_whole_does_not_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def fill_up(fd: int, content: memoryview) -> int:
        if len(content) < 100:
            raise OSError(28, "No space left on device")
        return real(fd, content[:50])

    monkeypatch.setattr(os, "write", fill_up)
    with pytest.raises(OutputError, match="No space left on device"):
        files.write(str(place), b"x" * 130)
    assert not place.exists()


def test_the_standard_output_is_taken_unless_it_is_a_terminal(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    files.require_new_file(files.STDOUT)
    files.write(files.STDOUT, b"\0whole")
    assert capfdbinary.readouterr().out == b"\0whole"
    controlling, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as shown:
        monkeypatch.setattr("sys.stdout", shown)
        with pytest.raises(UsageError, match="not written to a terminal"):
            files.require_new_file(files.STDOUT)
    os.close(controlling)


def test_a_key_is_read_from_its_file_or_made_anew(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    assert files._read_key(str(key)) == b"k" * 32
    one, other = files._read_key(None), files._read_key(None)
    assert len(one) == 32
    assert one != other
    key.write_bytes(b"k" * 31)
    with pytest.raises(UsageError, match="has 31 bytes, and a key has at least 32"):
        files._read_key(str(key))
    with pytest.raises(UsageError, match="--key-file /gone: No such file"):
        files._read_key("/gone")
