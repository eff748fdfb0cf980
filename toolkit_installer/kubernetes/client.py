"""Asks the Kubernetes API server for single objects, with the service account of the pod that this runs in.

And for whom it takes this pod (SelfSubjectReview), which changes nothing either. What it is told goes by `send`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit_installer import log
from toolkit_installer.kubernetes import tokens
from toolkit_installer.kubernetes.tokens import Bearer
from toolkit_installer.node.signals import interruptible, limited

if TYPE_CHECKING:
    import requests

_LIMIT = 16 * 1024 * 1024
"""Bytes of an answer. etcd takes no object of more than 1.5 MiB."""
_CHUNK = 64 * 1024
_CONNECT_SECONDS = 3.0

JSON = "application/json"
MERGE = "application/merge-patch+json"
"""RFC 7386."""
APPLY = "application/apply-patch+yaml"
"""Server-side apply. JSON is YAML."""

REVIEW_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
"""Where the API server says for whom it takes who asks; since Kubernetes 1.28 (KEP-3325).

A server that does not have it, or an identity that may not ask it, gets another answer than 401: the API server knows
who asks before it looks at what is asked for (k8s.io/apiserver, DefaultBuildHandlerChain)."""
_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


class UnreadableError(Exception):
    """A file of the service account cannot be read; the text says which, and why."""


class Answer(msgspec.Struct, frozen=True):
    """What the API server said: an HTTP status with a JSON object, or None and in words why there is no answer."""

    status: int | None
    body: Mapping[str, Any] = msgspec.field(default_factory=dict)
    words: str = ""
    bearer: Bearer | None = None
    """Whose token it was asked with, None where the token does not say."""
    date: float | None = None
    """What the server's clock said, in seconds since 1970, None where it did not tell."""
    wait: float = 0.0
    """For how many seconds it asks to be left alone (Retry-After; RFC 9110, 10.2.3)."""

    @property
    def kind(self) -> str:
        """The object's kind, empty where there is none."""
        return str(self.body.get("kind", ""))


class ApiServer:
    """The API server as pods find it: `host` and `port` from the environment, the rest from the folder `account`."""

    def __init__(self, host: str, port: int, account: str) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._port = port
        self._account = account

    def bearer(self) -> Bearer | None:
        """Return whose token the pod has now, None where it cannot be read or does not say."""
        try:
            return tokens.bearer(self._read("token"))
        except UnreadableError:
            return None

    def namespace(self) -> str:
        """Return the namespace of the pod. Raises UnreadableError."""
        return self._read("namespace")

    def review(self, seconds: float) -> Answer:
        """Return for whom the API server takes this pod, within `seconds`. Raises Stopped, and nothing else."""
        return self.send("POST", REVIEW_PATH, _REVIEW, seconds)

    def get(self, path: str, seconds: float) -> Answer:
        """Return what the API server says of the object at `path`. Raises Stopped alone."""
        return self._ask("GET", path, seconds)

    def send(self, method: str, path: str, body: Mapping[str, Any], seconds: float, kind: str = JSON) -> Answer:
        """Return what the API server says to `body`, whose content type is `kind`. Raises Stopped alone."""
        return self._ask(method, path, seconds, json.dumps(body).encode(), kind)

    def _ask(self, method: str, path: str, seconds: float, content: bytes | None = None, kind: str = "") -> Answer:
        """Return the answer to one request.

        Proxies, certificates and passwords that the environment or a netrc file names are not for this: a pod reaches
        its API server directly, and knows it by the cluster's own certificate authority.
        """
        prepare()
        import requests  # noqa: PLC0415  # as there

        deadline = time.monotonic() + seconds
        try:
            token = self._read("token")
            with requests.Session() as session, interruptible(), limited(seconds):
                session.trust_env = False
                response = session.request(
                    method,
                    f"https://{self._host}:{self._port}{path}",
                    headers={
                        "Authorization": f"Bearer {token}",
                        "Accept": JSON,
                        **({"Content-Type": kind} if content is not None else {}),
                    },
                    data=content,
                    verify=os.path.join(self._account, "ca.crt"),
                    timeout=(min(seconds, _CONNECT_SECONDS), seconds),
                    allow_redirects=False,
                    stream=True,
                )
                date, wait = _date(response.headers.get("Date")), _wait(response.headers.get("Retry-After"))
                return Answer(response.status_code, *_body(response, deadline), tokens.bearer(token), date, wait)
        except (OSError, UnreadableError) as error:  # all that requests raises is an OSError
            return Answer(None, words=f"{type(error).__name__}: {error}")

    def _read(self, name: str) -> str:
        """Return the content of one of the service account's files, which are replaced while the pod runs."""
        path = os.path.join(self._account, name)
        try:
            with open(path, encoding="ascii", newline="\n") as file:
                text = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableError(f"cannot read {path}: {error}") from error
        # what is in it is not shown, and does not fit into a header
        if not text.isprintable() or not text or " " in text:
            raise UnreadableError(f"{path} is not one word")
        return text


def prepare() -> None:
    """Import what asking needs, which is no part of the time that an answer may take."""
    # it takes a tenth of a second, seconds on a busy node, and is wanted twice in the life of a pod
    log.listen()
    import requests  # noqa: F401, PLC0415


def _wait(text: str | None) -> float:
    """Return the seconds that a Retry-After header names, 0 where it names none, or a date."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0


def _date(text: str | None) -> float | None:
    """Return the time that a Date header tells (RFC 9110, 6.6.1), None where it tells none."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # requests has it imported already

    try:
        return parsedate_to_datetime(text).timestamp() if text is not None else None
    except (ValueError, OverflowError):
        return None


def _body(response: requests.Response, deadline: float) -> tuple[Mapping[str, Any], str]:
    """Return the answer's JSON object, or {} and why there is none. Raises OSError."""
    content = b""
    for chunk in response.iter_content(_CHUNK):
        content += chunk
        if len(content) > _LIMIT:
            return {}, "the answer does not end"
        if time.monotonic() > deadline:
            raise TimeoutError("the answer took too long")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}, "the answer is not JSON"
    return (body, str(body.get("message", ""))) if isinstance(body, dict) else ({}, "the answer is not an object")
