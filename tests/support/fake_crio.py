"""A stand-in for CRI-O: `fake_crio.py --root DIR --config FILE --config-dir DIR [config]`, paths beneath the root.

It reads its configuration and refuses to start as tests.support.crio_reading tells, and speaks on `crio.api.listen`
what the installer asks for: the CRI's Version, Status and pods over gRPC, `GET /info` and `GET /config` over HTTP/1 on
the same socket. As with CRI-O, SIGHUP changes what it says and nothing else. It runs no pods: those that it tells of
are in PODS, a list of `{"namespace": …, "name": …, "handler": …, "state": …}`; of a pod without "handler" it does not
show the specification. Such a pod runs, or has "completed", or was "stopped" and has no container any more. `config`
prints what it reads.

`--refuses NAME` is a fault: it does not start once its configuration has a runtime of that name. gRPC messages are
made by hand, field numbers as in k8s.io/cri-api `runtime/v1/api.proto`, so that a mistake in the installer's own stubs
cannot hide here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import grpc
import tomlkit

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.crio_reading import Reading, RefusedError, read, start

CONFIG = "/etc/crio/crio.conf"
LISTEN = "/var/run/crio/crio.sock"
PODS = "/run/pods.json"
_PREFACE = b"PRI "


class StandIn:
    """The daemon."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.root = Path(options.root)
        self.says = self.read()

    def read(self) -> Reading:
        """Read the configuration as at a start. Raises RefusedError."""
        place = Path if self.root == Path("/") else self.outside
        named = self.options.config
        config = place(named or CONFIG)
        if named and not os.path.lexists(config):
            raise RefusedError(f"update config from file: open {named}: no such file or directory")
        reading = read(config, place(self.options.config_dir))
        if self.options.default_runtime is not None:
            reading.default = self.options.default_runtime
        return reading

    def outside(self, path: str) -> Path:
        """Return where a path of the node is."""
        return self.root / path.lstrip("/")

    def find(self, path: str, name: str) -> str | None:
        """Return the runtime's executable, looked for in PATH where no path is given."""
        for candidate in [path] if path else [f"/usr/local/bin/{name}", f"/usr/bin/{name}"]:
            if self.outside(candidate).exists():
                return candidate
        return None

    async def serve(self) -> None:
        """Start, answer until SIGTERM. Raises RefusedError."""
        if self.options.refuses in self.says.runtimes:
            raise RefusedError(f"it was told to refuse {self.options.refuses}")
        self.says = start(self.says, self.find)
        for folder in self.says.hooks_dirs:
            self.outside(folder).mkdir(parents=True, exist_ok=True)
        socket = self.outside(LISTEN)
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        os.chdir(socket.parent)  # a socket's path has 107 bytes at most
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handler(),))
        server.add_insecure_port("unix:grpc.sock")
        await server.start()
        front = await asyncio.start_unix_server(self._connected, socket.name)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        await stop.wait()
        front.close()
        await server.stop(None)
        socket.unlink()

    def _reload(self) -> None:
        self.says = start(self.read(), self.find)

    # --- gRPC ---

    def _handler(self) -> grpc.GenericRpcHandler:
        async def version(_request: bytes, _context: object) -> bytes:
            texts = ("0.1.0", self.options.name, self.options.version, "v1")
            return b"".join(_field(number, text) for number, text in enumerate(texts, 1))

        async def status(_request: bytes, _context: object) -> bytes:
            condition = _field(1, "RuntimeReady") + b"\x10\x01"
            info = _field(1, "config") + _field(2, '{"sandboxImage":"registry.k8s.io/pause:3.10"}')
            names = [] if self.options.lists_nothing else list(self.says.runtimes)
            names += [""] if names else []
            return b"".join(
                [_field(1, _field(1, condition)), _field(2, info), *(_field(3, _field(1, n)) for n in names)]
            )

        async def list_pods(_request: bytes, _context: object) -> bytes:
            pods = enumerate(self._pods())
            return b"".join(
                _field(1, _field(1, f"{number}") + _field(2, _metadata(pod)) + (b"\x18\x01" if "state" in pod else b""))
                for number, pod in pods
            )

        async def list_containers(_request: bytes, _context: object) -> bytes:
            pods = [number for number, pod in enumerate(self._pods()) if pod.get("state") != "stopped"]
            return b"".join(_field(1, _field(1, f"container-{number}") + _field(2, f"{number}")) for number in pods)

        async def pod_status(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            number = int(request[2 : 2 + request[1]])
            if number >= len(pods := self._pods()):
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such pod")
            handler = pods[number].get("handler")
            annotations = {} if handler is None else {"io.kubernetes.cri-o.RuntimeHandler": handler}
            info = {"runtimeSpec": {"annotations": annotations}} if handler is not None else {}
            entry = _field(1, "info") + _field(2, json.dumps(info))
            return _field(1, _field(1, f"{number}")) + _field(2, entry)

        methods = {
            name: grpc.unary_unary_rpc_method_handler(answer)
            for name, answer in (
                ("Version", version),
                ("Status", status),
                ("ListPodSandbox", list_pods),
                ("PodSandboxStatus", pod_status),
                ("ListContainers", list_containers),
            )
        }
        handler: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", methods)
        return handler

    def _pods(self) -> list[dict[str, str]]:
        """Return the pods that it is to tell of."""
        try:
            pods: list[dict[str, str]] = json.loads(self.outside(PODS).read_text())
        except FileNotFoundError:
            return []
        return pods

    # --- the socket: HTTP/1 answered here, HTTP/2 handed on ---

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            beginning = await reader.readexactly(len(_PREFACE))
            if beginning == _PREFACE:
                await self._hand_on(beginning, reader, writer)
            else:
                request = beginning + await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(request.split()[1].decode()))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # whoever asked went away
        finally:
            writer.close()

    @staticmethod
    async def _hand_on(beginning: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_unix_connection("grpc.sock")
        back_writer.write(beginning)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
            target.close()

        await asyncio.gather(pump(reader, back_writer), pump(back_reader, writer))

    def _answer(self, path: str) -> bytes:
        bodies = {"/info": b"{}", "/config": written(self.says, self.options.cgroup_manager).encode()}
        if path not in bodies or (path == "/config" and self.options.hides_config):
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(bodies[path])}\r\nConnection: close\r\n\r\n"
        return head.encode() + bodies[path]


