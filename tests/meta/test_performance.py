"""docs/performance.md says what was measured; and what the benchmark makes of its measurements is right."""

from __future__ import annotations

import io
import re
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.bench import page, plots, table
from tests.bench.counts import Count, counted
from tests.bench.figures import Figure, curves, loaded, power
from tests.bench.made_node import PLAIN, Place
from tests.support.built import go_tools, image_files

DATA = page.read(page.MEASURED)
FIGURES = loaded(DATA["figures"])
INSTALLED = page.read(page.INSTALLED)
MADE = page.made(INSTALLED, DATA, page.read(page.FLEET))


@pytest.mark.parametrize("path", sorted(MADE), ids=lambda path: path.name)
def test_the_page_and_its_plots_are_what_the_data_files_come_to(path: page.Path) -> None:
    assert path.read_text() == MADE[path], "make bench ARGS=--page makes it anew"


BURST = {"name": "NRI, 100 at once: 99th percentile", "unit": "ms", "ours": 0.6, "peer": 26.4, "goal": 2.0}


@pytest.mark.parametrize(
    "data, words",
    [
        ({"figures": [*DATA["figures"], BURST], "left_out": ""}, "what the engine waits for an answer"),
        (
            {"figures": [], "left_out": "an engine is started as root"},
            "was not measured: an engine is started as root.",
        ),
    ],
)
def test_the_page_tells_of_the_plugin_on_a_live_engine_or_why_it_was_not_measured(
    data: dict[str, object], words: str
) -> None:
    text = " ".join(page.made(INSTALLED, DATA | data, {})[page.PAGE].split())
    assert words in text
    assert ("26.4 ms | 0.02 x | <= 2 met" in text) is not bool(data["left_out"])
    assert "NRI plugin on a live" not in page.made(INSTALLED, {**DATA, "figures": [], "left_out": ""}, {})[page.PAGE]


@pytest.mark.parametrize(
    "said, words",
    [
        ({"no_image": ""}, "of the program as the image has it"),
        ({"no_image": "not installed: buildah"}, "was measured, not that of the image: not installed: buildah."),
    ],
)
def test_the_page_tells_which_program_was_measured(said: dict[str, object], words: str) -> None:
    text = " ".join(page.made(INSTALLED, DATA | said, {})[page.PAGE].split())
    assert words in text


def test_a_command_in_the_image_is_given_the_image_s_own_paths(tmp_path: Path) -> None:
    place = Place(tmp_path / "nodes", tmp_path).within("starting")
    node = place.node("ours", tmp_path / "payload")
    assert node.arguments("run") == [
        *("run", "--node-root", "/nodes/starting/ours", "--runtime", "containerd"),
        *("--toolkit-source-root", "/payload"),
    ]
    assert (tmp_path / "nodes/starting/ours/etc/containerd/config.toml").read_text() == PLAIN


def test_an_image_of_which_a_layer_takes_a_file_away_is_not_measured(tmp_path: Path) -> None:
    def put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        put(archive, "etc/.wh.passwd", b"")
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        put(archive, "manifest.json", b'[{"Layers": ["one.tar"]}]')
        put(archive, "one.tar", layer.getvalue())
    with pytest.raises(ValueError, match=r"takes away .*: etc/.wh.passwd"):
        image_files.unpack(tmp_path / "image.tar", tmp_path / "files")
    assert not (tmp_path / "files").exists()


def test_no_plot_lies_there_that_the_page_does_not_show() -> None:
    shown = set(re.findall(r"\]\(performance/(\S+\.svg)\)", MADE[page.PAGE]))
    assert {path.name for path in page.FOLDER.glob("*.svg")} == shown
    assert shown


def test_every_figure_that_is_promised_is_there() -> None:
    names = "\n".join(figure.name for figure in FIGURES)
    for promised in (
        *("start", "converged run", "first install", "uninstall", "status", "idle: PSS", "idle: wake-ups"),
        *("idle, metrics served: PSS", "metrics: an answer", "metrics: over a bare server"),
    ):
        assert promised in names
    ends = {name: (points[0].size, points[-1].size) for name, points in curves(FIGURES).items()}
    assert ends == {"edit": (1, 4000), "payload": (10, 600), "handlers": (1, 1000), "imports": (1, 1000)}


