"""Made payloads: the toolkit's files as an image holds them, small, but real enough to be run and loaded.

`build(root)` writes one below `root`. Its programs are hand-assembled, statically linked ELF executables that print
`NAME version VERSION` and exit 0; its libraries are ELF shared objects that dlopen takes. No compiler is needed, and
a payload of another architecture can be made too.
"""

from __future__ import annotations

import enum
import platform
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

VERSION = "1.19.0"

CONFIG = b"""\
# The toolkit's configuration, as the package ships it.
disable-require = false
#swarm-resource = "DOCKER_RESOURCE_GPU"
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
#root = "/run/nvidia/driver"
environment = []
#debug = "/var/log/nvidia-container-toolkit.log"
load-kmods = true # needed on nodes that load modules late
ldconfig = "@/sbin/ldconfig.real"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"

# The first of these that is found runs the container.
runtimes = ["docker-runc", "runc"]
mode = "auto"

    [nvidia-container-runtime.modes.csv]
    mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"
"""

CONFIG_2021 = b"""\
disable-require = false
#swarm-resource = "DOCKER_RESOURCE_GPU"
#accept-nvidia-visible-devices-envvar-when-unprivileged = true

[nvidia-container-cli]
#root = "/run/nvidia/driver"
#path = "/usr/bin/nvidia-container-cli"
environment = []
load-kmods = true
#no-cgroups = false
#user = "root:video"
ldconfig = "@/sbin/ldconfig"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
"""


class Generation(enum.StrEnum):
    """What a payload consists of."""

    CURRENT = "current"
    """1.17 to 1.20: three runtimes, nvidia-ctk, nvidia-cdi-hook, two libraries."""
    Y2021 = "2021"
    """1.5: one runtime, the hook under its old name, one library."""


class Package(enum.StrEnum):
    """Which distribution family's folders are used."""

    DEB = "deb"
    RPM = "rpm"


_PROGRAMS = {
    Generation.CURRENT: (
        "nvidia-cdi-hook",
        "nvidia-container-cli",
        "nvidia-container-runtime",
        "nvidia-container-runtime.cdi",
        "nvidia-container-runtime.legacy",
        "nvidia-container-runtime-hook",
        "nvidia-ctk",
    ),
    Generation.Y2021: ("nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-toolkit"),
}
_LINKS = {
    Generation.CURRENT: ("nvidia-container-toolkit", "nvidia-container-runtime-hook"),
    Generation.Y2021: ("nvidia-container-runtime-hook", "nvidia-container-toolkit"),
}
_LIBRARIES = {
    Generation.CURRENT: ("libnvidia-container", "libnvidia-container-go"),
    Generation.Y2021: ("libnvidia-container",),
}
_CONFIGS = {Generation.CURRENT: CONFIG, Generation.Y2021: CONFIG_2021}
_VERSIONS = {Generation.CURRENT: VERSION, Generation.Y2021: "1.5.1"}


def build(
    root: Path,
    *,
    generation: Generation = Generation.CURRENT,
    package: Package = Package.DEB,
    machine: str | None = None,
    version: str | None = None,
    config: bytes | None = b"",
    without: Iterable[str] = (),
) -> Path:
    """Write a payload below `root` and return `root`.

    `machine` is x86_64 or aarch64 (this machine's when None). `config` is the template's content: empty means the
    generation's own, None that there is no template. Paths below `root` named in `without` are left out, whole
    or by their last part: `usr/bin/nvidia-ctk`, `nvidia-ctk`.
    """
    machine = machine or platform.machine()
    version = version or _VERSIONS[generation]
    files = {
        f"usr/bin/{name}": executable(f"{name} version {version}\n", machine=machine) for name in _PROGRAMS[generation]
    }
    links = {f"usr/bin/{_LINKS[generation][0]}": _LINKS[generation][1]}
    folder = "usr/lib64" if package is Package.RPM else f"usr/lib/{machine}-linux-gnu"
    for stem in _LIBRARIES[generation]:
        files[f"{folder}/{stem}.so.{version}"] = library(f"{stem}.so.1", machine=machine)
        links[f"{folder}/{stem}.so.1"] = f"{stem}.so.{version}"
    if config is not None:
        files["etc/nvidia-container-runtime/config.toml"] = config or _CONFIGS[generation]
    left_out = set(without)
    for path, content in files.items():
        if not left_out & {path, path.rpartition("/")[2]}:
            _write(root / path, content, mode=0o755 if path.startswith("usr/bin/") else 0o644)
    for path, target in links.items():
        if not left_out & {path, path.rpartition("/")[2]}:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)
    return root


