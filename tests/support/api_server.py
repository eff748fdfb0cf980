"""A small Kubernetes API server: HTTPS with a certificate authority of its own, tokens, permissions, real objects."""

from __future__ import annotations

import base64
import copy
import dataclasses
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme

DATA = Path(__file__).parent.parent / "data" / "kubernetes"
NAMESPACE, DAEMON_SET, NODE = "toolkit", "toolkit-installer", "gpu-node-1"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{DAEMON_SET}"
REVIEW_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
DAEMON_SET_PATH = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{DAEMON_SET}"
NAMESPACE_PATH = f"/api/v1/namespaces/{NAMESPACE}"
NODE_PATH = f"/api/v1/nodes/{NODE}"


def token(**claims: Any) -> str:
    """Return a token of the pod's ServiceAccount, as the API server issues them but for the signature."""
    bound = {"namespace": NAMESPACE, "serviceaccount": {"name": DAEMON_SET, "uid": "1"}, "pod": {"uid": "2"}}
    body = {"sub": ACCOUNT, "kubernetes.io": bound, **claims}
    parts = [json.dumps({"alg": "RS256"}), json.dumps(body), "signature"]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


TOKEN = token()
"""One that does not end by itself."""


def real(name: str) -> dict[str, Any]:
    """Return one of the objects under tests/data/kubernetes."""
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return found


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """Return what an API server says of an error."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


@dataclasses.dataclass(frozen=True)
class Written:
    """A change that somebody asked for."""

    method: str
    path: str
    query: str
    kind: str
    body: dict[str, Any]


def _merge(found: dict[str, Any], patch: dict[str, Any]) -> None:
    """Change an object as RFC 7386 says."""
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            _merge(found.setdefault(key, {}), value)
        else:
            found[key] = value


@dataclasses.dataclass
class Cluster:
    """What the API server knows: objects by path, who may get which of them, whose token is good."""

    objects: dict[str, dict[str, Any]]
    tokens: set[str] = dataclasses.field(default_factory=lambda: {TOKEN})
    forbidden: set[str] = dataclasses.field(default_factory=set)
    sick: tuple[int, str] | None = None
    """An HTTP status and a body that all requests get, as from an API server that fails, or a proxy before it."""
    silent: threading.Event | None = None
    """While it is not set, no request gets an answer."""
    promised: int = 0
    """How many bytes more than it sends an answer says that it has."""
    asked: list[str] = dataclasses.field(default_factory=list)
    after: dict[int, Callable[[Cluster], None]] = dataclasses.field(default_factory=dict)
    """What happens to it right before it answers its n-th request, counted from 0."""
    before_each: Callable[[Cluster], object] = bool
    """What happens right before each answer."""

    written: list[Written] = dataclasses.field(default_factory=list)
    before_change: Callable[[Written], object] = bool
    """What happens right before a change that is let through."""
    codes: list[int] = dataclasses.field(default_factory=list)
    """The HTTP statuses that the changes got which were let through."""
    lost: list[str] = dataclasses.field(default_factory=list)
    """The methods of the next changes that are made, and whose answer is lost."""
    refused: list[int] = dataclasses.field(default_factory=list)
    """HTTP statuses that the next changes get, in this order."""
    applied: set[str] = dataclasses.field(default_factory=set)
    """The conditions that are the program's, by server-side apply; below: the labels."""
    labelled: set[str] = dataclasses.field(default_factory=set)

    def answer(self, path: str, token: str) -> tuple[int, str]:
        """Return the HTTP status and the body for a GET, or for a POST of the one kind that it knows."""
        self.before_each(self)
        self.after.pop(len(self.asked), bool)(self)
        self.asked.append(path)
        if self.silent is not None:
            self.silent.wait()
        if self.sick is not None:
            return self.sick
        kind, name = path.split("/")[-2:]
        if token not in self.tokens:
            body = status(401, "Unauthorized", "Unauthorized")
        elif path in self.forbidden:
            message = f'{kind} "{name}" is forbidden: User "{ACCOUNT}" cannot get resource "{kind}"'
            body = status(403, "Forbidden", message)
        elif path == REVIEW_PATH:
            return 201, json.dumps({"kind": "SelfSubjectReview", "status": {"userInfo": {"username": ACCOUNT}}})
        elif path not in self.objects:
            body = status(404, "NotFound", f'{kind} "{name}" not found') | {"details": {"name": name, "kind": kind}}
        else:
            body = {"code": 200, **self.objects[path]}
        return body["code"], json.dumps(body)

    def write(self, change: Written, token: str) -> tuple[int, str]:
        """Return the HTTP status and the body for a change, which is made as far as the program makes any."""
        self.before_each(self)
        if self.silent is not None:
            self.silent.wait()
        if self.refused:
            code = self.refused.pop(0)
            return code, json.dumps(status(code, "Refused", "refused for a test"))
        if self.sick is not None:
            return self.sick
        if token not in self.tokens or change.path in self.forbidden:
            code = 403 if token in self.tokens else 401
            return code, json.dumps(status(code, "Forbidden", f'cannot {change.method.lower()} "{change.path}"'))
        self.written.append(change)
        self.before_change(change)
        made = self._made(change)
        self.codes.append(made[0])
        if change.method in self.lost:
            self.lost.remove(change.method)
            return 504, json.dumps(status(504, "Timeout", "the answer was lost"))
        return made

    def _made(self, change: Written) -> tuple[int, str]:
        if change.method == "POST":
            path = f"{change.path}/{change.body['metadata']['name']}"
            if path in self.objects:
                return 409, json.dumps(status(409, "AlreadyExists", "it already exists"))
            self.objects[path] = change.body
            return 201, json.dumps(change.body)
        path = change.path.removesuffix("/status")
        if path not in self.objects:
            return 404, json.dumps(status(404, "NotFound", "not found"))
        found = self.objects[path]
        if change.method == "DELETE":
            assert change.body["propagationPolicy"] == "Foreground", "what belongs to it would go after it"
            self.delete(path)
            return 200, json.dumps(found)
        if change.kind == "application/merge-patch+json":
            wanted = change.body.get("metadata", {}).pop("resourceVersion", None)
            if wanted not in (None, found["metadata"].get("resourceVersion")):
                return 409, json.dumps(status(409, "Conflict", "the object has been modified"))
            _merge(found, change.body)
            found["metadata"]["resourceVersion"] = str(int(found["metadata"].get("resourceVersion") or 0) + 1)
        elif change.path.endswith("/status"):
            ours = change.body["status"].get("conditions", [])
            kept = [each for each in found["status"]["conditions"] if each["type"] not in self.applied]
            found["status"]["conditions"] = [*kept, *ours]
            self.applied = {each["type"] for each in ours}
        else:
            labels = found["metadata"].setdefault("labels", {})
            for key in self.labelled:
                labels.pop(key, None)
            self.labelled = set(change.body["metadata"].get("labels", {}))
            labels |= change.body["metadata"].get("labels", {})
        return 200, json.dumps(found)

    def delete(self, path: str) -> None:
        """Mark an object as being deleted, as long as something holds it back."""
        self.objects[path]["metadata"]["deletionTimestamp"] = "2026-11-20T10:20:30Z"


