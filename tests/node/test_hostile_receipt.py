"""A receipt that somebody else prepared, or damaged: refused by name before anything is written, or never believed."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.node.canary import Canary
from tests.node.faults import Outcome, run
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DOCKER, STORE, TOOLKIT, FakeNode

RECEIPT = f"{STORE}/receipt.json"
SITE = b'{"auths": {"registry": "secret"}}\n'
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
COMMANDS = ("run", "uninstall", "plan", "status")


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary.build(tmp_path / "canary")


@pytest.fixture
def installed(node: FakeNode, tmp_path: Path) -> FakeNode:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    node.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\n")
    node.write("/root/.ssh/authorized_keys", "ssh-ed25519 AAAA root\n", 0o600)
    node.write("/srv/site.json", SITE)
    node.place("/srv/empty").mkdir()
    node.write(f"{TOOLKIT}/notes.txt", "mine")
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    return node


def do(node: FakeNode, folder: Path, command: str) -> Outcome:
    done = run(node, folder, command, *(("--no-daemon",) if command == "run" else ()))
    assert "Traceback" not in done.output, done.output
    assert len(done.output) < 4000, "a message is for people to read"
    return done


def check_refused(node: FakeNode, folder: Path, canary: Canary, named: str = RECEIPT) -> None:
    """Fail unless every command refuses by name, and nothing at all is written."""
    stamps, outside = node.stamps(), canary.stamps()
    for command in COMMANDS:
        done = do(node, folder, command)
        assert done.code == 3, (command, done.output)
        assert f"file={named}" in done.output, (command, done.output)
    assert node.stamps() == stamps
    assert canary.stamps() == outside


Place = tuple[str | int, ...]
FILE: Place = ("engines", 0, "files", 0)
HOSTILE: list[tuple[Place, Any]] = [
    (("toolkit_folder",), "/"),
    (("toolkit_folder",), "/etc"),
    (("toolkit_folder",), "/toolkit"),
    (("toolkit_folder",), "/usr/local/nvidia"),
    (("toolkit_folder",), "/usr/local/other/toolkit"),
    (("toolkit_folder",), f"{TOOLKIT}/toolkit"),
    (("toolkit_folder",), "/" + "x" * 5000),
    (("toolkit_files", 0), "notes.txt"),
    (("toolkit_files", 0), "nvidia-ctk/notes.txt"),
    (("toolkit_files", 0), "libnvidia-container.so/../notes.txt"),
    (("toolkit_files", 0), "/etc/passwd"),
    (("toolkit_files", 0), ".config"),
    (("toolkit_files",), ["nvidia-ctk"] * 20_000),
    (("folders",), ["/srv/empty"]),
    (("folders", 0), "/srv/../srv/empty"),
    (("pid_folders",), ["/srv/empty"]),
    (("pid_file",), "/etc/passwd"),
    (("pid_file",), "/srv/site.json"),
    (("pid_file",), "/run/nvidia"),
    (("engines", 0, "name"), "crio"),
    (("engines", 0, "name"), "podman"),
    (("engines", 0, "handlers"), [["nvidia", "/usr/bin/evil"]]),
    (("engines", 0, "handlers"), [["nvidia", f"{TOOLKIT}-of-mine/nvidia-container-runtime"]]),
    (("engines", 0, "socket"), "docker.sock"),
    ((*FILE, "path"), "/etc/passwd"),
    ((*FILE, "path"), "/root/.ssh/authorized_keys"),
    ((*FILE, "path"), "/etc/docker/daemon.json/../../passwd"),
    ((*FILE, "path"), RECEIPT),
    ((*FILE, "path"), f"{TOOLKIT}/daemon.json"),
    ((*FILE, "written"), [SITE.hex()]),
    ((*FILE, "before", "sha256"), "../../../etc/passwd"),
    ((*FILE, "before", "uid"), -1),
    ((*FILE, "before", "mode"), 10**30),
    ((*FILE, "before", "xattrs"), [["security.capability", 7]]),
    (("state",), "anything"),
    (("schema",), 10**30),
    (("schema",), 0),
]


def change(node: FakeNode, edit: Callable[[Any], None]) -> None:
    body = json.loads(node.read(RECEIPT))
    before = copy.deepcopy(body)
    edit(body)
    assert body != before
    node.write(RECEIPT, json.dumps(body), 0o600)


@pytest.mark.parametrize("place, value", HOSTILE, ids=lambda value: repr(value)[:50])
def test_a_receipt_that_names_what_cannot_be_ours_is_refused_before_any_write(
    installed: FakeNode, tmp_path: Path, canary: Canary, place: Place, value: Any
) -> None:
    def put(body: Any) -> None:
        for key in place[:-1]:
            body = body[key]
        body[place[-1]] = value

    change(installed, put)
    check_refused(installed, tmp_path, canary)


def test_a_receipt_that_gives_up_somebody_elses_file_for_another_is_refused(
    installed: FakeNode, tmp_path: Path, canary: Canary
) -> None:
    def take_over(body: Any) -> None:
        file = body["engines"][0]["files"][0]
        file["path"] = "/srv/site.json"
        file["written"] = [hashlib.sha256(SITE).hexdigest()]

    change(installed, take_over)
    check_refused(installed, tmp_path, canary)


def test_a_receipt_that_removes_somebody_elses_file_is_refused(
    installed: FakeNode, tmp_path: Path, canary: Canary
) -> None:
    def take_over(body: Any) -> None:
        file = body["engines"][0]["files"][0]
        file |= {"path": "/srv/site.json", "written": [hashlib.sha256(SITE).hexdigest()], "before": None}

    change(installed, take_over)
    check_refused(installed, tmp_path, canary)


def test_a_receipt_that_names_an_engine_twice_is_refused(installed: FakeNode, tmp_path: Path, canary: Canary) -> None:
    change(installed, lambda body: body["engines"].append(body["engines"][0]))
    check_refused(installed, tmp_path, canary)


@pytest.mark.parametrize(
    "piece, times",
    [(b"", 1), (b"\0", 4096), (b"[", 200_000), (b'{"schema": 1, "engines": [', 5000), (b" ", 17 << 20), (b"\xff{}", 1)],
    ids=["empty", "nul", "deep", "deep-objects", "huge", "no-utf-8"],
)
def test_a_receipt_that_is_none_is_refused(
    installed: FakeNode, tmp_path: Path, canary: Canary, piece: bytes, times: int
) -> None:
    installed.write(RECEIPT, piece * times, 0o600)
    check_refused(installed, tmp_path, canary)


# --- the files and folders around it ---


def is_a_symlink(place: Path, _canary: Canary) -> None:
    place.rename(place.with_name("mine"))
    place.symlink_to("mine")


def leads_outside(place: Path, canary: Canary) -> None:
    place.unlink() if place.is_file() else place.rename(place.with_name("mine"))
    place.symlink_to(canary.folder / "nvidia/.toolkit-installer")


def is_a_fifo(place: Path, _canary: Canary) -> None:
    place.rename(place.with_name("mine"))
    os.mkfifo(place)


def belongs_to_somebody_else(place: Path, _canary: Canary) -> None:
    os.chown(place, 4321, 0)


def is_writable_by_others(place: Path, _canary: Canary) -> None:
    place.chmod(0o777 if place.is_dir() else 0o666)


def is_the_other_kind(place: Path, _canary: Canary) -> None:
    kind = place.is_dir()
    place.rename(place.with_name("mine"))
    place.touch() if kind else place.mkdir()


def has_another_name(place: Path, _canary: Canary) -> None:
    place.with_name("mine").hardlink_to(place)


TRAPS = (
    is_a_symlink,
    leads_outside,
    is_a_fifo,
    pytest.param(belongs_to_somebody_else, marks=AS_ROOT),
    is_writable_by_others,
    is_the_other_kind,
)


@pytest.mark.parametrize("trap", [*TRAPS, has_another_name])
def test_a_receipt_that_somebody_else_could_have_made_is_refused(
    installed: FakeNode, tmp_path: Path, canary: Canary, trap: Callable[[Path, Canary], None]
) -> None:
    trap(installed.place(RECEIPT), canary)
    check_refused(installed, tmp_path, canary)


@pytest.mark.parametrize("trap", TRAPS)
def test_a_receipts_folder_that_somebody_else_could_have_made_is_refused(
    installed: FakeNode, tmp_path: Path, canary: Canary, trap: Callable[[Path, Canary], None]
) -> None:
    trap(installed.place(STORE), canary)
    check_refused(installed, tmp_path, canary, STORE)


def test_copies_that_lie_elsewhere_or_were_changed_are_not_put_in_place(
    installed: FakeNode, tmp_path: Path, canary: Canary
) -> None:
    outside = canary.stamps()
    configured = installed.read(DAEMON_JSON)
    (copy_of_original,) = installed.place(f"{STORE}/originals").iterdir()
    copy_of_original.write_bytes(b"{}")
    originals = installed.place(f"{STORE}/originals")
    for _ in range(2):
        done = do(installed, tmp_path, "uninstall")
        assert done.code == 3
        assert f"{STORE}/originals/" in done.output
        assert installed.read(DAEMON_JSON) == configured
        assert installed.broken_runtimes() == []
        if not originals.is_symlink():
            originals.rename(installed.place("/srv/originals"))
            originals.symlink_to(canary.folder)
    assert canary.stamps() == outside


# --- and what is no reason to refuse ---


def test_folders_made_for_an_engine_configured_earlier_are_no_reason_to_refuse(node: FakeNode, tmp_path: Path) -> None:
    node.place("/etc/docker").rmdir()
    before = node.snapshot()
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    theirs = "/etc/docker/key.json"  # the folder would have gone with our file
    node.write(theirs, "{}")
    assert run(node, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    assert "/etc/docker" in json.loads(node.read(RECEIPT))["folders"]
    assert not node.exists(DAEMON_JSON)
    node.place(theirs).unlink()
    done = run(node, tmp_path, "uninstall", engine="containerd")
    assert done.code == 0, done.output
    assert node.snapshot() == before


@pytest.mark.parametrize("named", [True, False])
def test_a_file_of_an_unusual_name_is_believed_as_the_receipt_is_roots(
    node: FakeNode, tmp_path: Path, *, named: bool
) -> None:
    config = ("--config", "/srv/dockerd-settings") if named else ()
    node.write("/srv/dockerd-settings", DOCKER)
    before = node.snapshot()
    assert run(node, tmp_path, "run", "--no-daemon", "--config", "/srv/dockerd-settings").code == 0
    assert run(node, tmp_path, "uninstall", *config).code == 0
    assert node.snapshot() == before


def test_a_file_of_an_unusual_name_that_is_gone_keeps_nothing_from_being_taken_back(
    node: FakeNode, tmp_path: Path
) -> None:
    node.write("/srv/dockerd-settings", DOCKER)
    assert run(node, tmp_path, "run", "--no-daemon", "--config", "/srv/dockerd-settings").code == 0
    node.place("/srv/dockerd-settings").unlink()
    assert run(node, tmp_path, "uninstall").code == 0
    assert not node.exists(TOOLKIT)


@pytest.mark.parametrize("drop_in", [False, True], ids=["one-file", "drop-in"])
def test_a_file_that_we_made_empty_but_for_us_is_believed(node: FakeNode, tmp_path: Path, *, drop_in: bool) -> None:
    if drop_in:
        node.write("/etc/containerd/conf.d/site.toml", "version = 2\n")
    before = node.snapshot()
    assert run(node, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    assert node.exists(CONFIG_TOML)
    assert run(node, tmp_path, "uninstall", engine="containerd").code == 0
    assert node.snapshot() == before


def test_an_install_folder_reached_by_another_name_is_the_same(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, DOCKER)
    node.place("/opt").mkdir()
    node.place("/opt/nvidia").symlink_to("../usr/local/nvidia")
    before = node.snapshot()
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    done = run(node, tmp_path, "uninstall", "--toolkit-install-dir", "/opt/nvidia")
    assert done.code == 0, done.output
    assert node.snapshot() == before
