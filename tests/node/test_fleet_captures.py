"""The made-up fleet has nodes of every kind, each of which fares as its kind does, copies among them."""

from __future__ import annotations

import contextlib
import io
import json
from collections import defaultdict
from pathlib import Path

from tests.support import fleet_captures
from toolkit_installer.cli import commands
from toolkit_installer.settings import Program


def test_each_kind_of_node_fares_as_it_should_and_all_of_a_kind_alike(tmp_path: Path) -> None:
    made = fleet_captures.make(tmp_path / "fleet", 100, variants=1)
    shares = {kind.name: kind.share for kind in fleet_captures.kinds()}
    assert {name: made.count(name) for name in made} == shares
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = commands.main(Program.TOOLKIT_INSTALLER, ["replay", "--json", str(tmp_path / "fleet")], {})
    summary = json.loads(printed.getvalue())
    assert code == 3
    assert summary["nodes"]["captures"] == 100
    fates: dict[str, set[str]] = defaultdict(set)
    for group in summary["groups"]:
        for name in group["nodes"]:
            fates[made[int(name.removeprefix("gpu-"))]].add(group["planned"]["summary"])
    for refused in summary["refusals"]:
        for name in refused["nodes"]:  # of one that cannot be read, its file
            number = Path(name).name.removesuffix(".capture").removeprefix("gpu-")
            fates[made[int(number)]].add(f"refused: {refused['reason']}")
    assert {kind: len(of_it) for kind, of_it in fates.items()} == dict.fromkeys(shares, 1)
    told = {kind: of_it.pop() for kind, of_it in fates.items()}
    assert {kind for kind, said in told.items() if said.startswith("Nothing to do")} == {
        "docker-installed",
        "containerd-installed",
    }
    assert {kind for kind, said in told.items() if said.startswith("refused: ")} == {
        "docker-broken",
        "containerd-broken",
        "cut-off",
    }
    assert {kind for kind, said in told.items() if said.startswith("1 file of the engine edited")} == {
        "docker-edited",
        "containerd-edited",
    }
    assert {kind for kind, said in told.items() if "docker will be reloaded" in said} == {"docker", "docker-edited"}
