"""Nodes of k3s, RKE2, k0s and microk8s from start to end: what is made for their containerd is never written.

`DISTRIBUTION_FILES=write pytest …` writes the expected files anew, to be read before use.
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.node import faults
from tests.node.faults import Plan
from tests.support.distribution_cases import WRITE, Case, cases
from tests.support.fake_node import NOTHING_TO_DO, SCRIPTS, TOOLKIT, WAITING, FakeNode
from toolkit_installer.engines.detect.unit_files import BY_NAME

CASES = pytest.mark.parametrize("case", cases(), ids=str)
AGENT = "/var/lib/rancher/k3s/agent/etc/containerd"
FOLDERS = {"config.toml.d": 2, "config-v3.toml.d": 3}
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
HANDLERS = {
    "nvidia": f"{TOOLKIT}/nvidia-container-runtime",
    "nvidia-cdi": f"{TOOLKIT}/nvidia-container-runtime.cdi",
    "nvidia-legacy": f"{TOOLKIT}/nvidia-container-runtime.legacy",
}


def runtimes(document: dict[str, Any]) -> dict[str, Any]:
    table = document["plugins"][CRI[document["version"]]]["containerd"]["runtimes"]
    assert isinstance(table, dict)
    return table


@CASES
def test_only_the_places_for_additions_change_and_all_is_back_afterwards(node: FakeNode, case: Case) -> None:
    case.put(node)
    before = node.snapshot()
    run = node.waiting(engine="auto")
    assert f"distribution={case.distribution} " in run.output
    if WRITE:
        case.write(case.changed(node))
    assert case.changed(node) == case.expected()
    assert BY_NAME[case.distribution].config not in case.changed(node) or case.distribution == "microk8s"
    again = node.do("plan", engine="containerd")
    assert NOTHING_TO_DO in again.output, again.output
    assert run.stop() == 0, run.output
    assert node.snapshot() == given_back(before, case)


@CASES
def test_every_version_that_is_written_is_that_of_the_file_which_is_made(case: Case) -> None:
    for path, content in case.expected().items():
        if not path.endswith(".toml"):
            continue
        document = tomllib.loads(content.decode())
        root = next(
            place for place in (case.folder / "in").rglob("*.toml") if place.name in ("config.toml", "containerd.toml")
        )
        made = tomllib.loads(root.read_text())["version"]
        # k3s and RKE2 import a folder of its own from each version of what they make next
        assert document["version"] == FOLDERS.get(Path(path).parent.name, made)
        found = {name: runtimes(document)[name]["options"]["BinaryName"] for name in HANDLERS}
        assert found == HANDLERS
        assert "imports" not in document or case.distribution == "microk8s"  # k0s follows none


@CASES
def test_killed_at_instants_around_its_files_the_node_is_given_back_whole(
    node: FakeNode, case: Case, tmp_path: Path
) -> None:
    case.put(node)
    before = node.snapshot()
    whole = faults.run(node, tmp_path, "run", "--no-daemon", engine="auto")
    assert whole.code == 0, whole.output
    installed = case.changed(node)
    undone = faults.run(node, tmp_path, "uninstall", engine="auto")
    assert undone.code == 0, undone.output
    without = given_back(before, case)
    whole_tree = {path: each for path, each in without.items() if not path.startswith("/run/nvidia")}
    assert tree(node) == whole_tree
    put_back(node, case)
    near = [at for at, call in enumerate(whole.calls) if "99-nvidia" in call or "toml" in call]
    instants = sorted({*near[:3], *near[len(near) // 2 : len(near) // 2 + 2], *near[-2:], len(whole.calls) - 2})
    for turn, at in enumerate(instants):
        killed = faults.run(node, tmp_path, "run", "--no-daemon", engine="auto", plan=Plan(at))
        assert killed.code == -9, killed.output
        if turn % 2:
            again = faults.run(node, tmp_path, "run", "--no-daemon", engine="auto")
            assert again.code == 0, again.output
            assert case.changed(node) == installed
        done = faults.run(node, tmp_path, "uninstall", engine="auto")
        assert done.code == 0, done.output
        assert tree(node) == whole_tree, at
        put_back(node, case)


def put_back(node: FakeNode, case: Case) -> None:
    """Write an older installer's entries again, where the case has any."""
    for path in case.left():
        node.write(path, case.read(path))


