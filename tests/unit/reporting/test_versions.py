"""What is printed as the version: the program's commit, and the release of the payload."""

from __future__ import annotations

from pathlib import Path

import pytest

import toolkit_installer
from toolkit_installer.reporting import versions


@pytest.mark.parametrize(
    "content, shown",
    [
        (b"0123456789abcdef0123456789abcdef01234567\n", " (revision 0123456789abcdef0123456789abcdef01234567)"),
        (b"", ""),
        (b"\x1b[31mred\n", ""),
        (None, ""),
    ],
)
def test_an_image_says_of_which_commit_it_is(
    content: bytes | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "revision").write_bytes(content)
    monkeypatch.setattr(versions, "_REVISION_FILE", str(tmp_path / "revision"))
    assert versions.own_version() == toolkit_installer.__version__ + shown


def program(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "runtime"
    file.write_text(text)
    file.chmod(0o755)


@pytest.mark.parametrize(
    "text, printed",
    [
        ("#!/bin/sh\necho NVIDIA Container Runtime version 1.18.0\n", "NVIDIA Container Runtime version 1.18.0\n"),
        ("#!/gone\n", None),
    ],
    ids=["runs", "for another machine"],
)
def test_a_payload_for_another_machine_has_no_known_version(tmp_path: Path, text: str, printed: str | None) -> None:
    program(tmp_path / "usr/bin", text)
    assert versions.read_runtime_version(str(tmp_path), "usr/bin/runtime") == printed
    assert versions.read_runtime_version(str(tmp_path), "usr/bin/gone") is None
