"""The table of engines: what failed is shown as failed, the run that failed shows it all the same, the page has it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
from datetime import date
from pathlib import Path

from tests.support.reports.compatibility import By, Result, Step, page, resolution, result, table

PROJECT = Path(__file__).parents[2]
DONE = Result(
    "docker-trixie",
    "docker 26.1.5+dfsg1",
    By.OURS,
    "0.1",
    Step.INSTALL,
    ok=True,
    seconds=1.234,
    restarts=0,
    away=0.0,
    longest=0.0,
    probes=123,
    failed=0,
    slowest=2.5,
    late=1.5,
)
PEERS = dataclasses.replace(DONE, by=By.PEER, restarts=1, away=119.6)
IDLE = dataclasses.replace(DONE, by=By.NOBODY, step="idle", probes=50, slowest=0.7)
FAILED = Result("docker-trixie", "docker 26.1.5+dfsg1", By.OURS, "0.1", Step.UNINSTALL, ok=False, seconds=7)


def cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_what_failed_is_shown_as_failed_and_what_was_not_reached_as_missing() -> None:
    head, _, ours, peers = cells(table([IDLE, DONE, PEERS, FAILED]))
    assert head == ["engine", "by", *Step]
    assert ours[:3] == ["docker 26.1.5+dfsg1", "this installer", "ok, 1.2 s, 0x, 0 ms"]
    assert ours[-1] == "FAILED, 7.0 s"
    assert set(ours[3:-1]) == {"-"}
    assert peers[1:3] == ["nvidia-ctk-installer", "ok, 1.2 s, 1x, 120 ms"]


def test_two_engines_of_one_version_do_not_hide_each_other() -> None:
    other = dataclasses.replace(FAILED, row="docker-sid")
    assert [row[0] for row in cells(table([DONE, other]))[2:]] == ["docker 26.1.5+dfsg1", "docker 26.1.5+dfsg1"]


def test_all_questions_are_counted_and_the_worst_is_told() -> None:
    _, _, row = cells(resolution([IDLE, DONE, dataclasses.replace(DONE, slowest=9, late=0), FAILED]))
    assert row == ["docker 26.1.5+dfsg1", "296", "0.7 ms", "9.0 ms", "1.5 ms"]


def test_a_result_survives_the_way_through_a_report() -> None:
    assert result(json.loads(json.dumps(DONE.as_property()))) == DONE


def test_the_page_names_versions_and_date_and_no_line_but_a_tables_is_wide() -> None:
    text = page([DONE, PEERS], date(2026, 11, 21))
    assert "wrote this page on 2026-11-21: this installer 0.1; nvidia-ctk-installer 0.1;" in " ".join(text.split())
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []
    assert all(line in text for line in (*table([DONE, PEERS]), *resolution([DONE, PEERS])))


def test_the_table_is_shown_and_the_page_written_although_a_test_failed(tmp_path: Path) -> None:
    source = tmp_path / "test_it.py"
    source.write_text(
        textwrap.dedent(f"""
            def test_it(record_property):
                record_property("compatibility", {DONE.as_property()!r})
                record_property("compatibility", {FAILED.as_property()!r})
                assert False
        """)
    )
    written = tmp_path / "page.md"
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", str(source), "--compatibility", str(written)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stdout
    assert "every engine" in done.stdout
    for line in table([DONE, FAILED]):
        assert line in done.stdout
        assert line in written.read_text()
