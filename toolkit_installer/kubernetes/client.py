"""A client for single objects of the Kubernetes API server, with the service account of this program's own pod.

It also queries whom the API server takes this pod for (SelfSubjectReview), which changes nothing; writes go through
`send`. A response may cost no more than a few MiB and its time limit, and it counts only if it is about the requested
object. So the standard library's client is used: requests reads the whole body of a redirect.

A service account's token is a JWT (RFC 7519). Only its subject and its times are read from it: whether it is accepted
is the API server's decision, which alone can check the signature.
"""

from __future__ import annotations

import base64
import contextlib
import http
import json
import os
import time
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit_installer import log
from toolkit_installer.node.signals import interruptible, limited

if TYPE_CHECKING:
    from http.client import HTTPResponse, HTTPSConnection


_PARTS = 3
"""Of a signed JWT: header, claims, signature (RFC 7515, 3.1)."""
_LEEWAY_SECONDS = 60.0
"""The API server's tolerance between its clock and a token's times (go-jose, jwt.DefaultLeeway)."""


class Bearer(msgspec.Struct, frozen=True):
    """A token's identity, and the seconds since 1970 between which it is valid (None: no limit)."""

    identity: str
    """The subject, and the ids of the ServiceAccount and the pod: one that is created anew has another id."""
    begins: float | None = None
    ends: float | None = None

    def good(self, *clocks: float) -> bool:
        """Return whether the token is valid by its own times on all of these clocks."""
        begins = self.begins is None or all(clock >= self.begins - _LEEWAY_SECONDS for clock in clocks)
        return begins and (self.ends is None or all(clock < self.ends for clock in clocks))


def parse_bearer(token: str) -> Bearer | None:
    """Return the identity and times in a token, None if they cannot be read or no subject is given.

    The claims of a ServiceAccount's token: `sub`, `exp`, `nbf`, and under `kubernetes.io` the ServiceAccount's and the
    pod's `uid` (k8s.io/kubernetes/pkg/serviceaccount/claims.go). A token that is kept in a Secret has no `exp`, and
    never ends.
    """
    parts = token.split(".")
    if len(parts) != _PARTS:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    if not isinstance(claims, dict):
        return None
    subject, begins, ends = claims.get("sub"), claims.get("nbf"), claims.get("exp")
    if not isinstance(subject, str) or not subject or not (_is_time(begins) and _is_time(ends)):
        return None
    bound = claims.get("kubernetes.io")
    uids = [_uid(bound, name) for name in ("serviceaccount", "pod")]
    return Bearer(" ".join([subject, *uids]).strip(), begins, ends)


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _uid(bound: Any, name: str) -> str:
    """Return the id of an object that the token is bound to, empty if it is not bound to one."""
    about = bound.get(name) if isinstance(bound, Mapping) else None
    uid = about.get("uid") if isinstance(about, Mapping) else None
    return uid if isinstance(uid, str) else ""


_LIMIT = 4 * 1024 * 1024
"""Bytes of a response. etcd stores no object over 1.5 MiB; parsing 16 MiB can need more memory than any pod has."""
_LONGEST_MESSAGE = 1024
"""Characters of an error's message that are kept."""
_NAMED_IN: Mapping[int, str] = {http.HTTPStatus.OK: "metadata", http.HTTPStatus.NOT_FOUND: "details"}
"""The part of a response that names its object, for an existing and a missing one (apimachinery, NewNotFound)."""
_CHUNK = 64 * 1024
_CONNECT_SECONDS = 3.0

JSON = "application/json"
MERGE = "application/merge-patch+json"
"""RFC 7386."""
APPLY = "application/apply-patch+yaml"
"""Server-side apply. JSON is YAML."""

REVIEW_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
"""Path at which the API server says whom it takes the client for; since Kubernetes 1.28 (KEP-3325).

A server without this path, or one that denies it to this identity, responds with a status other than 401: the API
server authenticates the client before it looks at the path (k8s.io/apiserver, DefaultBuildHandlerChain).
"""
_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


class UnreadableError(Exception):
    """A file of the service account cannot be read; the text says which, and why."""


class ApiResponse(msgspec.Struct, frozen=True):
    """A response of the API server: an HTTP status with a JSON object; or None, and the reason in words."""

    status: int | None
    body: Mapping[str, Any] = msgspec.field(default_factory=dict)
    words: str = ""
    bearer: Bearer | None = None
    """The identity of the request's token, None if the token does not name it."""
    date: float | None = None
    """The server's clock, in seconds since 1970, None without a Date header."""
    wait: float = 0.0
    """Seconds for which the server asks clients to wait (Retry-After; RFC 9110, 10.2.3)."""

    @property
    def kind(self) -> str:
        """The object's kind, empty if there is none."""
        return str(self.body.get("kind", ""))