def test_the_installed_program_was_measured_beside_the_peer_and_meets_its_goals() -> None:
    assert f"v{INSTALLED['versions']['nvidia-ctk-installer']}" == go_tools.NEWEST_PEER.version
    goals = {figure.goal: figure.met for figure in loaded(INSTALLED["figures"]) if figure.of_ratio}
    assert goals == {2.5: True, 5.0: True}


def test_the_table_is_one_screen() -> None:
    lines = table.lines(FIGURES)
    assert len(lines) <= 28
    assert max(map(len, lines)) <= 100


def test_a_figure_without_a_counterpart_has_a_dash_and_meets_no_goal_of_a_ratio() -> None:
    alone = Figure("status", "s", 0.25, goal=0.12)
    assert alone.cells == ("status", "0.250 s", "-", "-", "<= 0.12 MISSED")
    assert Figure("run", "s", 0.3, None, 3.0, of_ratio=True).met is None


def test_a_goal_of_a_ratio_is_compared_with_the_ratio() -> None:
    assert Figure("run", "s", 0.3, 0.1, 4.0, of_ratio=True).met
    assert not Figure("run", "s", 0.5, 0.1, 4.0, of_ratio=True).met


@pytest.mark.parametrize(
    "values, expected",
    [((1, 2, 11), 1.0), ((1, 2, 101), 2.0), ((5, 7, 7), 0.0), ((5, 7, 4), 0.0), ((5, 5, 99), None), ((6, 5, 9), None)],
)
def test_the_power_of_a_curve_tells_a_straight_line_from_a_square(values: tuple[float, ...], expected: float) -> None:
    assert power(list(zip((0, 1, 10), values, strict=True))) == pytest.approx(expected)


def test_a_plot_has_a_line_for_ours_and_one_for_the_peer_where_there_is_one() -> None:
    points = [Figure("edit", "s", size / 10, size / 20, curve="edit", size=size) for size in (1, 2, 4)]
    both = ET.fromstring(plots.drawn("title", "kB", points))  # noqa: S314  # our own
    alone = ET.fromstring(plots.drawn("title", "kB", [Figure("edit", "s", 1, curve="edit", size=1)]))  # noqa: S314
    lines = [
        [each.get("class") for each in tree.iter("{http://www.w3.org/2000/svg}polyline")] for tree in (both, alone)
    ]
    assert lines == [["ours", "peer"], ["ours"]]


def test_the_counts_of_a_trace_leave_out_what_failed_and_what_depends_on_the_machine() -> None:
    trace = """\
1 execve("/bin/a", ["a"], 0x7f /* 3 vars */) = 0
1 execve("/bin/b", ["b"], 0x7f /* 3 vars */) = -1 ENOENT (No such file or directory)
1 openat(AT_FDCWD</tmp>, "/lib/m.cpython-311.pyc", O_RDONLY|O_CLOEXEC) = 3</lib/m.cpython-311.pyc>
1 openat(AT_FDCWD</tmp>, "/proc/12/stat", O_RDONLY|O_CLOEXEC) = 3</proc/12/stat>
1 openat(AT_FDCWD</tmp>, "/absent", O_RDONLY) = -1 ENOENT (No such file or directory)
1 read(3</lib/m.cpython-311.pyc>, ""..., 2000000) = 1500000
1 read(3</proc/12/stat>, ""..., 2000000) = 1500000
1 fsync(4</tmp/x>) = 0
"""
    assert counted(trace) == {
        "modules loaded": 1,
        "programs started": 1,
        "files opened": 1,
        "flushes": 1,
        "MB read": 1.5,
        "system calls": 6,
    }


def test_a_count_is_good_up_to_its_limit() -> None:
    assert Count("flushes", 7, 7).good
    assert not Count("flushes", 8, 7).good
    assert "TOO MANY" in Count("flushes", 8, 7).line
