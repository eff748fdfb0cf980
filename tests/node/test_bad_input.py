"""Files that no engine could use: refused with exit code 3, the file and the line, and nothing changed anywhere."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.corpus import Site, snapshot
from tests.support import payloads, warm_start
from tests.support.warm_start import SCRIPTS
from toolkit_installer.errors import ExitCode

CRI2 = 'plugins."io.containerd.grpc.v1.cri"'
CRI3 = "plugins.'io.containerd.cri.v1.runtime'"


@dataclasses.dataclass(frozen=True)
class Bad:
    """A bad file. `line` (1-based) is the line that must be named; 0: that there is one, None: there is none.

    What is large is made when it is used: all the tests' processes, and their forks, would hold it for all of the time.
    """

    engine: str
    name: str
    content: bytes | Callable[[], bytes]
    line: int | None = 0

    def __str__(self) -> str:
        return f"{self.engine}-{self.name}"


def docker(name: str, content: bytes | Callable[[], bytes], line: int | None = 0) -> Bad:
    return Bad("docker", name, content, line)


def containerd(name: str, content: bytes | Callable[[], bytes], line: int | None = 0) -> Bad:
    return Bad("containerd", name, content, line)


def v2(text: str) -> bytes:
    """Return a version 2 file, whose first line says so."""
    return f"version = 2\n{text}\n".encode()


GOOD_JSON = b'{\n  "debug": true,\n  "runtimes": {\n    "crun": {"path": "/usr/bin/crun"}\n  }\n}\n'
GOOD_TOML = v2(f'[{CRI2}.containerd]\ndefault_runtime_name = "runc"')

DOCKER = (
    docker("cut-off-at-once", b"{", 1),
    docker("cut-off-in-a-string", b'{\n  "debug": true,\n  "data-root": "/mnt/do', 3),
    docker("cut-off-after-a-key", b'{\n  "debug"', 2),
    docker("cut-off-after-a-colon", b'{\n  "debug":', 2),
    docker("cut-off-before-the-end", GOOD_JSON[:-3], 5),
    docker("no-object-array", b"[]\n", 1),
    docker("no-object-string", b'"debug"\n', 1),
    docker("no-object-number", b"42\n", 1),
    docker("no-object-null", b"null\n", 1),
    docker("no-json", b"debug = true\n", 1),
    docker("yaml", b"---\ndebug: true\n", 1),
    docker("trailing-comma", b'{\n  "debug": true,\n}\n', 2),
    docker("trailing-comma-in-list", b'{\n  "hosts": [\n    "a",\n  ]\n}\n', 3),
    docker("missing-comma", b'{\n  "debug": true\n  "mtu": 1400\n}\n', 3),
    docker("comment", b'{\n  // noisy\n  "debug": true\n}\n', 2),
    docker("block-comment", b'{\n  /* noisy */\n  "debug": true\n}\n', 2),
    docker("hash-comment", b"# site\n{}\n", 1),
    docker("single-quotes", b"{\n  'debug': true\n}\n", 2),
    docker("bare-key", b"{\n  debug: true\n}\n", 2),
    docker("duplicate-key", b'{\n  "debug": true,\n  "mtu": 1,\n  "debug": false\n}\n', 4),
    docker("duplicate-runtimes", b'{\n  "runtimes": {},\n  "runtimes": {}\n}\n', 3),
    docker("duplicate-runtime", b'{"runtimes": {\n  "a": {"path": "/a"},\n  "a": {"path": "/b"}\n}}\n', 3),
    docker("duplicate-key-escaped", b'{\n  "runtimes": {},\n  "run\\u0074imes": {}\n}\n', 3),
    docker("two-documents", b"{}\n{}\n", 2),
    docker("two-documents-on-a-line", b'{"debug": true}{"debug": false}', 1),
    docker("text-after-the-end", b'{\n  "debug": true\n}\nEOF\n', 4),
    docker("extra-brace", b'{\n  "debug": true\n}}\n', 3),
    docker("bad-utf-8", b'{\n  "debug": true,\n  "labels": ["\xff\xfe"]\n}\n', 3),
    docker("latin-1", '{\n  "labels": ["Jörg"]\n}\n'.encode("latin-1"), 2),
    docker("utf-8-surrogate", b'{\n  "labels": ["\xed\xa0\x80"]\n}\n', 2),
    docker("utf-16", '{\n  "debug": true\n}\n'.encode("utf-16"), None),
    docker("utf-16-without-mark", '{\n  "debug": true\n}\n'.encode("utf-16-le"), None),
    docker("nul-bytes", b'{\n  "debug": true\n}\n\0\0\0\0', None),
    docker("only-nul-bytes", bytes(4096), None),
    docker("nul-in-a-string", b'{\n  "data-root": "/mnt\0/x"\n}\n', 2),
    docker("control-character", b'{\n  "data-root": "/mnt\x07"\n}\n', 2),
    docker("line-end-in-a-string", b'{\n  "data-root": "/mnt\n/x"\n}\n', 2),
    docker("bad-escape", b'{\n  "data-root": "\\x2f"\n}\n', 2),
    docker("runtimes-list", b'{\n  "runtimes": []\n}\n', 2),
    docker("runtimes-string", b'{\n  "debug": true,\n  "runtimes": "nvidia"\n}\n', 3),
    docker("runtimes-number", b'{\n  "runtimes": 7\n}\n', 2),
    docker("runtime-string", b'{\n  "runtimes": {\n    "a": "/usr/bin/a"\n  }\n}\n', 3),
    docker("runtime-null", b'{\n  "runtimes": {\n    "a": null\n  }\n}\n', 3),
    docker("runtime-path-number", b'{\n  "runtimes": {\n    "a": {\n      "path": 1\n    }\n  }\n}\n', 4),
    docker("default-runtime-number", b'{\n  "debug": true,\n  "default-runtime": 5\n}\n', 3),
    docker("default-runtime-object", b'{\n  "default-runtime": {}\n}\n', 2),
    docker("default-runtime-list", b'{\n  "default-runtime": ["nvidia"]\n}\n', 2),
    docker("number-with-leading-zero", b'{\n  "mtu": 01400\n}\n', 2),
    docker("number-hexadecimal", b'{\n  "mtu": 0x10\n}\n', 2),
    docker("number-not-a-number", b'{\n  "mtu": NaN\n}\n', 2),
    docker("number-infinite", b'{\n  "mtu": -Infinity\n}\n', 2),
    docker("python-literals", b'{\n  "debug": True\n}\n', 2),
    docker("template", b'{\n  "mtu": {{ .Values.mtu }}\n}\n', 2),
    docker("template-around", b'{{- if .Debug }}\n{"debug": true}\n{{- end }}\n', 1),
    docker("merge-conflict", b'{\n<<<<<<< HEAD\n  "debug": true\n=======\n  "debug": false\n>>>>>>> b\n}\n', 2),
    docker("deep", b"[" * 100_000, None),
    docker("deep-in-an-object", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, None),
    docker("deep-and-whole", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    docker("large-and-cut-off", lambda: b'{"labels": ["' + b"x" * 20_000_000, None),
    docker("large-and-no-json", lambda: b"\xff" * 20_000_000, None),
    docker("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xe6\x02\x00", None),
)

CONTAINERD = (
    containerd("cut-off-in-a-header", v2(f"[{CRI2}.contai"), 2),
    containerd("cut-off-in-a-string", b'version = 2\n[debug]\nlevel = "in', 3),
    containerd("cut-off-after-an-equals-sign", b"version = 2\n[debug]\nlevel =", 3),
    containerd("cut-off-in-a-list", b'version = 2\nimports = ["/a",\n'),
    containerd("cut-off-in-a-long-string", b'version = 2\nroot = """\nno end\n'),
    containerd("cut-off-in-an-inline-table", b"version = 2\ngrpc = { uid = 0,", 2),
    containerd("key-without-value", v2("root"), 2),
    containerd("two-values-on-a-line", v2('root = "a" state = "b"'), 2),
    containerd("value-without-quotes", v2("root = /var/lib"), 2),
    containerd("yaml", b"version: 2\nroot: /var/lib\n", 1),
    containerd("json", b'{\n  "version": 2\n}\n', 1),
    containerd("comment-with-slashes", v2("// debug"), 2),
    containerd("line-end-in-inline-table", v2("grpc = {\n uid = 0\n}"), 2),
    containerd("duplicate-key", v2('root = "/a"\nroot = "/b"'), 3),
    containerd("duplicate-version", b"version = 2\nversion = 2\n", 2),
    containerd("duplicate-table", v2("[debug]\n[grpc]\n[debug]"), 4),
    containerd("duplicate-runtime", v2(f"[{CRI2}.containerd.runtimes.a]\n[{CRI2}.containerd.runtimes.a]"), 3),
    containerd("duplicate-by-inline-table", v2("grpc = { uid = 0 }\n[grpc]\ngid = 0"), 3),
    containerd("duplicate-by-dots", v2("grpc.uid = 0\ngrpc.uid = 1"), 3),
    containerd("value-then-table", v2("grpc = 1\n[grpc.x]"), 3),
    containerd("table-then-list", v2("[site]\n[[site]]"), 3),
    containerd("two-documents", GOOD_TOML * 2, 5),
    containerd("bad-utf-8", b'version = 2\nroot = "\xff"\n', 2),
    containerd("bad-utf-8-in-a-comment", b"version = 2\n# caf\xe9\n", 2),
    containerd("utf-16", "version = 2\n".encode("utf-16"), None),
    containerd("nul-bytes", b"version = 2\n\0\0\0", 2),
    containerd("only-nul-bytes", bytes(4096), None),
    containerd("nul-in-a-comment", b"version = 2\n# \0\n", 2),
    containerd("control-character", b'version = 2\nroot = "\x01"\n', 2),
    containerd("bare-carriage-return", b"version = 2\rroot = 1\n", None),
    containerd("bad-escape", v2('root = "\\q"'), 2),
    containerd("no-version", f'[{CRI2}.containerd]\ndefault_runtime_name = "runc"\n'.encode(), 1),
    containerd("version-1", b"version = 1\n[plugins.cri]\ncontainerd = 5\n", 3),
    containerd("version-0", b"version = 0\n", 1),
    containerd("version-5", b"# new\nversion = 5\n", 2),
    containerd("version-99", b"version = 99\n", 1),
    containerd("version-negative", b"version = -2\n", 1),
    containerd("version-huge", b"version = 2" + b"0" * 30 + b"\n", 1),
    containerd("version-string", b'version = "2"\n', 1),
    containerd("version-float", b"version = 2.0\n", 1),
    containerd("version-true", b"version = true\n", 1),
    containerd("version-list", b"version = [2]\n", 1),
    containerd("version-table", b"[version]\nx = 2\n", 1),
    containerd("template", v2("{{- if .IsRunningInUserNS }}\ndisabled_plugins = []\n{{end}}"), 2),
    containerd("template-value", v2("oom_score = {{ .Score }}"), 2),
    containerd("template-only", b'{{ template "base" . }}\n', 1),
    containerd("plugins-number", v2("plugins = 1"), 2),
    containerd("plugins-list-of-tables", v2("[[plugins]]"), 2),
    containerd("cri-list", v2(f"{CRI2} = []"), 2),
    containerd("cri-list-of-tables", v2(f"[[{CRI2}]]\nx = 1"), 2),
    containerd("containerd-string", v2(f'[{CRI2}]\ncontainerd = "x"'), 3),
    containerd("runtimes-list", v2(f"[{CRI2}.containerd]\nruntimes = []"), 3),
    containerd("runtimes-string", v2(f'[{CRI2}.containerd]\nruntimes = "runc"'), 3),
    containerd("runtimes-list-of-tables", v2(f'[[{CRI2}.containerd.runtimes]]\nname = "runc"'), 2),
    containerd("runtime-number", v2(f"[{CRI2}.containerd.runtimes]\nrunc = 5"), 3),
    containerd("runtime-list-of-tables", v2(f"[[{CRI2}.containerd.runtimes.runc]]"), 2),
    containerd("runtime-type-number", v2(f"[{CRI2}.containerd.runtimes.runc]\nruntime_type = 2"), 3),
    containerd("options-string", v2(f'[{CRI2}.containerd.runtimes.runc]\noptions = "x"'), 3),
    containerd("options-list", v2(f"[{CRI2}.containerd.runtimes.runc]\noptions = []"), 3),
    containerd("binary-name-number", v2(f"[{CRI2}.containerd.runtimes.runc.options]\nBinaryName = 3"), 3),
    containerd("default-name-number", v2(f"[{CRI2}.containerd]\ndefault_runtime_name = 3"), 3),
    containerd("default-name-list", v2(f'[{CRI2}.containerd]\ndefault_runtime_name = ["runc"]'), 3),
    containerd("default-name-table", v2(f'[{CRI2}.containerd.default_runtime_name]\nx = "runc"'), 2),
    containerd("imports-string", v2('imports = "/etc/containerd/conf.d/*.toml"'), 2),
    containerd("imports-table", v2("[imports]\na = 1"), 2),
    containerd("imports-numbers", v2("imports = [1]"), 2),
    containerd("v3-runtimes-list", f"version = 3\n[{CRI3}.containerd]\nruntimes = []\n".encode(), 3),
    containerd("v3-default-name-number", f"version = 3\n[{CRI3}.containerd]\ndefault_runtime_name = 1\n".encode(), 3),
    containerd("deep", b"version = 2\nx = " + b"[" * 100_000, None),
    containerd("deep-and-whole", b"version = 2\nx = " + b"[" * 100_000 + b"]" * 100_000 + b"\n", None),
    containerd("deep-inline-tables", b"version = 2\nx = " + b"{a = " * 100_000 + b"1" + b"}" * 100_000, None),
    containerd("deep-dots", b"version = 2\nx" + b".a" * 100_000 + b" = \n", None),
    containerd("large-and-cut-off", lambda: b'version = 2\nroot = "' + b"x" * 20_000_000, None),
    containerd("large-and-no-toml", lambda: b"\xff" * 20_000_000, None),
    containerd("merge-conflict", v2("<<<<<<< HEAD\noom_score = 1\n=======\noom_score = 2\n>>>>>>> b"), 2),
)


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return payloads.build(tmp_path_factory.mktemp("payload"))


