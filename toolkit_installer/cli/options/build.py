"""Builds one frozen, validated Settings from flags and variables. Pure: uses nothing but its arguments.

Of a command line that is otherwise invalid, `find_place` and `read_log_options` still return the node and how to log.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Mapping, Sequence

import msgspec

from toolkit_installer.cli.options import model
from toolkit_installer.cli.options.model import find_engine
from toolkit_installer.cli.options.resolve import OptionSources, OptionValues, parse_texts
from toolkit_installer.cli.options.table import BY_NAME
from toolkit_installer.engines import registry
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import (
    AUTO,
    CdiSettings,
    Cleanup,
    ClusterSettings,
    ConfigMode,
    DeletionSettings,
    EngineName,
    EngineSettings,
    LogFormat,
    Method,
    NriSettings,
    Program,
    ReportSettings,
    Settings,
    ToolkitSettings,
)


class Place(msgspec.Struct, frozen=True):
    """The node's root, its PID file on the node, and the ready file here; as in `Settings`."""

    node_root: str | None
    host_root: str
    pid_file: str
    ready_file: str | None


def find_place(values: Mapping[str, Sequence[str]], environment: Mapping[str, str], program: Program) -> Place | None:
    """Return the node that `values`, option texts by name, and the variables name; None if these are invalid."""
    sources = OptionSources(values, environment, program)
    try:
        said = {name: sources.resolve(BY_NAME[name]).value for name in Place.__struct_fields__}
    except UsageError:
        return None
    return msgspec.convert(said, Place)


def build_nri(options: OptionValues, method: Method) -> NriSettings | None:
    """Return the settings of the NRI plugin, None if none is served, as in a run that does not wait.

    Raises UsageError for a missing value, and if no named engine calls plugins.
    """
    if not options.flag("enable_nri_plugin") and method is not Method.NRI:
        return None
    flag = "--method nri" if method is Method.NRI else "--enable-nri-plugin"
    namespace = options.text_or_none("nri_namespace")
    if namespace is None:
        raise UsageError(
            f"{flag} serves the pods of a namespace, and NRI_NAMESPACE is not set",
            hint="set it to the namespace of this pod, from the downward API's metadata.namespace: pods there may have "
            "management devices",
        )
    named = options.words("runtime") if options.is_given("runtime") else ()
    callers = [row.name for row in registry.ENGINES if row.calls_nri_plugins]
    if named and {AUTO, *callers}.isdisjoint(named):
        raise UsageError(
            f"{flag}: {' and '.join(named)} asks no NRI plugin about its containers",
            hint=f"leave the plugin out, or name the engine that the kubelet uses: {' or '.join(callers)}",
        )
    if options.flag("no_daemon"):
        return None
    more = options.words("nri_management_cdi_device_namespaces")
    index = options.by_name["nri_plugin_index"].value
    assert isinstance(index, int)  # noqa: S101  # it has a default, and its reader makes numbers
    return NriSettings(
        namespaces=tuple(dict.fromkeys((namespace, *more))),
        socket=options.text("nri_socket"),
        index=index,
        strict=options.flag("nri_strict"),
    )


DESTINATION = "destination"
"""The key of the positional argument among the values."""
DAEMON_SET = "NAME"
"""The name of the argument of `delete-daemonset`."""


