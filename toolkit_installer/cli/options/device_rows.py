"""The rows of the option table for the other two ways of handing devices to containers: CDI and NRI."""

from __future__ import annotations

import functools

from toolkit_installer.cli.options.model import Group, Kind, Option, Step, turned_on

_cdi = functools.partial(Option, group=Group.CDI, step=Step.INSTALL)
_nri = functools.partial(Option, group=Group.NRI, step=Step.RUNTIME)

ROWS = (
    _cdi(
        "cdi_enabled",
        Kind.FLAG,
        flags=("--cdi-enabled", "--enable-cdi"),
        help="Write a CDI specification for management containers: all of the driver, all device nodes.",
    ),
    _cdi(
        "cdi_output_dir",
        Kind.PATH,
        default="/var/run/cdi",
        may_be_empty=True,
        empty_variable_counts=True,
        help="Where it is written; empty: nowhere.",
    ),
    _cdi("cdi_kind", Kind.CDI_KIND, default="management.nvidia.com/gpu", help="The kind of the devices in it."),
    _cdi(
        "create_device_nodes",
        Kind.CHOICE,
        choices=("control", "none"),
        default="control",
        help="Which of the driver's device nodes to create where they are missing; only with CDI.",
    ),
    _cdi(
        "enable_cdi_in_runtime",
        Kind.FLAG,
        step=Step.RUNTIME,
        variables=("RUNTIME_ENABLE_CDI",),
        default_note="what --cdi-enabled says",
        help="Turn CDI on in the engine. docker takes it over when it is restarted, not by a signal.",
    ),
    _nri(
        "enable_nri_plugin",
        Kind.FLAG,
        flags=("--enable-nri-plugin", "-p"),
        unbuilt=turned_on("the NRI plugin"),
        help="Run the NRI plugin while waiting.",
    ),
    _nri("nri_plugin_index", Kind.INDEX, default="10", help="Its place among the engine's plugins."),
    _nri("nri_socket", Kind.PATH, default="/var/run/nri/nri.sock", help="The engine's NRI socket."),
    _nri("nri_namespace", Kind.NAMESPACE, help="The Kubernetes namespace that the plugin serves."),
    _nri(
        "nri_management_cdi_device_namespaces",
        Kind.NAMESPACES,
        help="More namespaces whose pods may ask for management devices.",
    ),
)