def cluster() -> Cluster:
    """Return a cluster in which the DaemonSet wants the node."""
    return Cluster(
        {
            DAEMON_SET_PATH: real("daemonset"),
            NAMESPACE_PATH: real("namespace"),
            NODE_PATH: real("node"),
        }
    )


class Server(http.server.ThreadingHTTPServer):
    """Serves a cluster on 127.0.0.1; `account` is the folder that its pods have."""

    def __init__(self, folder: Path, state: Cluster) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cluster = state
        authority = trustme.CA()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(str(ipaddress.ip_address("127.0.0.1"))).configure_cert(self._tls)
        self.account = folder / "serviceaccount"
        self.account.mkdir()
        authority.cert_pem.write_to_path(str(self.account / "ca.crt"))
        (self.account / "token").write_text(TOKEN)
        (self.account / "namespace").write_text(NAMESPACE)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    @property
    def flags(self) -> tuple[str, ...]:
        """What a run in a pod of the DaemonSet is given."""
        return (
            *("--cleanup", "auto", "--daemonset", DAEMON_SET, "--node-name", NODE),
            *("--kubernetes-service-host", "127.0.0.1", "--kubernetes-service-port", str(self.port)),
            *("--service-account-dir", str(self.account)),
        )

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; the handshake is made by the request's own thread."""
        connection, address = super().get_request()
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:  # the library's
        """Let clients go away whenever they like: who does not trust the certificate does."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        if self.path == REVIEW_PATH:
            assert self._sent() == {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            self.do_GET()
        else:
            self._write()

    def do_PATCH(self) -> None:
        self._write()

    def do_DELETE(self) -> None:
        self._write()

    def do_GET(self) -> None:
        self._answer(*self.server.cluster.answer(self.path, self._token()))

    def _write(self) -> None:
        path, _, query = self.path.partition("?")
        kind = self.headers["Content-Type"]
        state = self.server.cluster
        self._answer(*state.write(Written(self.command, path, query, kind, self._sent()), self._token()))

    def _sent(self) -> dict[str, Any]:
        sent: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return sent

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _answer(self, code: int, body: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body.encode()) + self.server.cluster.promised))
        if code // 100 == 3:
            self.send_header("Location", "/elsewhere")
        if code == http.HTTPStatus.TOO_MANY_REQUESTS:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's
        """Say nothing."""


@contextmanager
def serving(folder: Path, state: Cluster | None = None) -> Iterator[Server]:
    """Serve a cluster until the block ends."""
    server = Server(folder, copy.deepcopy(state) if state is not None else cluster())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        if server.cluster.silent is not None:
            server.cluster.silent.set()
        server.shutdown()
        thread.join()
        server.server_close()
