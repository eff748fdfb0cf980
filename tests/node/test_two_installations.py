"""Two installations in different folders on one node: the second is refused, and neither takes the other's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.faults import Outcome, Plan, run
from tests.node.instants import stopping
from tests.support.fake_node import CONFIG_TOML, CRIO_DROP_IN, CRIO_SITE, DAEMON_JSON, Entry, FakeNode

FIRST = ("--toolkit-install-dir", "/usr/local/nvidia", "--pid-file", "/run/first/toolkit.pid")
SECOND = ("--toolkit-install-dir", "/opt/second", "--pid-file", "/run/second/toolkit.pid")
ONCE = "--no-daemon"
CDI = ("--cdi-enabled", "--no-runtime-config")
SPECIFICATION = "/run/cdi/management.nvidia.com-gpu.yaml"
FILES = {"docker": DAEMON_JSON, "containerd": CONFIG_TOML, "crio": CRIO_DROP_IN}
REFUSED = 3


@pytest.fixture
def configured(node: FakeNode) -> FakeNode:
    node.write(DAEMON_JSON, b'{\n  "debug": true\n}\n')
    node.write(CONFIG_TOML, "version = 2\n")
    node.write(CRIO_SITE, '[crio.runtime]\nlog_level = "info"\n')
    return node


def lasting(node: FakeNode) -> dict[str, Entry]:
    """Return the node without what a boot removes, but for CDI specifications."""
    kept = node.snapshot()
    return {path: entry for path, entry in kept.items() if path.startswith("/run/cdi") or not path.startswith("/run/")}


def install(node: FakeNode, folder: Path, *more: str, engine: str = "docker", code: int = 0) -> Outcome:
    done = run(node, folder, "run", ONCE, *more, engine=engine)
    assert done.code == code, done.output
    return done


def uninstall(node: FakeNode, folder: Path, *more: str, engine: str = "docker") -> Outcome:
    done = run(node, folder, "uninstall", *more, engine=engine)
    assert done.code == 0, done.output
    return done


@pytest.mark.parametrize("engine", FILES)
def test_a_second_installation_for_the_same_engine_is_refused(
    configured: FakeNode, tmp_path: Path, engine: str
) -> None:
    before = lasting(configured)
    install(configured, tmp_path, *FIRST, engine=engine)
    installed = lasting(configured)
    refused = install(configured, tmp_path, *SECOND, engine=engine, code=REFUSED)
    assert "names programs of another installation, in /usr/local/nvidia" in refused.output
    assert "toolkit-installer uninstall /usr/local/nvidia" in refused.output
    assert lasting(configured) == installed
    uninstall(configured, tmp_path, *SECOND, engine=engine)
    assert lasting(configured) == installed
    uninstall(configured, tmp_path, *FIRST, engine=engine)
    assert lasting(configured) == before


def test_a_drop_in_of_another_name_does_not_hide_the_first_installation(configured: FakeNode, tmp_path: Path) -> None:
    install(configured, tmp_path, *FIRST, "--drop-in-config", "/etc/crio/crio.conf.d/98-first.conf", engine="crio")
    installed = lasting(configured)
    own = ("--drop-in-config", "/etc/crio/crio.conf.d/99-second.conf")
    install(configured, tmp_path, *SECOND, *own, engine="crio", code=REFUSED)
    assert lasting(configured) == installed


def test_a_second_installation_does_not_take_the_cdi_specification(with_driver: FakeNode, tmp_path: Path) -> None:
    before = lasting(with_driver)
    install(with_driver, tmp_path, *FIRST, *CDI)
    installed = lasting(with_driver)
    assert SPECIFICATION in installed
    refused = install(with_driver, tmp_path, *SECOND, *CDI, code=REFUSED)
    assert f"file={SPECIFICATION}" in refused.output
    assert lasting(with_driver) == installed
    uninstall(with_driver, tmp_path, *FIRST)
    install(with_driver, tmp_path, *SECOND, *CDI)
    uninstall(with_driver, tmp_path, *SECOND)
    assert lasting(with_driver) == before


@pytest.mark.parametrize("leaves_first", ["the first", "the second"])
def test_installations_for_two_engines_leave_each_other_alone(
    configured: FakeNode, tmp_path: Path, leaves_first: str
) -> None:
    before = lasting(configured)
    pair = [(FIRST, "docker"), (SECOND, "containerd")]
    for flags, engine in pair:
        install(configured, tmp_path, *flags, engine=engine)
    (leaving, its_engine), (staying, engine) = pair if leaves_first == "the first" else reversed(pair)
    kept = configured.read(FILES[engine])
    uninstall(configured, tmp_path, *leaving, engine=its_engine)
    assert configured.read(FILES[engine]) == kept
    for path in configured.named_runtimes().values():
        assert path.startswith(staying[1]), path
        assert configured.place(path).is_file()
        assert configured.place(f"{path}.real").is_file()
    uninstall(configured, tmp_path, *staying, engine=engine)
    assert lasting(configured) == before


@pytest.mark.parametrize("engine", FILES)
def test_of_two_that_start_at_once_the_loser_leaves_nothing(configured: FakeNode, tmp_path: Path, engine: str) -> None:
    before = lasting(configured)
    with stopping(configured, "mkdir .nvidia.toolkit-installer.tmp", "run", ONCE, *FIRST, engine=engine) as loser:
        install(configured, tmp_path, *SECOND, engine=engine)  # all of it, after the first looked and before it wrote
        won = lasting(configured)
        loser.go_on()
        assert loser.finish() == REFUSED
    assert "names programs of another installation, in /opt/second" in loser.output
    assert "could not all be given back" not in loser.output
    assert lasting(configured) == won
    uninstall(configured, tmp_path, *SECOND, engine=engine)
    assert lasting(configured) == before


@pytest.mark.parametrize("engine", FILES)
def test_a_killed_installation_gives_back_nothing_of_the_one_that_came_after_it(
    configured: FakeNode, tmp_path: Path, engine: str
) -> None:
    before = lasting(configured)
    whole = install(configured, tmp_path, *FIRST, engine=engine)
    uninstall(configured, tmp_path, *FIRST, engine=engine)
    receipt = whole.index("rename .receipt.json.toolkit-installer.tmp receipt.json")
    run(configured, tmp_path, "run", ONCE, *FIRST, engine=engine, plan=Plan(receipt + 2))
    install(configured, tmp_path, *SECOND, engine=engine)
    file = configured.read(FILES[engine])
    left = uninstall(configured, tmp_path, *FIRST, engine=engine)
    assert "left-to-other-installation" in left.output
    assert configured.read(FILES[engine]) == file
    uninstall(configured, tmp_path, *SECOND, engine=engine)
    assert lasting(configured) == before
