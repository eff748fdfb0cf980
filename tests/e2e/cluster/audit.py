"""What the API server of a control plane was asked, and by whom: its audit log, which has every request once."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

# What is only received has no outcome yet. That an answer has begun is kept: of a watch the end may never come, and of
# a token that is refused nothing else is told.
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
_MEGABYTES = 100_000
"""So large that it is never begun anew: at the API server's own 100, what was read last could be gone."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request. `user` is empty where the API server did not accept who it was."""

    user: str
    address: str
    """Where it came from."""
    verb: str
    resource: str
    """With the subresource; of what is no resource, the path."""
    name: str
    """Of the object; empty where it is about several, or about a new one."""
    status: int

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        """Return the request that an event of the log is about."""
        about = event.get("objectRef", {})
        parts = [about[key] for key in ("resource", "subresource") if key in about]
        return cls(
            user=event.get("user", {}).get("username", ""),
            address=event["sourceIPs"][0],
            verb=event["verb"],
            resource="/".join(parts) or event["requestURI"].partition("?")[0],
            name=about.get("name", ""),
            status=event.get("responseStatus", {}).get("code", 0),
        )


class AuditLog:
    """The audit log of an API server that is started with `flags`; `folder` is there before that."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "audit.log"
        policy = folder / "audit-policy.json"
        policy.write_text(json.dumps(_POLICY))
        # each event is written before the answer is finished: who has been answered is in the log
        self.flags = (
            *(f"--audit-policy-file={policy}", f"--audit-log-path={self._file}"),
            *("--audit-log-mode=blocking", f"--audit-log-maxsize={_MEGABYTES}"),
        )
        self._read = 0
        self._seen: set[str] = set()

    def take(self) -> list[Request]:
        """Return the requests since the last call, each once: a watch when it begins, any other when it is answered."""
        with self._file.open("rb") as log:
            log.seek(self._read)
            whole = log.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        taken = []
        for event in map(json.loads, whole.splitlines()):
            if event["auditID"] not in self._seen:  # the end of a watch is told too
                self._seen.add(event["auditID"])
                taken.append(Request.of(event))
        return taken


def counted(requests: Iterable[Request]) -> collections.Counter[tuple[str, str]]:
    """Return how many requests there are of each verb and resource."""
    return collections.Counter((request.verb, request.resource) for request in requests)