def given_back(before: dict[str, Any], case: Case) -> dict[str, Any]:
    """Return what cleanup leaves of a node that was so: all of it, but for an older installer's entries."""
    left = {path: dataclasses.replace(before[path], content=content) for path, content in case.left().items()}
    return {**before, **left}


def tree(node: FakeNode) -> dict[str, Any]:
    return {path: each for path, each in node.snapshot().items() if not path.startswith("/run/nvidia")}


def placed(node: FakeNode, name: str) -> Case:
    case = Case(*name.split("/"))
    case.put(node)
    return case


# --- low-level runtimes ---


@pytest.mark.parametrize(
    "name,runc",
    [
        ("k3s/drop-in", "/var/lib/rancher/k3s/data/current/bin/runc"),
        ("rke2/drop-in", "/var/lib/rancher/rke2/bin/runc"),
        ("k0s/version-3", "/var/lib/k0s/bin/runc"),
    ],
)
def test_the_runc_that_a_distribution_brings_is_used_by_its_absolute_path(node: FakeNode, name: str, runc: str) -> None:
    placed(node, name)
    assert node.do("run", "--no-daemon", engine="auto").process.returncode == 0
    config = tomllib.loads(node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml").decode())
    assert config["nvidia-container-runtime"]["runtimes"] == [runc, "runc", "crun"]
    assert runc.encode() in node.read(f"{TOOLKIT}/nvidia-container-runtime")


# --- options of the handlers, and CDI ---


@pytest.mark.parametrize(
    "name,cdi", [("k0s/version-2", True), ("k0s/version-3", None), ("microk8s/template", True), ("k3s/drop-in", None)]
)
def test_cdi_is_turned_on_where_it_is_off_and_options_are_merged_into_the_handlers(
    node: FakeNode, name: str, cdi: object
) -> None:
    case = placed(node, name)
    before = tree(node)
    flags = ("--enable-cdi-in-runtime", "--runtime-config-override", '{"NoPivotRoot": true}')
    run = node.do("run", "--no-daemon", *flags, engine="auto")
    assert run.process.returncode == 0, run.output
    (content,) = case.changed(node).values()
    document = tomllib.loads(content.decode())
    assert document["plugins"][CRI[document["version"]]].get("enable_cdi") is cdi
    options = runtimes(document)["nvidia"]["options"]
    assert (options["NoPivotRoot"], options["BinaryName"]) == (True, HANDLERS["nvidia"])
    assert node.do("uninstall", engine="auto").process.returncode == 0
    assert tree(node) == before


@pytest.mark.parametrize("name", ["k3s/drop-in", "k3s/template-extended", "k0s/version-2", "microk8s/template"])
def test_a_named_configuration_source_and_a_table_override_reach_the_handlers(node: FakeNode, name: str) -> None:
    case = placed(node, name)
    lender = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    node.write("/etc/lender.toml", f"version = 2\n{lender}options.Root = '/lent'\noptions.ShimCgroup = '/lent'\n")
    override = '{"options": {"ShimCgroup": "/mine"}, "snapshotter": "nydus"}'
    flags = ("--config-source", "file=/etc/lender.toml", "--runtime-config-override", override)
    run = node.do("run", "--no-daemon", *flags, engine="auto")
    assert run.process.returncode == 0, run.output
    # k3s may find the toolkit itself, and then makes its own table
    assert ("not used" in run.output) == (name == "k3s/template-extended")
    (content,) = (text for path, text in case.changed(node).items() if path != "/etc/lender.toml")
    _, _, block = content.decode().partition("# Added by")
    if name.startswith("k3s/template"):
        block = "\n".join(line for line in block.splitlines() if not line.startswith("{{"))
    document = tomllib.loads("#" + block)
    (plugin,) = document["plugins"].values()
    for handler, path in HANDLERS.items():
        table = plugin["containerd"]["runtimes"][handler]
        assert table["options"] == {"Root": "/lent", "ShimCgroup": "/mine", "BinaryName": path}
        assert table["snapshotter"] == "nydus"


def test_a_drop_in_that_an_operator_names_where_none_is_read_is_said_to_be_unused(node: FakeNode) -> None:
    case = placed(node, "microk8s/template")
    run = node.do("run", "--no-daemon", "--drop-in-config", "/etc/containerd/conf.d/99-nvidia.toml", engine="auto")
    assert run.process.returncode == 0, run.output
    assert "/etc/containerd/conf.d/99-nvidia.toml is not used: microk8s does not read it" in run.output
    assert case.changed(node) == case.expected()


# --- somebody else's edits meanwhile ---


def test_an_edit_of_the_drop_in_stays_and_ours_goes(node: FakeNode) -> None:
    placed(node, "k3s/drop-in")
    node.do("run", "--no-daemon", engine="auto")
    path = f"{AGENT}/config-v3.toml.d/99-nvidia.toml"
    theirs = b"\n[debug]\n  level = 'debug' # somebody's\n"
    node.write(path, node.read(path) + theirs)
    assert node.do("uninstall", engine="auto").process.returncode == 0
    assert tomllib.loads(node.read(path).decode()) == {"debug": {"level": "debug"}}
    assert b"# somebody's" in node.read(path)


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_an_edit_of_the_template_stays_and_only_the_block_goes(node: FakeNode, ending: str) -> None:
    path = f"{AGENT}/config-v3.toml.tmpl"
    placed(node, "k3s/template-created")
    node.write(path, f'{{{{ template "base" . }}}}\n# theirs{ending}')
    before = node.read(path)
    assert node.do("run", "--no-daemon", engine="auto").process.returncode == 0
    node.write(path, b"# first line\n" + node.read(path) + b"# last line\n")
    assert node.do("uninstall", engine="auto").process.returncode == 0
    assert node.read(path) == b"# first line\n" + before + b"# last line\n"


def test_a_template_that_was_created_for_us_and_was_built_upon_stays_without_ours(node: FakeNode) -> None:
    placed(node, "k3s/template-created")
    node.do("run", "--no-daemon", engine="auto")
    path = f"{AGENT}/config-v3.toml.tmpl"
    node.write(path, node.read(path) + b"[debug]\n")
    assert node.do("uninstall", engine="auto").process.returncode == 0
    assert node.read(path) == b'{{ template "base" . }}\n[debug]\n'


def test_without_a_receipt_what_is_ours_is_recognised_in_a_template_and_in_a_drop_in(node: FakeNode) -> None:
    for name in ("k3s/template-extended", "k3s/drop-in"):
        placed(node, name)
        before = tree(node)
        node.do("run", "--no-daemon", engine="auto")
        node.place("/usr/local/nvidia/.toolkit-installer/receipt.json").unlink()
        done = node.do("uninstall", engine="auto")
        assert done.process.returncode == 0, done.output
        left = {path: each for path, each in tree(node).items() if path not in before}
        assert not any(each.kind == "-" for each in left.values()), left
        assert {path: each.content for path, each in tree(node).items() if path in before} == {
            path: each.content for path, each in before.items()
        }


def test_an_upgrade_to_a_k3s_that_imports_drop_ins_moves_the_handlers_there(node: FakeNode) -> None:
    placed(node, "k3s/template-created")
    before = tree(node)
    node.do("run", "--no-daemon", engine="auto")
    newer = Case("k3s", "drop-in").folder / "in" / AGENT.lstrip("/") / "config.toml"
    older = node.read(f"{AGENT}/config.toml")
    node.write(f"{AGENT}/config.toml", newer.read_bytes())
    done = node.do("run", "--no-daemon", engine="auto")
    assert done.process.returncode == 0, done.output
    assert not node.exists(f"{AGENT}/config-v3.toml.tmpl")
    assert node.exists(f"{AGENT}/config-v3.toml.d/99-nvidia.toml")
    node.write(f"{AGENT}/config.toml", older)
    assert node.do("uninstall", engine="auto").process.returncode == 0
    assert tree(node) == before


# --- what is refused, and what is meant all the same ---


def test_a_second_table_that_would_stop_containerd_is_refused_with_its_line(node: FakeNode) -> None:
    placed(node, "k3s/template-created-of-version-2")
    by_hand = b'{{ template "base" . }}\n\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes."nvidia".options]\n'
    header = b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes."nvidia"]\n'
    node.write(f"{AGENT}/config.toml.tmpl", by_hand.replace(b"\n\n", b"\n" + header))
    before = tree(node)
    run = node.do("run", "--no-daemon", engine="auto")
    assert run.process.returncode == 3
    assert f"{AGENT}/config.toml.tmpl line=2" in run.output.replace("file=", "")
    assert tree(node) == before


