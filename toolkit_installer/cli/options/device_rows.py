"""The rows of the option table for the other two ways of handing devices to containers: CDI and NRI."""

from __future__ import annotations

import functools

from toolkit_installer.cli.options.model import Group, Kind, Option, Step, turned_on

_cdi = functools.partial(Option, group=Group.CDI, step=Step.INSTALL)
_nri = functools.partial(Option, group=Group.NRI, step=Step.RUNTIME)

ROWS = (
    _cdi(
        name="cdi_enabled",
        flags=("--cdi-enabled", "--enable-cdi"),
        kind=Kind.FLAG,
        default="false",
        help="Write a CDI specification for management containers: all of the driver, all device nodes.",
    ),
    _cdi(
        name="cdi_output_dir",
        kind=Kind.PATH,
        default="/var/run/cdi",
        may_be_empty=True,
        empty_variable_counts=True,
        help="Where it is written; empty: nowhere.",
    ),
    _cdi(
        name="cdi_kind",
        kind=Kind.CDI_KIND,
        default="management.nvidia.com/gpu",
        help="The kind of the devices in it.",
    ),
    _cdi(
        name="create_device_nodes",
        kind=Kind.CHOICE,
        choices=("control", "none"),
        default="control",
        help="Which of the driver's device nodes to create where they are missing; only with CDI.",
    ),
    _cdi(
        name="enable_cdi_in_runtime",
        kind=Kind.FLAG,
        step=Step.RUNTIME,
        variables=("RUNTIME_ENABLE_CDI",),
        default_note="what --cdi-enabled says",
        help="Turn CDI on in the engine. docker takes it over when it is restarted, not by a signal.",
    ),
    _nri(
        name="enable_nri_plugin",
        flags=("--enable-nri-plugin", "-p"),
        kind=Kind.FLAG,
        default="false",
        unbuilt=turned_on("the NRI plugin"),
        help="Run the NRI plugin while waiting.",
    ),
    _nri(
        name="nri_plugin_index",
        kind=Kind.INDEX,
        default="10",
        help="Its place among the engine's plugins.",
    ),
    _nri(
        name="nri_socket",
        kind=Kind.PATH,
        default="/var/run/nri/nri.sock",
        help="The engine's NRI socket.",
    ),
    _nri(
        name="nri_namespace",
        kind=Kind.NAMESPACE,
        default_note="none",
        help="The Kubernetes namespace that the plugin serves.",
    ),
    _nri(
        name="nri_management_cdi_device_namespaces",
        kind=Kind.NAMESPACES,
        default_note="none",
        help="More namespaces whose pods may ask for management devices.",
    ),
)
