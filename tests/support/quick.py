"""What `make test` tries, in two minutes, of what takes long; `make test-all` tries all of it.

All of tests/unit and tests/meta is tried, but for the files that STEPS names. Of tests/node, which starts the whole
program, a sample is: of the sweeps, which try the same for many nodes, commands, errors or instants, the cells that are
named here, and of the other files every so many tests. What is new in a file is tried by naming the file: all that is
in it is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

import pytest
from hypothesis import is_hypothesis_test, settings

_FEW = "few"
_SETTINGS = "_hypothesis_internal_use_settings"
EXAMPLES = 25
"""How many examples hypothesis tries of a rule; all are as many as the rule asks for, 100 where it asks for none."""
ATTEMPTS = 5
"""How often a test tries what it else tries at many instants, unless it says how often."""
T = TypeVar("T")

SWEEPS: Mapping[str, Sequence[str]] = {
    "tests/node/test_every_instant.py": ("crio-down-first install", "crio-down", "crio-down-amid the toolkit-run"),
    "tests/node/test_every_instant_named.py": ("uninstall-containerd", "error-uninstall-containerd"),
    "tests/node/test_every_error.py": ("EIO-uninstall-containerd", "full-uninstall-containerd"),
    "tests/node/test_write_order.py": ("docker-[!d]*", "docker", "containerd-first install", "crio-down-first install"),
    "tests/node/test_concurrent_edits.py": (
        "containerd-amends",
        "containerd-makes_a_folder-run",
        "docker",
        "containerd",
    ),
    "tests/node/test_kills.py": ("docker", "containerd-True"),
    "tests/node/test_random_drift.py": ("cleanup",),
    "tests/node/test_capture.py": (
        *("docker", "docker-manual-nvidia", "containerd"),
        *("k3s-drop-in-2.1.4", "rke2-template-created", "podman=1.2", "containerd=newest"),
    ),
}
"""The sweeps' files, and the cells of each that are tried, by their IDs, which pytest prints in brackets.

Every test of a sweep has at least one. Those that have no IDs are tried.
"""

RARE: Mapping[str, Sequence[str]] = {
    "tests/node/test_every_error.py": ("EACCES-*", "EPERM-*", "EROFS-*", "full-re-install-*", "read-only-re-install-*"),
    "tests/node/test_every_instant.py": tuple(
        f"{made}-{half} *"
        for made in ("docker-down-without-file", "docker-down-with-cdi", "containerd-down-in-place", "crio-down")
        for half in ("before", "after", "amid")
    ),
    "tests/node/test_method_kills.py": (
        *("containerd-with-cdi-off-*", "docker-*-after the engine*", "docker-*-before the receipt*", "crio-after *"),
    ),
    "tests/node/test_method_nri_kills.py": ("from-handlers", "to-handlers"),
}
"""Cells that `make test-all ARGS=--rest` leaves out as well: others are like them. `make compatibility` tries them."""

HALVED: Sequence[str] = ("tests/node/test_*.py", "tests/meta/test_chart_values.py")
"""Files with many tests of a kind, but for those of RARE: of what `make test` leaves of them, every second is rare."""

STEP = 8
"""Of all others the first test is tried, and every so many after it."""
_SECOND = ("commands", "install_and_cleanup")
_TWELFTH = (
    *("bad_input", "cdi", "concurrency", "crio_kills", "crio_pods", "deleted_while_starting", "distributions"),
    *("named_driver_root", "never_worse", "damaged_receipt", "standard_streams", "files_naming", "waking"),
    *("warm_start", "without_gpu"),
)
_SIXTEENTH = ("cleanup_auto", "corpus", "crio_live", "drift", "hanging", "hostile_node", "method_kills")
STEPS: Mapping[str, int] = {
    **{f"tests/node/test_{name}.py": 2 for name in _SECOND},
    **{f"tests/node/test_{name}.py": 12 for name in _TWELFTH},
    **{f"tests/node/test_{name}.py": 16 for name in _SIXTEENTH},
    "tests/meta/test_chart_values.py": 4,  # each test starts Helm
}
"""But of these, where what most people see is tried, one test takes long, or there are many of a kind."""
_SAMPLED = "tests/node/"


def exhaustive(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that only `make test-all` runs; `items` are all that there are, in their order."""
    numbers: Counter[str] = Counter()
    left_out = []
    for item in items:
        file = _file(item)
        if file in SWEEPS:
            quick = _is_named(item)
        else:
            quick = numbers[file] % STEPS.get(file, STEP if file.startswith(_SAMPLED) else 1) == 0
            numbers[file] += 1
        if not quick:
            left_out.append(item)
    return left_out


