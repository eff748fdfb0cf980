"""microk8s, whose wrapper makes containerd.toml of a template when it starts. Source: `run-containerd-with-args`."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from typing import TYPE_CHECKING

from toolkit_installer.engines.containerd.distributions.generating import Generating, Read

if TYPE_CHECKING:
    from toolkit_installer.engines.containerd.layouts import Layout

_ARGS = "/var/snap/microk8s/{}/args"
_MADE = "containerd.toml"
_TEMPLATE = "containerd-template.toml"
_STARTED_WITH = re.compile(r"/microk8s/[^/]+/args/containerd\.toml\Z")
_PROGRAM = re.compile(r"/snap/microk8s/(?P<revision>[^/]+)/")
_COMMON = "/var/snap/microk8s/common"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Microk8s(Generating):
    @property
    def started_with(self) -> str:
        """The file that the wrapper makes of the current revision's template."""
        return posixpath.join(_ARGS.format("current"), _MADE)

    def layout(self, read: Read, config: str) -> Layout | None:
        """Return the layout of a template that is there."""
        from toolkit_installer.engines.containerd import layouts  # noqa: PLC0415  # see generating

        if _STARTED_WITH.search(config):
            config = posixpath.join(posixpath.dirname(config), _TEMPLATE)
        content = read(config) if posixpath.basename(config) == _TEMPLATE else None
        if content is None:
            return None
        return layouts.Layout(
            name=self.name,
            units=self.units,
            generated=posixpath.join(posixpath.dirname(config), _MADE),
            source=config,
            version=layouts.version_of(config, content),  # it is TOML: what is filled in stands in strings
            drop_in=config,
            in_place=True,
            runcs=("/snap/microk8s/current/bin/runc",),
        )

    def started_by(self, executable: str) -> str | None:
        """Return the file of the snap's revision that the executable is of."""
        snap = _PROGRAM.match(executable)
        return posixpath.join(_ARGS.format(snap["revision"]), _MADE) if snap is not None else None

    def started_in(self, folder: str) -> str | None:
        """Return the current revision's file for the root folder that the snap gives its containerd."""
        return self.started_with if folder == f"{_COMMON}/var/lib/containerd" else None


_CURRENT = _ARGS.format("current")

MICROK8S = _Microk8s(
    name="microk8s",
    sockets=(f"{_COMMON}/run/containerd.sock",),
    config=posixpath.join(_CURRENT, _TEMPLATE),
    state=f"{_COMMON}/run/containerd",
    units=("snap.microk8s.daemon-containerd.service",),
    binaries=("/snap/bin/microk8s",),
    marks=("/snap/microk8s/",),
    kubelets=frozenset({"kubelite"}),
    kubelet_flags=posixpath.join(_CURRENT, "kubelet"),
    kubelet_variables=(("${SNAP_COMMON}", _COMMON), ("${SNAP_DATA}", posixpath.dirname(_CURRENT))),
    configured="the template of its containerd.toml, in place",
)
