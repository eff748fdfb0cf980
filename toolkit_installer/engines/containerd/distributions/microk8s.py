"""microk8s, whose wrapper makes containerd.toml from a template at each start. Source: `run-containerd-with-args`."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from toolkit_installer.engines.containerd.layouts import GeneratingDistribution, ReadContent

if TYPE_CHECKING:
    from toolkit_installer.engines.containerd.layouts import Layout

_CURRENT = "/var/snap/microk8s/current/args"
_GENERATED = "containerd.toml"
_TEMPLATE = "containerd-template.toml"
_STARTED_WITH = r"/microk8s/[^/]+/args/containerd\.toml\Z"
_COMMON = "/var/snap/microk8s/common"


class _Microk8s(GeneratingDistribution, frozen=True, kw_only=True):
    @property
    def started_with(self) -> str:
        """The file that the wrapper makes from the current revision's template."""
        return posixpath.join(_CURRENT, _GENERATED)

    def layout(self, read: ReadContent, config: str) -> Layout | None:
        """Return the layout of a template that exists."""
        from toolkit_installer.engines.containerd import layouts  # noqa: PLC0415  # imported when a layout is built

        if re.search(_STARTED_WITH, config):
            config = posixpath.join(posixpath.dirname(config), _TEMPLATE)
        content = read(config) if posixpath.basename(config) == _TEMPLATE else None
        if content is None:
            return None
        return layouts.Layout(
            name=self.name,
            units=self.units,
            generated=posixpath.join(posixpath.dirname(config), _GENERATED),
            source=config,
            version=layouts.version_of(config, content),  # it is TOML: the wrapper fills in placeholders within strings
            drop_in=config,
            in_place=True,
            runcs=("/snap/microk8s/current/bin/runc",),
        )


MICROK8S = _Microk8s(
    name="microk8s",
    sockets=(f"{_COMMON}/run/containerd.sock",),
    config=posixpath.join(_CURRENT, _TEMPLATE),
    programs=(r"/snap/microk8s/(?P<revision>[^/]+)/", rf"/var/snap/microk8s/\g<revision>/args/{_GENERATED}"),
    roots=(rf"{_COMMON}/var/lib/containerd\Z", posixpath.join(_CURRENT, _GENERATED)),
    state=f"{_COMMON}/run/containerd",
    units=("snap.microk8s.daemon-containerd.service",),
    binaries=("/snap/bin/microk8s",),
    marks=("/snap/microk8s/",),
    kubelets=frozenset({"kubelite"}),
    kubelet_flags=posixpath.join(_CURRENT, "kubelet"),
    kubelet_variables=(("${SNAP_COMMON}", _COMMON), ("${SNAP_DATA}", posixpath.dirname(_CURRENT))),
    configured="the template of its containerd.toml, in place",
)
