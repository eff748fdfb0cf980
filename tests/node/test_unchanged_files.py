"""Files whose stat is what it was are not read again: what is saved by that, and what is noticed all the same."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.node.instants import stopping
from tests.node.sweeps import trees
from tests.node.sweeps.trees import stamp_of
from tests.support import payloads
from tests.support.fake_node import NOTHING_TO_DO, STORE, TOOLKIT, FakeNode
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Reader
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import status
from toolkit_installer.settings import Settings

RECEIPT = f"{STORE}/receipt.json"
PROGRAM = "nvidia-ctk.real"
SOURCE = "usr/bin/nvidia-ctk"
CONFIG = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"


def recorded(node: FakeNode) -> dict[str, Any]:
    receipt: dict[str, Any] = json.loads(node.read(RECEIPT))
    return receipt


def rewritten(node: FakeNode, receipt: dict[str, Any]) -> None:
    node.write(RECEIPT, json.dumps(receipt), 0o600)


def copied(receipt: dict[str, Any]) -> set[str]:
    return {each["name"] for each in receipt["copies"]}


def config_toml(receipt: dict[str, Any]) -> dict[str, Any]:
    """Return what the receipt says of the generated config.toml."""
    return next(each for each in receipt["contents"] if each["name"].endswith("config.toml"))


def entry(receipt: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the receipt says of a file."""
    (found,) = [each for each in receipt["copies"] if each["name"] == name]
    known: dict[str, Any] = found
    return known


def installed(node: FakeNode) -> dict[str, Any]:
    """Install: the kernel's clock has moved on since each copy was made, however fast they were made."""
    node.do("run", "--no-daemon", "--nvidia-container-runtime.log-level", "debug")
    return recorded(node)


def run(node: FakeNode, *more: str) -> str:
    return node.do("run", "--no-daemon", "--nvidia-container-runtime.log-level", "debug", *more).output


def copies_of(receipt: dict[str, Any]) -> set[str]:
    """Return the names of the files that are copied from the payload, not made by us."""
    names = receipt["toolkit_files"]
    return {name for name in names if name.endswith((".real", ".19.0")) or name == "nvidia-cdi-hook"}


@pytest.fixture
def own_payload(node: FakeNode, tmp_path: Path) -> FakeNode:
    """Return a node with a payload that the test may change."""
    node.payload = Path(shutil.copytree(node.payload, tmp_path / "own-payload", symlinks=True))
    return node


def test_each_copy_is_known_with_the_stamps_of_both_files(node: FakeNode) -> None:
    receipt = installed(node)
    assert copied(receipt) == copies_of(receipt)
    known = entry(receipt, PROGRAM)
    assert known["source"] == f"/{SOURCE}"
    assert known["stamp"] == stamp_of(node.place(f"{TOOLKIT}/{PROGRAM}"))
    assert known["source_stamp"] == stamp_of(node.payload / SOURCE)


def test_what_goes_unnoticed_with_the_clock_set_back_shows_with_verify_payload(node: FakeNode) -> None:
    receipt = installed(node)
    place = node.place(f"{TOOLKIT}/{PROGRAM}")
    content = place.read_bytes()
    place.write_bytes(content[::-1])
    entry(receipt, PROGRAM)["stamp"] = stamp_of(place)
    rewritten(node, receipt)
    assert NOTHING_TO_DO in run(node)
    assert "Installed the toolkit" in run(node, "--verify-payload")
    assert place.read_bytes() == content


def test_plan_verifies_the_payload_too(node: FakeNode) -> None:
    receipt = installed(node)
    place = node.place(f"{TOOLKIT}/{PROGRAM}")
    place.write_bytes(place.read_bytes()[::-1])
    entry(receipt, PROGRAM)["stamp"] = stamp_of(place)
    rewritten(node, receipt)
    debug = ("--nvidia-container-runtime.log-level", "debug")
    assert NOTHING_TO_DO in node.do("plan", *debug).output
    assert f"copy   {PROGRAM}" in node.do("plan", *debug, "--verify-payload").output


def test_the_sweeps_notice_a_copy_that_is_none(node: FakeNode) -> None:
    receipt = installed(node)
    assert trees.misremembered(node, RECEIPT) == []
    place = node.place(f"{TOOLKIT}/{PROGRAM}")
    place.write_bytes(b"another")
    entry(receipt, PROGRAM)["stamp"] = stamp_of(place)
    rewritten(node, receipt)
    assert trees.misremembered(node, RECEIPT) == [PROGRAM]


def _emptied(place: Path) -> None:
    place.write_bytes(b"")


