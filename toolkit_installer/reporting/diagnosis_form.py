"""Values of `diagnose`: the table of illnesses, findings and their inputs, remedies, and CDI files' form. Pure.

On some nodes, files are generated from a declaration elsewhere: an edit of such a file is lost with the next rebuild,
boot or playbook, so the remedy names what to change in the declaration.

A CDI specification is checked as text: whether any engine can read it, and which files of the node it names. There is
no parser for YAML here: NVIDIA's tools and others write one key on each line.
"""

from __future__ import annotations

import enum
import json
import posixpath
import re
import types
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from toolkit_installer.engines import registry
from toolkit_installer.engines.ownership import Fault
from toolkit_installer.settings import EngineName

SCHEMA: Final = 1
"""Raised when a field of `diagnose --json` is removed or changes its meaning; new fields do not raise it."""


class Illness(enum.StrEnum):
    """Faults that a node may have. docs/diagnose.md has a row for each."""

    BROKEN_FILE = "broken-file"
    BROKEN_TEMPLATE = "broken-template"
    REPLACED_RUNTIMES = "replaced-runtimes"
    MIXED_VERSIONS = "mixed-versions"
    UNREAD_FILE = "unread-file"
    LEFTOVER = "leftover"
    NO_RUNTIME = "no-runtime"
    OTHER_LIBC = "other-libc"
    OTHER_SOCKET = "other-socket"
    CGROUP_DRIVER = "cgroup-driver"
    NO_DEV_CHAR = "no-dev-char"
    NO_LIBRARIES = "no-libraries"
    UNREADABLE_CDI = "unreadable-cdi"
    CDI_WITHOUT_FILES = "cdi-without-files"


TITLES: Final[Mapping[Illness, str]] = types.MappingProxyType(
    {
        Illness.BROKEN_FILE: "an error in a configuration file",
        Illness.BROKEN_TEMPLATE: "the distribution cannot use its template",
        Illness.REPLACED_RUNTIMES: "an imported file replaces what another file has",
        Illness.MIXED_VERSIONS: "configuration files of different versions",
        Illness.UNREAD_FILE: "the engine does not read this file",
        Illness.LEFTOVER: "left by another installer",
        Illness.NO_RUNTIME: "a low-level runtime is missing",
        Illness.OTHER_LIBC: "a program that this node cannot execute",
        Illness.OTHER_SOCKET: "the kubelet uses another socket",
        Illness.CGROUP_DRIVER: "cgroup drivers differ",
        Illness.NO_DEV_CHAR: "GPU devices without a link in /dev/char",
        Illness.NO_LIBRARIES: "a driver root without libraries",
        Illness.UNREADABLE_CDI: "a CDI specification that the engine does not read",
        Illness.CDI_WITHOUT_FILES: "a CDI specification that names missing files",
    }
)


class Finding(msgspec.Struct, frozen=True):
    """An illness of this node."""

    illness: Illness
    path: str
    line: int | None
    what: str
    causes: str
    remedy: str


class Diagnosis(msgspec.Struct, frozen=True):
    """The answer of `diagnose --json`."""

    schema: int
    version: str
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]
    """What could not be inspected, and why."""


# --- inputs of the findings ---


class ReadFile(msgspec.Struct, frozen=True):
    """A file that the engine reads. `by_relative_pattern`: containerd 1.6 does not find it."""

    path: str
    content: bytes
    by_relative_pattern: bool = False


class EngineSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An engine of the node, as far as it could be read."""

    name: EngineName
    distribution: str
    generated: bool = False
    """Whether the distribution generates the engine's file."""
    socket: str
    version: str = ""
    """Empty: unknown."""
    files: tuple[ReadFile, ...] = ()
    """All files that the engine reads, in order; the first is its own configuration file."""
    besides: tuple[ReadFile, ...] = ()
    """Files that look like the engine's configuration, and that it does not read."""
    handlers: Mapping[str, str | None] = {}
    """The running engine's handlers, with their executables; {} if it does not run."""
    default: str | None = None
    """The running engine's default runtime."""
    cgroup_driver: str | None = None
    """The cgroup driver that the running engine reports; None: unknown."""
    cdi_folders: tuple[str, ...] | None = None
    """The running engine's folders of CDI specifications; empty: CDI is off. None: unknown."""
    faults: tuple[Fault, ...] = ()
    """The errors from reading or checking its files."""
    template_faults: tuple[Fault, ...] = ()
    """Why its distribution cannot use a template."""


class ProgramSeen(msgspec.Struct, frozen=True):
    """A program that files name. `loader`: the program that executes it, None if it needs none."""

    exists: bool
    loader: str | None = None
    loader_exists: bool = True


class KubeletSeen(msgspec.Struct, frozen=True):
    """A kubelet's settings, with the file or flag of each; None for a setting that is not given."""

    socket: str | None
    socket_by: str
    listens: bool | None = None
    """Whether a program listens on the socket; None: not probed."""
    cgroup_driver: str | None = None
    cgroup_path: str = ""
    cgroup_line: int | None = None


