"""The engine's side of the protocol, by protobuf's wire format alone, so that a mistake in our own cannot hide here.

Field numbers are those of pkg/api/api.proto of github.com/containerd/nri v0.12.5, and of ttrpc v1.2.10.
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Iterator, Mapping

from toolkit_installer.nri.decision import Policy
from toolkit_installer.nri.session import PluginIdentity, Session

PLUGIN, RUNTIME = 1, 2
REQUEST, RESPONSE = 1, 2


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, content: bytes | str | int) -> bytes:
    """Return one field: a number as such, all else with its length."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields of a message."""
    rest = iter(message)

    def number() -> int:
        value, shift = 0, 0
        for byte in rest:
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        return value

    while tag := number():
        value = number()
        yield tag >> 3, value if tag & 7 == 0 else bytes(next(rest) for _ in range(value))


def message(call: int, kind: int, body: bytes) -> bytes:
    return struct.pack(">IIBB", len(body), call, kind, 0) + body


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">II", stream, len(data)) + data


def request(call: int, method: str, payload: bytes = b"", service: str = "nri.pkg.api.v1alpha1.Plugin") -> bytes:
    """Return a call of the engine's, in one frame."""
    body = field(1, service) + field(2, method) + field(3, payload) + field(4, 2_000_000_000)
    return frame(PLUGIN, message(call, REQUEST, body))


def configure(call: int = 1, name: str = "containerd", version: str = "v2.1.4") -> bytes:
    return request(call, "Configure", field(2, name) + field(3, version) + field(4, 5000) + field(5, 2000))


def synchronize(call: int = 3, *, more: bool = False) -> bytes:
    return request(call, "Synchronize", field(1, field(2, "a pod")) + (field(3, 1) if more else b""))


def create(
    call: int, namespace: str, annotations: Mapping[str, str], pod: str = "train", container: str = "main"
) -> bytes:
    notes = b"".join(field(6, field(1, key) + field(2, value)) for key, value in annotations.items())
    of_pod = field(1, "pod-id") + field(2, pod) + field(3, "uid") + field(4, namespace) + notes
    of_container = field(1, "container-id") + field(3, container) + field(7, "/bin/train") + field(8, "A=b")
    return request(call, "CreateContainer", field(1, of_pod) + field(2, of_container))


def taken(stream: int = RUNTIME) -> bytes:
    """Return the answer to the plugin's registration."""
    return frame(stream, message(1, RESPONSE, b""))


def refused(words: str) -> bytes:
    return frame(RUNTIME, message(1, RESPONSE, field(1, field(1, 2) + field(2, words))))


def frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 8:
        stream, length = struct.unpack(">II", data[:8])
        yield stream, data[8 : 8 + length]
        data = data[8 + length :]


def messages(data: bytes, stream: int) -> list[tuple[int, int, bytes]]:
    """Return call, kind and body of each message in a stream that is whole."""
    rest = b"".join(content for number, content in frames(data) if number == stream)
    found = []
    while len(rest) >= 10:
        length, call, kind, _ = struct.unpack(">IIBB", rest[:10])
        if len(rest) < 10 + length:
            break
        found.append((call, kind, rest[10 : 10 + length]))
        rest = rest[10 + length :]
    return found


def answers(data: bytes) -> dict[int, tuple[int, str, bytes]]:
    """Return what the plugin answered to which call: code, words, payload."""
    found = {}
    for call, kind, body in messages(data, PLUGIN):
        assert kind == RESPONSE
        parts = dict(fields(body))
        status = parts.get(1, b"")
        assert isinstance(status, bytes)
        said = dict(fields(status))
        code, words, payload = said.get(1, 0), said.get(2, b""), parts.get(2, b"")
        assert isinstance(code, int)
        assert isinstance(words, bytes)
        assert isinstance(payload, bytes)
        found[call] = code, words.decode(), payload
    return found


def devices(payload: bytes) -> list[str]:
    """Return the CDI devices in the answer to CreateContainer."""
    found = []
    for number, adjust in fields(payload):
        assert number == 1
        assert isinstance(adjust, bytes)
        for inner, device in fields(adjust):
            assert inner == 8
            assert isinstance(device, bytes)
            found += [name.decode() for _, name in fields(device) if isinstance(name, bytes)]
            found += [""] if not device else []
    return found


def asked(by_engine: bytes) -> list[str]:
    """Return the containers that an engine asks about."""
    found = []
    for _, kind, body in messages(by_engine, PLUGIN):
        parts = dict(fields(body))
        if kind == REQUEST and parts[2] == b"CreateContainer":
            payload = parts[3]
            assert isinstance(payload, bytes)
            container = dict(fields(payload))[2]
            assert isinstance(container, bytes)
            name = dict(fields(container))[3]
            assert isinstance(name, bytes)
            found.append(name.decode())
    return found


def methods(by_engine: bytes) -> dict[str, int]:
    """Return how often an engine asks what."""
    bodies = (body for _, kind, body in messages(by_engine, PLUGIN) if kind == REQUEST)
    names = (dict(fields(body))[2] for body in bodies)
    return dict(collections.Counter(name.decode() for name in names if isinstance(name, bytes)))


def given(by_engine: bytes, by_plugin: bytes) -> dict[str, tuple[int, list[str]]]:
    """Return what the plugin answered for each container: the code, and the devices."""
    calls = [call for call, _, body in messages(by_engine, PLUGIN) if dict(fields(body)).get(2) == b"CreateContainer"]
    found = answers(by_plugin)
    return {name: (found[call][0], devices(found[call][2])) for name, call in zip(asked(by_engine), calls, strict=True)}


def ours(by_engine: bytes, *, lenient: bool = True, namespace: str = "gpu-operator") -> bytes:
    """Return what our plugin says to the same."""
    made = Session(PluginIdentity("toolkit-installer", 10), Policy(frozenset({namespace}), lenient=lenient))
    return made.begin() + made.receive(by_engine)[0]
