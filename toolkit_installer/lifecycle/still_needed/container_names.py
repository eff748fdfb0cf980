"""Whose a container is, in the words of those who started it: its pod and namespace, or the name that docker gave it.

What names them comes from whoever made the pod. So a name counts only if it has the form that Kubernetes, or docker,
demands of it: no other text reaches a log. What cannot be read names nobody, which is no reason to stop.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.disk.reading import read_bounded

_LONGEST = 4 * 1024 * 1024
"""Bytes. A specification has all environment, mounts and seccomp rules in it."""
_SPECIFICATION = "config.json"
"""In a bundle (OCI Runtime Specification, bundle.md)."""
_KEYS = (
    # containerd: pkg/cri/annotations, since 1.5
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"),
    # CRI-O's annotations, and the labels that cri-dockerd gives: k8s.io/kubelet/pkg/types/labels.go
    ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"),
)
"""Namespace, pod and container."""
_KINDS = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
"""Annotations of containerd (pkg/cri/annotations) and of CRI-O (pkg/annotations) that say what a container is."""
_SANDBOX = "sandbox"
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""RFC 1123's forms: what Kubernetes demands of namespaces and containers, and of pods ("Object Names and IDs")."""
_DOCKERS_NAME = r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,252}"
_DOCKERS_ID = r"[0-9a-f]{64}"
_DOCKERS_FOLDER = "/var/lib/docker/containers"
"""dockerd's data root unless it is told another one; below that, by ID, what it remembers of each container."""
_REMEMBERED = "config.v2.json"


class Bundle(msgspec.Struct, frozen=True):
    """A bundle's folder as the installer sees it, and where it sees the `/` that the engine's paths are of."""

    folder: str
    root: str


class Name(msgspec.Struct, frozen=True):
    """What a container is called: its pod and its name there, or docker's name for it. Empty: nobody told."""

    pod: str = ""
    """NAMESPACE/NAME."""
    container: str = ""
    docker: str = ""

    @property
    def words(self) -> str:
        """What is put behind a container's ID."""
        if self.pod:
            return f" of pod {self.pod}" + (f" ({self.container})" if self.container else "")
        return f", which docker calls {self.docker}," if self.docker else ""


def of(identity: str, bundle: Bundle | None) -> Name:
    """Return what a container is called."""
    if bundle is None:
        return Name()
    said = specification(bundle)
    told = _pod(said.get("annotations"))
    if told.pod or not re.fullmatch(_DOCKERS_ID, identity):
        return told
    folders = dict.fromkeys([_DOCKERS_FOLDER, *_dockers_folders(said, identity)])
    for folder in folders:
        remembered = _object(f"{bundle.root.rstrip('/')}{folder}/{identity}/{_REMEMBERED}")
        configured = remembered.get("Config")
        told = _pod(configured.get("Labels") if isinstance(configured, dict) else None)
        name = remembered.get("Name")
        if not told.pod and isinstance(name, str) and re.fullmatch(_DOCKERS_NAME, name.removeprefix("/")):
            told = Name(docker=name.removeprefix("/"))
        if told != Name():
            return told
    return Name()


def specification_of(bundle: Bundle) -> str:
    """Return where a container's specification is, as the installer sees it."""
    return f"{bundle.folder}/{_SPECIFICATION}"


def specification(bundle: Bundle) -> Mapping[str, Any]:
    """Return a container's specification, {} where there is none to be read."""
    return _object(specification_of(bundle))


def is_sandbox(bundle: Bundle) -> bool | None:
    """Tell whether a container only keeps a pod's namespaces; None where there is no specification of it."""
    return keeps_namespaces(specification(bundle))


def keeps_namespaces(specification: Mapping[str, Any]) -> bool | None:
    """Tell the same by a container's specification, None for one that is empty. Pure."""
    if not specification:
        return None
    annotations = specification.get("annotations")
    return isinstance(annotations, dict) and any(annotations.get(key) == _SANDBOX for key in _KINDS)


def _pod(said: Any) -> Name:
    """Return the pod that annotations or labels name, and the container in it where they say that as well."""
    labels: Mapping[str, Any] = said if isinstance(said, dict) else {}
    for keys in _KEYS:
        namespace, pod, container = (value if isinstance(value := labels.get(key), str) else "" for key in keys)
        if re.fullmatch(_LABEL, namespace) and re.fullmatch(_SUBDOMAIN, pod):
            return Name(f"{namespace}/{pod}", container if re.fullmatch(_LABEL, container) else "")
    return Name()


def _dockers_folders(specification: Mapping[str, Any], identity: str) -> list[str]:
    """Return where dockerd keeps its containers, as the files tell that it makes for this one and mounts into it.

    The container's own ID is in such a path: it is made up when the container is, so nobody could prepare one before.
    """
    mounts = specification.get("mounts")
    sources = [mount.get("source") for mount in mounts if isinstance(mount, dict)] if isinstance(mounts, list) else []
    folders = [posixpath.dirname(source) for source in sources if isinstance(source, str) and source.startswith("/")]
    return [posixpath.dirname(folder) for folder in folders if posixpath.basename(folder) == identity]


def _object(path: str) -> Mapping[str, Any]:
    """Return a file's JSON object, {} where there is none to be read."""
    try:
        found = json.loads(read_bounded(path, _LONGEST))
    except (OSError, ConfigurationError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
