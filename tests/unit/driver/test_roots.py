"""`--driver-root auto`: the root in which nvidia-smi works, and the device root and the paths here that go with it."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from tests.support import driver_roots
from tests.support.driver_roots import CONTAINER, HOST, VERSION, install
from tests.support.fake_node import FakeNode
from toolkit_installer.driver import roots
from toolkit_installer.driver.roots import CONTAINER_READY, DRIVER_READY, VALIDATIONS, Driver
from toolkit_installer.errors import DriverNotReadyError
from toolkit_installer.node.node import Node
from toolkit_installer.settings import AUTO, ToolkitSettings
from toolkit_installer.toolkit.wrappers import CONFIG_NAME

runs_drivers = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)


TO_BE_FOUND = ToolkitSettings(driver_root=AUTO, driver_root_ctr_path=AUTO, dev_root=AUTO, dev_root_ctr_path=AUTO)


NOTHING = ("/run/nvidia/driver: there is no such folder", "/: there is no nvidia-smi")


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    (tmp_path / "node/run").mkdir(parents=True)
    return FakeNode(tmp_path / "node", tmp_path)


def looked(node: FakeNode, toolkit: ToolkitSettings = TO_BE_FOUND) -> roots.DriverSearch:
    return roots.find_driver(Node(str(node.root)), toolkit)


def found(node: FakeNode, toolkit: ToolkitSettings = TO_BE_FOUND) -> Driver:
    seen = looked(node, toolkit)
    assert seen.driver is not None, seen.missing
    return seen.driver


def operator_says(node: FakeNode, root: str, dev_root: str = "", **more: str) -> None:
    said = {"IS_HOST_DRIVER": "false", "NVIDIA_DRIVER_ROOT": root, "NVIDIA_DEV_ROOT": dev_root or root, **more}
    node.write(DRIVER_READY, "".join(f"{name}={value}\n" for name, value in said.items()))


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


# --- while no driver is usable ---


def put_config(node: FakeNode, text: str) -> None:
    node.write(f"{TO_BE_FOUND.folder}/{CONFIG_NAME}", text)


@pytest.mark.parametrize(
    "text, root",
    [
        ('[nvidia-container-cli]\nroot = "/run/nvidia/driver"\n', "/run/nvidia/driver"),
        ('[nvidia-container-cli]\nroot = "relative"\n', None),
        ("[nvidia-container-cli]\nroot = 5\n", None),
        ("nvidia-container-cli = 5\n", None),
        ("x = = 1\n", None),
        ("", None),
    ],
)
def test_the_installed_root_is_read_of_a_whole_file_alone(node: FakeNode, text: str, root: str | None) -> None:
    assert roots.find_installed_root(Node(str(node.root)), TO_BE_FOUND.folder) is None
    put_config(node, text)
    assert roots.find_installed_root(Node(str(node.root)), TO_BE_FOUND.folder) == root


def test_a_node_that_has_the_toolkit_keeps_the_root_that_it_was_installed_with(
    node: FakeNode, logged: io.StringIO
) -> None:
    with pytest.raises(DriverNotReadyError, match="there is no nvidia-smi") as refused:
        roots.resolve_driver(TO_BE_FOUND, Node(str(node.root)))
    assert "--wait-for-driver" in (refused.value.hint or "")
    put_config(node, '[nvidia-container-cli]\nroot = "/opt/driver"\n')
    kept, is_gone = roots.resolve_driver(TO_BE_FOUND, Node(str(node.root)))
    assert (kept.root, kept.seen_at, is_gone) == ("/opt/driver", str(node.place("/opt/driver")), True)
    assert "event=driver-gone" in logged.getvalue()


@runs_drivers
def test_a_driver_that_works_is_resolved_and_said(node: FakeNode, logged: io.StringIO) -> None:
    install(node.place(CONTAINER))
    resolved, is_gone = roots.resolve_driver(TO_BE_FOUND, Node(str(node.root)))
    assert (resolved, is_gone) == (found(node), False)
    assert "event=driver-found" in logged.getvalue()


def test_paths_that_were_configured_are_used_unchecked(node: FakeNode) -> None:
    given = ToolkitSettings(driver_root="/d", driver_root_ctr_path="/dc", dev_root="/v", dev_root_ctr_path="/vc")
    assert roots.resolve_driver(given, Node(str(node.root))) == (Driver("/d", "/dc", "/v", "/vc"), False)
    assert not roots.is_automatic(given)
    for field in ("driver_root", "driver_root_ctr_path", "dev_root", "dev_root_ctr_path"):
        assert roots.is_automatic(msgspec.structs.replace(given, **{field: AUTO}))


@runs_drivers
def test_a_driver_that_hangs_is_told_from_one_that_is_not_there(node: FakeNode) -> None:
    program = install(node.place(CONTAINER))
    program.write_text("#!/bin/busybox sh\nexec busybox sleep 60\n")
    seen = roots.find_driver(Node(str(node.root)), TO_BE_FOUND, 0.2)
    assert (seen.driver, seen.hangs, seen.nothing_there) == (None, True, False)


# --- what is watched ---


def test_what_a_driver_would_change_is_watched_in_every_root_where_it_may_come(node: FakeNode) -> None:
    watched = roots.paths_to_watch(Node(str(node.root)), TO_BE_FOUND)
    for path in (CONTAINER_READY, DRIVER_READY, f"{CONTAINER}/usr/bin/nvidia-smi", "/dev/nvidiactl"):
        assert str(node.place(path)) in watched
    assert len(set(watched)) == len(watched)


def test_of_a_root_that_was_named_that_root_alone_is_watched(node: FakeNode) -> None:
    named = msgspec.structs.replace(TO_BE_FOUND, driver_root="/opt/driver")
    watched = roots.paths_to_watch(Node(str(node.root)), named)
    assert watched
    assert all(path.startswith(str(node.place("/opt/driver"))) for path in watched)
