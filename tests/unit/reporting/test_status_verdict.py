"""The verdict of `status`: what makes a node DEGRADED or BROKEN.

`STATUS_FILES=write pytest …` writes docs/status.schema.json anew, to be read before use.
"""

from __future__ import annotations

import json
import os
import pathlib

import msgspec
import pytest

from tests.unit.reporting.node_statuses import (
    CASES,
    ENGINE,
    SILENT,
    WHOLE,
    but,
    engine,
    toolkit,
)
from toolkit_installer.planning.installed import Damage
from toolkit_installer.reporting import status_verdict
from toolkit_installer.reporting.status_verdict import (
    FileFault,
    Health,
    Verdict,
)

ROOT = pathlib.Path(__file__).parents[3]
SCHEMA = ROOT / "docs" / "status.schema.json"


@pytest.mark.parametrize("name", CASES)
def test_each_fault_has_its_verdict_and_says_what_to_do(name: str) -> None:
    found, expected, says = CASES[name]
    health = status_verdict.judge_node(found)
    assert health.verdict is expected
    assert says in " ".join(reason.what for reason in health.reasons)
    assert all(reason.remedy for reason in health.reasons)
    assert bool(health.reasons) is (expected is not Verdict.OK)


@pytest.mark.parametrize(
    "name, command",
    [
        ("engine-masked", "`systemctl unmask containerd.service && systemctl start containerd.service`"),
        ("engine-inactive", "`systemctl start containerd.service`"),
        ("engine-failed", "correct the file, or restore it, then `systemctl restart containerd.service`"),
        ("engine-stopped", "`kill -CONT 812`"),
        ("engine-hangs", "`systemctl restart containerd.service`"),
        ("instance-stopped", "`kill -CONT 3035`"),
        ("receipt-gone", "-- toolkit-installer refresh`"),
        ("driver-absent", "install the driver"),
        ("driver-broken", "`modprobe nvidia`"),
        ("driver-hangs", "`dmesg | grep -iE 'nvrm|xid'`"),
    ],
)
def test_the_first_remedy_names_the_command(name: str, command: str) -> None:
    assert command in status_verdict.judge_node(CASES[name][0]).reasons[0].remedy


def test_a_file_that_cannot_be_parsed_is_not_said_to_be_put_back() -> None:
    said = [reason.what for reason in status_verdict.judge_node(CASES["file-broken"][0]).reasons]
    place = "/etc/containerd/config.toml:41"
    assert said == [f"containerd: {place}: not valid TOML: Invalid value (column 8); containerd cannot start with it"]


def test_the_gravest_reason_comes_first_and_decides() -> None:
    found = but(engines=engine(SILENT, "changed by somebody else"), running_pid=None, killed_pid=7)
    health = status_verdict.judge_node(found)
    assert [reason.verdict for reason in health.reasons] == [
        Verdict.BROKEN,
        Verdict.DEGRADED,
        Verdict.DEGRADED,
    ]
    assert health.verdict is Verdict.BROKEN


def test_the_schema_of_the_json_is_the_one_in_the_documentation() -> None:
    text = json.dumps(msgspec.json.schema(Health), indent=2) + "\n"
    if os.environ.get("STATUS_FILES") == "write":
        SCHEMA.write_text(text)
    assert SCHEMA.read_text() == text


def test_a_fault_of_an_engines_files_degrades_the_node() -> None:
    fault = FileFault("/etc/a.toml:3: is not read", "write both for one version")
    found = msgspec.structs.replace(WHOLE, engines=(msgspec.structs.replace(ENGINE, faults=(fault,)),))
    health = status_verdict.judge_node(found)
    assert health.verdict is Verdict.DEGRADED
    assert [(each.what, each.remedy) for each in health.reasons] == [(f"containerd: {fault.what}", fault.remedy)]


def test_files_that_were_touched_are_one_reason_and_are_not_called_damaged() -> None:
    touched = [Damage(f"{number}.real", "touched since it was put in place", certain=False) for number in range(9)]
    found = status_verdict.judge_node(but(toolkit=toolkit(*touched, Damage("a", "it is empty"))))
    assert [reason.verdict for reason in found.reasons] == [Verdict.BROKEN, Verdict.DEGRADED]
