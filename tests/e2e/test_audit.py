"""`make audit`: a vulnerability that the database knows ends it with 1, and a database that is away is no good news."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from images import statements
from tests.support import audit
from tests.support.built import commands
from tests.support.built.installer_image import PROJECT

PIP_AUDIT = PROJECT / ".cache/audit-venv/bin/pip-audit"
HOLE = {
    "id": "GHSA-made",
    "aliases": ["CVE-2099-1"],
    "summary": "made up",
    "details": "made up",
    "affected": [
        {
            "package": {"name": "requests", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}],
        }
    ],
}


class Database:
    """Answers as OSV does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.asked: dict[str, str] = {}
        database = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the library's name
                query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = query["package"]["name"]
                database.asked[name] = query["version"]
                text = json.dumps({"vulns": [database.known[name]]} if name in database.known else {}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/v1/query"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    commands.output(
        ["make", "--no-print-directory", ".cache/audit-venv/locked"], AssertionError, seconds=300, folder=PROJECT
    )
    running = Database()
    monkeypatch.setenv("OSV_URL", running.address)
    yield running
    running.close()


def test_each_package_of_the_image_is_asked_about(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(str(PIP_AUDIT)) == 0
    assert database.asked["requests"]
    lock = (PROJECT / "locks/runtime.txt").read_text()
    pinned = {line.split("==")[0] for line in lock.splitlines() if "==" in line and "win32" not in line}
    assert set(database.asked) == pinned
    assert capsys.readouterr().out == f"vulnerabilities of {len(pinned)} packages: none is known\n"


def test_a_known_vulnerability_is_named_with_the_version_that_has_it_no_more(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    database.known["requests"] = HOLE
    assert audit.main(str(PIP_AUDIT)) == 1
    said = capsys.readouterr().out
    assert f"requests {database.asked['requests']}: " in said
    assert "CVE-2099-1" in said
    assert "; fixed in 99.0" in said


def test_one_that_cannot_be_used_in_the_image_is_left_out(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unused = statements.NotAffected("CVE-2099-1", "requests", "component_not_present", "it is not there")
    monkeypatch.setattr(statements, "not_affected", lambda _: (unused,))
    database.known["requests"] = HOLE
    assert audit.main(str(PIP_AUDIT)) == 0
    assert capsys.readouterr().out.endswith("none is known, 1 left out\n")


def test_a_database_that_is_away_is_said_and_is_no_good_news(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    database.close()
    assert audit.main(str(PIP_AUDIT)) == 2
    assert "NOT AUDITED: the database could not be asked" in capsys.readouterr().err


def test_the_target_ends_as_the_question_did(database: Database) -> None:
    database.known["requests"] = HOLE
    done = subprocess.run(
        ["make", "--no-print-directory", "audit"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, "make's own, for a recipe that failed"
    assert "CVE-2099-1" in done.stdout
