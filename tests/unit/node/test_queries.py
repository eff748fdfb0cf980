"""Every question to the node is a declared query: a capture has its answer, and a replay never reads this machine."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit_installer.fleet import capture
from toolkit_installer.node import machine, queries
from toolkit_installer.node.queries import Query, Secrecy
from toolkit_installer.node.reading import CONFIG_LIMIT
from toolkit_installer.run import preload

PACKAGE = Path(capture.__file__).parents[1]


@pytest.fixture(scope="module")
def declared() -> dict[str, Query]:
    preload.import_all()
    return {query.name: query for query in queries.DECLARED.values()}


IGNORED = {
    "applying.impact.find_running_containers": {"inspection"},
    "driver.roots.find_driver": {"seconds"},
    "engines.common.cri.query_pods": {"seconds"},
    "engines.common.cri.query_status": {"seconds"},
    "engines.crio.places.query_configuration": {"seconds"},
    "engines.docker.client.query_info": {"seconds"},
    "node.programs.Programs.run": {"seconds"},
    "node.reading.Reader.read_file": {"limit"},
    "node.reading.read_bounded": {"limit"},
    "node.sockets.find_responding_process": {"greeting"},
    "planning.files_naming.find_naming_files": {"known"},
    "planning.toolkit_users.list_users": {"ours"},
    "reporting.diagnosis.diagnose": {"settings"},
}
"""Parameters that are the same, or make no difference, whenever a query is repeated."""


def test_all_parameters_distinguish_calls_but_those_that_make_no_difference(declared: dict[str, Query]) -> None:
    """Else the answer about one path, or engine, is taken for that about another, and a plan is wrong."""
    assert {name: set(each.ignored) for name, each in declared.items() if each.ignored} == IGNORED
    for query in declared.values():
        assert query.parameters.keys() >= set(query.ignored)
        given = dict.fromkeys(query.parameters, "given")
        assert query.select_arguments((), given) == ["given"] * (len(given) - len(query.ignored))


def test_arguments_are_the_same_by_position_by_name_and_by_default(declared: dict[str, Query]) -> None:
    query = declared["node.places.PathTranslator.seen_here"]
    assert query.select_arguments(("self", "/a"), {}) == ["self", "/a", True]
    assert query.select_arguments(("self",), {"path": "/a", "given": True}) == ["self", "/a", True]


def test_the_type_of_each_recorded_answer_can_be_decoded(declared: dict[str, Query]) -> None:
    for query in declared.values():
        if query.recorded:
            msgspec.msgpack.Decoder(query.answer_type, dec_hook=lambda _kind, value: value)


def test_two_queries_never_have_one_name(declared: dict[str, Query]) -> None:
    assert len(declared) == len(queries.DECLARED)


class Fixed:
    """An interceptor that answers everything with one value."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def answer(self, query: Query, arguments: tuple[Any, ...], _named: dict[str, Any]) -> Any:
        self.calls.append((query.name, arguments))
        return "answered"


def test_an_interceptor_answers_queries_inside_its_block_alone() -> None:
    live, fixed = machine.architecture(), Fixed()
    with contextlib.suppress(KeyError), queries.intercepted(fixed):
        assert machine.architecture() == "answered"
        with queries.intercepted(Fixed()):
            pass
        assert machine.architecture() == "answered"
        raise KeyError
    assert machine.architecture() == live != "answered"
    assert fixed.calls == [("node.machine.architecture", ())] * 2


def test_a_query_is_declared_with_what_its_function_may_answer(declared: dict[str, Query]) -> None:
    assert declared["node.reading.Reader.read_file"].secrecy is Secrecy.TEXT
    assert not declared["node.reading.Reader.read_file"].os_errors
    may_raise = {name for name, each in declared.items() if each.os_errors}
    assert may_raise == {
        "applying.impact.find_running_containers",
        "node.processes.inspect_visible",
        "node.reading.read_bounded",
        "node.root.Root.mount_of",
    }


VALID: dict[str, tuple[Any, Any]] = {
    "node.root.Root.canonical": ("/a", "a"),
    "node.root.Root.mount_of": (-1, -2),
    "node.reading.Reader.list": (["a"], ["a/b"]),
    "node.reading.Reader.mount_flags": (0, 1 << 62),
    "node.reading.read_bounded": (b"", bytes(CONFIG_LIMIT + 1)),
    "node.reading.Tree.read": (b"", bytes(CONFIG_LIMIT + 1)),
    "node.root.real": ("/", ""),
    "node.places.PathTranslator.on_node": (None, "a"),
    "node.places.PathTranslator.seen_here": ("/a", "a"),
    "node.places.PathTranslator.reachable": ("/a", ""),
    "node.root.list_trusted_users": (frozenset({0}), frozenset({-1})),
    "node.programs.Programs.find_program": (None, "runc"),
    "node.processes.names": ([(1, "init")], [(-1, "init")]),
    "node.processes.parent_of": (0, -1),
    "node.processes.read_open_file": (None, bytes(CONFIG_LIMIT + 1)),
    "node.locks.find_instance": (None, 1 << 30),
    "node.machine.boot_seconds": (1.5, -1.0),
    "node.machine.now": (1.5, 1e30),
    "engines.docker.client.query_info": ({"Runtimes": {}, "DefaultRuntime": None}, {"Runtimes": "text"}),
}


