"""Tokens of the installer's pods on a real cluster: who still accepts them, and ones that have expired."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterable
from typing import Any

from tests.e2e.cluster.control_plane import ControlPlane, kubeconfig
from tests.e2e.cluster.rollout import RealCluster, wait_until

_VOLUME = "/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected"
_TOKEN = "..data/token"  # noqa: S105  # its place
_REFUSED = "must be logged in"
"""What kubectl makes of a 401."""
_AGO = 600
"""Seconds. The API server accepts a token for another 60 s."""


def of_pods(cluster: RealCluster) -> list[str]:
    """Return the tokens of the installer's pods."""
    return [_token(cluster, *place) for place in _places(cluster)]


def wait_until_refused(cluster: RealCluster, tokens: Iterable[str]) -> None:
    """Wait until the API server accepts none of these any more: it remembers for 10 s whom it has accepted."""
    wanted = list(tokens)
    path = cluster.plane.folder / "pod.kubeconfig"

    def refused(token: str) -> bool:
        path.write_text(kubeconfig(token, str(cluster.plane.authority)))
        asked = cluster.plane.kubectl(f"--kubeconfig={path}", "auth", "whoami", check=False)
        return asked.returncode != 0 and _REFUSED in asked.stderr

    wait_until(lambda: all(map(refused, wanted)), "the API server refuses the pods' tokens")


def let_expire(cluster: RealCluster) -> list[str]:
    """Give each pod the token that it had, but with times that have passed, as a stuck kubelet leaves it; return them.

    The volume is read-only afterwards: the kubelet would write a new one within a minute. As it cannot, it takes the
    volume from its own sight; the pod keeps it.
    """
    tokens = []
    for node, volume in _places(cluster):
        token = expired(_token(cluster, node, volume), cluster.plane)
        host = cluster.nodes[node].host
        host.run("sh", "-c", f"cat >{volume}/{_TOKEN}", given=token)
        host.run("mount", "-o", "remount,ro", volume)
        tokens.append(token)
    return tokens


def expired(token: str, plane: ControlPlane) -> str:
    """Return a token as the API server issued it long ago: signed by its key, with times that have passed."""
    header, body, _ = token.split(".")
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    ended = int(time.time()) - _AGO
    begun = ended - _AGO
    signed = f"{header}.{_encoded(json.dumps(claims | {'iat': begun, 'nbf': begun, 'exp': ended}).encode())}"
    signature = subprocess.run(
        ["openssl", "dgst", "-sha256", "-sign", plane.folder / "accounts.key"],
        input=signed.encode(),
        capture_output=True,
        check=True,
    ).stdout
    return f"{signed}.{_encoded(signature)}"


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def _places(cluster: RealCluster) -> list[tuple[str, str]]:
    """Return the node of each pod, and the volume there that has the pod's token."""
    found = []
    for node, pods in cluster.pods().items():
        for pod in pods:
            folder = _VOLUME.format(uid=pod["metadata"]["uid"])
            (volume,) = cluster.nodes[node].host.run("sh", "-c", f"echo {folder}/kube-api-access-*").stdout.split()
            found.append((node, volume))
    assert found, "no pod is there"
    return found


def _token(cluster: RealCluster, node: str, volume: str) -> str:
    return cluster.nodes[node].host.run("cat", f"{volume}/{_TOKEN}").stdout
