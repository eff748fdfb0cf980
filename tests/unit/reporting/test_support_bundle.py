"""The parts of a report have the names that its README tells of, those that could not be made as well."""

from __future__ import annotations

import re
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
