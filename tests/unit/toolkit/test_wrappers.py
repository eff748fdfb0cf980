"""The wrappers are run, by each shell that is here, against a made list of kernel modules."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.errors import UsageError
from toolkit_installer.toolkit import wrappers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RUNTIME = "nvidia-container-runtime"
HOOK = "nvidia-container-runtime-hook"
DATA = Path(__file__).parents[2] / "data" / "toolkit"
SHELLS = [
    pytest.param([path, *arguments], id=name)
    for name, *arguments in (["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"])
    if (path := shutil.which(name)) is not None
]
LOADED = "nvidia_uvm 1474560 0 - Live 0x0\nnvidia 56717312 1 nvidia_uvm, Live 0x0 (PO)\next4 1 0 - Live 0x0\n"
NOT_LOADED = "nvidia_fs 1 0 - Live 0x0\nvideo 2 1 nvidia, Live 0x0\nnvidiafb 3 0 - Live 0x0\n"

STARTING = [
    "create x",
    "run x",
    "--root /r --log /l/log.json --log-format json create --bundle /b --pid-file /p x",
    "--root=/r --log=/l --systemd-cgroup run x",
    "--systemd-cgroup=true create x",
    "--debug --cgroup-manager cgroupfs create x",
    "--cgroup-manager=systemd --log-level warning run x",
    "--rootless auto create x",
    "-root /r -debug create x",
    "--root state --log ps create x",
    "-- create x",
]
OTHER = [
    *("checkpoint x", "delete --force x", "events x", "exec -d x create", "features", "kill x 9", "list -q"),
    *("mounts x", "pause x", "ps x -ef", "restore x", "resume x", "spec", "start x", "state x", "update x"),
    *("state create", "state run", "kill run 9", "exec --process run create"),
    "--root /run state run",
    "--root run state create",
    "--root create --log run ps x",
    "--root=create --log=run --log-format=json ps create",
    "--root /r --log /l --log-format json --systemd-cgroup delete create",
    "--debug state create",
    "-debug -systemd-cgroup ps run",
    "--cgroup-manager cgroupfs state run",
    *("--version", "-v", "-V", "--help", "-h", "--root", "--root create", "", "-- state create"),
]

SHOW = """#!/bin/sh
printf '%s\\n' {name}
printf '<%s>\\n' "$@"
/usr/bin/env >"{folder}/environment"
exit {status}
"""


class Node:
    """A toolkit folder and a folder of the node's own programs, with programs that show how they were started."""

    def __init__(self, folder: Path, shell: Sequence[str]) -> None:
        self.base = folder.parent
        self.shell = shell
        self.toolkit = folder
        self.bin = self.base / "node-bin"
        self.modules = self.base / "modules"
        self.bin.mkdir()
        self.modules.write_text(LOADED)
        (self.toolkit / wrappers.CONFIG_NAME).parent.mkdir(parents=True)
        (self.toolkit / wrappers.CONFIG_NAME).touch()

    def program(self, path: Path, status: int = 0) -> Path:
        path.write_text(SHOW.format(name=shlex.quote(path.name), folder=self.base, status=status))
        path.chmod(0o755)
        return path

    def install(self, name: str, low_level: Sequence[str] = ("runc", "crun"), status: int = 0) -> Path:
        self.program(self.toolkit / f"{name}.real", status)
        text = wrappers.build_wrapper(name, folder=str(self.toolkit), low_level=low_level, modules=str(self.modules))
        (self.toolkit / name).write_text(text)
        (self.toolkit / name).chmod(0o755)
        return self.toolkit / name

    def run(
        self, program: Path, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.shell, program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=20,
            env={"PATH": str(self.bin)} if environment is None else environment,
        )

    def environment(self) -> dict[str, str]:
        lines = (self.base / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture(params=SHELLS)
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path / "toolkit", request.param)


@pytest.mark.parametrize("name", wrappers.WRAPPED)
def test_the_real_program_runs_with_its_arguments_and_exit_code_untouched(node: Node, name: str) -> None:
    wrapper = node.install(name, status=42)
    arguments = ["create", "", "a b", "*", "$HOME", "'\"", "--", "new\nline", "-x"]
    result = node.run(wrapper, *arguments)
    config = ["-config", str(node.toolkit / wrappers.CONFIG_NAME)] if "hook" in name or "toolkit" in name else []
    assert result.stdout == f"{name}.real\n" + "".join(f"<{argument}>\n" for argument in [*config, *arguments])
    assert result.returncode == 42
    assert not result.stderr


