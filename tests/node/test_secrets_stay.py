"""Whatever a configuration holds: what the program writes, logs and tells of a node has no value that may be secret."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
import zlib
from pathlib import Path

import pytest

from tests.support import fake_processes
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, FakeNode
from tests.unit.documents import secretive
from toolkit_installer.cli import commands
from toolkit_installer.engines.containerd.tables import GRPC
from toolkit_installer.fleet import archive
from toolkit_installer.node import reading
from toolkit_installer.settings import Program

SECRET = "Tr0ub4dor"  # noqa: S105
CRIO_CONF = "/etc/crio/crio.conf"
PLACES = {
    "docker": ("docker", DAEMON_JSON),
    "containerd": ("containerd", CONFIG_TOML),
    "crio": ("crio", CRIO_CONF),
}
CASES = {name: form for name, form in secretive.FORMS.items() if name.split("-")[0].split(".")[0] in PLACES}


def said(*arguments: str) -> str:
    """Return all that the program prints and logs, whether or not it succeeds."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(io.StringIO()) as logged,
    ):
        commands.main(Program.TOOLKIT_INSTALLER, arguments, {"PATH": os.environ["PATH"]})
    return printed.getvalue() + logged.getvalue()


def texts(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    return (tar.extractfile(member) or io.BytesIO()).read()


@pytest.mark.parametrize("name", CASES)
def test_no_output_of_the_program_has_a_secret_of_a_configuration(name: str, node: FakeNode, tmp_path: Path) -> None:
    engine, place = PLACES[name.split("-", maxsplit=1)[0].split(".", maxsplit=1)[0]]
    node.write(place, secretive.placed(CASES[name], SECRET))
    reading.cached_files.clear()
    flags = node.arguments("plan", engine=engine)[1:]
    capture, report = tmp_path / "node.capture", tmp_path / "report.tar.gz"
    outputs = {
        "plan": said("plan", *flags),
        "plan as JSON": said("plan", "--json", *flags, "--debug"),
        "capture": said("capture", *flags, str(capture)),
        "replay": said("replay", str(capture)),
        "run": said("run", *flags, "--no-daemon", "--cleanup", "never", "--debug"),
        "status": said("status", *node.arguments("status")[1:]),
        "status as JSON": said("status", "--json", *node.arguments("status")[1:]),
        "diagnose": said("diagnose", *flags),
        "diagnose as JSON": said("diagnose", "--json", *flags, "--debug"),
        "report": said("report", *flags, str(report)),
        "uninstall": said("uninstall", *node.arguments("uninstall", engine=engine)[1:]),
    }
    found = archive.read(capture.read_bytes(), str(capture))
    outputs["what is captured"] = str(found) + "".join(
        str(bytes(raw.value)) for answers in found.answers.values() for raw in answers.values()
    )
    with tarfile.open(report) as tar:
        outputs |= {each.name: texts(tar, each).decode(errors="replace") for each in tar.getmembers()}
    assert [output for output, text in outputs.items() if SECRET in text] == []


@pytest.mark.parametrize("secret", [f"http://someone:{SECRET}@r.example", f"/x?{SECRET}=", f"my {SECRET} word"])
@pytest.mark.parametrize(
    "engine, place, text",
    [
        ("docker", DAEMON_JSON, '{"default-runtime": "@"}'),
        ("docker", DAEMON_JSON, '{"@": 1, "@": 2}'),
        ("containerd", CONFIG_TOML, 'version = 2\nimports = ["/?@"]\n'),
        ("containerd", CONFIG_TOML, f'version = 2\n[plugins."{GRPC}".containerd]\ndefault_runtime_name = "@"\n'),
        ("containerd", CONFIG_TOML, 'version = 2\n[x."@"]\n[x."@"]\n'),
        ("containerd", CONFIG_TOML, 'version = 2\nx = {"@" = 1, "@" = 2}\n'),
        ("crio", CRIO_CONF, '[crio.runtime]\ndefault_runtime = "@"\n'),
    ],
)
def test_no_sentence_of_ours_quotes_an_odd_name(
    node: FakeNode, tmp_path: Path, engine: str, place: str, text: str, secret: str
) -> None:
    """A secret that stands where a name belongs, or as a key, is no name."""
    node.write(place, text.replace("@", secret))
    reading.cached_files.clear()
    flags = node.arguments("plan", engine=engine)[1:]
    outputs = {
        "plan": said("plan", *flags),
        "detect": said("detect", *flags),
        "run": said("run", *flags, "--no-daemon", "--cleanup", "never", "--debug"),
        "status": said("status", *node.arguments("status")[1:]),
        "report": said("report", *flags, str(tmp_path / "report.tar.gz")),
        "uninstall": said("uninstall", *node.arguments("uninstall", engine=engine)[1:]),
    }
    assert [output for output, words in outputs.items() if SECRET in words] == []


def test_a_guessed_password_is_confirmed_by_no_digest(node: FakeNode, tmp_path: Path) -> None:
    content = secretive.placed(CASES["docker-log-opts.json"], SECRET).encode()
    node.write(DAEMON_JSON, content)
    flags = node.arguments("plan")[1:]
    said("run", *flags, "--no-daemon", "--cleanup", "never")
    capture, report = tmp_path / "node.capture", tmp_path / "report.tar.gz"
    said("capture", *flags, str(capture))
    said("report", *flags, str(report))
    whole = zlib.decompress(capture.read_bytes()[len(b"toolkit-installer capture\n") + 32 :])
    with tarfile.open(report) as tar:
        whole += b"".join(texts(tar, each) for each in tar.getmembers())
    for known in (content, node.read(DAEMON_JSON)):
        assert hashlib.sha256(known).hexdigest().encode() not in whole
        assert hashlib.sha256(known).digest() not in whole


def test_no_capture_has_a_secret_of_a_file_that_is_seen_through_its_process(node: FakeNode, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can play a process of the node")
    config = "/var/lib/kubelet/config.yaml"
    node.write(config, f"containerRuntimeEndpoint: unix:///run/none.sock\nstaticPodURLHeader:\n  X-Key: [{SECRET}]\n")
    capture = tmp_path / "node.capture"
    words = ("--config", config, f"--node-labels=key={SECRET}")
    with fake_processes.process(node.root, "kubelet", *words):
        said("capture", *node.arguments("plan", engine="containerd")[1:], str(capture))
    found = archive.read(capture.read_bytes(), str(capture))
    whole = b"".join(bytes(raw.value) for answers in found.answers.values() for raw in answers.values())
    assert b"/run/none.sock" in whole
    assert SECRET.encode() not in whole