class HookSeen(msgspec.Struct, frozen=True):
    """An OCI hook of NVIDIA's, and its program."""

    path: str
    line: int | None
    program: str
    exists: bool


class SpecificationSeen(msgspec.Struct, frozen=True):
    """A CDI specification; `missing` are the lines and paths of files that it names and that do not exist."""

    path: str
    content: bytes
    missing: tuple[tuple[int, str], ...] = ()
    managed: bool = False
    """Whether this program wrote it."""


class DriverSeen(msgspec.Struct, frozen=True):
    """The driver root for containers, and the libraries that no folder below it has."""

    root: str
    said_by: str
    missing: tuple[str, ...]


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read of a node."""

    engines: tuple[EngineSeen, ...] = ()
    kubelets: tuple[KubeletSeen, ...] = ()
    programs: Mapping[str, ProgramSeen] = {}
    """The executables of runtimes and of the toolkit, by their paths or names."""
    toolkit_folder: str = ""
    installed: bool = False
    """Whether a receipt of this program records the toolkit as installed, or half installed."""
    toolkit_files: int = 0
    toolkit_engines: tuple[tuple[str, str], ...] = ()
    """The engines that the receipt names, with their sockets."""
    other_installer: bool = False
    """Whether another installer runs: its files are not leftovers."""
    hooks: tuple[HookSeen, ...] = ()
    no_low_level: str | None = None
    """Why NVIDIA's runtime would find no low-level runtime, None if it finds one."""
    crictl: tuple[str, int, str] | None = None
    """crictl's file, and the line and the socket in it."""
    unlinked: tuple[tuple[str, int, int], ...] = ()
    """GPU device nodes without a link in /dev/char: path, major and minor."""
    driver: DriverSeen | None = None
    specifications: tuple[SpecificationSeen, ...] = ()
    os_release: str = ""
    signs: frozenset[str] = frozenset()
    """The existing paths of SIGNS, which show what declares the node's files."""


KUBESPRAY: Final = ("/etc/kubernetes/kubelet.env", "/etc/kubernetes/kubelet-config.yaml")
"""Files that kubespray writes, and kubeadm does not."""
SIGNS: Final = KUBESPRAY


class Host(enum.StrEnum):
    """The system that declares a node's files."""

    NIXOS = "NixOS"
    TALOS = "Talos"
    KUBESPRAY = "kubespray"
    K3S = "k3s"
    RKE2 = "RKE2"
    PLAIN = ""


class Topic(enum.StrEnum):
    """The part of a node that a remedy changes."""

    ENGINE = "engine"
    TEMPLATE = "template"
    KUBELET = "kubelet"
    SOCKET = "socket"
    KUBELET_CGROUP = "kubelet-cgroup"
    ENGINE_CGROUP = "engine-cgroup"
    PROGRAMS = "programs"
    DRIVER = "driver"
    CDI = "cdi"


_REBUILD: Final = "then `nixos-rebuild switch`"
_TALOS: Final = "`talosctl patch machineconfig`"
_PLAYBOOK: Final = "then run kubespray's cluster.yml with --tags container-engine,node"
_KUBESPRAY_CGROUPS: Final = "containerd_use_systemd_cgroup and kubelet_cgroup_driver"


def find_host(os_release: str, signs: Collection[str], distribution: str = "") -> Host:
    """Return the system that declares a node's files, and those of an engine of this distribution."""
    said = dict(line.partition("=")[::2] for line in os_release.splitlines())
    system = said.get("ID", "").strip("\"'")
    if system == "nixos":
        return Host.NIXOS
    if system == "talos":
        return Host.TALOS
    if distribution in _RANCHER:
        return _RANCHER[distribution]
    return Host.KUBESPRAY if all(sign in signs for sign in KUBESPRAY) else Host.PLAIN


_RANCHER: Final[Mapping[str, Host]] = types.MappingProxyType({"k3s": Host.K3S, "rke2": Host.RKE2})


def choose_remedy(host: Host, topic: Topic, engine: EngineName, plain: str) -> str:
    """Return the remedy in terms of the system that declares the node, else the plain one."""
    declared = _find_declaration(host, topic, engine)
    return plain if declared is None else f"this node is declared by {host}: {declared}"


def _find_declaration(host: Host, topic: Topic, engine: EngineName) -> str | None:
    if host is Host.NIXOS:
        return _describe_nixos(topic, engine)
    if host is Host.TALOS:
        return _describe_talos(topic)
    if host is Host.KUBESPRAY:
        return _describe_kubespray(topic, engine)
    if host in (Host.K3S, Host.RKE2):
        return _describe_rancher(host, topic)
    return None


