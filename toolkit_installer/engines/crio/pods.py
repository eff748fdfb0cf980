"""Pods that CRI-O could neither stop nor delete any more once it has forgotten the handler they were started through.

CRI-O remembers of each pod the name of its handler, and looks the name up again once it was restarted: for a pod that
has ended, too. Where the name is unknown, the pod stays in Terminating. Source: CRI-O's internal/oci/oci.go
(`RuntimeImpl`), seen with 1.34. A pod of the default runtime has no name remembered, and gets the new default.
"""

from __future__ import annotations

from collections.abc import Collection

from toolkit_installer import log
from toolkit_installer.documents import visible
from toolkit_installer.engines.api import EngineSilentError
from toolkit_installer.engines.common.asking import NoAnswerError
from toolkit_installer.engines.common.cri import client
from toolkit_installer.engines.common.cri.client import Pod
from toolkit_installer.node.node import Node

_SECONDS = 30.0
"""For the answers on all pods: a node has 110 of them, or some hundreds."""
_HANDLER = "io.kubernetes.cri-o.RuntimeHandler"
"""Source: CRI-O's internal/annotations."""


def needing(node: Node, socket: str, handlers: Collection[str]) -> tuple[str, ...]:
    """Return, as NAMESPACE/NAME, the pods that were started through one of these handlers. Raises EngineSilentError."""
    if not handlers:
        return ()
    try:
        pods = client.pods(node.root, socket, _SECONDS)
    except NoAnswerError as error:
        raise EngineSilentError(f"CRI-O does not say which pods it has: {error.reason}", path=socket) from error
    if silent := [pod for pod in pods if pod.annotations is None]:
        log.get().warning(
            "CRI-O does not say through which handlers these pods were started: one that needs a handler that goes can "
            "neither be stopped nor deleted afterwards",
            pods=", ".join(map(_named, silent)),
            handlers=", ".join(sorted(handlers)),
        )
    return tuple(sorted(_named(pod) for pod in pods if (pod.annotations or {}).get(_HANDLER) in handlers))


def _named(pod: Pod) -> str:
    return visible.line(f"{pod.namespace}/{pod.name}")
