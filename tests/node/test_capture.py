"""A capture tells what the node told: the plan for it is the plan on the node, and what a run then does."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest

from tests.node.corpus import Case, Site, cases
from tests.node.engines import cri_socket
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.support import distribution_cases
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DROP_IN, FakeNode
from toolkit_installer.cli import commands
from toolkit_installer.node import programs
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.programs import CompletedProgram
from toolkit_installer.settings import Program

SECRETIVE = """{
  "http-proxy": "http://someone:hunter22@proxy.example:3128",
  "log-opts": {"splunk-token": "0123456789abcdef0123456789abcdef", "labels": "a"},
  "default-runtime": "runc"
}
"""


def told(*arguments: str) -> tuple[int, str]:
    """Return the exit code of the program, and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
        code = commands.main(Program.TOOLKIT_INSTALLER, arguments, {"PATH": os.environ["PATH"]})
    return code, printed.getvalue()


def captured(file: Path, flags: Sequence[str], *more: str) -> Path:
    """Return the capture of a node."""
    file.unlink(missing_ok=True)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = commands.main(Program.TOOLKIT_INSTALLER, ["capture", *flags, *more, str(file)], {})
    assert code == 0, said.getvalue()
    return file


def gone(*places: Path) -> contextlib.AbstractContextManager[None]:
    """Have nothing at these places meanwhile: whoever looks there looks at another machine."""

    @contextlib.contextmanager
    def away() -> Iterator[None]:
        for place in places:
            place.rename(place.with_name(f"{place.name}-away"))
        try:
            yield
        finally:
            for place in places:
                place.with_name(f"{place.name}-away").rename(place)

    return away()


@contextlib.contextmanager
def alive(node: FakeNode, **says: object) -> Iterator[None]:
    """Have a dockerd answer on the node meanwhile, as `says` has it. Its binary takes whatever it is asked about."""
    with FakeDockerd(node, **says) as dockerd:
        node.write(os.readlink(f"/proc/{dockerd.pid}/exe"), "a program", 0o755)
        with mock.patch.object(programs, "run_to_completion", return_value=CompletedProgram(0, b"", "")):
            yield
    node.place(SOCKET).unlink()


def refused(code: int) -> int:
    """Return the exit code of a replay of a node that refuses so."""
    return 3 if code else 0


def assert_same(found: tuple[int, str], wanted: tuple[int, str]) -> None:
    """Show the difference line by line."""
    difference = "\n".join(difflib.unified_diff(wanted[1].splitlines(), found[1].splitlines(), lineterm="", n=0))
    assert found == wanted, difference


def check(place: Path, flags: Sequence[str], file: Path) -> None:
    """Hold a replay of the node at `place` against its own plan, in words and as JSON, secrets hidden or kept."""
    code, plan = told("plan", *flags)
    _, as_json = told("plan", "--json", *flags)
    for more in ((), ("--keep-secrets",)):
        captured(file, flags, *more)
        with gone(place):
            assert_same(told("replay", str(file)), (refused(code), plan))
            _, summary = told("replay", "--json", str(file))
        if code == 0:
            assert as_json.strip() in _unindented(summary)


def _unindented(summary: str) -> str:
    """Return the JSON of a replay with the plan of its first group as `plan --json` prints it."""
    groups = json.loads(summary)["groups"]
    return "\n".join(json.dumps(group["planned"], indent=2) for group in groups)