@pytest.mark.parametrize("name", wrappers.WRAPPED)
def test_the_toolkit_comes_first_in_path_and_nothing_else_of_the_environment_changes(node: Node, name: str) -> None:
    own = {"PATH": f"{node.bin}:/usr/bin", "HOME": "/root", "tki": "mine", "IFS": "x", "name": "a b", "CONFIG": "c"}
    node.run(node.install(name), environment=own)
    seen = node.environment()
    assert seen.pop("PATH") == f"{node.toolkit}:{own.pop('PATH')}"
    if name == "nvidia-container-cli":
        assert seen.pop("LD_LIBRARY_PATH") == str(node.toolkit)
    if name.startswith((RUNTIME, "nvidia-container-toolkit")):
        assert seen.pop("NVIDIA_CTK_CONFIG_FILE_PATH") == str(node.toolkit / wrappers.CONFIG_NAME)
        assert seen.pop("XDG_CONFIG_HOME") == str(node.toolkit / ".config")
    for shells_own in ("PWD", "OLDPWD", "SHLVL", "_"):
        seen.pop(shells_own, None)
    own.pop("IFS")  # some shells drop it
    assert {name: value for name, value in seen.items() if name != "IFS"} == own


def test_an_unset_path_does_not_become_the_current_folder(node: Node) -> None:
    node.run(node.install("nvidia-container-cli"), environment={"LD_LIBRARY_PATH": ""})
    seen = node.environment()
    assert "" not in seen["PATH"].split(":")
    assert "/usr/bin" in seen["PATH"].split(":")
    assert seen["LD_LIBRARY_PATH"] == str(node.toolkit)


def test_library_folders_that_were_there_come_behind_ours(node: Node) -> None:
    node.run(node.install("nvidia-container-cli"), environment={"LD_LIBRARY_PATH": "/a:/b"})
    assert node.environment()["LD_LIBRARY_PATH"] == f"{node.toolkit}:/a:/b"


def unload(node: Node) -> None:
    node.modules.write_text(NOT_LOADED)


def no_module_list(node: Node) -> None:
    node.modules.unlink()


def no_config(node: Node) -> None:
    (node.toolkit / wrappers.CONFIG_NAME).unlink()


def no_real(node: Node) -> None:
    (node.toolkit / f"{RUNTIME}.real").unlink()


def inert_real(node: Node) -> None:
    (node.toolkit / f"{RUNTIME}.real").chmod(0o644)


FAULTS = [
    (unload, "the NVIDIA driver is not loaded"),
    (no_module_list, "the NVIDIA driver is not loaded"),
    (no_config, "config.toml is missing"),
    (no_real, f"{RUNTIME}.real is missing"),
    (inert_real, f"{RUNTIME}.real is not executable"),
]


@pytest.mark.parametrize("fault, reason", FAULTS)
def test_a_runtime_that_cannot_work_becomes_the_low_level_runtime(
    node: Node, fault: Callable[[Node], None], reason: str
) -> None:
    wrapper = node.install(RUNTIME)
    runc = node.program(node.bin / "runc", status=7)
    fault(node)
    result = node.run(wrapper, "create", "a b", "*", "")
    assert result.stdout == "runc\n<create>\n<a b>\n<*>\n<>\n"
    assert result.returncode == 7
    assert result.stderr.startswith(f"{RUNTIME}: ")
    assert f"{reason}: running {runc} instead\n" in result.stderr
    assert node.environment()["PATH"] == str(node.bin)


def assert_explained(node: Node, wrapper: Path, runc: Path, words: str, reason: str) -> None:
    """Run `words` through the wrapper: it adds its line to what `runc` prints only where a container starts."""
    result, direct = node.run(wrapper, *words.split()), node.run(runc, *words.split())
    assert (result.stdout, result.returncode) == (direct.stdout, direct.returncode)
    added, own, rest = result.stderr.partition(direct.stderr)
    assert own == "own words\n"
    assert not rest
    if words in STARTING:
        assert added.startswith(f"{RUNTIME}: ")
        assert added.endswith(f"{reason}: running {runc} instead\n")
        assert added.count("\n") == 1
    else:
        assert not added, words


