"""The GPU Operator's container with our image in it: its environment, its mounts and its entry point, on each engine.

What it is given is what the Operator's DaemonSet and its controller give (assets/state-container-toolkit and
controllers/object_controls.go of gpu-operator): the node's / read-only at /host, single folders of the node, the driver
container's root, and a script that waits for the driver.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts import carriers, crio_unit, gpu_host
from tests.e2e.hosts.carriers import Carrier, Description, Mount
from tests.e2e.hosts.gpu_nodes import LOOK, THE_GPU
from tests.e2e.hosts.machine import HANDLERS, INSTALL_DIR, Machine
from tests.e2e.program import WAITING
from tests.support import driver_roots, fake_ctk
from tests.support.built import go_tools, nvml
from tests.support.built.installer_image import BuiltImage
from tests.support.engines import cri_client, images
from tests.support.engines.crio import CrioEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.file_states import FileState
    from tests.support.built.go_tools import Tool

NVIDIA = "/run/nvidia"
DRIVER = f"{NVIDIA}/driver"
READY = f"{NVIDIA}/validations/driver-ready"
SPECIFICATION = "/run/cdi/management.nvidia.com-gpu.yaml"
HOOKS = "/usr/share/containers/oci/hooks.d"
TOOLKIT = f"{INSTALL_DIR}/toolkit"
NOT_YET = "the driver is not ready yet"
TOOLKIT_READY = f"{NVIDIA}/validations/toolkit-ready"
VALIDATOR = "registry.example/validator:1"
VALIDATOR_ENVIRONMENT = {"NVIDIA_VISIBLE_DEVICES": "all", "WITH_WAIT": "false", "COMPONENT": "toolkit"}
VALIDATOR_MOUNT = Mount(f"{NVIDIA}/validations", f"{NVIDIA}/validations", propagation="rshared")
ENTRY = ("/bin/sh", "-c", "/bin/entrypoint.sh")
"""What the Operator runs."""
UNINSTALL = ("toolkit-installer", "uninstall")
EXECUTED = ("/bin/sh", "-c", "exec /bin/entrypoint.sh")
"""The same where the image's shell does not stay between the engine's signal and the script."""
ENTRY_POINT = f"""\
#!/bin/sh
until [ -f {READY} ]; do
    echo "{NOT_YET}"
    sleep 1
done
set -o allexport
cat {READY}
. {READY}
sleep 5
exec nvidia-toolkit
"""
DRIVER_READY = f"""\
IS_HOST_DRIVER=false
NVIDIA_DRIVER_ROOT={DRIVER}
DRIVER_ROOT_CTR_PATH=/driver-root
NVIDIA_DEV_ROOT={DRIVER}
DEV_ROOT_CTR_PATH=/driver-root
"""
CONTAINERD = """\
# Managed by hand: ask the storage team before you touch this.
version = 2   # of the format
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = 'registry.example/pause:1'   # mirrored
\trestrict_oom_score_adj = true
  disable_apparmor = true
"""
DOCKER = '{\n  "labels": ["rack=a1"],\n  "log-level":   "info"\n}'
CRIO = crio_unit.CONFIGURATION + '\n[crio.image]\npause_image = "registry.example/pause:1"\n'
_ARCHIVE = "/run/images.tar"


@dataclasses.dataclass(frozen=True)
class Kind:
    """An engine: what the Operator says of it, and where its files are."""

    name: str
    config: str
    text: str
    environment: dict[str, str]
    mounts: tuple[Mount, ...]
    own: frozenset[str]
    """The handlers that it has without us."""
    newest: bool = False
    """It is the newest release, not the machine's own."""

    def __str__(self) -> str:
        return f"{self.name}-newest" if self.newest else self.name


