"""`report`: one file that says what is wrong with a node, changes nothing, and has no secret in it."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.support import driver_roots
from tests.support.fake_node import DAEMON_JSON, SCRIPTS, STORE, TOOLKIT, FakeNode
from toolkit_installer.engines.api import LiveState
from toolkit_installer.errors import ExitCode
from toolkit_installer.node.processes import Process
from toolkit_installer.receipt import schema
from toolkit_installer.reporting import support_bundle

runs_programs = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
CONTAINERD = "/etc/containerd/config.toml"
MORE = "/etc/containerd/conf.d/site.toml"
JOURNAL = "/var/log/said"

IN_JSON = (
    '"log-opts": {{"splunk-token": "{}"}}',
    '"auths": {{"https://r.example/v1": {{"auth": "{}"}}}}',
    '"api_key": "{}"',
    '"apiKey": "{}"',
    '"X-Api-Key": "{}"',
    '"AWS_SECRET_ACCESS_KEY": "{}"',
    '"aws-access-key": "{}"',
    '"client-private-key": "{}"',
    '"Authorization": "Bearer {}"',
    '"HttpHeaders": {{"X-Meta": "{}"}}',
    '"proxies": {{"http-proxy": "http://user:{}@proxy:3128"}}',
    '"https-proxy": "{}@proxy"',
    '"encryption-key": "{}"',
    '"identitytoken": "{}"',
    '"registrytoken": "{}"',
    '"password": "{}"',
    '"pwd": ["{}"]',
    '"webhook": "https://hooks.example.com/services/{}"',
    '"env": ["DB_PASSWORD={}"]',
    '"args": ["--token", "{}"]',
    '"session_id": "{}"',
    '"jwt": "{}"',
    '"otp": "{}"',
)
IN_TOML = (
    'password = "{}"',
    "passphrase = '{}'",
    'identitytoken = "{}"',
    'key = """-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----"""',
    'auth = {{ username = "u", password = "{}" }}',
    "headers = {{ Authorization = ['Basic {}'] }}",
    'license_key = "{}"',
    '# password = "{}"',
    'env = ["API_TOKEN={}"]',
    'url = "https://user:{}@mirror.example/v2"',
    'fernet = "{}"',
    'client_secret = "{}"',
    'hmac = "{}"',
    'dsn = "postgres://u:{}@db/x"',
)
IN_A_LOG = (
    "pulling with Authorization: Bearer {}",
    "GET https://user:{}@registry.example/v2/ 401",
    "started with --password {}",
    "env REGISTRY_PASSWORD={} was refused",
    'time="x" level=error msg="login failed" password={}',
    "X-Auth-Token: {}",
    '{{"token": "{}"}}',
    "proxy user:{}@proxy:3128 answers 407",
    "api_key={}",
    "client_secret: {}",
    "cookie: session={}",
    "AWS_SECRET_ACCESS_KEY={}",
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
)


def filled(templates: tuple[str, ...], start: int) -> tuple[list[str], list[str]]:
    """Return the texts, each with a secret of its own, and the secrets."""
    secrets = [f"Hunter2of{number:02}x" for number in range(start, start + len(templates))]
    return [template.format(secret) for template, secret in zip(templates, secrets, strict=True)], secrets


def report_of(node: FakeNode, tmp_path: Path, *more: str) -> Mapping[str, str]:
    """Make a report and return its files."""
    place = tmp_path / "report.tar.gz"
    place.unlink(missing_ok=True)
    before = node.snapshot()
    flags = ("--toolkit-source-root", str(node.payload), *more)
    done = node.do("report", str(place), *flags)
    assert done.process.returncode == 0, done.output
    assert node.snapshot() == before, "a report changes nothing"
    assert place.stat().st_mode & 0o777 == 0o600
    return unpacked(place.read_bytes())


def unpacked(content: bytes) -> Mapping[str, str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = tar.getmembers()
        assert all(each.isreg() and each.name.startswith(f"{support_bundle.FOLDER}/") for each in members)
        return {
            each.name.removeprefix(f"{support_bundle.FOLDER}/"): (tar.extractfile(each) or io.BytesIO()).read().decode()
            for each in members
        }


@runs_programs
def test_fifty_kinds_of_secrets_are_in_no_file_of_it(node: FakeNode, tmp_path: Path) -> None:
    texts, in_json = filled(IN_JSON, 10)
    node.write(DAEMON_JSON, "{\n" + ",\n".join(f'"k{n}": {{{text}}}' for n, text in enumerate(texts)) + "\n}\n")
    texts, in_toml = filled(IN_TOML, 40)
    tables = [f'[plugins."site.{number}"]\n{text}\n' for number, text in enumerate(texts)]
    node.write(CONTAINERD, f'version = 2\nimports = ["{MORE}"]\n' + "\n".join(tables[:7]))
    node.write(MORE, "version = 2\n" + "\n".join(tables[7:]))
    texts, in_log = filled(IN_A_LOG, 60)
    driver_roots.install(node.place("/"))
    node.write(JOURNAL, "".join(f"2026-01-01T00:00:00Z host engine[1]: {text}\n" for text in texts))
    node.write("/usr/bin/journalctl", f"#!/bin/busybox sh\nexec /bin/busybox cat {JOURNAL}\n", 0o755)
    secrets = [*in_json, *in_toml, *in_log]
    assert len(secrets) >= 50
    assert node.do("run", "--no-daemon", "--runtime", "docker,containerd").process.returncode == 0

    files = report_of(node, tmp_path, "--runtime", "docker,containerd")
    shown = "\n".join(files.values())
    assert [secret for secret in secrets if secret in shown] == []
    # what is around them is there, or this test could not fail
    for name in ("log-opts", "identitytoken", "registry.example", "fernet", "splunk-token"):
        assert name in shown
    assert files[f"engines/docker/files{DAEMON_JSON}"].count("****") >= len(in_json)
    assert "****" in files[f"engines/containerd/files{MORE}"]
    assert "****" in files["journal/docker.service.txt"]


def test_it_says_what_was_changed_and_what_a_run_would_change(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, '{\n  "debug": true\n}\n')
    dockerd = FakeDockerd(node)
    try:
        assert node.do("run", "--no-daemon", "--socket", SOCKET).process.returncode == 0
        node.write(DAEMON_JSON, node.read(DAEMON_JSON).replace(b'"nvidia-cdi"', b'"nvidia-other"'))
        files = report_of(node, tmp_path, "--socket", SOCKET)
    finally:
        dockerd.close()
    assert "missing.txt" not in files
    status = json.loads(files["status.json"])
    assert (status["verdict"], status["toolkit"]["folder"]) == ("DEGRADED", TOOLKIT)
    assert '+    "nvidia": {' in files[f"engines/docker/since-before{DAEMON_JSON}.diff"]
    assert '+    "nvidia-cdi": {' in files["plan.txt"]
    assert "none of the low-level runtimes is there" in files["diagnose.txt"]
    assert "nvidia-other" in files[f"engines/docker/files{DAEMON_JSON}"]
    answer = json.loads(files["engines/docker/answer.json"])
    assert answer["handlers"]["nvidia"] == f"{TOOLKIT}/nvidia-container-runtime"
    assert json.loads(files["detect.json"])["evidence"]
    assert "nvidia-container-runtime.real" in files["toolkit/files.txt"]
    assert "[nvidia-container-cli]" in files["toolkit/config.toml"]
    assert "/proc/version" in files["kernel.txt"]
    assert json.loads(files["about.json"])["toolkit-installer"]
    for name in files:
        assert name.split("/")[0].rstrip("/") in files["README.txt"] or name == "README.txt"


def test_the_receipt_in_it_has_no_part_of_an_engines_file(node: FakeNode, tmp_path: Path) -> None:
    theirs = {"runtimes": {"nvidia": {"path": "/opt/theirs", "runtimeArgs": ["Hunter2"]}}}
    node.write(DAEMON_JSON, json.dumps(theirs, indent=2))
    assert node.do("run", "--no-daemon").process.returncode == 0
    assert b"Hunter2" in node.read(f"{STORE}/receipt.json")
    receipt = report_of(node, tmp_path)["receipt.txt"]
    assert "Hunter2" not in receipt
    # what is around it happens to be called `keys`, which is masked anyway: this does not lean on that
    recorded = json.dumps(support_bundle._mask_receipt(schema.decode(node.read(f"{STORE}/receipt.json"))))
    assert "Hunter2" not in recorded
    assert "(left out)" in recorded
    assert f'"toolkit_folder": "{TOOLKIT}"' in receipt


def test_a_part_that_cannot_be_made_is_said_and_leaves_the_others(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, '{\n  "debug": tru\n}\n')
    files = report_of(node, tmp_path)
    assert f"plan.txt: {DAEMON_JSON}:2: " in files["missing.txt"]
    assert "status.json" in files
    assert "detect.json" in files
    assert '"debug": tru' in files.get(f"engines/docker/files{DAEMON_JSON}", "") + files["missing.txt"]


def test_a_receipt_that_cannot_be_used_is_said_too(node: FakeNode, tmp_path: Path) -> None:
    assert node.do("run", "--no-daemon").process.returncode == 0
    node.write(f"{STORE}/receipt.json", "{", 0o600)
    missing = report_of(node, tmp_path)["missing.txt"]
    assert "receipt.txt: " in missing
    assert "is no JSON" in missing


@pytest.mark.parametrize("there", ["a file", "a link to nowhere", "a link to a file"])
def test_what_is_there_already_is_not_replaced_nor_followed(node: FakeNode, tmp_path: Path, there: str) -> None:
    place, other = tmp_path / "report.tar.gz", tmp_path / "other"
    if there == "a file":
        place.write_text("theirs")
    else:
        place.symlink_to(other)
    if there == "a link to a file":
        other.write_text("theirs")
    done = node.do("report", str(place))
    assert done.process.returncode == ExitCode.USAGE
    assert "is there already" in done.output
    if there == "a link to nowhere":
        assert not other.exists()
    else:
        assert place.read_text() == "theirs"


def test_a_folder_that_is_not_there_is_said_before_the_work(node: FakeNode) -> None:
    done = node.do("report", "/nope/report.tar.gz")
    assert done.process.returncode == ExitCode.USAGE
    assert "there is no folder /nope" in done.output


def test_it_goes_through_a_pipe_but_not_to_a_terminal(node: FakeNode) -> None:
    command = [str(SCRIPTS / "toolkit-installer"), "report", "-", "--node-root", str(node.root)]
    done = subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    assert "status.json" in unpacked(done.stdout)
    assert b"event=report-written" in done.stderr
    ours, theirs = pty.openpty()
    try:
        shown = subprocess.run(command, check=False, stdout=theirs, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    finally:
        os.close(theirs)
        os.close(ours)
    assert shown.returncode == ExitCode.USAGE
    assert b"not written to a terminal" in shown.stderr


def test_a_full_disk_leaves_no_half_of_it(node: FakeNode) -> None:
    command = [str(SCRIPTS / "toolkit-installer"), "report", "-", "--node-root", str(node.root)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == ExitCode.BAD_CONFIGURATION
    assert b"No space left on device" in done.stderr


def test_an_engines_answer_tells_which_process_gave_it() -> None:
    process = Process(7, "dockerd", "/usr/bin/dockerd", ("dockerd",), 1.0, "docker.service")
    told = support_bundle._describe_live(LiveState("1", {}, None, process))
    assert told["process"] == {"pid": 7, "name": "dockerd", "unit": "docker.service"}