def _of_the_same_size_and_mtime(place: Path) -> None:
    before = place.stat()
    with place.open("r+b") as stream:
        stream.write(b"#!/bin/false   \n")
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (place.stat().st_size, place.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _put_back_beside(place: Path) -> None:
    """Put another file of the same size and mtime in its place."""
    before = place.stat()
    other = place.with_name("other")
    other.write_bytes(b"#" * before.st_size)
    other.chmod(0o755)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(place)


@pytest.mark.parametrize("name", ["nvidia-container-runtime", PROGRAM])
@pytest.mark.parametrize("edit", [_emptied, _of_the_same_size_and_mtime, _put_back_beside])
def test_an_edit_is_noticed_whatever_it_leaves_as_it_was(
    node: FakeNode, edit: Callable[[Path], None], name: str
) -> None:
    installed(node)
    place = node.place(f"{TOOLKIT}/{name}")
    content = place.read_bytes()
    edit(place)
    assert "Installed the toolkit" in run(node)
    assert place.read_bytes() == content
    assert NOTHING_TO_DO in run(node)


def test_another_payload_of_the_same_size_and_mtime_is_installed(own_payload: FakeNode) -> None:
    """As images are built that give every file the same time."""
    node = own_payload
    installed(node)
    source = node.payload / SOURCE
    before, content = source.stat(), source.read_bytes()
    new = content.replace(payloads.VERSION.encode(), b"1.19.9")
    assert len(new) == len(content)
    assert new != content
    source.write_bytes(new)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "Installed the toolkit" in run(node)
    assert node.read(f"{TOOLKIT}/{PROGRAM}") == new


def test_an_equal_payload_that_was_unpacked_anew_is_read_and_nothing_is_written(own_payload: FakeNode) -> None:
    node = own_payload
    receipt = installed(node)
    source = node.payload / SOURCE
    again = source.with_name("again")
    shutil.copy2(source, again)
    again.rename(source)
    before = node.stamps()
    assert NOTHING_TO_DO in run(node)
    assert node.stamps() == before
    assert recorded(node) == receipt


def test_a_source_that_is_exchanged_while_it_is_copied_is_not_believed(own_payload: FakeNode) -> None:
    """What was opened was copied whole, and another file stands there since."""
    node = own_payload
    with stopping(node, f"rename .{PROGRAM}.toolkit-installer.tmp {PROGRAM}", "run", "--no-daemon"):
        source = node.payload / SOURCE
        again = source.with_name("again")
        again.write_bytes(source.read_bytes()[::-1])
        again.chmod(0o755)
        again.rename(source)
    assert PROGRAM not in copied(recorded(node))
    assert "Installed the toolkit" in node.do("run", "--no-daemon").output
    assert node.place(f"{TOOLKIT}/{PROGRAM}").read_bytes() == source.read_bytes()


def test_config_toml_is_written_again_after_an_edit_or_with_other_settings(node: FakeNode) -> None:
    receipt = installed(node)
    ours = node.read(CONFIG)
    assert config_toml(receipt)["sha256"] == hashlib.sha256(ours).hexdigest()
    node.write(CONFIG, ours.decode() + "# mine", 0o644)
    assert "Installed the toolkit" in run(node)
    assert node.read(CONFIG) == ours
    assert "Installed the toolkit" in node.do("run", "--no-daemon").output
    assert node.read(CONFIG) != ours
    assert config_toml(recorded(node))["recipe"] != config_toml(receipt)["recipe"]


def test_a_config_toml_of_which_the_receipt_says_something_else_is_made_again(node: FakeNode) -> None:
    receipt = installed(node)
    ours = node.read(CONFIG)
    config_toml(receipt)["recipe"] = "0" * 64
    rewritten(node, receipt)
    assert NOTHING_TO_DO in run(node)
    assert node.read(CONFIG) == ours


def test_a_change_that_was_killed_leaves_nothing_to_be_believed(node: FakeNode) -> None:
    """What stands in the receipt is what was found at the very end; until then, all is read."""
    installed(node)
    written = "rename .config.toml.toolkit-installer.tmp config.toml"
    with stopping(node, written, "run", "--no-daemon") as changing:
        changing.process.kill()
    amid = recorded(node)
    assert (amid["state"], amid["copies"]) == ("applying", [])
    content = node.read(f"{TOOLKIT}/{PROGRAM}")
    _of_the_same_size_and_mtime(node.place(f"{TOOLKIT}/{PROGRAM}"))
    assert "files=2" in node.do("run", "--no-daemon").output
    assert node.read(f"{TOOLKIT}/{PROGRAM}") == content


def test_status_tells_which_files_are_there_and_reads_no_copy(node: FakeNode) -> None:
    installed(node)
    node.place(f"{TOOLKIT}/{PROGRAM}").unlink()
    seen = Node(str(node.root))
    store = ReceiptStore(seen, "/usr/local/nvidia")
    receipt = trust.load(seen, store)
    assert receipt is not None
    copies = {f"{TOOLKIT}/{each.name}" for each in receipt.copies}
    assert copies
    read: list[str] = []
    whole = Reader.digest

    def digest(reader: Reader, path: str) -> str | None:
        read.append(path)
        return whole(reader, path)

    with mock.patch.object(Reader, "digest", digest):
        found = status.inspect_node(seen, Settings(node_root=str(node.root)), store, receipt)
    assert found.toolkit is not None
    assert found.toolkit.missing == (PROGRAM,)
    assert not copies & set(read)
