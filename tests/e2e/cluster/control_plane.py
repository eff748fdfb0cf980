"""A real control plane: etcd, API server, controller manager and scheduler, on a network of their own.

Authorisation is as kubeadm has it (Node and RBAC), so what a pod's ServiceAccount may not do is refused here too. Who
is who is told by tokens in a file: a cluster's way of giving out certificates is not what the tests are about.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.e2e.hosts.hardware import Hardware
from tests.support.built import commands
from tests.support.engines.daemons import PATH, SPARING

PROGRAMS = ("etcd", "openssl")
BRIDGE = "nodes"
ADDRESS, SERVICE = "10.88.0.1", "10.96.0.1"
"""Of the API server: on the nodes' network, and as the Service that its pods are told of."""
NODES = 9
"""How many nodes may join, see `address_of`."""
_SERVICES = "10.96.0.0/16"
_ETCD = "http://127.0.0.1:2379"
_USERS = {
    "admin": "admin,admin,system:masters",
    "controller-manager": "system:kube-controller-manager,controller-manager",
    "scheduler": "system:kube-scheduler,scheduler",
    "kwok": "kwok,kwok,system:masters",
}
_SECONDS = 300.0
_POLL = 0.3


class ControlPlaneError(Exception):
    """A program ended, did not answer in time, or refused; the message has its words."""


def address_of(number: int) -> str:
    """Return a node's address; nodes are numbered from 1."""
    return f"10.88.0.{10 + number}"


def pods_of(number: int) -> str:
    """Return the network of a node's pods."""
    return f"10.244.{number}.0/24"


