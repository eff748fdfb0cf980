"""CRI-O's files as nodes have them: each comes out as the case says, means that, and comes back.

A case is a folder of tests/data/crio: `in` is the node before, `out` while we are installed, `after` once we are gone
(where it is not as before: an older installer's leftovers do not come back), `flags` what the program is given.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.node import faults
from tests.support.crio_reading import Reading, read
from tests.support.fake_node import NOTHING_TO_DO, TOOLKIT, FakeNode

CASES = Path(__file__).parents[1] / "data" / "crio"
PLACES = ("etc/crio", "usr/share/containers", "run/containers")
HANDLERS = {"-cdi": ".cdi", "-legacy": ".legacy"}
NOT_CARRIED = {"runtime_path", "runtime_type", "runtime_config_path", "inherit_default_runtime"}
LENDER = {"kata-is-the-default": "runc", "conmon-rs-is-the-default": "crun"}
"""Where the default runtime is none that our handlers could be like."""


@pytest.fixture(params=sorted(path.name for path in CASES.iterdir()))
def case(request: pytest.FixtureRequest) -> Path:
    return CASES / str(request.param)


@pytest.fixture
def crio(node: FakeNode, case: Path) -> FakeNode:
    shutil.copytree(case / "in", node.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".keep"))
    return node


def do(crio: FakeNode, folder: Path, command: str, *flags: str) -> str:
    """Run a command, which must be a success, and return what it said."""
    outcome = faults.run(crio, folder, command, *flags, engine="crio")
    assert outcome.code == 0, outcome.output
    return outcome.output


def files(root: Path) -> dict[str, str]:
    """Return the files of CRI-O and its hooks below a root, by their path."""
    found = [path for place in PLACES for path in (root / place).rglob("*") if path.is_file() and path.name != ".keep"]
    return {str(path.relative_to(root)): path.read_text() for path in found}


def flags_of(case: Path) -> list[str]:
    return (case / "flags").read_text().split() if (case / "flags").exists() else []


def reading(root: Path) -> Reading:
    return read(root / "etc/crio/crio.conf", root / "etc/crio/crio.conf.d")


def without_ours(before: Reading) -> Reading:
    """Take out of what CRI-O read before what an older installer had left."""
    gone = [name for name, entry in before.runtimes.items() if entry.get("runtime_path", "").startswith(TOOLKIT)]
    for name in gone:
        del before.runtimes[name]
    if before.default in gone:
        before.default = "crun"
    return before


def test_the_files_are_as_the_case_says_and_come_back(crio: FakeNode, case: Path, tmp_path: Path) -> None:
    before, flags = crio.snapshot(), flags_of(case)
    do(crio, tmp_path, "run", "--no-daemon", *flags)
    assert files(crio.root) == files(case / "out")

    stamps = crio.stamps()
    assert NOTHING_TO_DO in do(crio, tmp_path, "run", "--no-daemon", *flags)
    assert crio.stamps() == stamps

    do(crio, tmp_path, "uninstall", *flags)
    if (case / "after").exists():
        assert files(crio.root) == files(case / "after")
    else:
        assert crio.snapshot() == before


def test_the_engine_has_what_it_had_and_our_handlers_like_its_default(
    crio: FakeNode, case: Path, tmp_path: Path
) -> None:
    flags = flags_of(case)
    before = without_ours(reading(crio.root))
    do(crio, tmp_path, "run", "--no-daemon", *flags)
    now = reading(crio.root)
    assert now.rest == before.rest
    if "hook" in flags:
        folder = flags[flags.index("--hooks-dir") + 1] if "--hooks-dir" in flags else before.hooks_dirs[0]
        assert now.hooks_dirs == list(dict.fromkeys([*before.hooks_dirs, folder]))
        assert (now.default, now.runtimes) == (before.default, before.runtimes)
        return
    name = flags[flags.index("--runtime-name") + 1] if "--runtime-name" in flags else "nvidia"
    lender = before.runtimes[LENDER.get(case.name, before.default)]
    carried = {key: value for key, value in lender.items() if key not in NOT_CARRIED}
    for handler, ending in {name: "", **{f"nvidia{each}": tail for each, tail in HANDLERS.items()}}.items():
        ours = now.runtimes.pop(handler)
        before.runtimes.pop(handler, None)
        executable = f"{TOOLKIT}/nvidia-container-runtime{ending}"
        assert ours == {"runtime_path": executable, "runtime_type": "oci", **carried}
    assert now.runtimes == before.runtimes
    assert now.hooks_dirs == before.hooks_dirs
    assert now.default == (before.default if "--set-as-default=false" in flags else name)


def test_without_its_receipt_what_is_ours_is_known_by_what_it_runs(crio: FakeNode, case: Path, tmp_path: Path) -> None:
    before, flags = without_ours(reading(crio.root)), flags_of(case)
    do(crio, tmp_path, "run", "--no-daemon", *flags)
    shutil.rmtree(crio.place("/usr/local/nvidia/.toolkit-installer"))
    do(crio, tmp_path, "uninstall", *flags)
    assert not crio.exists(TOOLKIT)
    assert [path for path, text in files(crio.root).items() if TOOLKIT in text] == []
    now = reading(crio.root)
    lost = {"nvidia"} if case.name == "somebody-uses-our-drop-in" else set()  # its former meaning was in the receipt
    assert now.runtimes == {name: entry for name, entry in before.runtimes.items() if name not in lost}
    assert (now.default, now.rest) == (before.default, before.rest)
