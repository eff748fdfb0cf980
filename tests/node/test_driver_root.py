"""`--driver-root auto`: the root in which nvidia-smi works, and the device root and the paths here that go with it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.node.faults import run
from tests.support import driver_roots
from tests.support.driver_roots import CONTAINER, HOST, VERSION, install
from tests.support.fake_node import DAEMON_JSON, NOTHING_TO_DO, TOOLKIT, FakeNode
from toolkit_installer.driver import roots
from toolkit_installer.driver.roots import CONTAINER_READY, DRIVER_READY, VALIDATIONS, Driver
from toolkit_installer.node.node import Node
from toolkit_installer.settings import AUTO, ToolkitSettings

runs_drivers = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
TO_BE_FOUND = ToolkitSettings(driver_root=AUTO, driver_root_ctr_path=AUTO, dev_root=AUTO, dev_root_ctr_path=AUTO)
CONFIG = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"
NOTHING = ("/run/nvidia/driver: there is no such folder", "/: there is no nvidia-smi")


def looked(node: FakeNode, toolkit: ToolkitSettings = TO_BE_FOUND) -> roots.DriverSearch:
    return roots.find_driver(Node(str(node.root)), toolkit)


def found(node: FakeNode, toolkit: ToolkitSettings = TO_BE_FOUND) -> Driver:
    seen = looked(node, toolkit)
    assert seen.driver is not None, seen.missing
    return seen.driver


def operator_says(node: FakeNode, root: str, dev_root: str = "", **more: str) -> None:
    said = {"IS_HOST_DRIVER": "false", "NVIDIA_DRIVER_ROOT": root, "NVIDIA_DEV_ROOT": dev_root or root, **more}
    node.write(DRIVER_READY, "".join(f"{name}={value}\n" for name, value in said.items()))


# --- where it is ---


def test_without_a_driver_each_root_is_said_with_what_it_lacks(node: FakeNode) -> None:
    assert looked(node) == roots.DriverSearch(None, NOTHING, nothing_there=True)


@runs_drivers
@pytest.mark.parametrize("root", [CONTAINER, HOST])
def test_the_root_that_works_is_found(node: FakeNode, root: str) -> None:
    install(node.place(root))
    at = str(node.place(root)).rstrip("/")
    assert found(node) == Driver(root, at, root, at, VERSION)


@runs_drivers
def test_of_two_that_work_the_driver_container_is_taken(node: FakeNode) -> None:
    install(node.place(HOST))
    install(node.place(CONTAINER))
    assert found(node).root == CONTAINER


@runs_drivers
def test_one_that_does_not_work_is_passed_over_and_said(node: FakeNode) -> None:
    install(node.place(CONTAINER), works=False)
    assert looked(node).missing == (f"{CONTAINER}: nvidia-smi ends with 9: {driver_roots.NO_DRIVER}", NOTHING[1])
    install(node.place(HOST))
    assert found(node).root == HOST


@runs_drivers
def test_an_operators_driver_container_is_ready_when_it_says_so(node: FakeNode) -> None:
    install(node.place(CONTAINER))
    node.place(VALIDATIONS).mkdir(parents=True)
    assert f"in {CONTAINER_READY}" in looked(node).missing[0]
    node.write(CONTAINER_READY, "")
    assert found(node).root == CONTAINER


@runs_drivers
@pytest.mark.parametrize("folder", ["usr/local/bin", "bin", "usr/sbin"])
def test_it_is_found_wherever_programs_are(node: FakeNode, folder: str) -> None:
    install(node.place(CONTAINER), folder=folder)
    assert found(node).root == CONTAINER


@runs_drivers
def test_a_root_that_is_a_symlink_leads_to_where_it_leads_on_the_node(node: FakeNode) -> None:
    install(node.place("/var/lib/driver"))
    node.place("/run/nvidia").mkdir()
    node.place(CONTAINER).symlink_to("/var/lib/driver")
    assert found(node).seen_at == str(node.place("/var/lib/driver"))


def test_an_empty_file_is_no_program(node: FakeNode) -> None:
    """A container runtime leaves one where it mounts over it."""
    node.write("/usr/bin/nvidia-smi", "", 0o755)
    assert looked(node).missing == NOTHING


@runs_drivers
def test_a_program_that_others_could_have_put_there_is_not_run(node: FakeNode) -> None:
    program = install(node.place(CONTAINER))
    program.parent.chmod(0o777)
    assert "writable by everybody" in looked(node).missing[0]


# --- what the GPU Operator says ---


@runs_drivers
def test_the_root_that_the_operator_names_comes_first(node: FakeNode) -> None:
    install(node.place("/opt/driver"), devices=False)
    install(node.place(HOST))
    operator_says(node, "/opt/driver", "/")
    at = str(node.root)
    assert found(node) == Driver("/opt/driver", f"{at}/opt/driver", "/", at, VERSION)


@runs_drivers
def test_a_root_that_the_operator_names_needs_proof_as_any_other(node: FakeNode) -> None:
    operator_says(node, "/opt/driver")
    assert looked(node).missing == ("/opt/driver: there is no such folder", *NOTHING)
    install(node.place(HOST))
    assert found(node).root == HOST


@runs_drivers
@pytest.mark.parametrize(
    "text",
    ["", "IS_HOST_DRIVER=true\n", "NVIDIA_DRIVER_ROOT=\n", "NVIDIA_DRIVER_ROOT=driver\n", "no variables\n\xff"],
)
def test_what_the_operator_leaves_open_is_looked_for(node: FakeNode, text: str) -> None:
    node.write(DRIVER_READY, text.encode("latin-1"))
    node.write(CONTAINER_READY, "")
    install(node.place(CONTAINER))
    assert found(node).root == CONTAINER


@runs_drivers
def test_where_single_folders_are_mounted_the_operator_says_under_which_names(node: FakeNode, tmp_path: Path) -> None:
    mounted = tmp_path / "driver-root"
    install(mounted)
    operator_says(
        node,
        "/home/kubernetes/bin/nvidia",
        DRIVER_ROOT_CTR_PATH=str(mounted),
        DEV_ROOT_CTR_PATH=str(mounted),
    )
    seen = roots.find_driver(Node("/", str(node.root), whole=False), TO_BE_FOUND)
    root = "/home/kubernetes/bin/nvidia"
    assert seen.driver == Driver(root, str(mounted), root, str(mounted), VERSION)


@runs_drivers
@pytest.mark.parametrize("root", [CONTAINER, HOST])
def test_where_only_the_host_root_is_mounted_the_driver_is_found_below_it(node: FakeNode, root: str) -> None:
    install(node.place(root), devices=False)
    (node.root / "dev").mkdir(exist_ok=True)
    seen = roots.find_driver(Node("/", str(node.root), whole=False), TO_BE_FOUND)
    at = str(node.place(root)).rstrip("/")
    assert seen.driver == Driver(root, at, "/", str(node.root), VERSION)


# --- the device root, and what was given ---


@runs_drivers
def test_a_driver_without_devices_leaves_them_to_the_node(node: FakeNode) -> None:
    install(node.place(CONTAINER), devices=False)
    assert (found(node).dev_root, found(node).dev_seen_at) == ("/", str(node.root))


@runs_drivers
def test_what_was_given_is_not_looked_for(node: FakeNode, tmp_path: Path) -> None:
    install(tmp_path / "mounted")
    given = ToolkitSettings(
        driver_root="/opt/driver",
        driver_root_ctr_path=str(tmp_path / "mounted"),
        dev_root="/devices",
        dev_root_ctr_path="/mnt",
    )
    assert found(node, given) == Driver("/opt/driver", str(tmp_path / "mounted"), "/devices", "/mnt", VERSION)


# --- run ---


def configured_root(node: FakeNode) -> str:
    root: str = tomllib.loads(node.read(CONFIG).decode())["nvidia-container-cli"]["root"]
    return root


@runs_drivers
@pytest.mark.parametrize("root", [CONTAINER, HOST])
def test_a_run_writes_the_root_that_it_found(node: FakeNode, tmp_path: Path, root: str) -> None:
    install(node.place(root))
    done = run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto")
    assert done.code == 0, done.output
    assert configured_root(node) == root
    assert f'"@{root.rstrip("/")}/sbin/ldconfig'.encode() in node.read(CONFIG)


@pytest.mark.parametrize("command", ["run", "plan"])
def test_without_a_driver_nothing_is_changed_and_the_exit_code_says_it(
    node: FakeNode, tmp_path: Path, command: str
) -> None:
    node.write(DAEMON_JSON, "{}")
    before = node.snapshot()
    done = run(node, tmp_path, command, "--driver-root", "auto")
    assert done.code == 8
    assert all(reason in done.output for reason in NOTHING)
    assert "--wait-for-driver" in done.output
    assert node.snapshot() == before


@runs_drivers
def test_a_driver_that_is_being_replaced_changes_nothing_on_a_node_that_is_right(
    node: FakeNode, tmp_path: Path
) -> None:
    program = install(node.place(CONTAINER))
    assert run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto").code == 0
    stamps = node.stamps()
    program.unlink()
    done = run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto")
    assert done.code == 0, done.output
    assert NOTHING_TO_DO in done.output
    assert "the installed root stays" in done.output
    assert {path: stamp for path, stamp in node.stamps().items() if CONTAINER not in path} == {
        path: stamp for path, stamp in stamps.items() if CONTAINER not in path
    }


@runs_drivers
def test_another_driver_is_taken_over_by_the_next_run(node: FakeNode, tmp_path: Path) -> None:
    program = install(node.place(CONTAINER))
    assert run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto").code == 0
    program.unlink()
    install(node.place(HOST))
    assert run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto").code == 0
    assert configured_root(node) == HOST


@pytest.mark.parametrize("content", ["[nvidia-container-cli\n", "nvidia-container-cli = 1\n", "x = 1\n"])
def test_a_damaged_config_of_the_toolkit_says_nothing_of_the_driver(
    node: FakeNode, tmp_path: Path, content: str
) -> None:
    node.write(CONFIG, content)
    assert run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto").code == 8


def test_a_cleanup_needs_no_driver(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, "{}")
    before = node.snapshot()
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    done = run(node, tmp_path, "uninstall", "--driver-root", "auto")
    assert done.code == 0, done.output
    assert {path for path in node.snapshot() if not path.startswith("/run")} == {
        path for path in before if not path.startswith("/run")
    }