def _metadata(pod: dict[str, str]) -> bytes:
    """Return a pod's PodSandboxMetadata."""
    return _field(1, pod["name"]) + _field(2, "uid") + _field(3, pod["namespace"])


def _field(number: int, content: str | bytes) -> bytes:
    """Return a length-delimited field."""
    data = content.encode() if isinstance(content, str) else content
    length = len(data)
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *encoded, length]) + data


def written(reading: Reading, cgroup_manager: str = "systemd") -> str:
    """Return what it runs with as TOML."""
    runtime = {
        "cgroup_manager": cgroup_manager,
        "default_runtime": reading.default,
        "hooks_dir": reading.hooks_dirs,
        "runtimes": reading.runtimes,
    }
    return tomlkit.dumps({"crio": {"runtime": runtime}})


def main() -> int:
    """Serve, or print the configuration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/")
    parser.add_argument("--config", default=os.environ.get("CONTAINER_CONFIG"))
    parser.add_argument("--config-dir", default=os.environ.get("CONTAINER_CONFIG_DIR", "/etc/crio/crio.conf.d"))
    parser.add_argument("--default-runtime")
    parser.add_argument("--runtimes")
    parser.add_argument("--name", default="cri-o")
    parser.add_argument("--version", default="1.37.0")
    parser.add_argument("--refuses", default="")
    parser.add_argument("--cgroup-manager", default="systemd")
    parser.add_argument("--lists-nothing", action="store_true")
    parser.add_argument("--hides-config", action="store_true")
    parser.add_argument("command", nargs="?", choices=("config",))
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever started it may block them
    try:
        daemon = StandIn(options)
        if options.command == "config":
            print(written(daemon.says))  # noqa: T201  # this program's answer
        else:
            asyncio.run(daemon.serve())
    except RefusedError as error:
        sys.exit(f'level=fatal msg="validating runtime config: {error}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