def build(
    values: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    program: Program,
    *,
    installing: bool = True,
    looking_for_driver: bool = False,
) -> Settings:
    """Return the settings of a command.

    `values` are the texts given on the command line by option name, in their order; the positional argument is under
    `DESTINATION`. With `installing` false, options that only a run needs may be missing: a node can always be inspected
    and reverted. With `looking_for_driver`, a driver root that was not given is to be found on the node.

    Raises UsageError for a bad value, a contradiction, or a missing option.
    """
    sources = OptionSources(_with_destination(values, program), environment, program)
    words = sources.resolve(BY_NAME["runtime"]).value
    assert isinstance(words, tuple)  # noqa: S101  # it has a default, and its reader makes tuples
    runtimes = () if AUTO in words else tuple(EngineName(str(word)) for word in words)
    runtime = runtimes[0] if len(runtimes) == 1 else None
    options = sources.resolve_all(runtime, runtime)
    hooks = program is Program.NVIDIA_TOOLKIT and DESTINATION in values
    engine = _engine(options, runtime, hooks=hooks)
    method, plugin_alone = _method(options), options.flag("enable_nri_plugin")
    by_engine = {} if runtime else {name: sources.resolve_all(name, None) for name in registry.names()}
    each = tuple((name, _engine(of_engine, name, hooks=hooks)) for name, of_engine in by_engine.items())
    _refuse_shared_paths({name: by_engine[name] for name in runtimes if name in by_engine})
    return options.make_settings(
        Settings,
        program=program,
        runtimes=runtimes,
        toolkit=_toolkit(options, looking=looking_for_driver),
        engine=engine,
        daemon=not options.flag("no_daemon"),
        configure_engine=not options.flag("no_runtime_config") and not (plugin_alone and method is Method.HANDLERS),
        method=method,
        nri=build_nri(options, method) if installing else None,
        cluster=_cluster(options) if installing else None,
        reports=_reports(options) if installing else None,
        metrics_address=model.parse_address(address) if (address := options.text_or_none("metrics_address")) else None,
        keep_toolkit=_keep_toolkit(options, values),
        engine_of=tuple((name, other) for name, other in each if other != engine),
    )


def build_deletion(
    name: str, values: Mapping[str, Sequence[str]], environment: Mapping[str, str], program: Program
) -> DeletionSettings:
    """Return which DaemonSet to delete, and where. Raises UsageError for a bad name, and outside a pod."""
    options = OptionSources(values, environment, program).resolve_all(None, None)
    if not options.is_given("api_host"):
        raise UsageError(
            f"{BY_NAME['api_host'].variables[0]} is not set: this asks the Kubernetes API server as a pod does",
            hint=f"outside a pod: kubectl delete daemonset {name} --cascade=foreground",
        )
    return options.make_settings(
        DeletionSettings,
        daemon_set=str(parse_texts(BY_NAME["daemon_set"], (name,), DAEMON_SET).value),
        host=options.text("api_host"),
        port=options.by_name["api_port"].value,
    )


