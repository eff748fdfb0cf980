"""The toolkit's files and folders put in place and removed, and engines' files that others write as well."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest

from tests.support.terminal import CLEARED, Clock, terminal
from tests.unit.noted_calls import Calls
from toolkit_installer import log
from toolkit_installer.applying import files as module
from toolkit_installer.applying.files import CopyProgress, ManagedFileWriter
from toolkit_installer.engines.api import EngineFile
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Metadata
from toolkit_installer.node.root import NodeError
from toolkit_installer.node.writing import temporary_name
from toolkit_installer.planning.plan import Plan, ToolkitWork
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import LogFormat
from toolkit_installer.toolkit.layout import ToolkitFile

TOTAL = 600_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]


def test_every_five_seconds_a_line_says_how_much_is_done_and_how_fast(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(LogFormat.LOGFMT, debug=False, stream=sys.stderr)
    progress = CopyProgress(TOTAL, clock)
    told = []
    for _ in range(12):
        clock.now += 1
        progress.add(10_000_000)
        told.append(lines_of(capsys))
    line = 'level=info msg="Copying the toolkit" event=copying bytes_done={} '
    line += "bytes_total=600000000 bytes_per_second=10000000"
    expected = {4: [line.format(50_000_000)], 9: [line.format(100_000_000)]}
    assert told == [expected.get(number, []) for number in range(12)]


def test_time_without_a_byte_counts_too(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """A flush can take longer than the copy."""
    log.configure(LogFormat.LOGFMT, debug=False, stream=sys.stderr)
    progress = CopyProgress(TOTAL, clock)
    clock.now += 1
    progress.add(40_000_000)
    clock.now += 19
    progress.add(0)
    (line,) = lines_of(capsys)
    assert line.endswith("bytes_done=40000000 bytes_total=600000000 bytes_per_second=2000000")


@pytest.mark.parametrize("log_format", [None, LogFormat.CONSOLE])
def test_a_terminal_sees_a_bar_that_is_drawn_ten_times_a_second_and_goes(
    clock: Clock, log_format: LogFormat | None
) -> None:
    with terminal() as seen, mock.patch.dict(os.environ, {"TERM": "xterm", "COLUMNS": "100"}):
        log.configure(log_format, debug=False, stream=sys.stderr)
        progress = CopyProgress(TOTAL, clock)
        clock.now += 0.0625
        progress.add(1_000_000)
        assert seen() == ""
        clock.now += 0.0625
        progress.add(149_000_000)
        clock.now += 0.0625
        progress.add(1_000_000)
        bar = "Copying the toolkit [#####               ] 150.0 of 600.0 MB, 1200.0 MB/s"
        assert seen() == f"{CLEARED}{bar}"
        progress.bar.clear()
        assert seen() == f"{CLEARED}{bar}{CLEARED}"


@pytest.mark.parametrize(
    "log_format, debug, term",
    [
        (LogFormat.LOGFMT, False, "xterm"),
        (LogFormat.JSON, False, "xterm"),
        (None, True, "xterm"),
        (None, False, "dumb"),
    ],
    ids=["logfmt", "json", "debug", "dumb"],
)
def test_a_terminal_that_is_to_have_lines_or_cannot_draw_gets_lines(
    clock: Clock, log_format: LogFormat | None, *, debug: bool, term: str
) -> None:
    with terminal() as seen, mock.patch.dict(os.environ, {"TERM": term}):
        log.configure(log_format, debug=debug, stream=sys.stderr)
        progress = CopyProgress(TOTAL, clock)
        clock.now += 1
        progress.add(1)
        assert seen() == ""
        clock.now += 4
        progress.add(1)
        progress.bar.clear()
        assert CLEARED not in seen()
        assert seen().count("Copying the toolkit") == 1


# --- the toolkit's folder ---

FOLDER = "/usr/local/nvidia/toolkit"
STORE = "/usr/local/nvidia/.toolkit-installer"
RECEIPT = Receipt(State.INSTALLED, "1", FOLDER, ("a", "sub/b"), (), "/run/toolkit.pid", (), ())


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def node(tmp_path: Path, calls: Calls) -> Node:
    (tmp_path / "node/usr/local").mkdir(parents=True)
    (tmp_path / "payload").mkdir()
    return Node(str(tmp_path / "node"), calls=calls)


def place(node: Node, path: str) -> Path:
    return Path(node.root.outside(path))


def names(node: Node, path: str) -> list[str]:
    return sorted(os.listdir(place(node, path)))


def planned(
    tmp_path: Path, *write: ToolkitFile, receipt: Receipt | None = None, present: tuple[str, ...] = ()
) -> Prepared:
    target: Any = SimpleNamespace(payload=SimpleNamespace(root=str(tmp_path / "payload")))
    facts: Any = SimpleNamespace(receipt=receipt)
    plan = Plan(ToolkitWork(FOLDER, write, write, (), frozenset(present)), (), ())
    return Prepared(target, facts, plan)


CONTENT = ToolkitFile("sub/config.toml", 0o644, content=b"[cli]\n")
COPY = ToolkitFile("program", 0o755, source="/bin/program")
LINK = ToolkitFile("link", 0o777, target="program")


def test_files_are_placed_in_their_order_as_what_they_are(node: Node, tmp_path: Path) -> None:
    (tmp_path / "payload/bin").mkdir()
    (tmp_path / "payload/bin/program").write_bytes(b"ELF")
    node.files.make_folders(f"{FOLDER}/sub")
    before: list[list[str]] = []
    copies = module.install(
        node,
        planned(tmp_path, CONTENT, COPY, LINK),
        lambda: before.append([*names(node, FOLDER), *names(node, f"{FOLDER}/sub")]),
    )
    assert before == [["sub"], ["sub", "config.toml"], ["program", "sub", "config.toml"]]
    assert place(node, f"{FOLDER}/sub/config.toml").read_bytes() == b"[cli]\n"
    assert place(node, f"{FOLDER}/program").stat().st_mode & 0o777 == 0o755
    assert os.readlink(place(node, f"{FOLDER}/link")) == "program"
    assert [copy.name for copy in copies] == ["program"]


def test_a_copy_whose_source_changes_is_not_taken_for_one(node: Node, tmp_path: Path, calls: Calls) -> None:
    (tmp_path / "payload/bin").mkdir()
    (source := tmp_path / "payload/bin/program").write_bytes(b"ELF")
    node.files.make_folders(FOLDER)
    calls.before["rename"] = lambda: source.write_bytes(b"another")  # once it was copied
    assert module.install(node, planned(tmp_path, COPY), lambda: None) == []


@pytest.mark.parametrize("receipt, present, flushed", [(None, (), 3), (RECEIPT, (), 4), (None, ("program",), 4)])
def test_names_are_flushed_together_only_where_nobody_uses_them_yet(
    node: Node, tmp_path: Path, calls: Calls, receipt: Receipt | None, present: tuple[str, ...], flushed: int
) -> None:
    node.files.make_folders(FOLDER)
    one, other = (ToolkitFile(name, 0o644, content=b"x") for name in ("one", "other"))
    calls.noted.clear()
    module.install(node, planned(tmp_path, one, other, receipt=receipt, present=present), lambda: None)
    assert calls.noted.count("fsync") == flushed
    assert calls.noted[-1] == "fsync"


def test_work_that_is_stopped_leaves_no_file_half_placed(node: Node, tmp_path: Path) -> None:
    node.files.make_folders(FOLDER)
    one, other = (ToolkitFile(name, 0o644, content=b"x") for name in ("one", "other"))
    points = iter([None])
    with pytest.raises(StopIteration):
        module.install(node, planned(tmp_path, one, other), lambda: next(points))
    assert names(node, FOLDER) == ["one"]


def test_every_file_goes_that_the_receipt_names_and_what_a_killed_run_left_beside_it(node: Node) -> None:
    node.files.make_folders(f"{FOLDER}/sub")
    for name in ("a", "sub/b", "theirs", temporary_name("a")):
        place(node, f"{FOLDER}/{name}").touch()
    for _ in range(2):
        module.remove_toolkit_files(node, RECEIPT)
        assert names(node, FOLDER) == ["sub", "theirs"]
        assert names(node, f"{FOLDER}/sub") == []


# --- folders ---


def made(node: Node, *folders: str) -> Receipt:
    """Make folders, as a run does, and return a receipt that names them."""
    created = tuple(folder for path in folders for folder in node.files.make_folders(path))
    return msgspec.structs.replace(RECEIPT, folders=created)


def test_a_folder_that_no_file_needs_any_more_goes_and_is_forgotten(node: Node, logged: io.StringIO) -> None:
    receipt = made(node, f"{FOLDER}/sub", STORE, "/etc/cdi", "/etc/other/deep", "/etc/used")
    place(node, "/etc/used/theirs").touch()
    left = module.remove_needless_folders(node, receipt, STORE)
    assert names(node, "/etc") == ["used"]
    assert left.folders == ("/usr/local/nvidia", FOLDER, f"{FOLDER}/sub", STORE, "/etc", "/etc/used")
    assert "event=folder-kept" in logged.getvalue()


def test_a_folder_that_another_program_made_anew_is_theirs(node: Node) -> None:
    receipt = made(node, "/opt/x")
    place(node, "/opt/x").rmdir()
    place(node, "/opt/x").mkdir()
    assert module.remove_needless_folders(node, receipt, STORE).folders == ("/opt",)
    store = ReceiptStore(node, "/usr/local/nvidia")
    module.remove_folders(node, receipt, store)
    assert place(node, "/opt/x").is_dir()


def test_cleanup_takes_the_receipt_between_the_folders_beside_it_and_those_around_it(
    node: Node, calls: Calls, logged: io.StringIO
) -> None:
    receipt = made(node, f"{FOLDER}/sub", "/etc/cdi")
    store = ReceiptStore(node, "/usr/local/nvidia")
    store.prepare()
    store.save(receipt, {})
    seen: list[tuple[bool, bool]] = []
    calls.before["unlink"] = lambda: seen.append(  # the receipt
        (place(node, FOLDER).exists(), place(node, "/usr/local/nvidia").exists())
    )
    module.remove_folders(node, receipt, store)
    assert seen == [(False, True)]
    assert "event=folder-left" not in logged.getvalue(), "none was tried before its time"
    assert names(node, "/usr/local") == []
    assert not place(node, "/etc").exists()


# --- files that others write as well ---

PATH = "/etc/daemon.json"


@pytest.fixture
def file(node: Node) -> EngineFile:
    place(node, "/etc").mkdir()
    place(node, PATH).write_bytes(b"before")
    return EngineFile("daemon.json", PATH, node.files.read_file(PATH))


def test_a_file_that_holds_the_content_already_is_not_touched(node: Node, calls: Calls, file: EngineFile) -> None:
    ManagedFileWriter(node, STORE).write(None, file, b"before")
    assert calls.noted == []


def test_a_later_write_knows_what_an_earlier_one_put_there(node: Node, file: EngineFile) -> None:
    writer = ManagedFileWriter(node, STORE)
    for content in (b"transitional", b"ours", b"before"):
        writer.write(None, file, content)
        assert place(node, PATH).read_bytes() == content
    writer.write(None, file, None)
    assert not place(node, PATH).exists()


@pytest.mark.parametrize("earlier", [(), (b"transitional",)], ids=["the first", "a later"])
def test_an_edit_between_two_writes_is_found_and_never_lost(
    node: Node, file: EngineFile, earlier: tuple[bytes, ...]
) -> None:
    writer = ManagedFileWriter(node, STORE)
    for attempt in earlier:
        writer.write(None, file, attempt)
    place(node, PATH).write_bytes(b"theirs")
    wanted: tuple[bytes | None, ...] = (b"ours", None)
    for content in wanted:
        with pytest.raises(ChangedMeanwhileError) as raised:
            writer.write(None, file, content)
        assert raised.value.path == PATH
        assert place(node, PATH).read_bytes() == b"theirs"


def test_an_attempt_that_was_overtaken_does_not_count_as_ours(node: Node, calls: Calls, file: EngineFile) -> None:
    writer = ManagedFileWriter(node, STORE)
    calls.before["exchange"] = lambda: place(node, PATH).write_bytes(b"theirs")
    with pytest.raises(ChangedMeanwhileError):
        writer.write(None, file, b"ours")
    place(node, PATH).write_bytes(b"ours")  # somebody else's, though it says the same
    with pytest.raises(ChangedMeanwhileError):
        writer.write(None, file, b"more")


def test_an_attempt_that_failed_after_its_rename_is_taken_back(node: Node, calls: Calls, file: EngineFile) -> None:
    writer = ManagedFileWriter(node, STORE)
    calls.errors["unlink"] = errno.EIO
    with pytest.raises(NodeError):
        writer.write(None, file, b"ours")
    assert place(node, PATH).read_bytes() == b"ours"
    calls.errors.clear()
    writer.write(None, file, b"before")
    assert (place(node, PATH).read_bytes(), names(node, "/etc")) == (b"before", ["daemon.json"])


@pytest.mark.parametrize("lost, mode", [(Metadata(0o600, os.geteuid(), os.getegid()), 0o600), (None, 0o644)])
def test_a_missing_file_is_created_as_it_was_or_for_all_to_read(node: Node, lost: Metadata | None, mode: int) -> None:
    place(node, "/etc").mkdir()
    ManagedFileWriter(node, STORE).write(None, EngineFile("r", PATH, None), b"ours", lost)
    assert place(node, PATH).stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("overtaken", [0, 1, 2, 3])
def test_work_that_is_overtaken_is_repeated_and_given_up_at_the_third_time(overtaken: int, logged: io.StringIO) -> None:
    left = [ChangedMeanwhileError("somebody else changed it meanwhile", path=PATH)] * overtaken

    def work() -> str:
        if left:
            raise left.pop()
        return "done"

    if overtaken < 3:
        assert module.retry_if_changed(work) == "done"
    else:
        with pytest.raises(ConfigurationError, match="3 times while it was edited") as raised:
            module.retry_if_changed(work)
        assert raised.value.path == PATH
        assert not isinstance(raised.value, ChangedMeanwhileError), "nobody tries it once more"
    assert logged.getvalue().count("event=file-changed-meanwhile") == min(overtaken, 2)