CASES = [case for engine in ("docker", "containerd") for case in cases(engine)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_nodes_replay_is_its_own_plan_before_and_after_the_run_that_it_predicts(
    case: Case, tmp_path: Path, payload: Path
) -> None:
    site = Site(tmp_path / "site", case.engine)
    site.build(case.content(site.toolkit))
    flags = site.flags(payload)
    check(site.root, flags, tmp_path / "before.capture")
    code, foretold = told("plan", *flags)
    before = site.config.read_bytes() if site.config.exists() else None
    ran, _ = told("run", *flags, "--no-daemon", "--cleanup", "never")
    assert ran == code
    after = site.config.read_bytes() if site.config.exists() else None
    assert (before != after or site.drop_in.exists()) == (f"+++ {site.config}" in foretold or "+++" in foretold) or code
    check(site.root, flags, tmp_path / "after.capture")
    if code == 0:
        assert "Nothing to do" in told("replay", str(tmp_path / "after.capture"))[1]


@pytest.mark.parametrize("engine", ["docker", "containerd"])
def test_a_node_that_was_installed_and_edited_since_replays_as_it_plans(
    engine: str, node: FakeNode, tmp_path: Path
) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    node.write(
        CONFIG_TOML, 'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry.configs.x.auth]\npassword = "abc"\n'
    )
    flags = (*node.arguments("plan", engine=engine)[1:],)
    check(node.root, flags, tmp_path / "before.capture")
    assert told("run", *flags, "--no-daemon", "--cleanup", "never")[0] == 0
    check(node.root, flags, tmp_path / "after.capture")
    path = DAEMON_JSON if engine == "docker" else CONFIG_TOML
    node.write(path, node.read(path).replace(b"abc", b"abcd").replace(b"hunter22", b"hunter23"))
    check(node.root, flags, tmp_path / "edited.capture")


def test_other_options_are_planned_for_as_the_node_would(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    file = captured(tmp_path / "node.capture", node.arguments("plan")[1:])
    for more in (
        ("--set-as-default=false",),
        ("--runtime", "containerd"),
        ("--runtime-name", "other"),
        ("--without-gpu", "idle"),
        ("--driver-root", "auto"),
        ("--runtime", "docker,crio"),
        ("--restart-mode", "none"),
    ):
        code, plan = told("plan", *node.arguments("plan")[1:], *more)
        with gone(node.root, node.payload):
            assert told("replay", *more, str(file)) == (refused(code), plan), more


def test_a_text_that_the_engines_binary_was_not_asked_about_is_reported_as_untried(
    node: FakeNode, tmp_path: Path
) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    flags = (*node.arguments("plan")[1:], "--socket", SOCKET)
    with alive(node):
        file = captured(tmp_path / "node.capture", flags)
        plan = told("plan", *flags)
        other = told("plan", *flags, "--set-as-default=false")
    with gone(node.root):
        assert_same(told("replay", str(file)), plan)
        code, text = told("replay", "--set-as-default=false", str(file))
        _, summary = told("replay", "--set-as-default=false", "--json", str(file))
    assert_same((code, text), (other[0], other[1] + UNTRIED.format("docker")))
    assert list(json.loads(summary)["untried"]) == ["docker"]


SOCKETS = {
    **dict.fromkeys(("k3s", "rke2"), "/run/k3s/containerd/containerd.sock"),
    "k0s": "/run/k0s/containerd.sock",
    "microk8s": "/var/snap/microk8s/common/run/containerd.sock",
}
OWN = "/run/containerd/containerd.sock"
VERSION_2 = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


UNTRIED = "{}'s own binary has not been asked about this: on the node, `run` asks it before any change.\n"


def as_of(version: str, captured: str) -> str:
    """Return what a replay says of a containerd that is supposed to be of another version."""
    return (
        f"containerd is planned for as {version}; its files, and all else that it says of itself, are of {captured}.\n"
    )


def check_versions(node: FakeNode, socket: str, file: Path, was: str, versions: Sequence[str]) -> set[str]:
    """Hold replays as if containerd were of other versions against plans beside those; return these plans."""
    flags = [*node.arguments("plan", engine="containerd")[1:], "--restart-mode", "none"]
    with cri_socket.answering(node.place(socket), was):
        captured(file, flags)
    plans = set()
    for version in versions:
        with cri_socket.answering(node.place(socket), version):
            code, plan = told("plan", *flags)
        plans.add(plan)
        with gone(node.root):
            found = told("replay", "--engine-version", f"containerd={version}", str(file))
        # on some nodes it could not be asked either
        code_found, text = found[0], found[1].removesuffix(UNTRIED.format("containerd"))
        assert_same((code_found, text), (refused(code), plan + as_of(version, was)))
    return plans


@pytest.mark.parametrize("was", ["1.7.24", "2.1.4"])
@pytest.mark.parametrize("case", distribution_cases.cases(), ids=str)
def test_a_distribution_with_another_containerd_is_planned_for_as_it_would_be(
    case: distribution_cases.Case, was: str, node: FakeNode, tmp_path: Path
) -> None:
    case.put(node)
    socket = SOCKETS.get(case.distribution, OWN)
    check_versions(node, socket, tmp_path / "node.capture", was, ["1.6.20", "1.7.24", "2.0.1", "2.1.4", "2.3.0"])


def test_a_containerd_that_reads_drop_ins_from_2_1_on_gets_one_in_a_replay_as_such(
    node: FakeNode, tmp_path: Path
) -> None:
    node.write(CONFIG_TOML, VERSION_2)
    older, newer = (
        check_versions(node, OWN, tmp_path / f"{version}.capture", "1.7.24", [version]).pop()
        for version in ("1.7.24", "2.2")
    )
    assert (f"+++ {CONFIG_TOML}" in older, f"+++ {DROP_IN}" in older) == (True, False)
    assert f"+++ {DROP_IN}" in newer
    _, text = told("replay", "--engine-version", "containerd=2.2", str(tmp_path / "2.2.capture"))
    assert text.endswith(as_of("2.2", "1.7.24") + UNTRIED.format("containerd"))


def test_a_version_that_does_not_read_the_file_as_it_stands_refuses_in_a_replay_too(
    node: FakeNode, tmp_path: Path
) -> None:
    node.write(CONFIG_TOML, VERSION_2.replace("version = 2", "version = 3"))
    with cri_socket.answering(node.place(OWN), "2.1.4"):
        file = captured(
            tmp_path / "node.capture", node.arguments("plan", "--restart-mode", "none", engine="containerd")[1:]
        )
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()) as printed:
        code = commands.main(
            Program.TOOLKIT_INSTALLER, ["replay", "--engine-version", "containerd=1.7.24", str(file)], {}
        )
    assert code == 3
    assert "is of version 3, and containerd 1.7, which runs here, reads versions 1 to 2" in said.getvalue()
    assert printed.getvalue() == as_of("1.7.24", "2.1.4")


def test_a_plan_for_another_docker_version_counts_the_binary_as_not_asked(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    flags = (*node.arguments("plan")[1:], "--socket", SOCKET, "--enable-cdi-in-runtime")
    with alive(node, ServerVersion="28.0.4"):
        file = captured(tmp_path / "node.capture", flags)
    with alive(node, ServerVersion="24.0.9"):
        code, plan = told("plan", *flags)
    assert "dockerd 24.0.9 knows no CDI" in plan
    with gone(node.root):
        found = told("replay", "--engine-version", "docker=24.0.9", str(file))
        _, as_json = told("replay", "--engine-version", "docker=24.0.9", "--json", str(file))
    told_of = "docker is planned for as 24.0.9; its files, and all else that it says of itself, are of 28.0.4.\n"
    assert_same(found, (code, plan + told_of + UNTRIED.format("docker")))
    summary = json.loads(as_json)
    name = summary["groups"][0]["nodes"]
    assert summary["supposed"] == [{"engine": "docker", "version": "24.0.9", "captured": "28.0.4", "nodes": name}]
    assert summary["untried"] == {"docker": name}


def test_a_node_without_the_engine_or_whose_engine_is_silent_is_planned_for_as_it_is(
    node: FakeNode, tmp_path: Path
) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    flags = node.arguments("plan")[1:]
    file = captured(tmp_path / "node.capture", flags)
    plan = told("plan", *flags)
    with gone(node.root):
        assert_same(told("replay", "--engine-version", "containerd=2.2", str(file)), plan)
        code, text = told("replay", "--engine-version", "containerd=2.2,docker=29.1", str(file))
    silent = "docker did not answer when it was captured: it is planned for without a version, and not as 29.1.\n"
    assert_same((code, text), (plan[0], plan[1] + silent))


@pytest.mark.parametrize(
    "given", ["podman=1.2", "containerd", "containerd=", "containerd=newest", "=2.2", "containerd=2"]
)
def test_what_is_no_engine_or_no_version_is_refused(given: str, node: FakeNode, tmp_path: Path) -> None:
    file = captured(tmp_path / "node.capture", node.arguments("plan")[1:])
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = commands.main(Program.TOOLKIT_INSTALLER, ["replay", "--engine-version", given, str(file)], {})
    assert code == 2
    assert "such as containerd=2.2" in said.getvalue()


def test_another_payload_is_looked_at_where_it_is(node: FakeNode, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(node.payload, newer, symlinks=True)
    program = next(newer.rglob("nvidia-ctk"))
    program.write_bytes(program.read_bytes() + b"newer")
    assert told("run", *node.arguments("plan")[1:], "--no-daemon", "--cleanup", "never")[0] == 0
    file = captured(tmp_path / "node.capture", node.arguments("plan")[1:])
    assert "Nothing to do" in told("replay", str(file))[1]
    with gone(node.root):
        code, replayed = told("replay", "--payload", str(newer), str(file))
    assert (code, replayed) == told("plan", *node.arguments("plan")[1:], "--toolkit-source-root", str(newer))
    assert "1 file installed" in replayed


def test_what_was_not_captured_is_named_and_never_guessed(node: FakeNode, tmp_path: Path) -> None:
    file = captured(tmp_path / "node.capture", node.arguments("plan")[1:])
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = commands.main(Program.TOOLKIT_INSTALLER, ["replay", "--config", "/srv/other.json", str(file)], {})
    assert code == 3
    assert "not captured: " in said.getvalue()
    assert "/srv/other.json" in said.getvalue()


def test_a_capture_makes_no_call_that_changes_the_node(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    assert told("run", *node.arguments("plan")[1:], "--no-daemon", "--cleanup", "never")[0] == 0
    calls = [name for name, value in vars(SystemCalls).items() if callable(value)]
    assert {"create", "rename", "restart_unit", "signal"} <= set(calls)
    for name in calls:

        def fail(*_: object, name: str = name, **__: object) -> None:
            raise AssertionError(f"{name} was called")

        monkeypatch.setattr(SystemCalls, name, fail)
    before, stamps = node.snapshot(), node.stamps()
    captured(tmp_path / "node.capture", node.arguments("plan")[1:])
    assert (node.snapshot(), node.stamps()) == (before, stamps)


def test_no_secret_of_the_node_is_in_a_capture_and_all_are_where_they_are_to_be_kept(
    node: FakeNode, tmp_path: Path
) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    assert told("run", *node.arguments("plan")[1:], "--no-daemon", "--cleanup", "never")[0] == 0
    secrets = (b"hunter22", b"0123456789abcdef0123456789abcdef")
    for more, there in (((), False), (("--keep-secrets",), True)):
        file = captured(tmp_path / "node.capture", node.arguments("plan")[1:], *more)
        _, _, checked = file.read_bytes().partition(b"\n")
        content = zlib.decompress(checked[32:])
        assert [secret in content for secret in secrets] == [there, there]


def test_many_are_told_together_and_what_cannot_be_used_is_refused_by_its_name(node: FakeNode, tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    node.write(DAEMON_JSON, SECRETIVE)
    file = captured(tmp_path / "node.capture", node.arguments("plan")[1:])
    for number in range(40):
        shutil.copy(file, folder / f"{number}.capture")
    code, alike = told("replay", str(folder))
    assert code == 0
    assert "40 nodes: 0 converged, 40 changed, 0 refused." in alike
    assert alike.count("+++ /etc/docker/daemon.json") == 1
    (folder / "cut-off.capture").write_bytes(file.read_bytes()[:500])
    (folder / "no.capture").write_bytes(b"something")
    code, text = told("replay", "--json", str(folder))
    summary = json.loads(text)
    assert code == 3
    assert summary["nodes"]["captures"] == 42
    assert summary["nodes"]["refused"] == 2
    assert [len(group["nodes"]) for group in summary["groups"]] == [40]
    unusable = {str(folder / name) for name in ("cut-off.capture", "no.capture")}
    assert {refused["nodes"][0] for refused in summary["refusals"]} == unusable


def test_paths_of_this_machine_are_those_of_the_folder_that_the_command_is_run_in(
    node: FakeNode, tmp_path: Path, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured(tmp_path / "node.capture", node.arguments("plan")[1:])
    shutil.copytree(payload, tmp_path / "toolkit", symlinks=True)
    monkeypatch.chdir(tmp_path)
    as_before = told("replay", "node.capture")
    assert told("replay", "node.capture", "--html", "page.html", "--payload", "toolkit") == as_before
    assert (tmp_path / "page.html").exists()


def test_the_page_of_a_replay_has_each_node_with_what_would_become_of_it(node: FakeNode, tmp_path: Path) -> None:
    folder, page = tmp_path / "captures", tmp_path / "page.html"
    folder.mkdir()
    file = captured(tmp_path / "node.capture", node.arguments("plan")[1:])
    for number in range(3):
        shutil.copy(file, folder / f"{number}.capture")
    (folder / "no.capture").write_bytes(b"something")
    assert told("replay", str(folder), "--html", str(page))[0] == 3
    text = page.read_text()
    found = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
    assert [row[1] for row in found["nodes"]].count("changed") == 3
    (refused,) = (row for row in found["nodes"] if row[1] == "refused")
    assert refused[0] == str(folder / "no.capture")
    assert "no capture of toolkit-installer" in found["groups"][refused[3]]["title"]
    (change,) = (group for group in found["groups"] if group["outcome"] == "changed")
    assert "+++ /etc/docker/daemon.json" in change["text"]
    code, said = told("replay", str(folder), "--html", str(page))
    assert (code, page.read_text()) == (2, text), said


@pytest.mark.parametrize("case", distribution_cases.cases(), ids=str)
def test_a_node_of_a_distribution_replays_as_it_plans(
    case: distribution_cases.Case, node: FakeNode, tmp_path: Path
) -> None:
    case.put(node)
    check(node.root, node.arguments("plan", engine="auto")[1:], tmp_path / "node.capture")