def test_each_query_with_limits_of_its_own_refuses_answers_beyond(declared: dict[str, Query]) -> None:
    limited = {name: each.is_valid for name, each in declared.items() if each.is_valid is not None}
    assert limited.keys() == VALID.keys()
    for name, is_valid in limited.items():
        good, bad = VALID[name]
        assert is_valid(good), name
        assert not is_valid(bad), name


READS = {
    *("access", "getxattr", "listdir", "listxattr", "lstat", "open", "readlink", "scandir", "stat", "statvfs", "uname"),
    *("walk", "exists", "getsize", "isdir", "isfile", "islink", "ismount", "lexists", "realpath", "samefile"),
}
"""Functions of `os` and `os.path` that read this machine."""
EVIDENCE = {
    "applying/gpu_containers.py": {"_identity", "_list_shim_containers"},  # of find_busy_reasons
    "applying/impact.py": {"_list_bundle_containers", "_list_shim_containers"},  # of find_running_containers
    "driver/roots.py": {"_program", "_prove_usable"},  # of find_driver and _seen_at
    "engines/common/serving.py": {"resolve_socket"},  # of the queries to engines
    "engines/common/command_line.py": {
        "_compared",
        "_is_same_path",
        "_split_existing",
    },  # of is_same_file, is_in_folder
    "planning/other_installer.py": {"_works_on"},  # of find_running
    "planning/toolkit_users.py": {  # of list_users
        *("_find_shim_container", "_find_siblings", "_find_watched", "has_other_root", "is_same_file"),
    },
}
"""Functions that read the machine and are called by queries alone."""
NEVER_PLANNED = {
    "driver/roots.py": {"paths_to_watch"},
    "engines/detect/own_container.py": {"refuse_absent_root"},
    "engines/docker/canary.py": {"try_handlers"},
    "kubernetes/client.py": {"_read"},
    "reporting/metrics.py": {"prepare"},
    "reporting/versions.py": {"describe_image_payload", "own_version"},
    "run/preload.py": {"_modules"},
}
"""Functions that read the machine for something else than a plan."""
ROOMS = ("applying", "driver", "engines", "kubernetes", "planning", "receipt", "reporting", "run", "toolkit")
"""What a plan is made of, above node/."""


def list_readers(path: Path) -> Iterator[str]:
    """Yield the functions of a module that read the machine and are no query."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef) and not is_query(function) and any(map(is_read, ast.walk(function))):
            yield function.name


def is_query(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).startswith("Query(") for each in function.decorator_list)


def is_read(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("open", "opened")
    return isinstance(node, ast.Attribute) and node.attr in READS and ast.unparse(node.value) in ("os", "os.path")


NODE = {
    "node/calls.py": {"create", "create_unnamed", "open_or_create"},  # of changes
    "node/idling.py": {"execute_first", "identity"},  # of the idle process
    "node/interpreter.py": {"find_bytecode"},  # our own program
    "node/locks.py": {"lock_folder"},  # of changes
    "node/machine.py": {"collect_facts", "name"},  # of reports and captures
    "node/processes.py": {"find_major_numbers", "list_pids"},  # of names, and of find_busy_reasons
    "node/reading.py": {"links", "xattrs"},  # of find_naming_files, of read_file
    "node/root.py": {
        *("device_number", "for_writers", "head", "is_mounted", "mount_id", "opened"),  # diagnose, mount_of
        *("find_other_writers", "refuse_if_others_write", "system_groups"),  # parts of canonical, is_program
    },
    "node/sockets.py": {"connect_to_trusted"},  # of the plugin
    "node/trust.py": {"pin_process", "program", "shares_clock", "shares_mounts"},  # of is_program; of refresh
    "node/writing.py": {"copy", "entry_exists"},  # of changes
}
"""Functions of node/ for other modules that read the machine: parts of queries, or never of a plan."""


def test_in_node_a_plan_is_offered_no_read_but_queries() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted((PACKAGE / "node").glob("*.py"))
        if (names := {name for name in list_readers(path) if not name.startswith("_")})
    }
    assert found == NODE


def test_outside_of_node_only_queries_read_the_machine() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names
        for room in ROOMS
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (names := set(list_readers(path)))
    }
    known = {module: EVIDENCE.get(module, set()) | NEVER_PLANNED.get(module, set()) for module in found}
    assert found == known
    assert EVIDENCE.keys() | NEVER_PLANNED.keys() == found.keys()