class ApiServer:
    """The API server as pods find it: `host` and `port` from the environment, the rest from the folder `account`."""

    def __init__(self, host: str, port: int, account: str) -> None:
        self._host = host
        self._port = port
        self._account = account

    def bearer(self) -> Bearer | None:
        """Return the identity of the pod's present token, None if it cannot be read or is not named."""
        try:
            return parse_bearer(self._read("token"))
        except UnreadableError:
            return None

    def namespace(self) -> str:
        """Return the namespace of the pod. Raises UnreadableError."""
        return self._read("namespace")

    def review(self, seconds: float) -> ApiResponse:
        """Return whom the API server takes this pod for, within `seconds`. Raises Stopped, and nothing else."""
        return self.send("POST", REVIEW_PATH, _REVIEW, seconds)

    def get(self, path: str, seconds: float) -> ApiResponse:
        """Return the API server's response for the object at `path`. Raises Stopped alone."""
        answer = self._ask("GET", path, seconds)
        name = urllib.parse.unquote(path.rpartition("/")[2])
        place = _NAMED_IN.get(answer.status or 0)
        if place is not None and answer.body and _name(answer.body.get(place)) != name:
            return msgspec.structs.replace(answer, body={}, words="the answer is about another object")
        return answer

    def send(self, method: str, path: str, body: Mapping[str, Any], seconds: float, kind: str = JSON) -> ApiResponse:
        """Send `body` with the content type `kind`, and return the API server's response. Raises Stopped alone."""
        return self._ask(method, path, seconds, json.dumps(body).encode(), kind)

    def _ask(self, method: str, path: str, seconds: float, content: bytes | None = None, kind: str = "") -> ApiResponse:
        """Return the response to one request.

        Proxies, certificates and passwords from the environment or a netrc file are not used: a pod reaches its API
        server directly, and verifies it with the cluster's own certificate authority.
        """
        prepare()
        answer = self._exchange(method, path, seconds, content, kind)
        log.get().debug("The API server was asked", method=method, path=path, status=answer.status)
        return answer

    def _exchange(self, method: str, path: str, seconds: float, content: bytes | None, kind: str) -> ApiResponse:
        from http.client import HTTPException  # noqa: PLC0415  # as `prepare`

        deadline = time.monotonic() + seconds
        try:
            token = self._read("token")
            with interruptible(), limited(seconds), contextlib.closing(self._connection()) as connection:
                connection.timeout = min(seconds, _CONNECT_SECONDS)
                connection.connect()
                connection.sock.settimeout(seconds)
                headers = {
                    "Authorization": f"Bearer {token}",
                    "Accept": JSON,
                    **({"Content-Type": kind} if content is not None else {}),
                }
                connection.request(method, path, content, headers)
                response = connection.getresponse()
                date, wait = (
                    _parse_date(response.headers.get("Date")),
                    _parse_retry_after(response.headers.get("Retry-After")),
                )
                return ApiResponse(response.status, *_read_body(response, deadline), parse_bearer(token), date, wait)
        except (OSError, HTTPException, UnicodeError, UnreadableError) as error:
            return ApiResponse(None, words=_shorten(f"{type(error).__name__}: {error}"))

    def _connection(self) -> HTTPSConnection:
        """Return a connection that is not open yet. Raises UnreadableError."""
        import ssl  # noqa: PLC0415  # as `prepare`
        from http.client import HTTPSConnection  # noqa: PLC0415  # likewise

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        path = os.path.join(self._account, "ca.crt")
        try:
            context.load_verify_locations(path)
        except OSError as error:
            raise UnreadableError(f"cannot read {path}: {error}") from error
        return HTTPSConnection(self._host, self._port, context=context)

    def _read(self, name: str) -> str:
        """Return the content of one of the service account's files, which are replaced while the pod runs."""
        path = os.path.join(self._account, name)
        try:
            with open(path, encoding="ascii", newline="\n") as file:
                text = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableError(f"cannot read {path}: {error}") from error
        # it does not fit into a header, and is not shown
        if not text.isprintable() or not text or " " in text:
            raise UnreadableError(f"{path} is not one word")
        return text


def prepare() -> None:
    """Import what requests need, before the time limit of a response begins."""
    # it takes a while on a busy node, and is needed twice in a pod's life
    import http.client  # noqa: F401, PLC0415
    import ssl  # noqa: F401, PLC0415


def _name(part: object) -> object:
    """Return the name in a part of a response, None if it has none."""
    return part.get("name") if isinstance(part, Mapping) else None


def _shorten(text: str) -> str:
    """Return the beginning of a text, in printable form."""
    return text[:_LONGEST_MESSAGE].encode(errors="replace").decode()


def _parse_retry_after(text: str | None) -> float:
    """Return the seconds in a Retry-After header, 0 if it is absent or a date."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0


def _parse_date(text: str | None) -> float | None:
    """Return the time in a Date header (RFC 9110, 6.6.1), None if it is absent or invalid."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # http.client has it imported already

    try:
        return parsedate_to_datetime(text).timestamp() if text is not None else None
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def _read_body(response: HTTPResponse, deadline: float) -> tuple[Mapping[str, Any], str]:
    """Return the response's JSON object, or {} and why there is none. Raises OSError, HTTPException."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        return {}, "the answer is compressed, which nobody asked for"
    content = bytearray()
    while chunk := response.read(_CHUNK):
        content += chunk
        if len(content) > _LIMIT:
            return {}, "the answer does not end"
        if time.monotonic() > deadline:
            raise TimeoutError("the answer took too long")
    if response.length:
        raise ConnectionError("the answer ends too early")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}, "the answer is not JSON"
    return (
        (body, _shorten(str(body.get("message", ""))))
        if isinstance(body, dict)
        else ({}, "the answer is not an object")
    )
