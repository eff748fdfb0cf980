"""The parts of a support bundle have the names in its README; the same texts make the same bundle, within its limit."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import support_bundle
from toolkit_installer.settings import Settings

TOLD = re.findall(r"^([a-z]+(?:\.[a-z]+|/)) +\S", support_bundle.ABOUT, re.MULTILINE)


@pytest.mark.parametrize("damaged", [True, False])
def test_whoever_looks_for_a_part_finds_it_or_why_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, damaged: bool
) -> None:
    monkeypatch.setattr(processes, "list_pids", list)
    if damaged:

        def load(*_: object) -> None:
            raise ConfigurationError("is damaged", path="/receipt.json")

        monkeypatch.setattr(trust, "load", load)
    node = Node.open(str(tmp_path), "/host")
    gathering = support_bundle.BundleTexts()
    support_bundle.collect_parts(node, Settings(), ReceiptStore(node, "/usr/local/nvidia"), gathering)
    named = {**gathering.texts, **gathering.missing}
    assert [name for name in named if not f"{name}/".startswith(tuple(TOLD))] == []
    assert ("receipt.txt" in gathering.missing) is damaged
    assert ("is damaged" in gathering.mask_texts().get("missing.txt", "")) is damaged


WHEN = 1_700_000_000.0


def texts_of(packed: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return {each.name: (tar.extractfile(each) or io.BytesIO()).read().decode() for each in tar.getmembers()}


def test_every_text_is_in_it() -> None:
    packed = support_bundle.pack_archive({"a.json": "1", "b/c.txt": "2"}, WHEN)
    assert texts_of(packed) == {f"{support_bundle.FOLDER}/a.json": "1", f"{support_bundle.FOLDER}/b/c.txt": "2"}


def test_whoever_unpacks_it_keeps_it_to_himself_and_owns_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(support_bundle.pack_archive({"a": "1", "/b/c": "2"}, WHEN))) as tar:
        members = tar.getmembers()
    assert {(each.mode, each.uid, each.gid, each.mtime, each.type) for each in members} == {
        (0o600, 0, 0, WHEN, tarfile.REGTYPE)
    }


def test_the_same_texts_make_the_same_bytes() -> None:
    assert support_bundle.pack_archive({"b": "1", "a": "2"}, WHEN) == support_bundle.pack_archive(
        {"a": "2", "b": "1"}, WHEN
    )


def test_the_end_of_a_long_text_is_kept() -> None:
    shown = support_bundle.truncate_text("line\n" * support_bundle.LONGEST + "last")
    assert shown.startswith("(the beginning was cut off)\n")
    assert shown.endswith("last")
    assert len(shown) < support_bundle.LONGEST + 100


def test_what_is_no_text_is_shown_escaped() -> None:
    packed = support_bundle.pack_archive({"a": b"\xff\x00x".decode(errors="surrogateescape")}, WHEN)
    assert "x" in next(iter(texts_of(packed).values()))