KINDS = (
    Kind(
        "docker",
        "/etc/docker/daemon.json",
        DOCKER,
        {
            "RUNTIME_CONFIG": "/runtime/config-dir/daemon.json",
            "DOCKER_CONFIG": "/runtime/config-dir/daemon.json",
            "RUNTIME_SOCKET": "/runtime/sock-dir/docker.sock",
            "DOCKER_SOCKET": "/runtime/sock-dir/docker.sock",
        },
        (Mount("/etc/docker", "/runtime/config-dir/"), Mount("/var/run", "/runtime/sock-dir/")),
        frozenset({"runc"}),
    ),
    Kind(
        "containerd",
        "/etc/containerd/config.toml",
        CONTAINERD,
        {
            "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
            "CONTAINERD_CONFIG": "/runtime/config-dir/config.toml",
            "RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.toml",
            "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/containerd/conf.d/99-nvidia.toml",
            "RUNTIME_SOCKET": "/runtime/sock-dir/containerd.sock",
            "CONTAINERD_SOCKET": "/runtime/sock-dir/containerd.sock",
            "CONTAINERD_RUNTIME_CLASS": "nvidia",
        },
        (
            Mount("/etc/containerd", "/runtime/config-dir/"),
            Mount("/etc/containerd/conf.d", "/runtime/config-dir.d/"),
            Mount("/run/containerd", "/runtime/sock-dir/"),
        ),
        frozenset({"runc"}),
    ),
    Kind(
        "crio",
        crio_unit.CONFIG,
        CRIO,
        # its file is another than CRI-O's own, and its socket is not mounted
        {
            "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
            "CRIO_CONFIG": "/runtime/config-dir/config.toml",
            "RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.conf",
            "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/crio/crio.conf.d/99-nvidia.conf",
        },
        (Mount("/etc/crio", "/runtime/config-dir/"), Mount("/etc/crio/crio.conf.d", "/runtime/config-dir.d/")),
        frozenset({"crun", "runc"}),
    ),
)
CONTAINERD_2 = dataclasses.replace(
    next(kind for kind in KINDS if kind.name == "containerd"),
    text="""\
version = 3   # of the format
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "registry.example/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
""",
    newest=True,
)
ENVIRONMENT = {
    "ROOT": INSTALL_DIR,
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "TOOLKIT_PID_FILE": f"{NVIDIA}/toolkit/toolkit.pid",
    "NRI_NAMESPACE": "gpu-operator",
}
WITH_CDI = {
    "CDI_ENABLED": "true",
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
    "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
    "CRIO_CONFIG_MODE": "config",
}
MOUNTS = (
    Mount("/", "/host", read_only=True, propagation="rslave"),
    Mount(f"{NVIDIA}/toolkit", f"{NVIDIA}/toolkit"),
    Mount(f"{NVIDIA}/validations", f"{NVIDIA}/validations", propagation="rslave"),
    Mount(INSTALL_DIR, INSTALL_DIR),
    Mount(HOOKS, HOOKS),
    Mount(DRIVER, "/driver-root", propagation="rslave"),
    Mount("/var/run/cdi", "/var/run/cdi"),
)


