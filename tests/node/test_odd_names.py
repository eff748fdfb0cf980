"""Names and contents that somebody else chose give a terminal no orders, and no line of their own, in any command."""

from __future__ import annotations

import json

import pytest

from tests.support import warm_start
from tests.support.fake_node import DAEMON_JSON, FakeNode
from tests.support.warm_start import SCRIPTS

CONTAINERD = "/etc/containerd/config.toml"
ODD = "a\u202eb\x9b31m\u2028c\u2066"
"""What a flag may have: control characters of ASCII are refused."""
ODDER = f"{ODD}\x1b[2J\x1b]0;t\x07\n\r\t\x7fd"
"""What a file may be called."""
FLAGS = {
    "config": ["--config", f"/etc/docker/{ODD}.json"],
    "socket": ["--socket", f"/run/{ODD}.sock"],
    "PID file": ["--pid-file", f"/run/{ODD}/toolkit.pid"],
    "folder": ["--toolkit-install-dir", f"/usr/local/{ODD}"],
    "driver": ["--driver-root", f"/run/{ODD}"],
}


def said(node: FakeNode, command: str, *more: str, engine: str = "docker", log_format: str = "logfmt") -> str:
    """Return what a command says on both streams, having looked that a terminal may show it."""
    arguments = node.arguments(command, *more, engine=engine, log_format=log_format)
    done = warm_start.run(
        [str(SCRIPTS / "toolkit-installer"), *arguments], capture_output=True, check=False, timeout=60
    )
    output: str = done.stdout.decode()
    log: str = done.stderr.decode()
    assert done.returncode in (0, 3), log
    assert "Traceback" not in log
    for text in (output, log):
        assert text.replace("\n", "").replace("\t", "").isprintable(), repr(text)
    assert all(line.startswith(("time=", "20", "{")) for line in log.splitlines()), log
    return output + log


@pytest.mark.parametrize("flag", FLAGS)
def test_a_name_from_a_flag_is_escaped_wherever_it_is_shown(node: FakeNode, flag: str) -> None:
    node.write(DAEMON_JSON, b"{}\n")
    named = FLAGS[flag]
    shown = said(node, "plan", *named)
    shown += said(node, "run", "--no-daemon", *named, log_format="console")
    shown += said(node, "status", *named)
    shown += said(node, "status", "--json", *named)
    shown += said(node, "detect", *(named if flag != "driver" else []))
    shown += said(node, "uninstall", *named, log_format="json")
    if flag in ("config", "folder"):
        assert r"a\u202eb" in shown


def test_a_drop_in_and_an_import_with_an_odd_name_are_escaped(node: FakeNode) -> None:
    node.write(CONTAINERD, b'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    table = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc"
    node.write(
        f"/etc/containerd/conf.d/{ODDER}.toml", f"version = 3\n[{table}]\nruntime_type = 'io.containerd.runc.v2'\n"
    )
    drop_in = ["--drop-in-config", f"/etc/containerd/conf.d/{ODD}.toml"]
    shown = said(node, "plan", *drop_in, engine="containerd")
    shown += said(node, "run", "--no-daemon", *drop_in, engine="containerd")
    shown += said(node, "status", engine="containerd")
    shown += said(node, "detect", engine="containerd")
    shown += said(node, "uninstall", engine="containerd")
    assert r"a\u202eb\x9b31m\u2028c\u2066\x1b[2J\x1b]0;t\x07\n\r\t\x7fd.toml" in shown


def test_a_file_name_that_is_no_utf_8_is_shown_by_its_bytes(node: FakeNode) -> None:
    node.write(CONTAINERD, b'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    node.write("/etc/containerd/conf.d/" + b"\xff\x9b.toml".decode(errors="surrogateescape"), "version = [\n")
    assert r"\xff\x9b.toml" in said(node, "plan", engine="containerd")


def test_a_files_content_is_shown_line_by_line_with_tabs_and_without_control_codes(node: FakeNode) -> None:
    runtimes = {ODDER: {"path": f"/usr/bin/{ODDER}"}}
    text = json.dumps({"x": "\x7f\x9b\u202e", "runtimes": runtimes}, indent="\t", ensure_ascii=False)
    node.write(DAEMON_JSON, text)
    shown = said(node, "plan")
    assert ' \t"x": "****",\n \t"runtimes": {\n' in shown
    said(node, "run", "--no-daemon")
    said(node, "status")
    said(node, "uninstall")


def test_what_a_refusal_quotes_is_escaped(node: FakeNode) -> None:
    node.write(DAEMON_JSON, f'{{"runtimes": {{"nvidia": 1}}, "{ODD}": [}}')
    for command in ("plan", "run", "detect"):
        said(node, command)
    node.write(DAEMON_JSON, json.dumps({"default-runtime": ODDER, "runtimes": {ODDER: {}}}))
    for command in ("plan", "run", "detect", "status"):
        said(node, command, *(["--no-daemon"] if command == "run" else []))