def refused(site: Site, payload: Path, named: Path, line: int | None = None) -> None:
    """Run on the site: it must exit 3, name the file (and line), and leave all as it is."""
    before = snapshot(site.root)
    command = [str(SCRIPTS / "nvidia-toolkit"), *site.flags(payload), "--no-daemon"]
    done = warm_start.run(command, capture_output=True, check=False, timeout=60, env={"LANG": "C.UTF-8"})
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == ExitCode.BAD_CONFIGURATION, said[-2000:]
    assert "Traceback" not in said
    assert len(said) < 4000, "a message is for people to read"
    assert f"file={named}" in said, said[-2000:]
    if line is not None:
        assert re.search(rf"\bline={line or '[0-9]+'}\b", said), said[-2000:]
    assert snapshot(site.root) == before


@pytest.mark.parametrize("bad", DOCKER + CONTAINERD, ids=str)
def test_a_bad_file_is_refused_by_name_and_line_and_nothing_is_changed(bad: Bad, tmp_path: Path, payload: Path) -> None:
    site = Site(tmp_path / "node", bad.engine)
    site.build(bad.content if isinstance(bad.content, bytes) else bad.content())
    refused(site, payload, site.config, bad.line)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_link_to_folder(path: Path) -> None:
    path.symlink_to("..")