@dataclasses.dataclass
class Site:
    """A machine whose engine runs, with the image, and a GPU whose driver container is not ready."""

    machine: Machine
    kind: Kind
    carrier: Carrier
    image: str
    before: FileState | None = None

    def start(self, *, cdi: bool, entry: tuple[str, ...] = EXECUTED) -> str:
        """Start the Operator's container."""
        environment = {**self.environment, **(WITH_CDI if cdi else {})}
        script = self.machine.host.path("/var/lib/entrypoint.sh")
        script.write_text(ENTRY_POINT)
        script.chmod(0o755)
        mounts = (*self.mounts, Mount("/var/lib/entrypoint.sh", "/bin/entrypoint.sh", read_only=True))
        return self.carrier.start(Description(self.image, environment, mounts, entry))

    @property
    def environment(self) -> dict[str, str]:
        """What the Operator says of this engine, with CDI off."""
        return {**ENVIRONMENT, "RUNTIME": self.kind.name, **self.kind.environment}

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What the Operator mounts for this engine."""
        return (*MOUNTS, *self.kind.mounts)

    def driver_is_ready(self) -> None:
        """Say what the Operator's validator says."""
        self.machine.host.path(READY).write_text(DRIVER_READY)

    def stopped(self, container: str) -> int:
        """Stop the container and return its exit code.

        CRI-O ends only once it has answered all its calls, that to stop a container among them: there it is signalled
        by hand.
        """
        if self.kind.name != "crio":
            return self.carrier.stop(container)
        self.machine.host.run("sh", "-c", f"kill -TERM $(cat {NVIDIA}/toolkit/toolkit.pid)")
        return self.carrier.wait_until_ended(container)

    def validate(self, handler: str) -> tuple[int, str]:
        """Run the Operator's validator of the toolkit, and return its exit code and its log."""
        mounts, entry = (VALIDATOR_MOUNT,), ("nvidia-validator",)
        container = self.carrier.start(Description(VALIDATOR, VALIDATOR_ENVIRONMENT, mounts, entry, handler=handler))
        code, log = self.carrier.wait_until_ended(container), self.carrier.log(container)
        self.carrier.remove(container)
        return code, log

    def handlers(self) -> set[str]:
        """Return what the live engine offers."""
        if self.kind.name == "docker":
            return self.machine.docker_handlers()
        if self.kind.name == "containerd":
            return self.machine.handlers()
        answer = cri_client.status(self.machine.host.path(crio_unit.SOCKET), 20)
        return set(answer["handlers"]) - {""}

    def configured(self) -> set[str]:
        """Return what lies in the folders of the engine's files, and of CDI's specifications."""
        folders = [mount.source for mount in self.kind.mounts if mount.target.startswith("/runtime/config")]
        places = [self.machine.host.path(folder) for folder in (*folders, "/run/cdi")]
        return {path.name for place in places for path in place.iterdir() if path.is_file()}


def _driver(machine: Machine, work: Path) -> None:
    """Have a GPU, its driver in a container's root, and the folders that the Operator makes where they are missing."""
    host = machine.host
    gpu_host.install(host, work)
    nvml.install(driver_roots.install(host.path(DRIVER)).parents[2])
    for mount in MOUNTS:
        host.run("mkdir", "-p", mount.source)


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def machine(kind: Kind, request: pytest.FixtureRequest) -> Machine:
    """Return a machine with the kind's engine."""
    name = "newest_machine" if kind.newest else "machine"
    return request.getfixturevalue(name)  # type: ignore[no-any-return]


@pytest.fixture
def carrier(kind: Kind, machine: Machine, go_tool: Callable[[Tool], Path]) -> Iterator[Carrier]:
    """Yield the machine's live engine."""
    host = machine.host
    if kind.newest:
        host.run("umount", "/usr/sbin/runc")  # that release's own starts no container in such a machine
    host.run("mount", "--make-rshared", "/")
    for mount in kind.mounts:
        host.run("mkdir", "-p", mount.source)
    if kind.name == "docker":
        options = "--bridge=none --iptables=false --ip6tables=false --storage-driver=overlay2"
        host.path("/etc/default/docker").write_text(f'DOCKER_OPTS="{options}"\n')
    if kind.name == "crio":
        if missing := CrioEngine.missing():
            pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages conmon, crun, runc)")
        crio_unit.bring(host, go_tool(go_tools.CRIO))
        words = host.property("crio", "ExecStart").partition("argv[]=")[2].partition(" ;")[0]
        words = words.replace("--storage-driver=vfs", "--storage-driver=overlay --root=/run/storage")
        machine.override("crio", "ExecStart=", f"ExecStart={words} --default-transport=docker-archive:{_ARCHIVE}:")
    machine.serve(kind.name, kind.config, kind.text)
    sockets = {"containerd": "/run/containerd/containerd.sock", "crio": crio_unit.SOCKET}
    with (
        carriers.Docker(host)
        if kind.name == "docker"
        else carriers.Cri(host, sockets[kind.name], _ARCHIVE if kind.name == "crio" else None)
    ) as made:
        yield made


