"""Each request that an API server was asked is taken from its audit log once, whatever the log tells of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster.audit import AuditLog, Request, counted


class Log:
    """A log that an API server writes."""

    def __init__(self, folder: Path) -> None:
        self.audit = AuditLog(folder)
        (path,) = (flag for flag in self.audit.flags if flag.startswith("--audit-log-path="))
        self._file = Path(path.partition("=")[2])

    def write(self, *events: dict[str, Any], torn: int = 0) -> None:
        """Write events; `torn`: the last bytes are left out."""
        lines = "".join(f"{json.dumps(event)}\n" for event in events).encode()
        self.add(lines[: len(lines) - torn])

    def add(self, content: bytes) -> None:
        with self._file.open("ab") as log:
            log.write(content)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def event(number: int, verb: str = "get", **more: Any) -> dict[str, Any]:
    return {
        "auditID": f"id-{number}",
        "stage": "ResponseComplete",
        "requestURI": "/api/v1/nodes/one",
        "verb": verb,
        "user": {"username": "admin"},
        "sourceIPs": ["10.88.0.1"],
        "objectRef": {"resource": "nodes", "name": "one"},
        "responseStatus": {"code": 200},
        **more,
    }


def test_what_was_taken_is_not_taken_again(log: Log) -> None:
    log.write(event(1), event(2))
    assert len(log.audit.take()) == 2
    log.write(event(3))
    assert log.audit.take() == [Request("admin", "10.88.0.1", "get", "nodes", "one", 200)]
    assert log.audit.take() == []


def test_a_line_that_is_being_written_is_taken_when_it_is_whole(log: Log) -> None:
    log.write(event(1), event(2), torn=10)
    assert len(log.audit.take()) == 1
    log.add(json.dumps(event(2)).encode()[-9:] + b"\n")
    assert len(log.audit.take()) == 1


def test_a_first_line_that_is_being_written_is_not_lost(log: Log) -> None:
    log.write(event(1), torn=1)
    assert log.audit.take() == []
    log.add(b"\n")
    assert len(log.audit.take()) == 1


def test_a_watch_counts_when_it_begins_and_not_once_more_when_it_ends(log: Log) -> None:
    log.write(event(1, "watch", stage="ResponseStarted"))
    assert counted(log.audit.take()) == Counter({("watch", "nodes"): 1})
    log.write(event(1, "watch"))
    assert log.audit.take() == []


def test_a_token_that_is_refused_counts_and_is_nobodys(log: Log) -> None:
    log.write(event(1, stage="ResponseStarted", user={}, responseStatus={"code": 401}))
    assert [(each.user, each.status) for each in log.audit.take()] == [("", 401)]


def test_subresources_are_told_apart_and_a_path_is_taken_without_what_is_asked_of_it(log: Log) -> None:
    log.write(event(1, "patch", objectRef={"resource": "pods", "subresource": "status", "name": "a"}))
    path = event(2, requestURI="/openapi/v3?timeout=32s")
    del path["objectRef"]
    log.write(path)
    assert [each.resource for each in log.audit.take()] == ["pods/status", "/openapi/v3"]