MAKERS: tuple[Callable[[Path], None], ...] = (make_folder, make_fifo, make_socket, make_loop, make_link_to_folder)


@pytest.mark.parametrize("engine", ["docker", "containerd"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_what_is_no_file_is_refused(engine: str, make: Callable[[Path], None], tmp_path: Path, payload: Path) -> None:
    site = Site(tmp_path / "node", engine)
    site.build(None)
    make(site.config)
    refused(site, payload, site.config.parent.parent if make is make_link_to_folder else site.config)


@pytest.mark.parametrize(
    "content",
    [b"version = 2\n[", b"version = 2\nversion = 2\n", b"\xff", b"version = 9\n", v2(f"{CRI2} = 1")],
    ids=["cut-off", "duplicate-key", "bad-utf-8", "version-9", "cri-number"],
)
def test_a_bad_drop_in_is_refused_by_its_own_name(content: bytes, tmp_path: Path, payload: Path) -> None:
    site = Site(tmp_path / "node", "containerd")
    site.build(GOOD_TOML)
    site.drop_in.parent.mkdir()
    site.drop_in.write_bytes(content)
    refused(site, payload, site.drop_in)


@pytest.mark.parametrize("content", [b"version = 2\n[", b"a = 1\na = 2\n", b"\xff", b"{{ . }}"])
def test_a_bad_imported_file_is_refused_by_its_own_name(content: bytes, tmp_path: Path, payload: Path) -> None:
    site = Site(tmp_path / "node", "containerd")
    site.build(v2('imports = ["site.d/*.toml"]'))
    imported = site.config.parent / "site.d" / "10-site.toml"
    imported.parent.mkdir()
    imported.write_bytes(content)
    refused(site, payload, imported)
