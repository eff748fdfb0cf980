"""No secret is in a capture, and a text without its secrets is as good as the one with them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents.secrets import mask
from toolkit_installer.lifecycle.capture.hiding import Hiding

CORPUS = sorted((Path(__file__).parents[2] / "data" / "corpus").glob("*/*.*"))
KEY = b"k" * 32
DAEMON = """{
  "http-proxy": "http://someone:hunter22@proxy.example:3128",
  "log-opts": {"splunk-token": "0123456789abcdef0123456789abcdef", "other-token": "hunter22"},
  "api-key": 12345, "registry-mirrors": []
}
"""


def test_secrets_go_and_equal_ones_stay_equal() -> None:
    hidden = Hiding(KEY).text(DAEMON)
    found = json.loads(hidden)
    for secret in ("hunter22", "0123456789abcdef0123456789abcdef", "12345"):
        assert secret not in hidden
    assert found["http-proxy"].endswith("@proxy.example:3128")
    assert found["registry-mirrors"] == []
    assert Hiding(KEY).text('{"a-token": "x1", "b-token": "x1"}').count("a0") == 2


def test_a_file_in_another_encoding_loses_its_secrets_and_keeps_its_bytes() -> None:
    others = "# für José\n".encode("latin-1")
    hidden = Hiding(KEY).content(others + DAEMON.encode())
    assert hidden.startswith(others)
    assert hidden == others + Hiding(KEY).text(DAEMON).encode()
    assert b"hunter22" not in hidden
    assert Hiding(KEY).content(others) == others


def test_another_key_makes_other_digests() -> None:
    assert Hiding(KEY).text(DAEMON) != Hiding(b"other").text(DAEMON)
    assert Hiding(KEY).text(DAEMON) == Hiding(KEY).text(DAEMON)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_file_without_its_secrets_parses_and_is_shown_as_before(path: Path) -> None:
    content = path.read_bytes()
    hidden = Hiding(KEY).content(content)
    assert mask(hidden.decode()) == mask(content.decode())
    if path.suffix == ".toml":
        assert list(tomllib.loads(hidden.decode("utf-8-sig"))) == list(tomllib.loads(content.decode("utf-8-sig")))


@given(st.text(st.sampled_from("abP:/@=\"{}[],\n '\\#*0password=token: "), max_size=80))
def test_whatever_a_text_says_it_is_shown_as_before(text: str) -> None:
    hidden = Hiding(KEY).text(text)
    assert mask(hidden) in (mask(text), mask(mask(text)))
    assert hidden.count("\n") == text.count("\n")


def test_a_flag_that_names_a_secret_hides_its_value() -> None:
    words = ["dockerd", "--token=abc", "--password", "xyz", "-H", "fd://", "--mirror", "http://u:pw@host"]
    hidden = Hiding(KEY).words(words)
    assert [word for word, before in zip(hidden, words, strict=True) if word == before] == [
        *("dockerd", "--password", "-H", "fd://", "--mirror")
    ]
    assert "abc" not in hidden[1]
    assert "pw" not in hidden[-1]


def test_a_receipt_keeps_its_digests_and_loses_what_it_tore_from_files() -> None:
    digest = "ab" * 32
    receipt = {
        "written": [digest],
        "keys": [{"path": ["log-opts", "splunk-token"], "ours": "a", "prior": 'value = "s3"'}],
    }
    hidden = json.loads(Hiding(KEY).receipt(json.dumps(receipt).encode()))
    assert hidden["written"] == [digest]
    assert "s3" not in hidden["keys"][0]["prior"]
    assert hidden["keys"][0]["prior"].startswith('value = "')


def test_a_secret_that_was_found_by_its_look_goes_from_every_text() -> None:
    hiding = Hiding(KEY)
    hiding.text('token = "0123456789abcdef0123456789abcdef"')
    assert "0123456789abcdef" not in hiding.everywhere("torn: 0123456789abcdef0123456789abcdef")