@pytest.mark.parametrize("fault, reason", FAULTS)
def test_only_the_start_of_a_container_explains_the_fallback(
    node: Node, fault: Callable[[Node], None], reason: str
) -> None:
    """containerd parses stdout and stderr of `ps` and `state` as one text, and kills the pod where it cannot."""
    wrapper = node.install(RUNTIME)
    runc = node.program(node.bin / "runc", status=3)
    runc.write_text(runc.read_text().replace("exit", "echo own words >&2\nexit"))
    fault(node)
    for words in (*STARTING, *OTHER) if fault is unload else ("create x", "state x"):
        assert_explained(node, wrapper, runc, words, reason)


@pytest.mark.parametrize("words", ["create x", "state x", "--version"])
def test_a_wrapper_that_runs_nothing_says_why_whatever_it_was_asked_for(node: Node, words: str) -> None:
    unload(node)
    result = node.run(node.install(RUNTIME, ["no-such-runtime"]), *words.split())
    assert result.returncode == 127
    assert not result.stdout
    assert result.stderr.count("\n") == 1


def test_the_first_low_level_runtime_that_can_be_run_is_taken(node: Node) -> None:
    unload(node)
    (node.bin / "made-runc").touch()
    (node.bin / "kata").mkdir()
    node.program(node.bin / "made-crun")
    absolute = node.program(node.base / "own runc")
    names = [str(node.base / "gone"), str(node.bin), "kata", "made-runc", "made-crun"]
    assert node.run(node.install(RUNTIME, names)).stdout.startswith("made-crun\n")
    assert node.run(node.install(RUNTIME, [str(absolute), *names])).stdout.startswith("own runc\n")


def test_without_any_low_level_runtime_the_wrapper_says_so_and_fails(node: Node) -> None:
    unload(node)
    result = node.run(node.install(RUNTIME, ["/nowhere/runc", "no-such-runtime"]))
    assert result.returncode == 127
    assert "none of these runtimes was found: /nowhere/runc no-such-runtime" in result.stderr


def test_names_are_looked_for_in_the_usual_folders_when_path_is_empty(node: Node) -> None:
    unload(node)
    result = node.run(node.install(RUNTIME, ["true"]), "create", environment={})
    assert result.returncode == 0
    assert "running /usr/bin/true instead" in result.stderr or "running /bin/true instead" in result.stderr


