"""Run one short container through each of some handlers of docker, from an image that is built here.

The image contains one file, a static program that waits for ever; nothing is pulled, and the container has no network.
Containers and image are removed again, and so are those of a killed run.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import tarfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toolkit_installer import log
from toolkit_installer.engines.api import Trials
from toolkit_installer.engines.common import canaries, serving
from toolkit_installer.engines.common.serving import NoAnswerError, resolve_socket
from toolkit_installer.node.root import Root
from toolkit_installer.node.signals import interruptible, limited
from toolkit_installer.node.sockets import shorten_socket_path

if TYPE_CHECKING:
    import docker

_LABEL = "toolkit-installer.canary"
_PROGRAM = "canary"
_ADDRESS = 0x400000
"""The program's load address: the usual one for executables that cannot be relocated."""
_WAITING = {
    # mov eax, 34 (pause); syscall; jmp to the first
    "x86_64": (62, bytes.fromhex("b822000000 0f05 ebf7")),
    # mov x8, 73 (ppoll) and x0 to x4, 0; svc 0; b to the first
    "aarch64": (183, struct.pack("<8I", 0xD2800928, *(0xD2800000 | n for n in range(5)), 0xD4000001, 0x17FFFFF9)),
}
"""By machine: e_machine of ELF, and the instructions. Sources: elf(5), syscalls(2), the architectures' manuals."""


def build_program(machine: str) -> bytes | None:
    """Return an executable that waits until it is killed, for a machine as in uname; None: unknown machine. Pure."""
    if machine not in _WAITING:
        return None
    number, code = _WAITING[machine]
    start = 64 + 56  # the sizes of the ELF header and of one program header
    size = start + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little-endian, version 1
    header = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _ADDRESS + start, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x1000)  # PT_LOAD, read and execute
    return identity + header + segment + code


def try_handlers(root: Root, path: str, seconds: float, handlers: Mapping[str, bool]) -> Trials:
    """Start a short container through each handler, with the dockerd on the node's socket.

    Raises NoAnswerError, Stopped. For the parameters, see Adapter.try_handlers.
    """
    resolve_socket(root, path)
    if (executable := build_program(os.uname().machine)) is None:
        return Trials({}, f"there is no program for a {os.uname().machine} to try them with")
    log.listen()
    import docker.errors  # noqa: PLC0415  # most runs do not need it
    import requests.exceptions  # noqa: PLC0415
    import urllib3.exceptions  # noqa: PLC0415

    try:
        with shorten_socket_path(root, path) as name, interruptible(), limited(seconds):
            # container configurations differ by API version: negotiate dockerd's own
            client = docker.APIClient(base_url=f"unix://{name}", version="auto", timeout=max(1, round(seconds)))
            client.trust_env = False  # as in client.py
            with contextlib.closing(client):
                return _tried(client, executable, docker.errors.APIError, handlers)
    except (OSError, docker.errors.DockerException, requests.exceptions.RequestException) as error:
        why = serving.describe_error(error, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError)
        raise NoAnswerError(why, path=path) from error


def _tried(
    client: docker.APIClient,
    executable: bytes,
    refusal: type[Exception],
    handlers: Mapping[str, bool],
) -> Trials:
    """Try the handlers; `refusal` is the SDK's exception for requests that dockerd refuses."""
    try:
        with _image(client, executable) as image:
            canary = _DockerCanary(client, image, refusal)
            faults = {each: canary.fault(each, shows_gpus=shown) for each, shown in handlers.items()}
    except refusal as error:  # from the image, or from removing an earlier run's containers
        return Trials({}, _refusal_message(error))
    return Trials({each: fault for each, fault in faults.items() if fault})


def _refusal_message(error: Exception) -> str:
    """Return dockerd's own message from an exception of the SDK."""
    return str(getattr(error, "explanation", None) or error)


@contextlib.contextmanager
def _image(client: docker.APIClient, executable: bytes) -> Iterator[str]:
    """Yield the name of an image with this program; remove it afterwards, with all canary containers."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as written:
        member = tarfile.TarInfo(_PROGRAM)
        member.size, member.mode = len(executable), 0o755
        written.addfile(member, io.BytesIO(executable))
    _remove_containers(client)
    client.import_image_from_data(archive.getvalue(), repository=canaries.NAME, tag="1")
    try:
        yield f"{canaries.NAME}:1"
    finally:
        _remove_containers(client)
        client.remove_image(f"{canaries.NAME}:1", force=True)


def _remove_containers(client: docker.APIClient) -> None:
    for container in client.containers(all=True, filters={"label": _LABEL}):
        client.remove_container(container["Id"], force=True)


class _DockerCanary:
    def __init__(self, client: docker.APIClient, image: str, refusal: type[Exception]) -> None:
        self._client = client
        self._image = image
        self._refusal = refusal

    def fault(self, handler: str, *, shows_gpus: bool) -> str:
        """Return why the handler does not work, in dockerd's words; empty if it works."""
        container = ""
        try:
            container = self._client.create_container(
                self._image,
                [f"/{_PROGRAM}"],
                environment={canaries.VARIABLE: canaries.choose_visible_devices(shows_gpus=shows_gpus)},
                labels={_LABEL: "true"},
                host_config=self._client.create_host_config(runtime=handler, network_mode="none"),
            )["Id"]
            self._client.start(container)
            return _wrong(self._client.inspect_container(container)["State"], shows_gpus=shows_gpus)
        except self._refusal as error:
            return _refusal_message(error)
        finally:
            if container:
                self._client.remove_container(container, force=True)


def _wrong(state: Mapping[str, Any], *, shows_gpus: bool) -> str:
    """Return why a started container does not work, empty if it works."""
    if not state["Running"]:
        return f"the container ended at once, with status {state['ExitCode']}: {state['Error']}".rstrip(": ")
    return canaries.describe_missing_gpus(int(state["Pid"])) if shows_gpus else ""
