"""`diagnose` on a made node: it prints, in a pipe or as JSON, and `replay` counts what a capture has of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, SCRIPTS, FakeNode

GONE = """{
  "default-runtime": "nvidia",
  "runtimes": {
    "nvidia": {"path": "/usr/bin/nvidia-container-runtime"}
  }
}
"""


def told(*command: str) -> tuple[int, str]:
    done = subprocess.run([str(SCRIPTS / "toolkit-installer"), *command], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_leftover_is_printed_with_its_line(node: FakeNode) -> None:
    node.write(DAEMON_JSON, GONE)
    code, text = told("diagnose", "--node-root", str(node.root))
    assert code == 0
    assert text.startswith("1 illness found\n")
    assert f"{DAEMON_JSON}:4: left by another installer\n" in text
    assert "  Causes: every container fails\n" in text


def test_as_json_it_names_illness_file_and_line(node: FakeNode) -> None:
    node.write(DAEMON_JSON, GONE)
    code, text = told("diagnose", "--json", "--node-root", str(node.root))
    found = json.loads(text)
    assert (code, found["schema"]) == (0, 1)
    assert [(each["illness"], each["path"], each["line"]) for each in found["findings"]] == [
        ("leftover", DAEMON_JSON, 4)
    ]


def test_nothing_that_is_found_changes_the_exit_code(node: FakeNode) -> None:
    node.write(CONFIG_TOML, "version = 2\n[plugins\n")
    assert told("diagnose", "--node-root", str(node.root))[0] == 0
    assert told("diagnose", "--node-root", "/no/such/folder")[0] == 2


def test_a_replay_counts_the_illnesses_of_a_capture(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write(DAEMON_JSON, GONE)
    flags = node.arguments("plan")[1:]
    for name in ("a", "b"):
        monkeypatch.setenv("NODE_NAME", name)
        assert told("capture", *flags, str(tmp_path / f"{name}.capture"))[0] == 0
    _, text = told("replay", str(tmp_path))
    assert "ILL: left by another installer (leftover)" in text
    _, summary = told("replay", "--json", str(tmp_path))
    (illness,) = json.loads(summary)["illnesses"]
    assert (illness["illness"], len(illness["nodes"]), illness["findings"]) == ("leftover", 2, 2)


@pytest.mark.parametrize("driver, count", [("cgroupfs", 1), ("systemd", 0), (None, 0)])
def test_the_cgroup_driver_that_a_live_dockerd_reports_is_compared(
    node: FakeNode, driver: str | None, count: int
) -> None:
    node.write(DAEMON_JSON, "{}\n")
    node.write("/var/lib/kubelet/config.yaml", f"cgroupDriver: systemd\ncontainerRuntimeEndpoint: unix://{SOCKET}\n")
    says = {} if driver is None else {"CgroupDriver": driver}
    with FakeDockerd(node, **says):
        _, text = told("diagnose", "--json", "--node-root", str(node.root), "--socket", SOCKET, "--runtime", "docker")
    found = [each["what"] for each in json.loads(text)["findings"] if each["illness"] == "cgroup-driver"]
    assert len(found) == count, found
