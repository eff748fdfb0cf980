"""Builds one frozen, validated Settings from flags and variables. Pure: uses nothing but its arguments.

Of a command line that is otherwise invalid, `find_place` and `read_log_options` still return the node and how to log.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Mapping, Sequence

import msgspec

from toolkit_installer.cli.options import values as values_of
from toolkit_installer.cli.options.model import engine_of
from toolkit_installer.cli.options.resolve import Answers, Sources, answer_of
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
    sources = Sources(values, environment, program)
    try:
        said = {name: sources.answer(BY_NAME[name]).value for name in Place.__struct_fields__}
    except UsageError:
        return None
    return msgspec.convert(said, Place)


def build_nri(answers: Answers, method: Method) -> NriSettings | None:
    """Return the settings of the NRI plugin, None if none is served, as in a run that does not wait.

    Raises UsageError for a missing value, and if no named engine calls plugins.
    """
    if not answers.flag("enable_nri_plugin") and method is not Method.NRI:
        return None
    flag = "--method nri" if method is Method.NRI else "--enable-nri-plugin"
    namespace = answers.text_or_none("nri_namespace")
    if namespace is None:
        raise UsageError(
            f"{flag} serves the pods of a namespace, and NRI_NAMESPACE is not set",
            hint="set it to the namespace of this pod, from the downward API's metadata.namespace: pods there may have "
            "management devices",
        )
    named = answers.words("runtime") if answers.given("runtime") else ()
    callers = [row.name for row in registry.ENGINES if row.calls_nri_plugins]
    if named and {AUTO, *callers}.isdisjoint(named):
        raise UsageError(
            f"{flag}: {' and '.join(named)} asks no NRI plugin about its containers",
            hint=f"leave the plugin out, or name the engine that the kubelet uses: {' or '.join(callers)}",
        )
    if answers.flag("no_daemon"):
        return None
    more = answers.words("nri_management_cdi_device_namespaces")
    index = answers.by_name["nri_plugin_index"].value
    assert isinstance(index, int)  # noqa: S101  # it has a default, and its reader makes numbers
    return NriSettings(
        namespaces=tuple(dict.fromkeys((namespace, *more))),
        socket=answers.text("nri_socket"),
        index=index,
        strict=answers.flag("nri_strict"),
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
    sources = Sources(_with_destination(values, program), environment, program)
    words = sources.answer(BY_NAME["runtime"]).value
    assert isinstance(words, tuple)  # noqa: S101  # it has a default, and its reader makes tuples
    runtimes = () if AUTO in words else tuple(EngineName(str(word)) for word in words)
    runtime = runtimes[0] if len(runtimes) == 1 else None
    answers = sources.answers(runtime, runtime)
    hooks = program is Program.NVIDIA_TOOLKIT and DESTINATION in values
    engine = _engine(answers, runtime, hooks=hooks)
    method, plugin_alone = _method(answers), answers.flag("enable_nri_plugin")
    by_engine = {} if runtime else {name: sources.answers(name, None) for name in registry.names()}
    each = tuple((name, _engine(of_engine, name, hooks=hooks)) for name, of_engine in by_engine.items())
    _refuse_shared_paths({name: by_engine[name] for name in runtimes if name in by_engine})
    return answers.settings(
        Settings,
        program=program,
        runtimes=runtimes,
        toolkit=_toolkit(answers, looking=looking_for_driver),
        engine=engine,
        daemon=not answers.flag("no_daemon"),
        configure_engine=not answers.flag("no_runtime_config") and not (plugin_alone and method is Method.HANDLERS),
        method=method,
        nri=build_nri(answers, method) if installing else None,
        cluster=_cluster(answers) if installing else None,
        reports=_reports(answers) if installing else None,
        metrics_address=values_of.address(address) if (address := answers.text_or_none("metrics_address")) else None,
        keep_toolkit=_keep_toolkit(answers, values),
        engine_of=tuple((name, other) for name, other in each if other != engine),
    )


def build_deletion(
    name: str, values: Mapping[str, Sequence[str]], environment: Mapping[str, str], program: Program
) -> DeletionSettings:
    """Return which DaemonSet to delete, and where. Raises UsageError for a bad name, and outside a pod."""
    answers = Sources(values, environment, program).answers(None, None)
    if not answers.given("api_host"):
        raise UsageError(
            f"{BY_NAME['api_host'].variables[0]} is not set: this asks the Kubernetes API server as a pod does",
            hint=f"outside a pod: kubectl delete daemonset {name} --cascade=foreground",
        )
    return answers.settings(
        DeletionSettings,
        daemon_set=str(answer_of(BY_NAME["daemon_set"], (name,), DAEMON_SET).value),
        host=answers.text("api_host"),
        port=answers.by_name["api_port"].value,
    )


def read_log_options(
    values: Mapping[str, Sequence[str]], environment: Mapping[str, str]
) -> tuple[LogFormat | None, bool]:
    """Return the log format and whether to log debug lines; invalid values count as unset, other options are unused."""
    said: dict[str, object] = {}
    for name in ("log_format", "debug"):
        with contextlib.suppress(UsageError):
            said[name] = Sources(values, environment, Program.TOOLKIT_INSTALLER).answer(BY_NAME[name]).value
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
    destination = answer_of(option, tuple(values[DESTINATION]), label)
    if option.name in flags:
        other = answer_of(option, tuple(flags[option.name]), option.flags[0])
        if other.value != destination.value:
            raise UsageError(
                f"{label} {destination.text!r} and {option.flags[0]} {other.text!r} contradict each other",
                hint="give one of them",
            )
    return {**flags, option.name: (destination.text,)}


_OF_ONE_ENGINE = ("config", "socket", "executable")
_OF_ONE_WITH_DROP_INS = ("drop_in", "drop_in_host_path")


def _refuse_shared_paths(answers_of: Mapping[EngineName, Answers]) -> None:
    """Raise UsageError for one path that is given for several engines; each engine has variables of its own."""
    for name, answers in answers_of.items():
        with_drop_ins = {each for each in answers_of if registry.get_row(each).has_drop_ins}
        options = (
            *_OF_ONE_ENGINE,
            *(_OF_ONE_WITH_DROP_INS if name in with_drop_ins and len(with_drop_ins) > 1 else ()),
        )
        for option in options:
            answer = answers.by_name[option]
            if answer.label is None or engine_of(answer.label) is name:
                continue
            own = [variable for variable in BY_NAME[option].variables if engine_of(variable) is not None]
            raise UsageError(
                f"{answer.label}: {answer.text!r} is one path, and --runtime names several engines",
                hint=f"give each its own, with {', '.join(own)}" if own else "configure one engine at a time",
            )


def _cluster(answers: Answers) -> ClusterSettings | None:
    """Return what to query before a cleanup, None for nothing. Raises UsageError for a missing option."""
    if Cleanup(answers.text("cleanup")) is not Cleanup.AUTO or answers.flag("no_daemon"):
        return None
    missing = [BY_NAME[name] for name in ("daemon_set", "node_name", "api_host") if not answers.given(name)]
    if missing:
        raise UsageError(
            f"--cleanup auto asks the Kubernetes API server, and {missing[0].variables[0]} is not set",
            hint="set NODE_NAME from the downward API's spec.nodeName and DAEMONSET_NAME to the DaemonSet's name; "
            "outside a pod use --cleanup always or never",
        )
    return answers.settings(
        ClusterSettings,
        node=answers.text("node_name"),
        host=answers.text("api_host"),
        port=answers.by_name["api_port"].value,
    )


_REPORTS = ("node_condition", "startup_taint", "node_labels", "node_events")


def _reports(answers: Answers) -> ReportSettings | None:
    """Return what to report to the cluster, None for nothing. Raises UsageError for a missing option."""
    condition, taint = answers.text("node_condition"), answers.text_or_none("startup_taint")
    wanted = [condition, taint, answers.flag("node_labels"), answers.flag("node_events")]
    retaint = answers.flag("retaint")
    if retaint and taint is None:
        raise UsageError("--retaint puts a taint back, and none is given", hint="give it with --startup-taint")
    if not any(wanted):
        return None
    asking = BY_NAME[next(name for name, each in zip(_REPORTS, wanted, strict=True) if each)].flags[0]
    needed = ("node_name", "api_host", *(("daemon_set",) if retaint else ()))
    missing = [BY_NAME[name] for name in needed if not answers.given(name)]
    if missing:
        raise UsageError(
            f"{asking} tells the Kubernetes API server of this node, and {missing[0].variables[0]} is not set",
            hint="set NODE_NAME from the downward API's spec.nodeName, and DAEMONSET_NAME to the DaemonSet's name; "
            "outside a pod nobody can be told",
        )
    return answers.settings(
        ReportSettings,
        node=answers.text("node_name"),
        host=answers.text("api_host"),
        port=answers.by_name["api_port"].value,
        condition=condition or None,
        taint=values_of.taint(taint) if taint is not None else None,
        retaint=retaint,
        labels=answers.flag("node_labels"),
        events=answers.flag("node_events"),
    )


def _driver_paths(answers: Answers, *, looking: bool) -> dict[str, str]:
    """Return the driver root, the device root, and where each is mounted here; AUTO for paths to find."""
    driver_root = AUTO if looking and not answers.given("driver_root") else answers.text("driver_root")
    found = looking or driver_root == AUTO

    def path(name: str, otherwise: str) -> str:
        return answers.text(name) if answers.given(name) else AUTO if found else otherwise

    node_root = answers.text_or_none("node_root")
    dev_root = path("dev_root", driver_root)
    if node_root is None:
        mounted_at = dev_mounted_at = path("driver_root_ctr_path", answers.text("driver_root_ctr_path"))
    else:  # the whole node is mounted below one folder, and the driver with it
        mounted_at = path("driver_root_ctr_path", posixpath.normpath(f"{node_root}/{driver_root}"))
        dev_mounted_at = mounted_at if dev_root == driver_root else posixpath.normpath(f"{node_root}/{dev_root}")
    return {
        "driver_root": driver_root,
        "driver_root_ctr_path": mounted_at,
        "dev_root": dev_root,
        "dev_root_ctr_path": path("dev_root_ctr_path", dev_mounted_at),
    }


def _toolkit(answers: Answers, *, looking: bool) -> ToolkitSettings:
    prefixes = (*answers.words("cdi_annotation_prefixes"), *answers.words("engine_annotation_prefixes"))
    return answers.settings(
        ToolkitSettings,
        **_driver_paths(answers, looking=looking),
        cdi_annotation_prefixes=tuple(dict.fromkeys(prefixes)),
        cdi=_cdi(answers),
    )


def _method(answers: Answers) -> Method:
    """Return how containers are to get the GPU. Raises UsageError for options that contradict it."""
    method = Method(answers.text("method"))
    if method is Method.HANDLERS:
        return method
    if answers.flag("no_runtime_config"):
        raise UsageError(
            f"--method {method} looks at the engine, and --no-runtime-config leaves it out: they contradict each other",
            hint="give one of them; --no-runtime-config with --cdi-enabled writes a specification that nobody checks",
        )
    if method is Method.NRI and answers.flag("no_daemon"):
        raise UsageError(
            "--method nri serves a plugin while the run waits, and --no-daemon has it end: they contradict each other",
            hint="leave one of them out; --method cdi, where the engine reads specifications, needs nobody who waits",
        )
    if method is not Method.NRI and answers.flag("enable_nri_plugin"):
        raise UsageError(
            f"--enable-nri-plugin is a way of its own to give containers the GPU, and --method {method} names another",
            hint="give one of them",
        )
    if not answers.text("cdi_output_dir"):
        raise UsageError(
            f"--method {method} writes a CDI specification, and --cdi-output-dir is empty",
            hint="leave it out, or name a folder that the engine reads",
        )
    return method


def _cdi(answers: Answers) -> CdiSettings:
    """Return the CDI settings; with an empty folder, the specification is not enabled."""
    folder = answers.text("cdi_output_dir")
    method = answers.text("method")
    return CdiSettings(
        enabled=(answers.flag("cdi_enabled") or method in (Method.CDI, Method.NRI)) and bool(folder),
        folder=folder or CdiSettings().folder,
        kind=answers.text("cdi_kind"),
        control_nodes=answers.text("create_device_nodes") == "control",
    )


def _engine(answers: Answers, name: EngineName | None, *, hooks: bool) -> EngineSettings:
    """Return the engine step's settings. `hooks`: the caller's command line is from when CRI-O had hook mode only."""
    config_mode = "hook" if hooks and not answers.given("config_mode") else answers.text("config_mode")
    enable_cdi = (
        answers.flag("enable_cdi_in_runtime") if answers.given("enable_cdi_in_runtime") else _cdi(answers).enabled
    )
    executable = answers.text_or_none("executable") or ""
    row = registry.get_row(name) if name is not None else None
    without = _OF_ONE_WITH_DROP_INS if row is not None and not row.has_drop_ins else ()
    return answers.settings(
        EngineSettings,
        executable=executable if posixpath.isabs(executable) else None,
        reload_mode=answers.by_name["restart_mode"].value,
        container_annotations=tuple(f"{prefix}*" for prefix in answers.words("engine_annotation_prefixes")),
        enable_cdi=enable_cdi,
        answer_timeout=answers.by_name["reload_timeout"].value,
        config_mode=ConfigMode(config_mode) if row is not None and row.has_hook_mode else ConfigMode.CONFIG,
        **dict.fromkeys(without),
    )


def _keep_toolkit(answers: Answers, values: Mapping[str, Sequence[str]]) -> bool:
    """Return whether to keep the toolkit. --remove-toolkit is --keep-toolkit=false, and overrides a variable, too."""
    keep = answers.flag("keep_toolkit")
    if not answers.given("remove_toolkit"):
        return keep
    remove = bool(answers.by_name["remove_toolkit"].value)
    if "keep_toolkit" in values and keep == remove:
        raise UsageError("--keep-toolkit and --remove-toolkit contradict each other", hint="give one of them")
    return not remove
