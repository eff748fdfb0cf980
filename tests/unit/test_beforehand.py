"""What may be imported late is imported before the node is changed."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import toolkit_installer

PACKAGE = pathlib.Path(toolkit_installer.__file__).parent
NOT_AMID_A_CHANGE = {
    "shutil",  # the help's width
    "click.shell_completion",  # what a shell asks
    "email.utils",  # the answers of the API server, who is asked before a change, and comes with requests
}
OF_CHILDREN = {f"toolkit_installer.engines.common.cri.{name}" for name in ("ask", "runtime_pb2")}
LIST_MODULES = """
import sys
from toolkit_installer import log
from toolkit_installer.lifecycle import beforehand
log.configure(None, debug=False, stream=sys.stderr)
beforehand.everything()
print(*sys.modules)
"""


OF_CONTAINERD = LIST_MODULES.replace("everything()", "everything(frozenset({'containerd'}))")
OF_DOCKER = LIST_MODULES.replace("everything()", "everything(frozenset({'containerd', 'docker'}))")


def imported_by_functions(tree: ast.AST) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module is not None:
                    yield node.module


def test_what_any_function_imports_is_there_before_the_node_is_changed() -> None:
    trees = [ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")]
    late = {name for tree in trees for name in imported_by_functions(tree)} - NOT_AMID_A_CHANGE
    assert {"docker.constants", "structlog", "toolkit_installer.lifecycle.apply"} <= late
    done = subprocess.run([sys.executable, "-c", LIST_MODULES], capture_output=True, text=True, check=True)
    assert late - set(done.stdout.split()) == set()


def test_all_of_the_program_is_there_before_the_node_is_changed_but_what_starts_threads() -> None:
    files = (file.relative_to(PACKAGE.parent).with_suffix("") for file in PACKAGE.rglob("*.py"))
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files}
    done = subprocess.run([sys.executable, "-c", LIST_MODULES], capture_output=True, text=True, check=True)
    there = set(done.stdout.split())
    assert modules - there == OF_CHILDREN
    assert "grpc" not in there


def test_what_dockerd_alone_is_asked_with_is_left_out_where_dockerd_is_not_asked() -> None:
    def there(text: str) -> set[str]:
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    whole, of_docker, of_containerd = map(there, (LIST_MODULES, OF_DOCKER, OF_CONTAINERD))
    assert of_docker == whole
    assert not {"docker", "requests"} & of_containerd
    assert {name for name in whole if name.startswith("toolkit_installer")} <= of_containerd