class ControlPlane:
    """The control plane below `folder`; `programs` has those of Kubernetes. It answers once it is entered.

    `flags` are given to a program, by its name, beside those that it always has.
    """

    def __init__(self, folder: Path, programs: Path, flags: Mapping[str, Sequence[str]] | None = None) -> None:
        self.folder = folder
        self._programs = programs
        self._flags = flags or {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments: dict[str, list[str | Path]] = {}
        self.hardware = Hardware(folder / "disk")
        self.authority = folder / "ca.crt"
        self.images = folder / "images"
        """Where the nodes find images: an empty folder that each is shown."""
        self._proxy = folder / "proxy.sock"

    def __enter__(self) -> Self:
        self.images.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.hardware)
            stack.callback(self.close)
            self._network()
            self._keys()
            self._start_all()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.hardware.__exit__()

    def close(self) -> None:
        """End its programs, those first that would otherwise complain that another is away."""
        for name in ("proxy", "kwok", "scheduler", "controller-manager", "apiserver", "etcd"):
            if name in self._processes:
                self.stop(name)

    # --- what it is made of ---

    def _network(self) -> None:
        ip = self.hardware.ip
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("address", "add", f"{ADDRESS}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        ip("address", "add", f"{SERVICE}/32", "dev", "lo")

    def _keys(self) -> None:
        """Make an authority, the API server's certificates, and everybody's token."""
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self._openssl("req", "-x509", *curve, "-days=30", "-subj=/CN=ca", "-keyout=ca.key", "-out=ca.crt")
        names = f"IP:{ADDRESS},IP:{SERVICE},IP:127.0.0.1,DNS:kubernetes.default.svc"
        (self.folder / "names").write_text(f"extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={names}\n")
        for name, subject in (("apiserver", "/CN=kube-apiserver"), ("to-kubelet", "/O=system:masters/CN=apiserver")):
            self._openssl("req", *curve, f"-keyout={name}.key", f"-subj={subject}", f"-out={name}.csr")
            signing = ["-CA=ca.crt", "-CAkey=ca.key", "-CAcreateserial", "-days=30", "-extfile=names"]
            self._openssl("x509", "-req", f"-in={name}.csr", f"-out={name}.crt", *signing)
        self._openssl("genpkey", "-algorithm=RSA", "-pkeyopt=rsa_keygen_bits:2048", "-out=accounts.key")
        self._openssl("pkey", "-in=accounts.key", "-pubout", "-out=accounts.pub")
        nodes = {f"node{i}": f"system:node:node{i},node{i},system:nodes" for i in range(1, NODES + 1)}
        lines = [f"{name}-token,{who}" for name, who in (_USERS | nodes).items()]
        (self.folder / "tokens.csv").write_text("\n".join([*lines, ""]))
        for name in _USERS:
            (self.folder / f"{name}.kubeconfig").write_text(kubeconfig(f"{name}-token", str(self.authority)))

    def _openssl(self, command: str, *arguments: str) -> None:
        words = [part for each in arguments for part in (each.split("=", 1) if each.startswith("-") else [each])]
        commands.output(["openssl", command, *words], ControlPlaneError, seconds=_SECONDS, folder=self.folder)

    def _start_all(self) -> None:
        f = self.folder
        self._arguments = {
            # nothing of it has to outlive the tests
            "etcd": [
                *("etcd", f"--data-dir={f / 'etcd'}", "--unsafe-no-fsync", f"--listen-client-urls={_ETCD}"),
                *(f"--advertise-client-urls={_ETCD}", "--listen-peer-urls=http://127.0.0.1:2380"),
            ],
            "apiserver": [
                *(self._programs / "kube-apiserver", f"--etcd-servers={_ETCD}", "--secure-port=443"),
                *(f"--advertise-address={ADDRESS}", f"--service-cluster-ip-range={_SERVICES}"),
                *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
                *(f"--token-auth-file={f / 'tokens.csv'}", f"--client-ca-file={f / 'ca.crt'}"),
                *(f"--tls-cert-file={f / 'apiserver.crt'}", f"--tls-private-key-file={f / 'apiserver.key'}"),
                *("--service-account-issuer=https://kubernetes.default.svc", "--allow-privileged=true"),
                f"--service-account-key-file={f / 'accounts.pub'}",
                f"--service-account-signing-key-file={f / 'accounts.key'}",
                f"--kubelet-client-certificate={f / 'to-kubelet.crt'}",
                f"--kubelet-client-key={f / 'to-kubelet.key'}",
                *("--kubelet-preferred-address-types=InternalIP", "--endpoint-reconciler-type=lease"),
            ],
            "controller-manager": [
                self._programs / "kube-controller-manager",
                f"--kubeconfig={f / 'controller-manager.kubeconfig'}",
                f"--service-account-private-key-file={f / 'accounts.key'}",
                *(f"--root-ca-file={f / 'ca.crt'}", "--use-service-account-credentials", "--leader-elect=false"),
            ],
            "scheduler": [
                *(self._programs / "kube-scheduler", f"--kubeconfig={f / 'scheduler.kubeconfig'}"),
                "--leader-elect=false",
            ],
        }
        self._arguments["proxy"] = [
            *(self._programs / "kubectl", f"--kubeconfig={f / 'admin.kubeconfig'}", "proxy"),
            f"--unix-socket={self._proxy}",
        ]
        for name in ("etcd", "proxy", "apiserver", "controller-manager", "scheduler"):
            self.start(name)

    # --- its programs, one by one ---

    def start(self, name: str) -> None:
        """Start one of them, as it was started first, and wait until the API server answers if it is that one."""
        # it ends with the tests even where these are killed and no finalizer runs
        given = [*self._arguments[name], *self._flags.get(name, ())]
        command = ["setpriv", "--pdeathsig", "KILL", *self.hardware.enter, *given]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": PATH, "HOME": str(self.folder), **SPARING},
                start_new_session=True,
            )
        if name == "apiserver":
            self._wait_until_ready()

    def run_beside(self, name: str, *arguments: str | Path) -> None:
        """Start another program on its network, to be ended with it."""
        self._arguments[name] = list(arguments)
        self.start(name)

    def stop(self, name: str) -> None:
        """End one of them."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # the API server waits for its watches
            process.kill()
            process.wait()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while not self._is_ready():
            for name, process in self._processes.items():
                if name not in ("etcd", "apiserver"):  # those that ask it may have ended because it was away
                    continue
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]
                    raise ControlPlaneError(f"no answer, and {name} ({process.returncode}) said:\n{said}")
            time.sleep(_POLL)

    def _is_ready(self) -> bool:
        try:
            return self._answer("GET", "/readyz")[0] == http.HTTPStatus.OK
        except OSError:  # not even the proxy is
            return False

    @contextlib.contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Have one of them away until the block ends."""
        self.stop(name)
        try:
            yield
        finally:
            self.start(name)
            self._wait_until_ready()
            for each in ("controller-manager", "scheduler"):
                # by themselves they ask again after a minute; in a cluster with more of them, another takes over
                self.stop(each)
                self.start(each)

    # --- kubectl ---

    def kubectl(
        self, *arguments: str | Path, given: str = "", check: bool = True, within: float = _SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the cluster's admin. Raises ControlPlaneError where it fails and that was not expected."""
        done = subprocess.run(
            self.kubectl_command(*arguments),
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=within,
            env={"PATH": PATH, "HOME": str(self.folder), **SPARING},
        )
        if check and done.returncode:
            words = " ".join(map(str, arguments))
            raise ControlPlaneError(f"kubectl {words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def kubectl_command(self, *arguments: str | Path) -> list[str]:
        """Return the command that runs kubectl as the cluster's admin."""
        kubectl = [str(self._programs / "kubectl"), f"--kubeconfig={self.folder}/admin.kubeconfig"]
        return [*self.hardware.enter, *kubectl, *map(str, arguments)]

    def get(self, path: str) -> list[dict[str, Any]]:
        """Return the objects at a path of the API: a list's, or the only one. Raises ControlPlaneError."""
        told = self.find(path)
        if told is None:
            raise ControlPlaneError(f"GET {path}: there is none")
        return list(told.get("items", [told]))

    def find(self, path: str) -> dict[str, Any] | None:
        """Return what is at a path of the API; None where nothing is. Raises ControlPlaneError."""
        return self._ask("GET", path)

    def patch(self, path: str, change: dict[str, Any]) -> dict[str, Any] | None:
        """Change an object as a JSON merge patch says; return None where there is none. Raises ControlPlaneError."""
        return self._ask("PATCH", path, json.dumps(change))

    def _ask(self, method: str, path: str, content: str | None = None) -> dict[str, Any] | None:
        status, said = self._answer(method, path, content)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        if status != http.HTTPStatus.OK:
            raise ControlPlaneError(f"{method} {path}: {status} {said.decode(errors='replace')}")
        told: dict[str, Any] = json.loads(said)
        return told

    def _answer(self, method: str, path: str, content: str | None = None) -> tuple[int, bytes]:
        """Ask through `kubectl proxy`: a kubectl each time that one looks would keep a processor busy."""
        connection = http.client.HTTPConnection("localhost", timeout=_SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_SECONDS)
        with contextlib.closing(connection):
            connection.sock.connect(str(self._proxy))
            connection.request(method, path, content, {"Content-Type": "application/merge-patch+json"})
            answer = connection.getresponse()
            return answer.status, answer.read()


def kubeconfig(token: str, authority: str) -> str:
    """Return a kubeconfig for who has this token; `authority` is the path of ca.crt."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "it", "cluster": {"server": f"https://{ADDRESS}", "certificate-authority": authority}}
            ],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
            "current-context": "it",
        }
    )
