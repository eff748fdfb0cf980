"""Asks dockerd what it runs with, through the docker SDK."""

from __future__ import annotations

import os
from typing import Any

from toolkit_installer.errors import InstallerError
from toolkit_installer.node.processes import reachable
from toolkit_installer.node.root import Root


class DockerApiError(InstallerError):
    """dockerd did not answer. The text is its own, or the connection's."""


def info(root: Root, path: str, seconds: float) -> dict[str, Any]:
    """Return the answer of `GET /info` on the node's socket. Raises DockerApiError."""
    if not os.path.lexists(root.outside(root.canonical(path))):
        raise DockerApiError("there is no such socket", path=path)
    # the SDK and what it brings take longer to import than all the rest: only where there is something to ask
    import docker.errors  # noqa: PLC0415
    import requests.exceptions  # noqa: PLC0415

    try:
        with reachable(root, path) as name:
            client = docker.APIClient(base_url=f"unix://{name}", version="auto", timeout=max(1, round(seconds)))
            try:
                answer: dict[str, Any] = client.info()
            finally:
                client.close()
    except (OSError, docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise DockerApiError(str(error), path=path) from error
    return answer