def rare(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that `make compatibility` tries, or `make test-all` that names nothing, and nobody else."""
    numbers: Counter[str] = Counter()
    found = []
    for item in exhaustive(items):
        file, cell = _file(item), _cell(item)
        numbers[file] += 1
        halved = file not in RARE and any(fnmatchcase(file, each) for each in HALVED) and numbers[file] % 2 == 0
        if halved or (cell is not None and any(_matching([cell], each) for each in RARE.get(file, ()))):
            found.append(item)
    return found


def whole(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of which `make test` tries all there is: no cell and no example is left for later."""
    left_out = {item.nodeid for item in exhaustive(items)}
    return [item for item in items if item.nodeid not in left_out and not _is_rule(item) and not _tries_few(item)]


def rest(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests to leave out where only the rest is asked for that `make test` leaves."""
    left_out = {item.nodeid for item in (*whole(items), *rare(items))}
    return [item for item in items if item.nodeid in left_out]


class Few(Protocol):
    """What tests take as the fixture `few` that try something again and again: `make test` does so less often."""

    def __call__(self, attempts: Sequence[T], /, most: int = ATTEMPTS) -> Sequence[T]:
        """Return the attempts, or `most` of them, at even distances, with the first and the last."""


def few(attempts: Sequence[T], /, most: int = ATTEMPTS) -> Sequence[T]:
    """Return `most` of these attempts."""
    last = len(attempts) - 1
    if last < most:
        return attempts
    return [attempts[round(number * last / (most - 1))] for number in range(most)]


def all_of(attempts: Sequence[T], /, most: int = ATTEMPTS) -> Sequence[T]:  # noqa: ARG001  # as `few` has it
    """Return all of them."""
    return attempts


def limit(item: pytest.Item) -> None:
    """Let hypothesis try few examples of a test, if it is such a one."""
    function = getattr(item, "obj", None)
    if _is_rule(item):
        # where hypothesis itself keeps them; a test that has none is held to those of its profile
        asked = getattr(function, _SETTINGS, None) or settings.default
        assert asked is not None
        setattr(function, _SETTINGS, settings(asked, max_examples=min(asked.max_examples, EXAMPLES)))


def find_faults(items: Sequence[pytest.Item]) -> list[str]:
    """Return in words what is wrong with the tables above, in the light of all tests."""
    files = {_file(item) for item in items}
    wrong = [f"there is no {file}" for file in (*SWEEPS, *STEPS, *RARE) if file not in files]
    wrong += [f"no file is {each!r}" for each in HALVED if not any(fnmatchcase(file, each) for file in files)]
    for file, patterns in RARE.items():
        cells = [cell for item in items if _file(item) == file and (cell := _cell(item)) is not None]
        wrong += [f"{file} has no {pattern!r}" for pattern in patterns if not _matching(cells, pattern)]
    for file, patterns in SWEEPS.items():
        within = [item for item in items if _file(item) == file]
        ids = [cell for item in within if (cell := _cell(item)) is not None]
        wrong += [f"{file} has no {pattern!r}" for pattern in patterns if not _matching(ids, pattern)]
        functions = {_function(item) for item in within} - {_function(item) for item in within if _is_named(item)}
        wrong += [f"no cell of {function} is named" for function in sorted(functions)]
    return wrong


def _is_rule(item: pytest.Item) -> bool:
    """Tell whether hypothesis tries examples of a test."""
    function = getattr(item, "obj", None)
    return function is not None and is_hypothesis_test(function)


def _tries_few(item: pytest.Item) -> bool:
    """Tell whether a test takes the fixture, and is to be run once more with all attempts."""
    return _FEW in getattr(item, "fixturenames", ())


def _is_named(item: pytest.Item) -> bool:
    cell = _cell(item)
    return cell is None or any(_matching([cell], pattern) for pattern in SWEEPS[_file(item)])


def _matching(ids: Iterable[str], pattern: str) -> list[str]:
    return [cell for cell in ids if fnmatchcase(cell, pattern)]


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _cell(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else str(callspec.id)
