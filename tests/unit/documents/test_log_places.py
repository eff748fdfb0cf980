"""A log line of an engine keeps where in which file something is wrong, whatever else of it is masked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents.secrets import mask

HEAD = 'time="2026-01-01T00:00:00Z" level=warning msg='
UNKNOWN = (  # as containerd 2.1 and 2.4 say it
    f'{HEAD}"Ignoring unknown key in TOML" column=3 error="strict mode: fields in the document are missing in the '
    'target struct" file=/var/lib/rancher/k3s/agent/etc/containerd/config.toml '
    'key="plugins io.containerd.cri.v1.images registry configs r.example auth passwort" row=7'
)


def test_the_file_the_row_and_the_column_stay() -> None:
    shown = mask(UNKNOWN)
    for place in ("row=7", "column=3", "file=/var/lib/rancher/k3s/agent/etc/containerd/config.toml"):
        assert place in shown


def test_a_line_beside_it_stays_as_it_is_masked() -> None:
    plain = 'password = "hunter2"\nroot = "/x"\n'
    assert mask(f"{UNKNOWN}\n{plain}").split("\n")[1:] == mask(plain).split("\n")


@pytest.mark.parametrize(
    "line",
    [
        f'{HEAD}"a key" row=hunter2',
        f'{HEAD}"a key" file=hunter2',
        f'{HEAD}"a key" password=hunter2 row=7',
        f'{HEAD}"a key" file=/x/../hunter2 row=7',
        'password = "hunter2" row=7',
    ],
)
def test_nothing_else_comes_back(line: str) -> None:
    assert "hunter2" not in mask(line)


def test_a_line_that_is_not_made_of_pairs_alone_is_no_log_line() -> None:
    assert "row=7" not in mask(f'{HEAD}"a key" hunter2 row=7')


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0")))
def test_whatever_stands_under_a_secrets_name_is_not_shown_for_the_places_beside_it(secret: str) -> None:
    quoted = secret.replace("\\", "\\\\").replace('"', '\\"')
    shown = mask(f'{HEAD}"a key" password="{quoted}" row=7 column=3')
    before, _, places = shown.rpartition(" (")
    assert places == "row=7 column=3)"
    assert re.search(r'password="\*\*\*\*"|\*\*\*\*', before)


@given(st.text())
def test_lines_stay_where_they_are(text: str) -> None:
    assert mask(f"{UNKNOWN}\n{text}").count("\n") == text.count("\n") + 1
