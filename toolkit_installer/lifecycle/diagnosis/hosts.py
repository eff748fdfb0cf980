"""Nodes whose files are made from a declaration elsewhere, and what to change there in place of the file. Pure.

An edit of such a file is lost with the next rebuild, boot or playbook.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Collection, Mapping
from typing import Final

from toolkit_installer.settings import EngineName

KUBESPRAY: Final = ("/etc/kubernetes/kubelet.env", "/etc/kubernetes/kubelet-config.yaml")
"""Files that kubespray makes, and kubeadm does not."""
SIGNS: Final = KUBESPRAY


class Host(enum.StrEnum):
    """Who declares the files of a node."""

    NIXOS = "NixOS"
    TALOS = "Talos"
    KUBESPRAY = "kubespray"
    K3S = "k3s"
    RKE2 = "RKE2"
    PLAIN = ""


class Topic(enum.StrEnum):
    """What a remedy changes."""

    ENGINE = "engine"
    TEMPLATE = "template"
    KUBELET = "kubelet"
    SOCKET = "socket"
    KUBELET_CGROUP = "kubelet-cgroup"
    ENGINE_CGROUP = "engine-cgroup"
    PROGRAMS = "programs"
    DRIVER = "driver"
    CDI = "cdi"


_NIXOS_ENGINES: Final = {
    EngineName.DOCKER: "virtualisation.docker.daemon.settings",
    EngineName.CONTAINERD: "virtualisation.containerd.settings",
    EngineName.CRIO: "virtualisation.cri-o.settings",
}
_REBUILD: Final = "then `nixos-rebuild switch`"
_TALOS: Final = "`talosctl patch machineconfig`"
_PLAYBOOK: Final = "then run kubespray's cluster.yml with --tags container-engine,node"
_KUBESPRAY_CGROUPS: Final = "containerd_use_systemd_cgroup and kubelet_cgroup_driver"
_KUBESPRAY_ENGINES: Final = {
    EngineName.DOCKER: "docker_options",
    EngineName.CONTAINERD: "containerd_default_runtime, containerd_runc_runtime and containerd_additional_runtimes",
    EngineName.CRIO: "crio_runtimes",
}


def host_of(os_release: str, signs: Collection[str], distribution: str = "") -> Host:
    """Return who declares the files of a node, and of an engine of that distribution."""
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


def remedy(host: Host, topic: Topic, engine: EngineName, plain: str) -> str:
    """Return the remedy in the language of what declares the node, else the plain one."""
    declared = _declared(host, topic, engine)
    return plain if declared is None else f"this node is declared by {host}: {declared}"


def _declared(host: Host, topic: Topic, engine: EngineName) -> str | None:
    if host is Host.NIXOS:
        return _nixos(topic, engine)
    if host is Host.TALOS:
        return _talos(topic)
    if host is Host.KUBESPRAY:
        return _kubespray(topic, engine)
    if host in (Host.K3S, Host.RKE2):
        return _rancher(host, topic)
    return None


def _nixos(topic: Topic, engine: EngineName) -> str:
    option = {
        Topic.TEMPLATE: "services.k3s.containerdConfigTemplate",
        Topic.KUBELET: "services.kubernetes.kubelet.extraOpts",
        Topic.SOCKET: "services.kubernetes.kubelet.containerRuntimeEndpoint",
        Topic.PROGRAMS: "hardware.nvidia-container-toolkit.enable = true",
        Topic.DRIVER: 'services.xserver.videoDrivers = [ "nvidia" ] and hardware.graphics.enable = true',
        Topic.CDI: "hardware.nvidia-container-toolkit.enable = true, which makes the specification at each boot",
    }.get(topic, _NIXOS_ENGINES[engine])
    return f"change {option} in the system's configuration, {_REBUILD}"


def _talos(topic: Topic) -> str:
    if topic in (Topic.PROGRAMS, Topic.DRIVER, Topic.CDI):
        return (
            "add the system extensions nvidia-container-toolkit and nvidia-open-gpu-kernel-modules of one release to "
            "its image, then `talosctl upgrade`"
        )
    if topic in (Topic.KUBELET, Topic.KUBELET_CGROUP):
        return f"change machine.kubelet.extraConfig with {_TALOS}"
    return f"change the file /etc/cri/conf.d/20-customization.part in machine.files with {_TALOS}"


def _kubespray(topic: Topic, engine: EngineName) -> str | None:
    variable = {
        Topic.ENGINE: _KUBESPRAY_ENGINES[engine],
        Topic.KUBELET_CGROUP: _KUBESPRAY_CGROUPS,
        Topic.ENGINE_CGROUP: _KUBESPRAY_CGROUPS,
        Topic.KUBELET: "kubelet_config_extra_args",
        Topic.SOCKET: "container_manager and cri_socket",
    }.get(topic)
    return None if variable is None else f"change {variable} in the inventory's group_vars, {_PLAYBOOK}"


def _rancher(host: Host, topic: Topic) -> str | None:
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