def test_a_template_that_registers_something_else_under_our_name_is_refused(node: FakeNode) -> None:
    case = placed(node, "k3s/template-with-nvidia")
    path = f"{AGENT}/config.toml.tmpl"
    node.write(path, node.read(path).replace(b"/usr/local/nvidia/toolkit/", b"/usr/bin/"))
    before = tree(node)
    assert node.do("run", "--no-daemon", engine="auto").process.returncode == 3
    assert tree(node) == before
    assert node.do("run", "--no-daemon", "--runtime-name", "gpu", engine="auto").process.returncode == 0
    assert case.name == "template-with-nvidia"


def test_a_k3s_that_has_not_started_yet_is_refused(node: FakeNode) -> None:
    node.write("/etc/systemd/system/k3s.service", "[Service]\n")
    run = node.do("run", "--no-daemon", engine="auto")
    assert run.process.returncode == 3
    assert "start k3s once" in run.output


def test_a_toolkit_elsewhere_is_refused_where_k3s_finds_only_its_usual_folder(node: FakeNode) -> None:
    placed(node, "k3s/no-place")
    before = tree(node)
    assert node.do("run", "--no-daemon", "/opt/nvidia", engine="auto").process.returncode == 3
    assert tree(node) == before


def test_the_generated_file_that_an_operator_names_is_not_edited_either(node: FakeNode) -> None:
    case = placed(node, "k3s/drop-in")
    flags = ("--config", f"{AGENT}/config.toml", "--drop-in-config", "/etc/containerd/conf.d/99-nvidia.toml")
    run = node.do("run", "--no-daemon", *flags, "--socket", "/run/k3s/containerd/containerd.sock", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert "99-nvidia.toml is not used: k3s does not read it" in run.output
    assert case.changed(node) == case.expected()


def test_the_template_that_an_operator_names_is_edited_as_a_template(node: FakeNode) -> None:
    case = placed(node, "k3s/template-extended")
    run = node.do("run", "--no-daemon", "--config", f"{AGENT}/config-v3.toml.tmpl", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert case.changed(node) == case.expected()


def test_a_generated_file_is_not_written_through_a_link_that_has_the_drop_ins_name(node: FakeNode) -> None:
    placed(node, "k3s/drop-in")
    node.place(f"{AGENT}/config-v3.toml.d").mkdir()
    node.place(f"{AGENT}/config-v3.toml.d/99-nvidia.toml").symlink_to("../config.toml")
    before = tree(node)
    run = node.do("run", "--no-daemon", engine="auto")
    assert run.process.returncode == 3, run.output
    assert "is named as distribution's drop-in as well, or a symlink of that name leads here" in run.output
    assert tree(node) == before


def test_a_drop_in_that_an_operator_names_is_used_where_k0s_reads_it(node: FakeNode) -> None:
    case = placed(node, "k0s/version-3")
    flags = ("--config", "/run/k0s/containerd-cri.toml", "--drop-in-config", "/etc/k0s/containerd.d/nvidia.toml")
    assert node.do("run", "--no-daemon", *flags, engine="containerd").process.returncode == 0
    (content,) = case.expected().values()
    assert case.changed(node) == {"/etc/k0s/containerd.d/nvidia.toml": content}


def test_a_k0s_file_that_somebody_took_over_is_edited_as_any_containerds(node: FakeNode) -> None:
    placed(node, "k0s/version-3")
    node.write("/etc/k0s/containerd.toml", "version = 3\nroot = '/var/lib/k0s/containerd'\n")
    before = tree(node)
    assert node.do("run", "--no-daemon", engine="auto").process.returncode == 0
    assert not node.exists("/etc/k0s/containerd.d")
    assert "nvidia" in runtimes(tomllib.loads(node.read("/etc/k0s/containerd.toml").decode()))
    assert node.do("uninstall", engine="auto").process.returncode == 0
    assert tree(node) == before


def test_microk8s_copies_its_template_at_a_refresh_and_both_copies_are_given_back(node: FakeNode) -> None:
    placed(node, "microk8s/template")
    before = tree(node)
    node.do("run", "--no-daemon", engine="auto")
    args = node.place("/var/snap/microk8s/6102/args")
    args.mkdir(parents=True)
    for name in ("containerd-template.toml", "containerd.toml"):
        (args / name).write_bytes(node.read(f"/var/snap/microk8s/6089/args/{name}"))
    current = node.place("/var/snap/microk8s/current")
    current.unlink()
    current.symlink_to("6102")
    done = node.do("run", "--no-daemon", engine="auto")
    assert done.process.returncode == 0, done.output
    assert node.do("uninstall", engine="auto").process.returncode == 0
    template = "args/containerd-template.toml"
    original = before[f"/var/snap/microk8s/6089/{template}"].content
    assert node.read(f"/var/snap/microk8s/6089/{template}") == original
    assert TOOLKIT.encode() not in node.read(f"/var/snap/microk8s/6102/{template}")


def test_the_operators_daemonset_finds_k3s_behind_its_mounts(node: FakeNode, tmp_path: Path) -> None:
    case = Case("k3s", "drop-in")
    config = tmp_path / "runtime" / "config-dir" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_bytes(case.read(f"{AGENT}/config.toml"))
    flags = ("--restart-mode", "none", "--toolkit-source-root", str(node.payload), "--root", str(tmp_path / "nvidia"))
    more = ("--pid-file", str(tmp_path / "toolkit.pid"), "--socket", str(tmp_path / "runtime" / "containerd.sock"))
    named = ("--config", str(config), "--drop-in-config", str(tmp_path / "runtime" / "config-dir.d" / "99-nvidia.toml"))
    host = ("--drop-in-config-host-path", "/etc/containerd/conf.d/99-nvidia.toml", "--runtime", "containerd")
    run = node._started([str(SCRIPTS / "nvidia-toolkit"), *flags, *more, *named, *host])
    run.wait_for(WAITING)
    assert config.read_bytes() == case.read(f"{AGENT}/config.toml")
    (expected,) = case.expected().values()
    written = (config.parent / "config-v3.toml.d" / "99-nvidia.toml").read_bytes()
    assert written == expected.replace(b"/usr/local/nvidia", str(tmp_path / "nvidia").encode())
    assert run.stop() == 0
    assert list((tmp_path / "runtime").rglob("*")) == [config.parent, config]


COPY = b"# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.\nversion = 2\n"
BASE = b'{{ template "base" . }}\n'


@pytest.mark.parametrize(
    "flags, beside", [(("--socket=/run/k3s/containerd/containerd.sock",), None), ((), "config.toml.tmpl")]
)
def test_k3s_generated_file_is_never_written_even_when_mounted_at_the_usual_place(
    node: FakeNode, flags: tuple[str, ...], beside: str | None
) -> None:
    node.write("/etc/containerd/config.toml", COPY)
    if beside is not None:
        node.write(f"/etc/containerd/{beside}", BASE)
    run = node.do("run", "--no-daemon", "--config=/etc/containerd/config.toml", *flags, engine="containerd")
    assert run.process.returncode == 0, run.output
    assert node.read("/etc/containerd/config.toml") == COPY
    assert b"nvidia" in node.read("/etc/containerd/config.toml.tmpl")


def test_a_plain_containerds_copy_of_a_generated_file_is_edited_and_reverted(
    node: FakeNode,
) -> None:
    node.write("/etc/containerd/config.toml", COPY)
    before = node.snapshot()
    run = node.do("run", "--no-daemon", "--config=/etc/containerd/config.toml", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert node.read("/etc/containerd/config.toml").startswith(COPY)
    assert set(HANDLERS) < set(runtimes(tomllib.loads(node.read("/etc/containerd/config.toml").decode())))
    assert node.do("uninstall", engine="containerd").process.returncode == 0
    assert node.snapshot() == before


@pytest.mark.parametrize("version", ["version-2", "version-3"])
def test_a_file_named_in_k0s_drop_in_folder_gets_the_roots_version(node: FakeNode, version: str) -> None:
    case = placed(node, f"k0s/{version}")
    before = tree(node)
    flags = ("--config", "/etc/k0s/containerd.d/nvidia.toml", "--socket", "/run/k0s/containerd.sock")
    operator = ("--drop-in-config", "/etc/containerd/conf.d/99-nvidia.toml")
    assert node.do("run", "--no-daemon", *flags, *operator, engine="containerd").process.returncode == 0
    (content,) = case.expected().values()
    assert case.changed(node) == {"/etc/k0s/containerd.d/nvidia.toml": content}
    assert node.do("uninstall", engine="containerd").process.returncode == 0
    assert tree(node) == before


def test_a_named_drop_in_is_refused_until_k0s_has_made_its_root_file(node: FakeNode) -> None:
    flags = ("--config", "/etc/k0s/containerd.d/nvidia.toml", "--socket", "/run/k0s/containerd.sock")
    run = node.do("run", "--no-daemon", *flags, engine="containerd")
    assert run.process.returncode == 3, run.output
    assert "k0s has not made it yet" in run.output


def test_a_drop_in_of_k3s_that_is_named_is_written_where_k3s_reads_it(node: FakeNode) -> None:
    case = placed(node, "k3s/drop-in")
    flags = ("--config", f"{AGENT}/config-v3.toml.d/nvidia.toml")
    run = node.do("run", "--no-daemon", *flags, engine="containerd")
    assert run.process.returncode == 0, run.output
    (content,) = case.expected().values()
    assert case.changed(node) == {f"{AGENT}/config-v3.toml.d/nvidia.toml": content}


def test_a_named_drop_in_that_k3s_does_not_read_is_refused(node: FakeNode) -> None:
    case = placed(node, "k3s/drop-in")
    run = node.do("run", "--no-daemon", "--config", f"{AGENT}/config.toml.d/nvidia.toml", engine="containerd")
    assert run.process.returncode == 3, run.output
    assert f"k3s reads drop-ins of version 3 from {AGENT}/config-v3.toml.d" in run.output
    assert case.changed(node) == {}


def test_a_named_drop_in_is_refused_where_k3s_imports_none(node: FakeNode) -> None:
    case = placed(node, "k3s/template-extended")
    run = node.do("run", "--no-daemon", "--config", f"{AGENT}/config-v3.toml.d/nvidia.toml", engine="containerd")
    assert run.process.returncode == 3, run.output
    assert "this k3s imports no drop-in" in run.output
    assert case.changed(node) == {}


def test_a_drop_in_in_a_folder_of_that_name_may_be_a_plain_containerds(node: FakeNode) -> None:
    node.write("/etc/containerd/config.toml.d/nvidia.toml", "version = 2\n")
    node.write("/etc/containerd/config.toml", "version = 2\n")
    flags = ("--config", "/etc/containerd/config.toml.d/nvidia.toml")
    assert node.do("run", "--no-daemon", *flags, engine="containerd").process.returncode == 0
