"""What a killed run left beside an engine's file: whose version ends up in its place, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import store
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, OriginalFile, Receipt, State
from toolkit_installer.settings import EngineName

STORE = "/usr/local/nvidia/.toolkit-installer"
TOOLKIT = "/usr/local/nvidia/toolkit"
DOCKER, CRIO = "/etc/docker/daemon.json", "/etc/crio/crio.conf.d/99-nvidia.conf"
OURS, BEFORE, THEIRS, NEWER = b"ours", b"before", b"theirs", b"newer"
SWAP, TEMPORARY, KEPT = ".{}.toolkit-installer.swap", ".{}.toolkit-installer.tmp", "{}.toolkit-installer.kept"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def receipt(state: State, path: str = DOCKER, engine: EngineName = EngineName.DOCKER) -> Receipt:
    file = FileRecord("config", path, OriginalFile(sha256(BEFORE), 0o644, 0, 0), (sha256(OURS),))
    record = EngineRecord(engine, "/run/x.sock", None, (), None, (file,))
    return Receipt(state, "1", TOOLKIT, (), (), "/run/toolkit.pid", (), (record,))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in (STORE, f"{TOOLKIT}/.config/nvidia-container-runtime", "/etc/docker", "/etc/crio/crio.conf.d"):
        (tmp_path / folder[1:]).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def node(root: Path) -> Node:
    return Node.open(str(root), "/host")


def beside(root: Path, path: str, pattern: str) -> Path:
    """Return the place beside the node's `path` whose name is made by a pattern."""
    place = root / path[1:]
    return place.with_name(pattern.format(place.name))


def put(root: Path, path: str, contents: dict[str, bytes | None]) -> None:
    """Put contents at the node's `path` ("{}") and beside it."""
    for pattern, content in contents.items():
        if content is not None:
            beside(root, path, pattern).write_bytes(content)


def found(root: Path, path: str) -> dict[str, bytes]:
    """Return what is in the folder of the node's `path`, by name."""
    return {place.name: place.read_bytes() for place in (root / path[1:]).parent.iterdir()}


@pytest.mark.parametrize(
    "present,displaced,expected",
    [
        # killed after the exchange: the old version is known, and the new one stays
        (OURS, BEFORE, {"daemon.json": OURS}),
        # killed before it, or on the way back
        (BEFORE, OURS, {"daemon.json": BEFORE}),
        # what came out is somebody else's version, and nobody has seen it yet: it goes back
        (OURS, THEIRS, {"daemon.json": THEIRS}),
        (BEFORE, THEIRS, {"daemon.json": THEIRS}),
        (None, THEIRS, {"daemon.json": THEIRS}),
        # a newer one of theirs stands in its place by now: both stay
        (NEWER, THEIRS, {"daemon.json": NEWER, "daemon.json.toolkit-installer.kept": THEIRS}),
        (NEWER, OURS, {"daemon.json": NEWER}),
        (None, None, {}),
    ],
)
def test_the_version_that_must_not_be_lost_is_in_place_without_files_of_ours(
    root: Path, node: Node, present: bytes | None, displaced: bytes | None, expected: dict[str, bytes]
) -> None:
    put(root, DOCKER, {"{}": present, SWAP: displaced, TEMPORARY: b"half"})
    store.recover(node, receipt(State.APPLYING), STORE)
    assert found(root, DOCKER) == expected
    store.recover(node, receipt(State.APPLYING), STORE)
    assert found(root, DOCKER) == expected


def test_a_second_version_is_quarantined_if_the_engine_reads_the_whole_folder(root: Path, node: Node) -> None:
    put(root, CRIO, {"{}": NEWER, SWAP: THEIRS})
    store.recover(node, receipt(State.APPLYING, CRIO, EngineName.CRIO), STORE)
    assert found(root, CRIO) == {"99-nvidia.conf": NEWER}
    (kept,) = (root / "usr/local/nvidia").rglob("*.kept")
    assert kept.read_bytes() == THEIRS
    assert sha256(THEIRS)[:12] in kept.name


def test_a_link_under_our_name_is_removed_and_what_it_leads_to_is_left_alone(root: Path, node: Node) -> None:
    put(root, DOCKER, {"{}": OURS})
    target = root / "etc/precious"
    target.write_bytes(THEIRS)
    beside(root, DOCKER, SWAP).symlink_to(target)
    store.recover(node, receipt(State.APPLYING), STORE)
    assert found(root, DOCKER) == {"daemon.json": OURS}
    assert target.read_bytes() == THEIRS


@pytest.mark.parametrize("state", [State.APPLYING, State.REVERTING])
def test_what_lies_beside_a_file_is_a_killed_runs_only_if_the_receipt_says_so(
    root: Path, node: Node, state: State
) -> None:
    put(root, DOCKER, {"{}": OURS, SWAP: THEIRS})
    store.refuse_strangers(node, receipt(state), [DOCKER])
    for settled in (receipt(State.INSTALLED), None):
        with pytest.raises(ConfigurationError, match="is in the way") as refused:
            store.refuse_strangers(node, settled, [DOCKER])
        assert refused.value.path == DOCKER.replace("daemon.json", SWAP.format("daemon.json"))
        assert "move it away" in str(refused.value.hint)


def test_a_version_that_the_receipt_knows_is_no_strangers(root: Path, node: Node) -> None:
    for known in (OURS, BEFORE):
        put(root, DOCKER, {"{}": OURS, SWAP: known})
        store.refuse_strangers(node, receipt(State.INSTALLED), [DOCKER])


@pytest.mark.parametrize("kind", ["folder", "link", "temporary folder"])
def test_what_is_no_file_under_our_name_is_refused(root: Path, node: Node, kind: str) -> None:
    place = beside(root, DOCKER, TEMPORARY if kind == "temporary folder" else SWAP)
    if kind == "link":
        place.symlink_to("daemon.json")
        put(root, DOCKER, {"{}": OURS})
    else:
        place.mkdir()
    with pytest.raises(ConfigurationError, match="is in the way"):
        store.refuse_strangers(node, receipt(State.INSTALLED), [DOCKER])


@pytest.mark.parametrize(
    "left",
    [
        f"/etc/docker/{SWAP.format('daemon.json')}",
        f"/etc/docker/{TEMPORARY.format('daemon.json')}",
        f"{STORE}/.receipt.json.toolkit-installer.tmp",
        f"{TOOLKIT}/.nvidia-ctk.toolkit-installer.tmp",
        f"{TOOLKIT}/.config/nvidia-container-runtime/.config.toml.toolkit-installer.tmp",
    ],
)
def test_it_is_known_beforehand_whether_there_is_anything_to_recover(root: Path, node: Node, left: str) -> None:
    put(root, DOCKER, {"{}": OURS})
    for state in State:
        assert not store.needs_recovery(node, receipt(state), STORE)
    (root / left[1:]).write_bytes(b"half")
    assert store.needs_recovery(node, receipt(State.APPLYING), STORE)
    store.recover(node, receipt(State.APPLYING), STORE)
    assert not (root / left[1:]).exists()
    assert not store.needs_recovery(node, receipt(State.APPLYING), STORE)


def test_without_a_receipt_only_what_lies_in_our_own_folder_is_removed(root: Path, node: Node) -> None:
    half = root / STORE[1:] / ".receipt.json.toolkit-installer.tmp"
    half.write_bytes(b"half")
    put(root, DOCKER, {"{}": BEFORE, TEMPORARY: THEIRS})
    store.recover(node, None, STORE)
    assert not half.exists()
    assert found(root, DOCKER) == {"daemon.json": BEFORE, TEMPORARY.format("daemon.json"): THEIRS}