def read_log_options(
    values: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> tuple[LogFormat | None, bool]:
    """Return the log format and whether to log debug lines; invalid values count as unset, other options are unused."""
    said: dict[str, object] = {}
    for name in ("log_format", "debug"):
        with contextlib.suppress(UsageError):
            said[name] = OptionSources(values, environment, Program.TOOLKIT_INSTALLER).resolve(BY_NAME[name]).value
    word = said.get("log_format")
    return LogFormat(word) if isinstance(word, str) else None, said.get("debug") is True


def destination_name(program: Program) -> str:
    """Return the name of the positional argument."""
    return "INSTALL_DIR" if program is Program.TOOLKIT_INSTALLER else "DESTINATION"


def _with_destination(values: Mapping[str, Sequence[str]], program: Program) -> dict[str, Sequence[str]]:
    """Return the values with the positional argument as install folder. Raises UsageError if a flag contradicts it."""
    flags = {name: texts for name, texts in values.items() if name != DESTINATION}
    if DESTINATION not in values:
        return flags
    option = BY_NAME["install_dir"]
    label = destination_name(program)
    destination = parse_texts(option, tuple(values[DESTINATION]), label)
    if option.name in flags:
        other = parse_texts(option, tuple(flags[option.name]), option.flags[0])
        if other.value != destination.value:
            raise UsageError(
                f"{label} {destination.text!r} and {option.flags[0]} {other.text!r} contradict each other",
                hint="give one of them",
            )
    return {**flags, option.name: (destination.text,)}


_OF_ONE_ENGINE = ("config", "socket", "executable")
_OF_ONE_WITH_DROP_INS = ("drop_in", "drop_in_host_path")


def _refuse_shared_paths(options_of: Mapping[EngineName, OptionValues]) -> None:
    """Raise UsageError for one path that is given for several engines; each engine has variables of its own."""
    with_drop_ins = {name for name in options_of if registry.get_row(name).has_drop_ins}
    for name, values in options_of.items():
        single = (
            *_OF_ONE_ENGINE,
            *(_OF_ONE_WITH_DROP_INS if name in with_drop_ins and len(with_drop_ins) > 1 else ()),
        )
        for option in single:
            given = values.by_name[option]
            if given.label is None or find_engine(given.label) is name:
                continue
            own = [variable for variable in BY_NAME[option].variables if find_engine(variable) is not None]
            raise UsageError(
                f"{given.label}: {given.text!r} is one path, and --runtime names several engines",
                hint=f"give each its own, with {', '.join(own)}" if own else "configure one engine at a time",
            )


def _cluster(options: OptionValues) -> ClusterSettings | None:
    """Return what to query before a cleanup, None for nothing. Raises UsageError for a missing option."""
    if Cleanup(options.text("cleanup")) is not Cleanup.AUTO or options.flag("no_daemon"):
        return None
    missing = [BY_NAME[name] for name in ("daemon_set", "node_name", "api_host") if not options.is_given(name)]
    if missing:
        raise UsageError(
            f"--cleanup auto asks the Kubernetes API server, and {missing[0].variables[0]} is not set",
            hint="set NODE_NAME from the downward API's spec.nodeName and DAEMONSET_NAME to the DaemonSet's name; "
            "outside a pod use --cleanup always or never",
        )
    return options.make_settings(
        ClusterSettings,
        node=options.text("node_name"),
        host=options.text("api_host"),
        port=options.by_name["api_port"].value,
    )


_REPORTS = ("node_condition", "startup_taint", "node_labels", "node_events")


def _reports(options: OptionValues) -> ReportSettings | None:
    """Return what to report to the cluster, None for nothing. Raises UsageError for a missing option."""
    condition, taint = options.text("node_condition"), options.text_or_none("startup_taint")
    wanted = [condition, taint, options.flag("node_labels"), options.flag("node_events")]
    retaint = options.flag("retaint")
    if retaint and taint is None:
        raise UsageError("--retaint puts a taint back, and none is given", hint="give it with --startup-taint")
    if not any(wanted):
        return None
    asking = BY_NAME[next(name for name, each in zip(_REPORTS, wanted, strict=True) if each)].flags[0]
    needed = ("node_name", "api_host", *(("daemon_set",) if retaint else ()))
    missing = [BY_NAME[name] for name in needed if not options.is_given(name)]
    if missing:
        raise UsageError(
            f"{asking} tells the Kubernetes API server of this node, and {missing[0].variables[0]} is not set",
            hint="set NODE_NAME from the downward API's spec.nodeName, and DAEMONSET_NAME to the DaemonSet's name; "
            "outside a pod nobody can be told",
        )
    return options.make_settings(
        ReportSettings,
        node=options.text("node_name"),
        host=options.text("api_host"),
        port=options.by_name["api_port"].value,
        condition=condition or None,
        taint=model.parse_taint(taint) if taint is not None else None,
        retaint=retaint,
        labels=options.flag("node_labels"),
        events=options.flag("node_events"),
    )


def _driver_paths(options: OptionValues, *, looking: bool) -> dict[str, str]:
    """Return the driver root, the device root, and where each is mounted here; AUTO for paths to find."""
    driver_root = AUTO if looking and not options.is_given("driver_root") else options.text("driver_root")
    found = looking or driver_root == AUTO

    def path(name: str, otherwise: str) -> str:
        return options.text(name) if options.is_given(name) else AUTO if found else otherwise

    node_root = options.text_or_none("node_root")
    dev_root = path("dev_root", driver_root)
    if node_root is None:
        mounted_at = dev_mounted_at = path("driver_root_ctr_path", options.text("driver_root_ctr_path"))
    else:  # the whole node is mounted below one folder, and the driver with it
        mounted_at = path("driver_root_ctr_path", posixpath.normpath(f"{node_root}/{driver_root}"))
        dev_mounted_at = mounted_at if dev_root == driver_root else posixpath.normpath(f"{node_root}/{dev_root}")
    return {
        "driver_root": driver_root,
        "driver_root_ctr_path": mounted_at,
        "dev_root": dev_root,
        "dev_root_ctr_path": path("dev_root_ctr_path", dev_mounted_at),
    }


def _toolkit(options: OptionValues, *, looking: bool) -> ToolkitSettings:
    prefixes = (*options.words("cdi_annotation_prefixes"), *options.words("engine_annotation_prefixes"))
    return options.make_settings(
        ToolkitSettings,
        **_driver_paths(options, looking=looking),
        cdi_annotation_prefixes=tuple(dict.fromkeys(prefixes)),
        cdi=_cdi(options),
    )


def _method(options: OptionValues) -> Method:
    """Return how containers are to get the GPU. Raises UsageError for options that contradict it."""
    method = Method(options.text("method"))
    if method is Method.HANDLERS:
        return method
    if options.flag("no_runtime_config"):
        raise UsageError(
            f"--method {method} looks at the engine, and --no-runtime-config leaves it out: they contradict each other",
            hint="give one of them; --no-runtime-config with --cdi-enabled writes a specification that nobody checks",
        )
    if method is Method.NRI and options.flag("no_daemon"):
        raise UsageError(
            "--method nri serves a plugin while the run waits, and --no-daemon has it end: they contradict each other",
            hint="leave one of them out; --method cdi, where the engine reads specifications, needs nobody who waits",
        )
    if method is not Method.NRI and options.flag("enable_nri_plugin"):
        raise UsageError(
            f"--enable-nri-plugin is a way of its own to give containers the GPU, and --method {method} names another",
            hint="give one of them",
        )
    if not options.text("cdi_output_dir"):
        raise UsageError(
            f"--method {method} writes a CDI specification, and --cdi-output-dir is empty",
            hint="leave it out, or name a folder that the engine reads",
        )
    return method


def _cdi(options: OptionValues) -> CdiSettings:
    """Return the CDI settings; with an empty folder, the specification is not enabled."""
    folder = options.text("cdi_output_dir")
    method = options.text("method")
    return CdiSettings(
        enabled=(options.flag("cdi_enabled") or method in (Method.CDI, Method.NRI)) and bool(folder),
        folder=folder or CdiSettings().folder,
        kind=options.text("cdi_kind"),
        control_nodes=options.text("create_device_nodes") == "control",
    )


def _engine(options: OptionValues, name: EngineName | None, *, hooks: bool) -> EngineSettings:
    """Return the engine step's settings. `hooks`: the caller's command line is from when CRI-O had hook mode only."""
    config_mode = "hook" if hooks and not options.is_given("config_mode") else options.text("config_mode")
    enable_cdi = (
        options.flag("enable_cdi_in_runtime") if options.is_given("enable_cdi_in_runtime") else _cdi(options).enabled
    )
    executable = options.text_or_none("executable") or ""
    row = registry.get_row(name) if name is not None else None
    without = _OF_ONE_WITH_DROP_INS if row is not None and not row.has_drop_ins else ()
    return options.make_settings(
        EngineSettings,
        executable=executable if posixpath.isabs(executable) else None,
        reload_mode=options.by_name["restart_mode"].value,
        container_annotations=tuple(f"{prefix}*" for prefix in options.words("engine_annotation_prefixes")),
        enable_cdi=enable_cdi,
        answer_timeout=options.by_name["reload_timeout"].value,
        config_mode=ConfigMode(config_mode) if row is not None and row.has_hook_mode else ConfigMode.CONFIG,
        **dict.fromkeys(without),
    )


def _keep_toolkit(options: OptionValues, values: Mapping[str, Sequence[str]]) -> bool:
    """Return whether to keep the toolkit. --remove-toolkit is --keep-toolkit=false, and overrides a variable, too."""
    keep = options.flag("keep_toolkit")
    if not options.is_given("remove_toolkit"):
        return keep
    remove = bool(options.by_name["remove_toolkit"].value)
    if "keep_toolkit" in values and keep == remove:
        raise UsageError("--keep-toolkit and --remove-toolkit contradict each other", hint="give one of them")
    return not remove