def _write(path: Path, content: bytes, *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


_MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
_BASE = 0x400000
_HEADER, _PROGRAM_HEADER = 64, 56
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551  # PT_LOAD, PT_DYNAMIC, PT_GNU_STACK
_PAGE = 0x10000  # the largest page size in use


def executable(message: str, *, machine: str) -> bytes:
    """Return a static ELF executable that writes `message` to its standard output and exits 0."""
    text = message.encode()
    start = _HEADER + _PROGRAM_HEADER
    code = {"x86_64": _code_x86_64, "aarch64": _code_aarch64}[machine]
    address = _BASE + start + len(code(0, len(text)))
    body = code(address, len(text)) + text
    size = start + len(body)
    segment = _program_header(_LOAD, 5, 0, _BASE, size)
    return _elf_header(2, machine, entry=_BASE + start, segments=1) + segment + body


def _code_x86_64(address: int, size: int) -> bytes:
    return b"".join(
        (
            b"\xb8" + struct.pack("<I", 1),  # mov eax, 1 (write)
            b"\xbf" + struct.pack("<I", 1),  # mov edi, 1
            b"\xbe" + struct.pack("<I", address),  # mov esi, address
            b"\xba" + struct.pack("<I", size),  # mov edx, size
            b"\x0f\x05",  # syscall
            b"\xb8" + struct.pack("<I", 60),  # mov eax, 60 (exit)
            b"\x31\xff",  # xor edi, edi
            b"\x0f\x05",  # syscall
        )
    )


def _code_aarch64(address: int, size: int) -> bytes:
    def load(register: int, value: int) -> tuple[int, int]:
        """movz register, low half; movk register, high half."""
        return 0xD2800000 | (value & 0xFFFF) << 5 | register, 0xF2A00000 | (value >> 16 & 0xFFFF) << 5 | register

    call = 0xD4000001  # svc 0
    write = (*load(0, 1), *load(1, address), *load(2, size), *load(8, 64), call)
    leave = (*load(0, 0), *load(8, 93), call)
    return struct.pack(f"<{len(write) + len(leave)}I", *write, *leave)


def library(soname: str, *, machine: str) -> bytes:
    """Return an ELF shared object with a name and no symbols."""
    start = _HEADER + 3 * _PROGRAM_HEADER
    strings = b"\0" + soname.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    symbols = bytes(24)  # the null symbol
    hashes = struct.pack("<4I", 1, 1, 0, 0)  # one bucket, one symbol: nothing is found in it
    at_symbols = start + len(strings)
    at_hashes = at_symbols + len(symbols)
    at_dynamic = at_hashes + len(hashes)
    entries = ((14, 1), (4, at_hashes), (5, start), (6, at_symbols), (10, len(strings)), (11, len(symbols)), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = at_dynamic + len(dynamic)
    segments = (
        _program_header(_LOAD, 6, 0, 0, size),
        _program_header(_DYNAMIC, 6, at_dynamic, at_dynamic, len(dynamic)),
        _program_header(_STACK, 6, 0, 0, 0),
    )
    parts = (_elf_header(3, machine, entry=0, segments=3), *segments, strings, symbols, hashes, dynamic)
    return b"".join(parts)


def _elf_header(kind: int, machine: str, *, entry: int, segments: int) -> bytes:
    identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)  # 64 bits, little endian, version 1
    numbers = (kind, _MACHINES[machine], 1, entry, _HEADER, 0, 0, _HEADER, _PROGRAM_HEADER, segments, 64, 0, 0)
    return identity + struct.pack("<HHIQQQIHHHHHH", *numbers)


def _program_header(kind: int, flags: int, offset: int, address: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, _PAGE)


class Tree:
    """A payload on the disk, seen as the toolkit's code sees it; symlinks stay below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def is_file(self, path: str) -> bool:
        return (self.root / self.canonical(path)[1:]).is_file()

    def is_executable(self, path: str) -> bool:
        return self.is_file(path) and bool((self.root / self.canonical(path)[1:]).stat().st_mode & 0o111)

    def canonical(self, path: str) -> str:
        done: list[str] = []
        rest = [part for part in reversed(path.split("/")) if part]
        for _ in range(256):  # more steps are a loop of symlinks
            if not rest:
                break
            part = rest.pop()
            if part == "..":
                del done[-1:]
            elif (here := self.root.joinpath(*done, part)).is_symlink():
                target = str(here.readlink())
                done = [] if target.startswith("/") else done
                rest += [piece for piece in reversed(target.split("/")) if piece not in {"", "."}]
            else:
                done.append(part)
        return "/" + "/".join(done if not rest else [*done, *reversed(rest)])

    def read(self, path: str, limit: int = -1) -> bytes:
        with (self.root / self.canonical(path)[1:]).open("rb") as file:
            return file.read(limit)

    def list(self, path: str) -> list[str]:
        folder = self.root / self.canonical(path)[1:]
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
