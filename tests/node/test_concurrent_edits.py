"""Somebody else writes the engine's file at any instant of a run: their version is never overwritten or lost."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.faults import Outcome, run
from tests.node.instants import Deed, numbers_of
from tests.node.sweeps import warm
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, FakeNode
from tests.support.quick import Few


@dataclasses.dataclass(frozen=True)
class Setting:
    """An engine, its file as the operator wrote it, and what a config manager writes instead."""

    engine: str
    path: str
    original: bytes
    theirs: bytes
    word: tuple[bytes, bytes]
    """What an operator replaces in the file as it is just then, and by what."""

    def __str__(self) -> str:
        return self.engine


DOCKER = Setting(
    "docker",
    DAEMON_JSON,
    b'{\n  "log-driver": "json-file"\n}\n',
    b'{\n\t"theirs": [1.0],\n\t"log-driver": "syslog"}',
    (b"json-file", b"journald"),
)
CONTAINERD = Setting(
    "containerd",
    CONFIG_TOML,
    b'version = 2\n# mine\n[debug]\nlevel = "info"\n',
    b'# theirs\nversion = 2\n[debug]\n  level = "warn" # noisy',
    (b'"info"', b'"trace"'),
)
TARGET = "theirs"
"""The file, beside the engine's, that their symlink leads to."""


def clear(place: Path) -> None:
    """Remove whatever is there."""
    if place.is_dir() and not place.is_symlink():
        place.rmdir()
    else:
        place.unlink(missing_ok=True)


def amends(place: Path, setting: Setting) -> None:
    """Edit the file as it is, as sed does."""
    other = place.with_name("sed")
    other.write_bytes(place.read_bytes().replace(*setting.word))
    other.rename(place)


def writes_in_place(place: Path, setting: Setting) -> None:
    place.write_bytes(setting.theirs)


def renames(place: Path, setting: Setting) -> None:
    place.with_name("new").write_bytes(setting.theirs)
    place.with_name("new").rename(place)


def deletes(place: Path, _setting: Setting) -> None:
    clear(place)


def links(place: Path, setting: Setting) -> None:
    clear(place)
    place.with_name(TARGET).write_bytes(setting.theirs)
    place.symlink_to(TARGET)


def makes_a_folder(place: Path, _setting: Setting) -> None:
    clear(place)
    place.mkdir()


def makes_a_fifo(place: Path, _setting: Setting) -> None:
    clear(place)
    os.mkfifo(place)


DEEDS = (amends, writes_in_place, renames, deletes, links)
BLOCKING = (makes_a_folder, makes_a_fifo)
ALL = (*DEEDS, *BLOCKING)
Act = Callable[[Path, Setting], None]


def remains(deed: Act, setting: Setting) -> bytes | None:
    """Return the file as it must be once we are gone, None for no file."""
    if deed is amends:
        return setting.original.replace(*setting.word)
    return None if deed is deletes else setting.theirs


class Bench:
    """Makes nodes, and runs the program on them while somebody meddles."""

    def __init__(self, folder: Path, payload: Path, setting: Setting) -> None:
        self.folder = folder
        self.payload = payload
        self.setting = setting
        self.made = 0

    def node(self) -> FakeNode:
        shutil.rmtree(self.folder / f"node-{self.made}", ignore_errors=True)
        self.made += 1
        root = self.folder / f"node-{self.made}"
        for path in ("etc/docker", "etc/containerd", "run", "usr/local"):
            (root / path).mkdir(parents=True)
        node = FakeNode(root, self.payload)
        node.write(self.setting.path, self.setting.original, 0o640)
        return node

    def run(self, node: FakeNode, command: str, at: int | None = None, deed: Act | None = None) -> Outcome:
        plan = None
        if at is not None and deed is not None:
            place = node.place(self.setting.path)
            plan = Deed(at, deed=lambda: deed(place, self.setting))
        more = ("--no-daemon",) if command == "run" else ()
        outcome = run(node, self.folder, command, *more, engine=self.setting.engine, plan=plan)
        assert "Traceback" not in outcome.output
        assert node.broken_runtimes() == [] if node.place(self.setting.path).is_file() else True
        return outcome

    def instants(self, whole: Outcome, deed: Act) -> list[int]:
        """Return when `deed` is done: beside each call of the engine's own file, else all deeds in turn.

        For the second engine, which differs in nothing but its file, they take turns at every third call.
        """
        assert whole.code == 0, whole.output
        name = self.setting.path.rpartition("/")[2]
        own = [
            number
            for word in (name, f".{name}.toolkit-installer.tmp", f".{name}.toolkit-installer.swap")
            for number in numbers_of(whole, word)
            if not self.is_the_toolkits(whole, number)
        ]
        near = range(min(own) - 1, max(own) + 3)
        turns = len(ALL) * (1 if self.setting is DOCKER else 3)
        return [at for at in range(len(whole.calls)) if at in near or at % turns == ALL.index(deed)]

    def is_the_toolkits(self, whole: Outcome, number: int) -> bool:
        """Tell whether this call is about the toolkit's file of the same name, which is not exchanged."""
        return whole.calls[number].startswith(("create", "link ", "rename ", "unlink config.toml")) and not any(
            "swap" in call for call in whole.calls[number : number + 6]
        )


