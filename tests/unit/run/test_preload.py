"""What may be imported late is imported before the node is changed."""

from __future__ import annotations

import ast
import functools
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

import toolkit_installer
from toolkit_installer.run import preload

PACKAGE = pathlib.Path(toolkit_installer.__file__).parent
NOT_AMID_A_CHANGE = {
    "shutil",  # the help's width
    "click.shell_completion",  # what a shell asks
    "zoneinfo",  # a window of --reload-when is looked at before a change, and once more amid it
    "email.utils",  # the answers of the API server, which is asked before a change, and comes with http.client
}
OF_A_RUN = ("kubernetes.client", "reporting.metrics", "waiting.plugin")
"""What a run has imported by then where it asks the cluster, tells of itself, and serves the plugin."""
OF_CHILDREN = {
    f"toolkit_installer.{name}"
    for name in (
        "engines.common.cri_canary",
        "engines.common.cri_child",
        "engines.common.cri_pb2",
        "waiting.plugin_process",
    )
}
LIST_MODULES = """
import sys
from toolkit_installer import log
from toolkit_installer.run import preload
log.configure(None, debug=False, stream=sys.stderr)
preload.import_all()
print(*sys.modules)
"""


OF_A_POD = "".join(f"import toolkit_installer.{name}\n" for name in OF_A_RUN) + LIST_MODULES
OF_CONTAINERD = LIST_MODULES.replace("import_all()", "import_all(frozenset({'containerd'}))")
OF_DOCKER = LIST_MODULES.replace("import_all()", "import_all(frozenset({'containerd', 'docker'}))")


pytestmark = pytest.mark.xdist_group("beforehand")  # what all of them read is read once


@functools.cache
def there(text: str) -> frozenset[str]:
    """Return what a program that lists its modules has imported."""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return frozenset(done.stdout.split())


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    """Return the program's modules, by their names."""
    return {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            file.read_text()
        )
        for file in PACKAGE.rglob("*.py")
    }


@functools.cache
def own_imports() -> Mapping[str, set[str]]:
    """Return what each of the program's modules imports, be it at once or late."""
    return {name: set(all_imported(tree)) for name, tree in trees().items()}


def imported_by_functions(tree: ast.AST) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module is not None:
                    yield node.module


def test_what_any_function_imports_is_there_before_the_node_is_changed() -> None:
    late = {name for tree in trees().values() for name in imported_by_functions(tree)}
    late -= NOT_AMID_A_CHANGE | preload.READ_ONLY_MODULES
    assert {"docker.constants", "structlog", "toolkit_installer.applying.apply"} <= late
    assert late - there(OF_A_POD) == set()


def test_all_of_the_program_is_loaded_before_a_change_except_what_starts_threads() -> None:
    modules = {name for name in trees() if not f"{name}.".startswith("toolkit_installer.nri.")}  # it changes nothing
    found = there(OF_A_POD)
    assert modules - found == OF_CHILDREN | preload.READ_ONLY_MODULES
    assert "grpc" not in found


def all_imported(node: ast.AST) -> Iterator[str]:
    """Yield what the program imports there, which is not what type checkers alone import."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    elif not isinstance(node, ast.If) or ast.unparse(node.test) != "TYPE_CHECKING":
        for child in ast.iter_child_nodes(node):
            yield from all_imported(child)


def test_what_is_left_out_no_other_module_imports_at_any_time() -> None:
    """`cli.actions` has a function for each command, and of these only its own imports what makes it.

    So it is with `cli.tree`: what answers a shell that completes a command line is no part of any command.
    """
    apart = {f"toolkit_installer.engines.{name}" for name in preload.SEPARATE_ENGINES}
    for name, imported in own_imports().items():
        own = {"toolkit_installer.cli.completion"} if name == "toolkit_installer.cli.tree" else set()
        if name not in preload.READ_ONLY_MODULES | {"toolkit_installer.cli.actions"}:
            assert imported & preload.READ_ONLY_MODULES == own, name
        for package in apart:
            inside = f"{name}.".startswith(f"{package}.")
            assert inside or not any(f"{each}.".startswith(f"{package}.") for each in imported), name


def test_of_the_commands_that_change_the_node_none_imports_what_is_left_out() -> None:
    functions = {
        node.name: set(all_imported(node))
        for node in trees()["toolkit_installer.cli.actions"].body
        if isinstance(node, ast.FunctionDef)
    }
    assert not (functions["run"] | functions["uninstall"]) & preload.READ_ONLY_MODULES
    assert any(imported & preload.READ_ONLY_MODULES for imported in functions.values())


def test_what_dockerd_alone_is_asked_with_is_left_out_where_dockerd_is_not_asked() -> None:
    whole, of_docker, of_containerd = map(there, (LIST_MODULES, OF_DOCKER, OF_CONTAINERD))
    left_out = {name for name in whole - of_docker if name.startswith("toolkit_installer.")}
    assert left_out
    assert all(f"{name}.".startswith("toolkit_installer.engines.crio.") for name in left_out)
    assert {"docker", "requests"} <= of_docker
    assert not {"docker", "requests", "http.client"} & of_containerd
    left_out = {name for name in whole - of_containerd if name.startswith("toolkit_installer.")}
    engines = ("toolkit_installer.engines.crio.", "toolkit_installer.engines.docker.")
    assert {name for name in left_out if not f"{name}.".startswith(engines)} == {
        f"toolkit_installer.documents.json_{name}" for name in ("document", "text")
    }


def test_what_speaks_to_the_cluster_is_left_out_where_the_run_has_not_begun_with_it() -> None:
    alone, of_a_pod = there(LIST_MODULES), there(OF_A_POD)
    left_out = {name for name in of_a_pod - alone if name.startswith("toolkit_installer.")}
    assert {f"toolkit_installer.{name}" for name in (*OF_A_RUN, "kubernetes.wanted")} <= left_out
    # none of it is imported by anything else but by what makes it when the run begins, which is never left out
    makes_it = {f"toolkit_installer.{name}" for name in ("run.build", "run.instance", "run.node_status")}
    for name, imported in own_imports().items():
        if name not in left_out | makes_it | OF_CHILDREN | preload.READ_ONLY_MODULES:
            assert not imported & left_out, name
    for name in makes_it:
        for function in ast.walk(trees()[name]):
            if isinstance(function, ast.FunctionDef) and set(all_imported(function)) & left_out:
                assert function.name in ("_build_plugin", "_build_query", "_build_reports"), name


def test_no_file_of_containerd_is_written_as_json() -> None:
    allowed = (
        "toolkit_installer.documents.json_",
        "toolkit_installer.engines.docker",
        "toolkit_installer.engines.crio",
    )
    for name, imported in own_imports().items():
        assert name.startswith(allowed) or not any(each.startswith(allowed[0]) for each in imported), name
