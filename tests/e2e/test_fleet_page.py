"""The page of many nodes in a real browser: what is searched is found, and nothing of a node is ever obeyed."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.browser import Browser
from toolkit_installer.fleet import forecast
from toolkit_installer.fleet.forecast import OUTCOMES, PageChange, PageRow

HOSTILE = '</script><script>document.title = "obeyed"</script><img src=x onerror="document.title = \'obeyed\'">'
CHANGES = (
    PageChange("converged", "nothing to do", "Nothing to do: the node is as it should be."),
    PageChange(
        "restarted", "containerd: config.toml, restart", "--- /etc/containerd/config.toml\n+++ b\n+[plugins]\n-x"
    ),
    PageChange("refused", HOSTILE, f"{HOSTILE}\nthe file cannot be read"),
)
MANY = 1000
FOUND = "document.getElementById('found').textContent"
ROWS = "document.querySelectorAll('#nodes tr').length"


def row(number: int) -> PageRow:
    change = 2 if number == 7 else 1 if number % 10 == 0 else 0
    touched = (12, 1) if change == 1 else (None, None)
    name = HOSTILE if number == 7 else f"gpu-{number:04}"
    return PageRow(name, CHANGES[change].outcome, "docker" if number % 2 else "containerd", change, *touched)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which(browser.PROGRAM) is None:
        pytest.skip(f"not installed: {browser.PROGRAM} (Debian's package of that name)")
    with Browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "page.html"
    made.write_text(forecast.page("Many nodes", "Planned.", OUTCOMES, [row(each) for each in range(MANY)], CHANGES))
    return made


@pytest.fixture
def shown(opened: Browser, file: Path) -> Browser:
    opened.complaints.clear()
    opened.prefer("light")
    opened.open(file)
    return opened


def test_all_nodes_are_counted_and_the_first_of_them_drawn(shown: Browser) -> None:
    assert shown.value(FOUND) == "1,000 nodes of 1,000, 3 changes"
    assert shown.value(ROWS) == 200
    assert "1,200 running containers, 100 of them with a GPU" in shown.value("document.body.textContent")
    shown.click("#more-nodes")
    assert shown.value(ROWS) == 400
    assert shown.complaints == []


def test_what_is_refused_comes_first_and_what_is_harmless_last(shown: Browser) -> None:
    titles = shown.value("[...document.querySelectorAll('summary b')].map((each) => each.textContent)")
    assert titles == ["1 node", "100 nodes", "899 nodes"]


def test_one_bar_shows_the_whole_fleet(shown: Browser) -> None:
    assert shown.value("document.getElementById('bar').getAttribute('aria-label')") == (
        "refused: 1 node, restarted: 100 nodes, converged: 899 nodes"
    )
    parts = "[...document.querySelectorAll('#bar span')].map((each) => each.getBoundingClientRect().width)"
    refused, restarted, converged = shown.value(parts)
    assert 4 <= refused < restarted < converged
    assert 7 < converged / restarted < 10
    assert shown.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 800, 1280])
def test_nothing_is_wider_than_the_screen_and_no_word_is_broken(
    shown: Browser, width: int, scheme: str, tmp_path: Path
) -> None:
    shown.prefer(scheme)
    shown.do("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
    try:
        assert shown.value("document.documentElement.scrollWidth") <= width
        (tmp_path / f"{scheme}-{width}.png").write_bytes(shown.picture())  # to be looked at
        # a word that is broken has two boxes
        broken = """(() => {
          const found = new Set();
          const walker = document.createTreeWalker(document.querySelector("table"), NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) for (const word of walker.currentNode.data.matchAll(/[A-Za-z]{2,12}/g)) {
            const range = document.createRange();
            range.setStart(walker.currentNode, word.index);
            range.setEnd(walker.currentNode, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map((box) => Math.round(box.y))).size > 1) found.add(word[0]);
          }
          return [...found];
        })()"""
        assert shown.value(broken) == []
    finally:
        shown.do("Emulation.clearDeviceMetricsOverride")


def test_what_is_typed_is_searched_in_names_and_in_changes(shown: Browser) -> None:
    shown.type("#search", "gpu-0010")
    assert shown.value(FOUND) == "1 node of 1,000, 1 change"
    shown.value("document.getElementById('search').select()")
    shown.type("#search", "[plugins] containerd")
    assert shown.value(FOUND) == "100 nodes of 1,000, 1 change"
    assert "q=%5Bplugins%5D" in shown.value("location.hash")


def test_what_was_searched_is_there_again_with_the_address(opened: Browser, file: Path) -> None:
    opened.open(file, "#q=docker&outcome=converged")
    assert opened.value(FOUND) == "499 nodes of 1,000, 1 change"
    assert opened.value("document.getElementById('search').value") == "docker"
    pressed = opened.value("document.querySelector('[aria-pressed=true]').textContent")
    assert pressed.startswith("converged")


def test_an_outcome_is_chosen_and_let_go_by_a_click(shown: Browser) -> None:
    shown.click("button[value=restarted]")
    assert shown.value(FOUND) == "100 nodes of 1,000, 1 change"
    shown.click("button[value=restarted]")
    assert shown.value(FOUND) == "1,000 nodes of 1,000, 3 changes"


def test_a_change_is_opened_and_its_diff_has_colours(shown: Browser) -> None:
    shown.click("#change-2 summary")
    shown.value("new Promise((done) => setTimeout(done))")
    lines = "[...document.querySelectorAll('#change-2 pre .{}')].map((each) => each.textContent)"
    assert shown.value(lines.format("added")) == ["+[plugins]"]
    assert shown.value(lines.format("gone")) == ["-x"]


def test_a_node_that_is_named_like_a_script_is_shown_and_not_obeyed(shown: Browser) -> None:
    shown.click("button[value=refused]")
    assert shown.value("document.querySelector('#nodes td').textContent") == HOSTILE
    shown.click("#change-3 summary")
    assert shown.value("document.title") == "Many nodes"
    assert shown.complaints == []


def test_what_is_no_part_of_the_page_is_kept_out_by_it(shown: Browser) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        image = f"<img src=\\'http://127.0.0.1:{elsewhere.getsockname()[1]}/x.png\\'>"
        shown.value(f"document.body.insertAdjacentHTML('beforeend', '{image}')")
        shown.value("document.body.insertAdjacentHTML('beforeend', '<b style=\"color: red\">x</b>')")
        shown.value("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        elsewhere.settimeout(0)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    refused = [each for each in shown.complaints if "Content Security Policy" in each]
    assert len(refused) == 2, shown.complaints


@pytest.mark.parametrize("scheme, darker", [("light", False), ("dark", True)])
def test_the_reader_has_the_colours_that_they_prefer(shown: Browser, scheme: str, *, darker: bool) -> None:
    shown.prefer(scheme)
    brightness = "getComputedStyle(document.body).{}.match(/\\d+/g).slice(0, 3).reduce((sum, each) => sum + +each, 0)"
    ground, text = (shown.value(brightness.format(each)) for each in ("backgroundColor", "color"))
    assert (ground < text) is darker
    assert abs(ground - text) > 450  # of 765: it can be read
