"""What Go builds for the tests is whole or not there, is built once, and says why where it cannot be had."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.built import go_tools
from tests.support.built.go_tools import GoToolError, Tool

MODULE = "example.test/made"
TOOL = Tool(name="made", module=MODULE, version="v1.0.0", commands=("cmd/hello",), linking="-X main.said=hello")
HELLO = 'package main\nvar said string\nfunc main() { print(said, " of 1.0.0") }\n'
PROGRAM_IN_C = '#include <stdio.h>\nint main(void) { return puts("hello of C") < 0; }\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where tools go; made modules come from a folder, whose hashes no database knows."""
    if shutil.which("go") is None or shutil.which("gcc") is None:
        pytest.skip("not installed: go and gcc, which build programs for the tests")
    for name, value in {
        "GOPROXY": f"file://{tmp_path / 'proxy'}",
        "GONOSUMDB": MODULE,
        "GOMODCACHE": str(tmp_path / "modules"),
        "GOFLAGS": "-modcacherw",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "cache"


def publish(proxy: Path, version: str, files: dict[str, str]) -> None:
    """Put a version of the module where Go looks for it."""
    module = f"module {MODULE}\n\ngo 1.20\n"
    folder = proxy / MODULE / "@v"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{version}.info").write_text(json.dumps({"Version": version}))
    (folder / f"{version}.mod").write_text(module)
    with zipfile.ZipFile(folder / f"{version}.zip", "w") as archive:
        for name, text in {"go.mod": module, **files}.items():
            archive.writestr(f"{MODULE}@{version}/{name}", text)


def said_by(program: Path) -> str:
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout + done.stderr


def test_a_tool_has_its_programs_of_go_and_of_c_and_each_version_its_folder(cache: Path, tmp_path: Path) -> None:
    publish(tmp_path / "proxy", "v1.0.0", {"cmd/hello/main.go": HELLO, "small/src/small.c": PROGRAM_IN_C})
    publish(tmp_path / "proxy", "v1.1.0", {"cmd/hello/main.go": HELLO.replace("1.0.0", "1.1.0")})
    old = go_tools.build(dataclasses.replace(TOOL, in_c=("small",)), cache)
    assert said_by(old / "hello") == "hello of 1.0.0"
    assert said_by(old / "small") == "hello of C\n"
    new = go_tools.build(dataclasses.replace(TOOL, version="v1.1.0"), cache)
    assert said_by(new / "hello") == "hello of 1.1.0"
    assert said_by(old / "hello") == "hello of 1.0.0"
    assert old == go_tools.folder_of(TOOL, cache)


def test_a_tool_that_is_there_is_not_built_again_though_two_ask_at_once(cache: Path, tmp_path: Path) -> None:
    publish(tmp_path / "proxy", "v1.0.0", {"cmd/hello/main.go": HELLO})
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: go_tools.build(TOOL, cache), range(2))
    assert first == second
    shutil.rmtree(tmp_path / "proxy")
    shutil.rmtree(tmp_path / "modules")
    assert said_by(go_tools.build(TOOL, cache) / "hello") == "hello of 1.0.0"
    assert sorted(path.name for path in cache.iterdir()) == ["made-v1.0.0", "made-v1.0.0.lock"]


@pytest.mark.parametrize(
    "files, words",
    [
        pytest.param({"cmd/hello/main.go": "package main\nfunc main() { nothing() }\n"}, "undefined: nothing", id="go"),
        pytest.param({"cmd/hello/main.go": HELLO, "small/src/small.c": "int main(void) {"}, "small.c", id="c"),
        pytest.param({"cmd/other/main.go": HELLO}, "cmd/hello", id="no-such-package"),
        pytest.param({"cmd/hello/main.go": HELLO.replace("package main", "package hello")}, "hello", id="no-program"),
        pytest.param({}, "example.test", id="no-such-module"),
    ],
)
def test_what_does_not_build_says_so_and_leaves_nothing(
    files: dict[str, str], words: str, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "proxy").mkdir()
    if files:
        publish(tmp_path / "proxy", "v1.0.0", files)
    tool = dataclasses.replace(TOOL, in_c=("small",) if "small/src/small.c" in files else ())
    with pytest.raises(GoToolError, match=words):
        go_tools.build(tool, cache)
    assert [path.name for path in cache.iterdir()] == ["made-v1.0.0.lock"]


def test_a_module_whose_hash_no_database_vouches_for_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "proxy", "v1.0.0", {"cmd/hello/main.go": HELLO})
    monkeypatch.delenv("GONOSUMDB")
    with pytest.raises(GoToolError, match="verifying"):
        go_tools.build(TOOL, cache)
    assert not go_tools.folder_of(TOOL, cache).exists()


@pytest.mark.parametrize("tool", [tool for tool in go_tools.ALL if tool.source is not None], ids=lambda tool: tool.name)
def test_a_tool_of_a_module_of_the_tests_own_is_of_the_version_that_its_file_names(tool: Tool) -> None:
    assert tool.source is not None
    module = "k8s.io/kubernetes" if tool.module == "kubernetes" else tool.module
    required = [line.split()[:2] for line in (tool.source / "go.mod").read_text().splitlines() if "=>" not in line]
    assert [module, tool.version] in required


def test_what_is_not_installed_is_named_before_anything_is_fetched(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tmp_path / "few"
    few.mkdir()
    go, pkg_config = shutil.which("go"), shutil.which("pkg-config")
    assert go is not None
    (few / "go").symlink_to(go)
    monkeypatch.setenv("PATH", str(few))
    with pytest.raises(GoToolError, match=r"cri-o v1\.\d+\.\d+ cannot be built, not installed: gcc, pkg-config"):
        go_tools.build(go_tools.CRIO, cache)
    if pkg_config is None:
        pytest.skip("not installed: pkg-config, which is asked for libraries (Debian's package pkg-config)")
    (few / "pkg-config").symlink_to(pkg_config)
    with pytest.raises(GoToolError, match=r"gcc, no-such-library \(for pkg-config\)"):
        go_tools.build(dataclasses.replace(go_tools.CRIO, libraries=("no-such-library",)), cache)
    (few / "go").unlink()
    with pytest.raises(GoToolError, match=r"not installed: go$"):
        go_tools.build(TOOL, cache)
    assert sorted(os.listdir(cache)) == ["cri-o-v1.34.0.lock", "made-v1.0.0.lock"]
    assert not (tmp_path / "modules").exists()
