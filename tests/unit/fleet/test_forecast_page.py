"""The page of many nodes: one file, of which nothing that a node says can become a part."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.fleet import forecast
from toolkit_installer.fleet.forecast import OUTCOMES, PageChange, PageRow


class Elements(HTMLParser):
    """Notes which elements a page has, with their attributes, and the text of its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.starts.append((tag, dict(attrs)))
        self.texts.append("")

        self._inside = True

    def handle_endtag(self, _: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


def read(text: str) -> Elements:
    made = Elements()
    made.feed(text)
    made.close()
    return made


def made(name: str = "gpu-1", title: str = "a change", text: str = "a diff", about: str = "Planned.") -> str:
    change = PageChange("changed", title, text)
    return forecast.page(name, about, OUTCOMES, [PageRow(name, "changed", "docker", 0, 3, 1)], [change])


PLAIN = read(made())
HOSTILE = ("</script>", "<!--<script>", "@DATA@", "@TITLE@", "]]>", "\u2028", "\ud800")
SAID = st.one_of(st.text(), st.sampled_from(HOSTILE))


@given(SAID.filter(lambda text: "\ud800" not in text), SAID, SAID, SAID)
def test_whatever_a_node_says_is_data_and_no_part_of_the_page(name: str, title: str, text: str, about: str) -> None:
    found = read(made(name, title, text, about))
    assert found.starts == PLAIN.starts
    [data] = [
        json.loads(each)
        for (tag, attributes), each in zip(found.starts, found.texts, strict=True)
        if tag == "script" and attributes.get("type") == "application/json"
    ]
    assert data["about"] == about
    assert data["nodes"] == [[name, "changed", "docker", 0, 3, 1]]
    assert data["groups"] == [{"outcome": "changed", "title": title, "text": text}]


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    [policy] = [each["content"] or "" for tag, each in PLAIN.starts if tag == "meta" and "http-equiv" in each]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    own = {
        f"{tag}-src": text
        for (tag, attributes), text in zip(PLAIN.starts, PLAIN.texts, strict=True)
        if tag in {"script", "style"} and not attributes
    }
    assert rules.pop("default-src") == "'none'"
    for kind, text in own.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(kind) == f"'sha256-{digest}'"
    assert set(rules.values()) == {"'none'"}


def test_nothing_is_fetched() -> None:
    assert not re.search(r"https?:|\bsrc=|url\(|@import|fetch\(|XMLHttpRequest|innerHTML", made())


def test_the_same_is_the_same_page() -> None:
    assert made() == made()
