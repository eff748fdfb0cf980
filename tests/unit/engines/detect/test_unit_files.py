"""What a unit's files say of the command that it starts, read as systemd reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.engines.detect import unit_files
from toolkit_installer.node.node import Node

UNIT = "k3s.service"
ETC = "/etc/systemd/system"


def command(root: Path, files: dict[str, str]) -> unit_files.UnitCommand | None:
    for path, content in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return unit_files.read_unit_commands(Node(str(root)), [UNIT]).get(UNIT)


@pytest.mark.parametrize(
    "files, arguments",
    [
        ({f"{ETC}/{UNIT}": "[Service]\nExecStart=/bin/k3s server --docker\n"}, ("/bin/k3s", "server", "--docker")),
        (
            {f"{ETC}/{UNIT}": "ExecStart=-@/bin/k3s \\\n  server \\\n# why\n  '--a b'\n"},
            ("/bin/k3s", "server", "--a b"),
        ),
        ({f"/lib/systemd/system/{UNIT}": "ExecStart=/x\n", f"{ETC}/{UNIT}": "ExecStart=/y\n"}, ("/y",)),
        (
            {f"{ETC}/{UNIT}": "ExecStart=/x\n", f"/run/systemd/system/{UNIT}.d/a.conf": "ExecStart=\nExecStart=/z\n"},
            ("/z",),
        ),
        (
            {f"{ETC}/{UNIT}": "Environment=A=1 'B=2 3'\nExecStart=/x $B ${B} $A $C ${C}\n"},
            ("/x", "2", "3", "2 3", "1", "$C", "${C}"),
        ),
        ({f"{ETC}/{UNIT}": "EnvironmentFile=-/e\nExecStart=/x ${A}\n", "/e": "# no\nA=1\nB\n"}, ("/x", "1")),
        ({f"{ETC}/{UNIT}": "EnvironmentFile=/gone\nExecStart=/x\n"}, ("/x",)),
    ],
)
def test_the_words_of_a_units_command_are_found(
    tmp_path: Path, files: dict[str, str], arguments: tuple[str, ...]
) -> None:
    found = command(tmp_path, files)
    assert found is not None
    assert found.arguments == arguments


@pytest.mark.parametrize(
    "files", [{}, {f"{ETC}/{UNIT}": "[Service]\n"}, {f"{ETC}/{UNIT}": "ExecStart=/x 'y\n"}], ids=len
)
def test_a_unit_that_starts_nothing_has_no_command(tmp_path: Path, files: dict[str, str]) -> None:
    assert command(tmp_path, files) is None