@pytest.fixture
def site(machine: Machine, kind: Kind, carrier: Carrier, built_image: BuiltImage, folder: Path) -> Site:
    carrier.load(images.archive(), images.PAUSE)
    carrier.load(images.archive(), images.IMAGE)
    carrier.load(built_image.archive, built_image.reference)
    _driver(machine, folder / "driver")
    return Site(machine, kind, carrier, built_image.reference, machine.state(kind.config))


@pytest.fixture
def validator(site: Site, go_tool: Callable[[Tool], Path]) -> None:
    """Bring the Operator's validator to the machine; nvidia-smi, which it runs, is not in its image."""
    program = go_tool(go_tools.VALIDATOR) / "validator"
    settings = {"Env": ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=void"]}
    archive = images.archive({"usr/bin/nvidia-validator": program}, names=[VALIDATOR], settings=settings)
    site.carrier.load(archive, VALIDATOR)


@pytest.mark.usefixtures("validator")
@pytest.mark.parametrize("cdi", [False, True], ids=["without-cdi", "with-cdi"])
def test_the_operators_container_waits_for_the_driver_and_reverts_the_node(
    site: Site,
    cdi: bool,  # noqa: FBT001  # a case
) -> None:
    machine, carrier, before = site.machine, site.carrier, site.configured()
    container = site.start(cdi=cdi)
    carrier.wait_for(container, NOT_YET)
    assert site.handlers() == site.kind.own
    assert not machine.exists(TOOLKIT)
    code, log = site.validate("")
    assert code != 0, log
    assert not machine.exists(TOOLKIT_READY)

    site.driver_is_ready()
    carrier.wait_for(container, WAITING)
    assert site.handlers() == site.kind.own | HANDLERS, carrier.log(container)
    assert machine.exists(SPECIFICATION) is cdi
    by_name = "management.nvidia.com/gpu=all" if cdi else "nvidia.com/gpu=0"
    environment = {"NVIDIA_VISIBLE_DEVICES": by_name}
    if cdi:
        text = machine.host.path(SPECIFICATION).read_text()
        assert f"hostPath: {DRIVER}/{fake_ctk.LIBRARIES}/libcuda.so.{fake_ctk.VERSION}\n" in text
        assert f"path: {TOOLKIT}/nvidia-cdi-hook\n" in text
        assert "/driver-root" not in text
        look = f"ls /dev/nvidiactl /{fake_ctk.LIBRARIES}/libcuda.so.{fake_ctk.VERSION} 2>/dev/null || true"
        assert len(carrier.look("nvidia", environment, look).split()) == 2
        assert carrier.look("", environment, look) == "", "it is the default although it was not to be"
    else:
        assert set(carrier.look("nvidia", environment, LOOK).split()) == THE_GPU
        assert set(carrier.look("", environment, LOOK).split()) == THE_GPU, "it is not the default"
    code, log = site.validate("nvidia")
    assert (code, driver_roots.VERSION in log) == (0, True), log
    assert machine.exists(TOOLKIT_READY)

    assert site.stopped(container) == 0, carrier.log(container)
    assert site.handlers() == site.kind.own
    assert machine.state(site.kind.config) == site.before
    assert site.configured() == before
    assert machine.exists(f"{TOOLKIT}/nvidia-container-runtime"), "its callers expect that it stays"
    assert not machine.exists(f"{NVIDIA}/toolkit/toolkit.pid")


@pytest.mark.parametrize("kind", KINDS[:1], ids=str)
def test_a_driver_that_is_named_and_not_there_is_said_and_nothing_is_written(site: Site) -> None:
    site.driver_is_ready()
    machine, before = site.machine, site.configured()
    machine.host.run("rm", "-r", f"{DRIVER}/{fake_ctk.LIBRARIES}")
    container = site.start(cdi=True)
    site.carrier.wait_for(container, "libcuda.so.*.*: not found")
    assert site.carrier.stop(container) == 8, site.carrier.log(container)
    assert not machine.exists(TOOLKIT)
    assert site.configured() == before
    assert site.handlers() == site.kind.own


@pytest.mark.parametrize("kind", KINDS[:1], ids=str)
def test_the_operators_own_command_line_passes_the_signal_on(site: Site) -> None:
    site.driver_is_ready()
    container = site.start(cdi=True, entry=ENTRY)
    site.carrier.wait_for(container, WAITING)
    assert site.carrier.stop(container) == 0, site.carrier.log(container)
    assert site.handlers() == site.kind.own
    assert not site.machine.exists(SPECIFICATION)


@pytest.mark.parametrize("kind", KINDS[2:], ids=str)
def test_a_container_that_crio_stops_leaves_before_crio_does_which_waits_for_it(site: Site) -> None:
    site.driver_is_ready()
    container = site.start(cdi=True)
    site.carrier.wait_for(container, WAITING)
    assert site.carrier.stop(container, seconds=25) == 0, site.carrier.log(container)
    assert site.handlers() == site.kind.own
    assert not site.machine.exists(SPECIFICATION)


def _in_a_debug_pod(site: Site) -> Description:
    """Return what `kubectl debug node/NODE` starts."""
    return Description(site.image, {}, (Mount("/", "/host"),), (*UNINSTALL, "--node-root", "/host"))


def _by_docker_run(site: Site) -> Description:
    """Return what the docker command of the README starts."""
    return Description(site.image, {"NODE_ROOT": "/host"}, (Mount("/", "/host", propagation="rslave"),), UNINSTALL)


def _with_the_operators_mounts(site: Site) -> Description:
    """Return the Operator's own container, with another command."""
    return Description(site.image, site.environment, site.mounts, UNINSTALL)


def _with_single_folders_elsewhere(site: Site) -> Description:
    """Return a container without the Operator's environment, with the node's folders where that has none of them."""
    mounts = [dataclasses.replace(mount, target=f"/other{mount.source}") for mount in site.kind.mounts]
    environment = {"TOOLKIT_PID_FILE": f"{NVIDIA}/toolkit/toolkit.pid"}
    return Description(site.image, environment, (*MOUNTS, *mounts), UNINSTALL)


@pytest.mark.parametrize("kind", [*KINDS, CONTAINERD_2], ids=str)
def test_any_container_takes_back_what_the_operators_container_left(site: Site) -> None:
    """Install with CLEANUP=never, stop that container, and uninstall from another one: in each way once."""
    machine, before = site.machine, site.configured()
    site.driver_is_ready()
    driver = dict(line.split("=") for line in DRIVER_READY.splitlines())
    environment = {**site.environment, **WITH_CDI, **driver, "CLEANUP": "never"}
    for way in (_in_a_debug_pod, _by_docker_run, _with_the_operators_mounts, _with_single_folders_elsewhere):
        if way is _with_single_folders_elsewhere:  # the import names the node's path all the same
            environment.pop("RUNTIME_DROP_IN_CONFIG_HOST_PATH", None)
        installed = site.carrier.start(Description(site.image, environment, site.mounts, ("nvidia-toolkit",)))
        site.carrier.wait_for(installed, WAITING)
        assert site.stopped(installed) == 0, site.carrier.log(installed)
        assert site.handlers() == site.kind.own | HANDLERS
        receipt = machine.host.path(f"{INSTALL_DIR}/.toolkit-installer/receipt.json").read_text()
        assert "/runtime/" not in receipt
        assert "/host/" not in receipt

        container = site.carrier.start(way(site))
        code = site.carrier.wait_until_ended(container)
        output = site.carrier.log(container)
        assert code == 0, f"{way.__name__}: {output}"
        assert "The node is as it was" in output
        assert site.handlers() == site.kind.own, way.__name__
        assert machine.state(site.kind.config) == site.before, way.__name__
        assert site.configured() == before, way.__name__
        assert list(machine.host.path(INSTALL_DIR).iterdir()) == [], way.__name__
