"""A real registry on this machine: Debian's docker-registry, with a folder and a port of its own."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import yaml

PROGRAM = "docker-registry"
_SECONDS = 30.0
_ACCEPT = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in ("oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.list.v2")
)


def missing() -> bool:
    """Tell whether it is not installed."""
    return shutil.which(PROGRAM) is None


class Registry:
    """Keeps what is pushed to `name` below `folder`, from `with` to its end; over plain HTTP, on this machine alone."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._folder = folder
        self.name = f"localhost:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        self._folder.mkdir()
        settings = {
            "version": "0.1",
            "log": {"accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "data")}},
            "http": {"addr": f"127.0.0.1:{self._port}"},
        }
        (self._folder / "config.yml").write_text(yaml.safe_dump(settings))
        log = self._folder / "log"
        with log.open("wb") as file:
            command = [PROGRAM, "serve", str(self._folder / "config.yml")]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        deadline = time.monotonic() + _SECONDS
        while not self._answers():
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return self._get("/v2/")[0].status == http.client.OK
        except ConnectionError:
            return False

    def digest(self, repository: str, reference: str) -> str:
        """Return the digest of what has a tag or a digest."""
        answer, _ = self._get(f"/v2/{repository}/manifests/{reference}")
        assert answer.status == http.client.OK, answer.reason
        return str(answer.headers["Docker-Content-Digest"])

    def manifest(self, repository: str, reference: str) -> dict[str, Any]:
        """Return the manifest or the index that has a tag or a digest."""
        answer, content = self._get(f"/v2/{repository}/manifests/{reference}")
        assert answer.status == http.client.OK, content
        return dict(json.loads(content))

    def _get(self, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS)
        try:
            connection.request("GET", path, headers={"Accept": _ACCEPT})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()
