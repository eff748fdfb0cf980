"""Docker's canary as dockerd sees it: what is made, what is said of it, and that nothing is left, whatever fails."""

from __future__ import annotations

import http.server
import io
import json
import os
import re
import socketserver
import tarfile
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from toolkit_installer.engines.api import Trials
from toolkit_installer.engines.common import canaries
from toolkit_installer.engines.common.serving import NoAnswerError
from toolkit_installer.engines.docker import canary
from toolkit_installer.node.root import Root

IMAGE = "toolkit-installer-canary:1"


class Dockerd(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Has images and containers, and refuses what it is told to."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Request)
        self.images: set[str] = set()
        self.content = b""
        """The image's archive."""
        self.containers: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        """What containers were asked for, in their order."""
        self.refuses: dict[str, str] = {}
        """By what is done, as `_Request` calls it, or by the container's runtime where that is started: the words."""
        self.ends: dict[str, tuple[int, str]] = {}
        """By runtime: the status and the words with which its containers end at once."""


class _Request(http.server.BaseHTTPRequestHandler):
    server: Dockerd
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "a unix socket"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path, query = self._path()
        if path == "/version":
            self._answer({"Version": "28.0", "ApiVersion": "1.48", "MinAPIVersion": "1.24"})
        elif path == "/containers/json":
            (label,) = json.loads(query["filters"][0])["label"]
            assert query["all"] == ["1"]
            labelled = [name for name, each in self.server.containers.items() if label in each["Labels"]]
            self._answer([{"Id": name} for name in labelled])
        else:
            container = self.server.containers[path.split("/")[2]]
            ended = self.server.ends.get(container["HostConfig"]["Runtime"])
            status, words = ended if ended is not None else (0, "")
            self._answer({"State": {"Running": ended is None, "Pid": 0, "ExitCode": status, "Error": words}})

    def do_POST(self) -> None:
        path, query = self._path()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/images/create":
            if not self._refused("image"):
                self.server.images.add(f"{query['repo'][0]}:{query['tag'][0]}")
                self.server.content = body
                self._answer({})
        elif path == "/containers/create":
            wanted = json.loads(body)
            self.server.asked.append(wanted)
            if not self._refused("container"):
                name = f"c{len(self.server.asked)}"
                self.server.containers[name] = wanted
                self._answer({"Id": name}, HTTPStatus.CREATED)
        elif not self._refused(self.server.containers[path.split("/")[2]]["HostConfig"]["Runtime"]):
            self._answer(None, HTTPStatus.NO_CONTENT)

    def do_DELETE(self) -> None:
        path, query = self._path()
        _, kind, name = path.split("/")
        assert query["force"] == ["True"]
        if kind == "containers":
            del self.server.containers[name]
            self._answer(None, HTTPStatus.NO_CONTENT)
        else:
            self.server.images.remove(name)
            self._answer([])

    def _path(self) -> tuple[str, dict[str, list[str]]]:
        found = urlsplit(self.path)
        return re.sub(r"^/v[0-9.]+", "", found.path), parse_qs(found.query)

    def _refused(self, what: str) -> bool:
        if what not in self.server.refuses:
            return False
        self._answer({"message": self.server.refuses[what]}, HTTPStatus.BAD_REQUEST)
        return True

    def _answer(self, body: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def dockerd(tmp_path: Path) -> Iterator[Dockerd]:
    with Dockerd(tmp_path / "docker.sock") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def tried(dockerd: Dockerd, handlers: dict[str, bool]) -> Trials:
    assert isinstance(dockerd.server_address, str)
    return canary.try_handlers(Root("/"), dockerd.server_address, 30.0, handlers)


def left(dockerd: Dockerd) -> tuple[list[str], set[str]]:
    return list(dockerd.containers), dockerd.images


def test_each_handler_gets_one_container_without_network_and_nothing_is_left(dockerd: Dockerd) -> None:
    assert tried(dockerd, {"nvidia": False, "nvidia-cdi": False}) == Trials({})
    assert [each["HostConfig"]["Runtime"] for each in dockerd.asked] == ["nvidia", "nvidia-cdi"]
    assert {each["HostConfig"]["NetworkMode"] for each in dockerd.asked} == {"none"}
    assert {each["Image"] for each in dockerd.asked} == {IMAGE}
    assert left(dockerd) == ([], set())


def test_the_image_holds_what_the_container_is_told_to_run(dockerd: Dockerd) -> None:
    tried(dockerd, {"nvidia": False})
    with tarfile.open(fileobj=io.BytesIO(dockerd.content)) as archive:
        (member,) = archive.getmembers()
        program = archive.extractfile(member)
        assert program is not None
        assert program.read() == canary.build_program(os.uname().machine)
    assert [f"/{member.name}"] == dockerd.asked[0]["Cmd"]
    assert member.mode & 0o111 == 0o111


def test_only_handlers_that_should_show_gpus_are_tried_for_them(
    dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canaries, "describe_missing_gpus", lambda pid: f"the process {pid} has none")
    assert tried(dockerd, {"nvidia": True, "plain": False}) == Trials({"nvidia": "the process 0 has none"})
    assert [each["Env"] for each in dockerd.asked] == [["NVIDIA_VISIBLE_DEVICES=all"], ["NVIDIA_VISIBLE_DEVICES=void"]]


def test_a_handler_that_dockerd_cannot_start_is_quoted_and_the_next_is_tried(dockerd: Dockerd) -> None:
    dockerd.refuses["broken"] = "unable to start: exec format error"
    assert tried(dockerd, {"broken": False, "nvidia": False}) == Trials(
        {"broken": "unable to start: exec format error"}
    )
    assert len(dockerd.asked) == 2
    assert left(dockerd) == ([], set())


@pytest.mark.parametrize(
    "words, told",
    [
        ("", "the container ended at once, with status 3"),
        ("no such file", "the container ended at once, with status 3: no such file"),
    ],
)
def test_a_container_that_ends_at_once_is_a_fault(dockerd: Dockerd, words: str, told: str) -> None:
    dockerd.ends["nvidia"] = (3, words)
    assert tried(dockerd, {"nvidia": False}) == Trials({"nvidia": told})
    assert left(dockerd) == ([], set())


def test_an_image_that_dockerd_does_not_take_is_no_fault_of_a_handler(dockerd: Dockerd) -> None:
    dockerd.refuses["image"] = "no space left on device"
    assert tried(dockerd, {"nvidia": False}) == Trials({}, "no space left on device")
    assert dockerd.asked == []


def test_what_a_killed_run_left_is_removed_and_a_container_of_somebody_elses_stays(dockerd: Dockerd) -> None:
    dockerd.containers |= {"old": {"Labels": {"toolkit-installer.canary": "true"}}, "other": {"Labels": {"a": "b"}}}
    dockerd.refuses["image"] = "busy"
    tried(dockerd, {"nvidia": False})
    assert left(dockerd) == (["other"], set())


def test_a_socket_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(NoAnswerError, match="there is no such socket"):
        canary.try_handlers(Root("/"), str(tmp_path / "docker.sock"), 30.0, {"nvidia": False})


def test_a_machine_without_a_program_is_told_and_dockerd_is_not_asked(
    dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "_WAITING", {})
    trials = tried(dockerd, {"nvidia": False})
    assert trials == Trials({}, f"there is no program for a {os.uname().machine} to try them with")
    assert dockerd.asked == []
