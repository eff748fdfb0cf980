"""Asks dockerd what it runs with, through the docker SDK."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from toolkit_installer import log
from toolkit_installer.engines.common import answering
from toolkit_installer.engines.common.answering import NoAnswerError, place_of_socket
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.signals import interruptible, limited
from toolkit_installer.node.sockets import reachable

if TYPE_CHECKING:
    import requests

_LIMIT = 16 << 20
"""Bytes of an answer."""


def info(root: Root, path: str, seconds: float) -> dict[str, Any]:
    """Return the answer of `GET /info` on the node's socket. Raises NoAnswerError, Stopped."""
    place_of_socket(root, path)
    # the SDK and what it brings take longer to import than all the rest: only where there is something to ask
    log.listen()
    import docker.constants  # noqa: PLC0415
    import docker.errors  # noqa: PLC0415
    import requests.exceptions  # noqa: PLC0415
    import urllib3.exceptions  # noqa: PLC0415

    try:
        with reachable(root, path) as name, interruptible(), limited(seconds):
            # any version does: the answer is asked for without one, as "auto" would read another answer whole before
            client = docker.APIClient(
                base_url=f"unix://{name}",
                version=docker.constants.DEFAULT_DOCKER_API_VERSION,
                timeout=max(1, round(seconds)),
            )
            client.trust_env = False  # neither a proxy nor a password of ours is for the node's own socket
            try:
                answer = _bounded(client.get(f"{client.base_url}/info", stream=True, timeout=max(1, round(seconds))))
            finally:
                client.close()
    except (OSError, docker.errors.DockerException, requests.exceptions.RequestException) as error:
        why = answering.words(error, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError)
        raise NoAnswerError(why, path=path) from error
    return answer


def _bounded(response: requests.Response) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises OSError, also for one that is larger than any, or is none."""
    with response:
        response.raise_for_status()
        body = bytearray()
        for piece in response.iter_content(1 << 16):
            body += piece
            if len(body) > _LIMIT:
                raise OSError(f"its answer is larger than {_LIMIT >> 20} MiB")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OSError("its answer is not JSON") from error
    if not isinstance(answer, dict):
        raise OSError("its answer is not an object")  # of whoever answers, not of a caller
    return answer
