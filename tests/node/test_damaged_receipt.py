"""The receipt lost, damaged, of another schema: a message that helps, and what it advises really works."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable

import pytest

from tests.node.drift import Templates, parsed
from tests.node.faults import Outcome
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, NOTHING_TO_DO, STORE, TOOLKIT, FakeNode
from toolkit_installer.documents.changes import is_same

RECEIPT = f"{STORE}/receipt.json"
DOCKER = b'{\n  "log-driver": "json-file",\n  "default-runtime": "crun",\n  "runtimes": {"crun": {"path": "/c"}}\n}\n'
CONTAINERD = b'version = 2\n# mine\n[debug]\n  level = "info"\n'
BASES = {DAEMON_JSON: DOCKER, CONFIG_TOML: CONTAINERD}
BOTH = pytest.mark.parametrize("path", [DAEMON_JSON, CONFIG_TOML])
COMMANDS = {"run": ("--no-daemon",), "plan": (), "status": (), "uninstall": ()}


def installed(templates: Templates, path: str) -> FakeNode:
    return templates.installed(path, BASES[path])


def without_default(path: str) -> dict[str, object]:
    """Return what the original says but for the default: what it was, only the receipt knows."""
    document = parsed(path, BASES[path])
    document.pop("default-runtime", None)
    return document


def check_gone(node: FakeNode, path: str, *, exact: bool) -> None:
    if exact:
        assert node.read(path) == BASES[path]
    else:
        assert is_same(parsed(path, node.read(path)), without_default(path))
        assert b"toolkit-installer" not in node.read(path)
    assert not node.exists(TOOLKIT)
    assert not node.exists(STORE)


def uninstall(templates: Templates, node: FakeNode, path: str) -> Outcome:
    done = templates.run(node, path, "uninstall")
    assert done.code == 0, done.output
    return done


# --- lost ---

LOST: dict[str, tuple[str, ...]] = {
    "all": (STORE,),
    "receipt": (RECEIPT,),
    "receipt-and-originals": (RECEIPT, f"{STORE}/originals"),
}


def lose(node: FakeNode, *places: str) -> None:
    for place in places:
        if node.place(place).is_dir():
            shutil.rmtree(node.place(place))
        else:
            node.place(place).unlink()


@BOTH
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
def test_uninstall_without_a_receipt_recognises_what_is_ours(
    templates: Templates, path: str, lost: tuple[str, ...]
) -> None:
    node = installed(templates, path)
    lose(node, *lost)
    uninstall(templates, node, path)
    check_gone(node, path, exact=False)


@BOTH
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
def test_a_run_without_its_receipt_takes_over_what_is_there_and_never_restores_it(
    templates: Templates, path: str, lost: tuple[str, ...]
) -> None:
    node = installed(templates, path)
    content = node.read(path)
    lose(node, *lost)
    again = templates.run(node, path, "run", "--no-daemon")
    assert again.code == 0, again.output
    assert is_same(parsed(path, node.read(path)), parsed(path, content))
    assert node.broken_runtimes() == []
    assert NOTHING_TO_DO in templates.run(node, path, "run", "--no-daemon").output
    uninstall(templates, node, path)
    assert is_same(parsed(path, node.read(path)), without_default(path))
    assert not node.exists(STORE)


def test_a_run_without_its_receipt_takes_the_toolkits_folders_over_as_well(templates: Templates) -> None:
    node = installed(templates, DAEMON_JSON)
    lose(node, STORE)
    templates.run(node, DAEMON_JSON, "run", "--no-daemon")
    uninstall(templates, node, DAEMON_JSON)
    assert not node.exists(TOOLKIT)


@BOTH
def test_a_receipt_that_came_back_from_a_backup_is_as_good_as_ever(templates: Templates, path: str) -> None:
    node = installed(templates, path)
    saved = node.place(STORE).with_name("saved")
    shutil.copytree(node.place(STORE), saved)
    shutil.rmtree(node.place(STORE))
    saved.rename(node.place(STORE))
    uninstall(templates, node, path)
    check_gone(node, path, exact=True)


@BOTH
@pytest.mark.parametrize("damage", ["lost", "cut", "empty"])
def test_a_lost_or_damaged_original_is_named_and_the_remedy_works(templates: Templates, path: str, damage: str) -> None:
    node = installed(templates, path)
    (original,) = node.place(f"{STORE}/originals").iterdir()
    if damage == "lost":
        original.unlink()
    else:
        original.write_bytes(original.read_bytes()[:7] if damage == "cut" else b"")
    before = node.snapshot()
    for command in ("run", "plan", "uninstall"):
        refused = templates.run(node, path, command, *COMMANDS[command])
        assert refused.code == 3, refused.output
        assert original.name in refused.output
        assert "move the receipt's folder away and run `uninstall`" in refused.output
        assert "Traceback" not in refused.output
        assert node.snapshot() == before
    node.place(STORE).rename(node.place(STORE).with_name("moved-away"))
    uninstall(templates, node, path)
    check_gone(node, path, exact=False)


# --- damaged ---


def changed(**fields: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(json.loads(content) | fields).encode()


def without(field: str) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(
        {key: value for key, value in json.loads(content).items() if key != field}
    ).encode()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda _content: b"",
    "garbage": lambda _content: bytes(range(256)),
    "no-object": lambda _content: b"[]\n",
    "another-json": lambda _content: b'{"schema": 5, "hello": "world"}\n',
    "a-wrong-field": changed(engines="docker"),
    "a-path-that-leads-out": changed(toolkit_files=["../../../etc/passwd"]),
    "a-state-that-never-was": changed(state="done"),
    "no-schema": without("schema"),
    "schema-null": changed(schema=None),
    "schema-as-text": changed(schema="1"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@BOTH
def test_a_damaged_receipt_is_named_nothing_changes_and_the_remedy_works(
    templates: Templates, path: str, damage: Callable[[bytes], bytes]
) -> None:
    node = installed(templates, path)
    node.place(RECEIPT).write_bytes(damage(node.read(RECEIPT)))
    before = node.snapshot()
    for command, more in COMMANDS.items():
        refused = templates.run(node, path, command, *more)
        assert refused.code == 3, refused.output
        assert RECEIPT in refused.output
        assert "the receipt" in refused.output
        assert "move it away and run `uninstall`" in refused.output
        assert "Traceback" not in refused.output
        assert node.snapshot() == before
    node.place(RECEIPT).rename(node.place("/root-of-the-operator.json"))
    uninstall(templates, node, path)
    check_gone(node, path, exact=False)


@pytest.mark.parametrize("damage", ["cut", "garbage", "schema-null"])
def test_a_damaged_receipt_that_was_moved_away_is_no_reason_not_to_install_again(
    templates: Templates, damage: str
) -> None:
    node = installed(templates, DAEMON_JSON)
    node.place(RECEIPT).write_bytes(DAMAGES[damage](node.read(RECEIPT)))
    node.place(RECEIPT).unlink()
    again = templates.run(node, DAEMON_JSON, "run", "--no-daemon")
    assert again.code == 0, again.output
    assert node.broken_runtimes() == []
    uninstall(templates, node, DAEMON_JSON)
    assert is_same(parsed(DAEMON_JSON, node.read(DAEMON_JSON)), without_default(DAEMON_JSON))


# --- of another schema ---


@BOTH
def test_a_newer_installers_receipt_is_left_alone_and_the_newer_one_can_still_use_it(
    templates: Templates, path: str
) -> None:
    node = installed(templates, path)
    ours = node.read(RECEIPT)
    node.place(RECEIPT).write_bytes(changed(schema=99, new={"a": 1})(ours))
    before = node.snapshot()
    for command, more in COMMANDS.items():
        refused = templates.run(node, path, command, *more)
        assert refused.code == 3, refused.output
        assert RECEIPT in refused.output
        assert re.search(r"another release of the installer \(schema 99, this one knows \d+\)", refused.output)
        assert "use that release" in refused.output
        assert node.snapshot() == before
    node.place(RECEIPT).write_bytes(ours)  # for that newer one it is a receipt of its own
    uninstall(templates, node, path)
    check_gone(node, path, exact=True)