def _describe_nixos(topic: Topic, engine: EngineName) -> str | None:
    option = {
        Topic.TEMPLATE: "services.k3s.containerdConfigTemplate",
        Topic.KUBELET: "services.kubernetes.kubelet.extraOpts",
        Topic.SOCKET: "services.kubernetes.kubelet.containerRuntimeEndpoint",
        Topic.PROGRAMS: "hardware.nvidia-container-toolkit.enable = true",
        Topic.DRIVER: 'services.xserver.videoDrivers = [ "nvidia" ] and hardware.graphics.enable = true',
        Topic.CDI: "hardware.nvidia-container-toolkit.enable = true, which makes the specification at each boot",
    }.get(topic, registry.get_row(engine).nixos_option)
    return f"change {option} in the system's configuration, {_REBUILD}" if option else None


def _describe_talos(topic: Topic) -> str:
    if topic in (Topic.PROGRAMS, Topic.DRIVER, Topic.CDI):
        return (
            "add the system extensions nvidia-container-toolkit and nvidia-open-gpu-kernel-modules of one release to "
            "its image, then `talosctl upgrade`"
        )
    if topic in (Topic.KUBELET, Topic.KUBELET_CGROUP):
        return f"change machine.kubelet.extraConfig with {_TALOS}"
    return f"change the file /etc/cri/conf.d/20-customization.part in machine.files with {_TALOS}"


def _describe_kubespray(topic: Topic, engine: EngineName) -> str | None:
    variable = {
        Topic.ENGINE: registry.get_row(engine).kubespray_variables,
        Topic.KUBELET_CGROUP: _KUBESPRAY_CGROUPS,
        Topic.ENGINE_CGROUP: _KUBESPRAY_CGROUPS,
        Topic.KUBELET: "kubelet_config_extra_args",
        Topic.SOCKET: "container_manager and cri_socket",
    }.get(topic)
    return None if not variable else f"change {variable} in the inventory's group_vars, {_PLAYBOOK}"


def _describe_rancher(host: Host, topic: Topic) -> str | None:
    name = host.value.lower()
    options, restart = f"/etc/rancher/{name}/config.yaml", f"then restart {name}"
    folder = f"/var/lib/rancher/{name}/agent/etc/containerd"
    if topic in (Topic.KUBELET, Topic.KUBELET_CGROUP):
        return f'write kubelet-arg: ["cgroup-driver=systemd"] into {options}, {restart}'
    if topic is Topic.SOCKET:
        return f"change container-runtime-endpoint in {options}, {restart}"
    if topic in (Topic.ENGINE, Topic.ENGINE_CGROUP):
        what = "set SystemdCgroup = true for each runtime in" if topic is Topic.ENGINE_CGROUP else "change"
        return (
            f"{host} makes its config.toml at each start: {what} {folder}/config-v3.toml.tmpl (config.toml.tmpl before "
            f"containerd 2.0), or a drop-in in {folder}/config-v3.toml.d, {restart}"
        )
    return None


_KIND: Final = rb"""(?m)^["']?kind["']?[ \t]*:"""


def find_form_fault(path: str, text: bytes) -> tuple[int | None, str] | None:
    """Return the line and why no engine can read a specification, None if its form is right."""
    if not text.strip():
        return 1, "is empty"
    if path.endswith(".json"):
        try:
            json.loads(text)
        except ValueError as error:
            return getattr(error, "lineno", 1), f"is not valid JSON: {getattr(error, 'msg', error)}"
        except RecursionError:
            return 1, "is nested too deeply"
    elif (tab := re.search(rb"(?m)^ *\t", text)) is not None:
        return text.count(b"\n", 0, tab.start()) + 1, "is not valid YAML: a tab indents this line"
    if registry.parse_cdi_version(text) is None and not re.search(rb'"cdiVersion"', text):
        return 1, "has no cdiVersion"
    return None if re.search(_KIND, text) or re.search(rb'"kind"', text) else (1, "has no kind")


def parse_paths(content: bytes) -> list[tuple[int, str]]:
    """Return the lines and paths of the node's files in a CDI specification: host paths, and programs of its hooks.

    A device node counts by its host path if it has one, else by its path.
    """
    found: list[tuple[int, str]] = []
    item: dict[str, tuple[int, str]] = {}
    indent = -1

    def close() -> None:
        chosen = item.get("hostPath") or (None if "containerPath" in item else item.get("path"))
        if chosen is not None and posixpath.isabs(chosen[1]):
            found.append(chosen)
        item.clear()

    text = content.decode(errors="replace").strip("\ufeff")
    in_one_line = text.lstrip().startswith("{") and "\n" not in text.strip()
    if in_one_line:
        text = text.replace("{", "\n{").replace(",", ",\n")
    for number, line in enumerate(text.splitlines(), 1):
        member = _MEMBER.match(line)
        depth = len(line) - len(line.lstrip(" -"))
        if depth < indent or line.lstrip().startswith(("- ", "{")):
            close()
        indent = depth
        if member is not None:
            item[member["key"]] = (1 if in_one_line else number, member["value"])
    close()
    return found


_MEMBER: Final = re.compile(
    r"""\s*(?:-\s+|\{\s*)?["']?(?P<key>hostPath|containerPath|path)["']?\s*:\s*["']?(?P<value>[^"',\s]+)"""
)