@pytest.fixture(params=[DOCKER, CONTAINERD], ids=str)
def bench(tmp_path: Path, payload: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with warm.quick():
        yield Bench(tmp_path, payload, request.param)


def handlers(node: FakeNode) -> set[str]:
    return set(node.named_runtimes()) & {"nvidia", "nvidia-cdi", "nvidia-legacy"}


def meaning(setting: Setting, content: bytes) -> dict[str, object]:
    """Return what the file says beside runtimes."""
    parsed = json.loads(content) if setting is DOCKER else tomllib.loads(content.decode())
    ours = ("runtimes", "default-runtime", "plugins")
    return {key: value for key, value in parsed.items() if key not in ours}


def check_theirs(node: FakeNode, setting: Setting, deed: Act) -> None:
    """Fail unless their version is there, with or without our handlers."""
    place = node.place(setting.path)
    if deed is links:
        assert os.readlink(place) == TARGET
    expected = remains(deed, setting)
    if expected is None:
        assert not place.exists() or handlers(node)
    else:
        assert meaning(setting, place.read_bytes()) == meaning(setting, expected)


def rest(node: FakeNode, setting: Setting) -> dict[str, object]:
    """Return all of the node but the engine's file and the folder that it is in."""
    folder = os.path.dirname(setting.path)
    return {path: entry for path, entry in node.snapshot().items() if not path.startswith(f"{folder}/")}


def check_gone(bench: Bench, node: FakeNode, before: dict[str, object], deed: Act, at: int) -> None:
    """Take everything back; fail unless what remains is theirs to the byte, and nothing else is otherwise."""
    done = bench.run(node, "uninstall")
    assert done.code == 0, (at, done.output)
    place = node.place(bench.setting.path)
    left = place.read_bytes() if place.exists() else None
    # a file that is deleted once its original was kept is restored
    restored = left if deed is deletes and left == bench.setting.original else remains(deed, bench.setting)
    assert left == restored, (at, done.output)
    assert rest(node, bench.setting) == before, (at, done.output)
    allowed = {place.name, TARGET} if deed is links else {place.name}
    assert set(os.listdir(place.parent)) <= allowed, at


@pytest.mark.parametrize("deed", DEEDS)
def test_an_edit_at_any_instant_of_an_install_stays_and_gets_the_handlers(bench: Bench, deed: Act, few: Few) -> None:
    setting = bench.setting
    whole = bench.run(bench.node(), "run")
    written = numbers_of(whole, f".{os.path.basename(setting.path)}.toolkit-installer.swap")[-1]
    for at in few(bench.instants(whole, deed), 8):
        node = bench.node()
        before = rest(node, setting)
        done = bench.run(node, "run", at, deed)
        assert done.code == 0, (at, done.output)
        check_theirs(node, setting, deed)
        if at < written:
            assert handlers(node), at
        again = bench.run(node, "run")
        assert again.code == 0, (at, again.output)
        check_theirs(node, setting, deed)
        assert handlers(node), at
        check_gone(bench, node, before, deed, at)


@pytest.mark.parametrize("deed", DEEDS)
def test_an_edit_at_any_instant_of_a_cleanup_stays_and_loses_the_handlers(bench: Bench, deed: Act, few: Few) -> None:
    setting = bench.setting
    node = bench.node()
    bench.run(node, "run")
    whole = bench.run(node, "uninstall")
    for at in few(bench.instants(whole, deed), 8):
        node = bench.node()
        before = rest(node, setting)
        bench.run(node, "run")
        done = bench.run(node, "uninstall", at, deed)
        assert done.code == 0, (at, done.output)
        check_gone(bench, node, before, deed, at)


@pytest.mark.parametrize("command", ["run", "uninstall"])
@pytest.mark.parametrize("deed", BLOCKING)
def test_what_is_no_file_any_more_is_refused_by_name_and_all_is_well_once_it_is_one(
    bench: Bench, deed: Act, command: str, few: Few
) -> None:
    setting = bench.setting
    node = bench.node()
    whole = bench.run(node, "run")
    if command == "uninstall":
        whole = bench.run(node, "uninstall")
    written = numbers_of(whole, f".{os.path.basename(setting.path)}.toolkit-installer.swap")[-1]
    for at in few(bench.instants(whole, deed), 8):
        node = bench.node()
        before = node.snapshot()
        if command == "uninstall":
            bench.run(node, "run")
        done = bench.run(node, command, at, deed)
        place = node.place(setting.path)
        assert stat.S_IFMT(place.lstat().st_mode) in (stat.S_IFDIR, stat.S_IFIFO), at
        if at < written:
            assert done.code == 3, (at, done.output)
            assert f"file={setting.path}" in done.output, at
        clear(place)
        node.write(setting.path, setting.original, 0o640)
        done = bench.run(node, "uninstall")
        assert done.code == 0, (at, done.output)
        assert node.snapshot() == before, (at, done.output)


def test_the_deeds_are_done_at_the_very_exchange(bench: Bench) -> None:
    whole = bench.run(bench.node(), "run")
    name = os.path.basename(bench.setting.path)
    exchange = whole.index(f"exchange .{name}.toolkit-installer.swap {name}")
    done = bench.run(bench.node(), "run", exchange, renames)
    assert "planning again" in done.output
    assert all(exchange in bench.instants(whole, deed) for deed in ALL)
