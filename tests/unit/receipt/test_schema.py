"""The receipt decides what root writes where: what was written comes back, and nothing else is believed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.engines import registry
from toolkit_installer.engines.api import DesiredFile, EngineFile, get_adapter
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt import schema as receipt
from toolkit_installer.receipt.schema import (
    Content,
    Copy,
    EngineRecord,
    FileRecord,
    OriginalFile,
    OwnedKey,
    Receipt,
    State,
)
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import EngineName, ReloadMode

SHA = "0123456789abcdef" * 4
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
SHAS = st.text("0123456789abcdef", min_size=64, max_size=64)
NAMES = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name != ".."
)
RELATIVE = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
ABSOLUTE = RELATIVE.map(lambda path: f"/{path}")


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


KEYS = st.builds(OwnedKey, path=tuples(TEXTS), ours=TEXTS, prior=st.none() | TEXTS, item=st.booleans())
BEFORE = st.builds(
    OriginalFile,
    sha256=SHAS,
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 2**32 - 2),
    gid=st.integers(0, 2**32 - 2),
    xattrs=tuples(st.tuples(TEXTS, st.binary(max_size=8))),
)
FILES = st.builds(
    FileRecord,
    role=TEXTS,
    path=ABSOLUTE,
    before=st.none() | BEFORE,
    written=tuples(SHAS),
    keys=tuples(KEYS),
    created=tuples(KEYS),
)
ENGINE_RECORDS = st.builds(
    EngineRecord,
    name=st.sampled_from(registry.names()),
    socket=ABSOLUTE,
    reload=st.none() | st.sampled_from(ReloadMode),
    handlers=tuples(st.tuples(TEXTS, ABSOLUTE)),
    default=st.none() | TEXTS,
    files=tuples(FILES),
    low_level=tuples(TEXTS),
    reload_due=st.booleans(),
    unread_by=st.none() | st.tuples(st.integers(1), st.integers(0)),
)
RECEIPTS = st.builds(
    Receipt,
    state=st.sampled_from(State),
    installer=TEXTS,
    toolkit_folder=ABSOLUTE,
    toolkit_files=tuples(RELATIVE),
    folders=tuples(ABSOLUTE),
    pid_file=ABSOLUTE,
    pid_folders=tuples(ABSOLUTE),
    engines=tuples(ENGINE_RECORDS),
    specifications=tuples(FILES),
    copies=tuples(st.builds(Copy, RELATIVE, TEXTS, TEXTS, TEXTS)),
    contents=tuples(
        st.builds(Content, RELATIVE, st.integers(0, 0o7777), st.none() | SHAS, st.none() | TEXTS, st.none() | SHAS)
    ),
)

WHOLE = Receipt(
    state=State.INSTALLED,
    installer="1.0",
    toolkit_folder="/usr/local/nvidia/toolkit",
    toolkit_files=("nvidia-ctk",),
    folders=("/usr/local/nvidia",),
    pid_file="/run/nvidia/toolkit.pid",
    pid_folders=("/run/nvidia",),
    engines=(
        EngineRecord(
            name=EngineName.DOCKER,
            socket="/run/docker.sock",
            reload=ReloadMode.SIGNAL,
            handlers=(("nvidia", "/usr/local/nvidia/toolkit/nvidia-container-runtime"),),
            default="nvidia",
            files=(
                FileRecord(
                    role="daemon.json",
                    path="/etc/docker/daemon.json",
                    before=OriginalFile(SHA, 0o644, 0, 0, (("user.a", b"\xff"),)),
                    written=(SHA,),
                    keys=(OwnedKey(("runtimes", "nvidia"), "{}", None),),
                ),
            ),
            low_level=("/usr/bin/crun", "runc"),
        ),
    ),
    specifications=(FileRecord("cdi", "/run/cdi/management.nvidia.com-gpu.yaml", None, (SHA,)),),
    copies=(Copy("nvidia-ctk.real", "/usr/bin/nvidia-ctk", "4 -1 5 7", "4 -1 6 8"),),
    contents=(Content("config.toml", 0o644, SHA, None, SHA), Content("a", 0o755, None, "b")),
    cdi_switched=(EngineName.CONTAINERD,),
    method_why="the engine reads CDI specifications already",
    taken_over=("/etc/docker/daemon.json: handler nvidia",),
)


@settings(max_examples=80)
@given(RECEIPTS)
def test_what_was_written_is_read_back(made: Receipt) -> None:
    assert receipt.decode(receipt.encode(made)) == made


@pytest.mark.parametrize(
    "change",
    [{"toolkit_folder": "usr/local"}, {"installer": "\0"}, {"folders": ["/not a tuple"]}],
    ids=["relative", "NUL", "list"],
)
def test_a_receipt_that_the_next_run_could_not_use_is_not_written(change: dict[str, Any], tmp_path: Path) -> None:
    store = ReceiptStore(Node(str(tmp_path)), "/usr/local/nvidia")
    store.prepare()
    store.save(WHOLE, {})
    before = store.load()
    with pytest.raises(ConfigurationError, match=r"receipt\.json.*could not be written"):
        store.save(msgspec.structs.replace(WHOLE, **change), {})
    assert store.load() == before


Place = tuple[str | int, ...]
FILE: Place = ("engines", 0, "files", 0)
WRONG: list[tuple[Place, Any]] = [
    (("state",), "broken"),
    (("state",), ["installed"]),
    (("toolkit_folder",), "usr/local"),
    (("toolkit_folder",), "/usr/../etc"),
    (("toolkit_folder",), ""),
    (("toolkit_folder",), 7),
    (("toolkit_files",), "nvidia-ctk"),
    (("toolkit_files", 0), "../../../etc/passwd"),
    (("toolkit_files", 0), "/etc/passwd"),
    (("toolkit_files", 0), "a/../../b"),
    (("toolkit_files", 0), ""),
    (("toolkit_files", 0), "a\0b"),
    (("toolkit_files", 0), None),
    (("folders", 0), "relative"),
    (("folders", 0), "/a/.."),
    (("folders",), {"/a": 1}),
    (("engines",), {}),
    (("engines", 0), "docker"),
    (("engines", 0), None),
    (("engines", 0, "name"), "podman"),
    (("engines", 0, "socket"), "run/docker.sock"),
    (("engines", 0, "reload"), "reboot"),
    (("engines", 0, "handlers"), [["nvidia"]]),
    (("engines", 0, "handlers"), [["nvidia", "relative"]]),
    (("engines", 0, "handlers"), [7]),
    (("engines", 0, "default"), 7),
    ((*FILE, "path"), "/etc/docker/../../root/.ssh/authorized_keys"),
    ((*FILE, "path"), "daemon.json"),
    ((*FILE, "path"), "/etc/\0"),
    ((*FILE, "role"), None),
    ((*FILE, "written"), ["../../secret"]),
    ((*FILE, "written"), SHA),
    ((*FILE, "before", "sha256"), "../receipt.json"),
    ((*FILE, "before", "sha256"), SHA.upper()),
    ((*FILE, "before", "sha256"), SHA + "\n"),
    ((*FILE, "before", "mode"), "0644"),
    ((*FILE, "before", "mode"), True),
    ((*FILE, "before", "uid"), -1),
    ((*FILE, "before", "gid"), 1.0),
    ((*FILE, "before", "xattrs"), [["user.a", "no base64!"]]),
    ((*FILE, "before", "xattrs"), [["user.a"]]),
    ((*FILE, "before", "xattrs"), 7),
    ((*FILE, "keys", 0, "path"), "runtimes"),
    ((*FILE, "keys", 0, "path"), [1]),
    ((*FILE, "keys", 0, "ours"), None),
    ((*FILE, "keys", 0, "prior"), 7),
    ((*FILE, "created"), None),
    (("copies",), {}),
    (("copies", 0, "name"), "../nvidia-ctk"),
    (("copies", 0, "source"), None),
    (("copies", 0, "stamp"), [1, 2, 3]),
    (("copies", 0, "source_stamp"), None),
    (("contents",), {}),
    (("contents", 0, "name"), "/etc/passwd"),
    (("contents", 0, "mode"), "0644"),
    (("contents", 0, "sha256"), "no SHA-256"),
    (("contents", 0, "recipe"), "no recipe"),
    (("contents", 1, "link"), 7),
    (("schema",), "1"),
    (("schema",), None),
]


def body(made: Receipt = WHOLE) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(receipt.encode(made))
    return decoded


@pytest.mark.parametrize("place, value", WRONG, ids=lambda value: repr(value)[:40])
def test_a_field_that_cannot_be_trusted_is_refused(place: Place, value: Any) -> None:
    damaged: Any = body()
    spot = damaged
    for key in place[:-1]:
        spot = spot[key]
    assert spot[place[-1]] != value
    spot[place[-1]] = value
    with pytest.raises(ConfigurationError, match="the receipt") as raised:
        receipt.decode(json.dumps(damaged).encode())
    assert raised.value.hint


def _places(value: Any, here: Place = ()) -> list[Place]:
    if isinstance(value, dict):
        return [place for key, item in value.items() for place in [(*here, key), *_places(item, (*here, key))]]
    if isinstance(value, list):
        return [place for index, item in enumerate(value) for place in _places(item, (*here, index))]
    return []


NEEDED = list(_places(body()))


@pytest.mark.parametrize("place", NEEDED, ids=lambda place: ".".join(map(str, place)))
def test_a_field_that_is_missing_is_refused(place: Place) -> None:
    damaged: Any = copy.deepcopy(body())
    spot = damaged
    for key in place[:-1]:
        spot = spot[key]
    del spot[place[-1]]
    with pytest.raises(ConfigurationError, match="the receipt"):
        receipt.decode(json.dumps(damaged).encode())


def test_the_first_original_of_a_file_is_recorded_beside_a_later_one() -> None:
    docker = get_adapter(EngineName.DOCKER)
    older = Found("/etc/x", b"text", Metadata(0o640, 7, 8), FileIdentity(1, 2, 3, 4, 5))
    later = msgspec.structs.replace(older, content=b"later")

    def recorded(found: Found, previous: FileRecord | None) -> FileRecord:
        wanted = DesiredFile(EngineFile("r", "/etc/x", found), found.content, b"text")
        return file_records.build_record(docker, wanted, found, previous, [b"text"])

    first = recorded(older, None)
    second = recorded(later, first)
    third = recorded(later, second)
    assert first.first is None
    assert second.first == third.first == first.before
    assert recorded(older, third).first is None
    engine = msgspec.structs.replace(WHOLE.engines[0], files=(third,))
    whole = msgspec.structs.replace(WHOLE, engines=(engine,))
    assert receipt.decode(receipt.encode(whole)) == whole
    assert whole.originals() >= {file_records.digest_of(older.content), file_records.digest_of(b"later")}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b"7", b'{"schema": 5}', b"\0" * 64])
def test_what_is_no_receipt_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigurationError, match="the receipt"):
        receipt.decode(content)


@settings(max_examples=60)
@given(st.integers(0, len(receipt.encode(WHOLE)) - 3))
def test_a_receipt_that_was_cut_off_is_refused(length: int) -> None:
    with pytest.raises(ConfigurationError, match="the receipt"):
        receipt.decode(receipt.encode(WHOLE)[:length])


@pytest.mark.parametrize("schema", [receipt.SCHEMA + 1, receipt.SCHEMA - 1, 0, -1])
def test_a_receipt_of_another_schema_is_refused_with_both_numbers(schema: int) -> None:
    other = body() | {"schema": schema, "state": "something new"}
    with pytest.raises(ConfigurationError, match=rf"schema {schema}, this one knows {receipt.SCHEMA}") as raised:
        receipt.decode(json.dumps(other).encode())
    assert "use that release" in str(raised.value.hint)


def test_a_receipt_nested_beyond_reason_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        receipt.decode(b"[" * 200_000)


@pytest.mark.parametrize("schema", [True, "4", None, 4.0])
def test_a_receipt_without_a_schema_number_is_damaged(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="has no schema number"):
        receipt.decode(json.dumps(body() | {"schema": schema}).encode())