def test_a_relative_folder_in_path_is_never_searched(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    unload(node)
    node.program(node.bin / "evil-runc")
    monkeypatch.chdir(node.bin)
    result = node.run(node.install(RUNTIME, ["evil-runc"]), environment={"PATH": f".::{node.bin.name}"})
    assert result.returncode == 127


@pytest.mark.parametrize("way", ["by folder", "by symlink", "by hard link", "by a symlink to the folder"])
def test_a_low_level_runtime_that_is_a_wrapper_of_ours_is_passed_over(node: Node, way: str) -> None:
    unload(node)
    ours = node.toolkit / RUNTIME
    node.program(node.bin / "made-crun")
    elsewhere = node.base / "elsewhere"
    first = {"by folder": str(ours), "by a symlink to the folder": str(elsewhere / RUNTIME)}.get(way, "made-runc")
    node.install(RUNTIME, [first, RUNTIME, "made-crun"])
    if way == "by symlink":
        (node.bin / "made-runc").symlink_to(ours)
    elif way == "by hard link":
        (node.bin / "made-runc").hardlink_to(ours)
    else:
        elsewhere.symlink_to(node.toolkit)
    result = node.run(ours, "run", environment={"PATH": f"{node.toolkit}:{node.bin}"})
    assert result.stdout.startswith("made-crun\n")
    assert result.stderr.count("\n") == 1


def test_a_script_that_leads_back_to_the_wrapper_does_not_run_for_ever(node: Node) -> None:
    unload(node)
    wrapper = node.install(RUNTIME, ["runc"])
    (node.bin / "runc").write_text(f'#!/bin/sh\nexec {wrapper} "$@"\n')
    (node.bin / "runc").chmod(0o755)
    result = node.run(wrapper, "state")
    assert result.returncode == 127
    assert "leads back" in result.stderr


@pytest.mark.parametrize("name", [HOOK, "nvidia-container-toolkit", "nvidia-container-cli", "nvidia-ctk"])
def test_only_runtimes_fall_back(node: Node, name: str) -> None:
    wrapper = node.install(name)
    node.program(node.bin / "runc")
    (node.toolkit / f"{name}.real").unlink()
    unload(node)
    result = node.run(wrapper)
    assert result.returncode == 127
    assert not result.stdout
    assert result.stderr == f"{name}: {node.toolkit}/{name}.real is missing\n"


def test_the_hook_without_its_configuration_fails_instead_of_guessing(node: Node) -> None:
    wrapper = node.install(HOOK)
    no_config(node)
    result = node.run(wrapper, "prestart")
    assert result.returncode == 127
    assert "config.toml is missing" in result.stderr


def test_a_stderr_that_nobody_reads_does_not_keep_a_container_from_running(node: Node) -> None:
    wrapper = node.install(RUNTIME)
    node.program(node.bin / "runc")
    unload(node)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [*node.shell, wrapper, "create"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=writer,
            env={"PATH": str(node.bin)},
            restore_signals=True,
        )
    finally:
        os.close(writer)
    assert result.stdout.startswith(b"runc\n")
    assert result.returncode == 0


def test_the_standard_input_reaches_the_program_whole(node: Node) -> None:
    wrapper = node.install(RUNTIME)
    (node.toolkit / f"{RUNTIME}.real").write_text("#!/bin/sh\nexec /bin/cat\n")
    result = subprocess.run([*node.shell, wrapper], check=True, capture_output=True, input=b"one\ntwo\n")
    assert result.stdout == b"one\ntwo\n"


AWKWARD = ["a b", "it's", '"q"', "$HOME", "`id`", "$(id)", "new\nline", "back\\slash", "end\\", "*", "-n", "ü", "&;|#~"]


@pytest.mark.parametrize("folder", AWKWARD)
@pytest.mark.parametrize("shell", SHELLS)
def test_any_folder_is_named_safely(tmp_path: Path, folder: str, shell: list[str]) -> None:
    node = Node(tmp_path / folder, shell)
    runc = node.program(node.bin / "it's runc $HOME")
    wrapper = node.install(RUNTIME, [str(runc)])
    assert node.run(wrapper, "x").stdout == f"{RUNTIME}.real\n<x>\n"
    unload(node)
    assert node.run(wrapper, "x").stdout == f"{runc.name}\n<x>\n"


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=20))
@settings(max_examples=30, deadline=None)
def test_any_text_is_one_word_for_the_shell(words: list[str]) -> None:
    script = "printf '%s\\0' start " + " ".join(map(wrappers.quote_word, words))
    result = subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True)
    assert result.stdout.decode().split("\0")[:-1] == ["start", *words]


@pytest.mark.parametrize("folder", ["relative/toolkit", "/with:colon", "/with\0nul", ""])
def test_a_folder_that_cannot_stand_in_path_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match="cannot be installed"):
        wrappers.build_wrapper(RUNTIME, folder=folder, low_level=["runc"])


@pytest.mark.parametrize("name", wrappers.WRAPPED)
def test_shellcheck_has_nothing_to_say(name: str) -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    text = wrappers.build_wrapper(name, folder="/usr/local/our nvidia/toolkit", low_level=["/usr/bin/runc", "crun"])
    result = subprocess.run([shellcheck, "-"], check=False, input=text, capture_output=True, text=True)
    assert not result.stdout


@pytest.mark.parametrize("name", [RUNTIME, HOOK, "nvidia-container-cli", "nvidia-ctk"])
def test_the_wrapper_reads_as_written_down(name: str) -> None:
    text = wrappers.build_wrapper(name, folder="/usr/local/nvidia/toolkit", low_level=["/usr/bin/runc", "runc", "crun"])
    assert text == (DATA / "wrappers" / f"{name}.sh").read_text()


def test_no_other_program_is_started_on_the_way(node: Node) -> None:
    """With nothing in PATH and no /usr/bin/env in the way, the real program is still reached."""
    wrapper = node.install(RUNTIME)
    (node.toolkit / f"{RUNTIME}.real").write_text("#!/bin/sh\necho reached\n")
    result = node.run(wrapper, environment={"PATH": "/nonexistent"})
    assert result.stdout == "reached\n"
    assert not result.stderr
