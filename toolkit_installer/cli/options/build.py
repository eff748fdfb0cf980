"""From flags and variables to one frozen, validated Settings. Pure: looks at nothing but its arguments."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from toolkit_installer.cli.options.model import engine_of
from toolkit_installer.cli.options.resolve import Answers, Sources, answer_of
from toolkit_installer.cli.options.table import BY_NAME
from toolkit_installer.cli.options.values import budget
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import (
    AUTO,
    CdiSettings,
    Cleanup,
    ClusterSettings,
    ConfigMode,
    EngineName,
    EngineSettings,
    LogFormat,
    OnDrift,
    Program,
    ReloadMode,
    Settings,
    ToolkitSettings,
    WithoutGpu,
)

DESTINATION = "destination"
"""The positional argument's key among the values."""


def build(
    values: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    program: Program,
    *,
    installing: bool = True,
    looking_for_driver: bool = False,
) -> Settings:
    """Return what was asked for.

    `values` are the texts given on the command line by option name, in their order; the positional argument is under
    `DESTINATION`. With `installing` false, features that do not exist yet are no reason to refuse: a node can always
    be looked at and given back. With `looking_for_driver`, a driver root that nobody gave is to be found.

    Raises UsageError: a bad value, a contradiction, or a feature that is not built yet.
    """
    sources = Sources(_with_destination(values, program), environment, program)
    runtimes = _engine_names(sources)
    runtime = runtimes[0] if len(runtimes) == 1 else None
    answers = sources.answers(runtime, runtime)
    hooks = program is Program.NVIDIA_TOOLKIT and DESTINATION in values
    engine = _engine(answers, runtime, hooks=hooks)
    by_engine = {} if runtime else {name: sources.answers(name, None) for name in EngineName}
    each = tuple((name, _engine(of_engine, name, hooks=hooks)) for name, of_engine in by_engine.items())
    _refuse_what_names_one_engine({name: by_engine[name] for name in runtimes if name in by_engine})
    if installing:
        _refuse_what_is_not_built(answers)
    log_format = answers.text_or_none("log_format")
    return Settings(
        program=program,
        runtimes=runtimes,
        node_root=answers.text_or_none("node_root"),
        host_root=answers.text("host_root"),
        toolkit=_toolkit(answers, looking=looking_for_driver),
        engine=engine,
        daemon=not answers.flag("no_daemon"),
        configure_engine=not answers.flag("no_runtime_config"),
        pid_file=answers.text("pid_file"),
        debug=answers.flag("debug"),
        log_format=None if log_format is None else LogFormat(log_format),
        cleanup=Cleanup(answers.text("cleanup")),
        cluster=_cluster(answers) if installing else None,
        ready_file=answers.text_or_none("ready_file"),
        keep_toolkit=_keep_toolkit(answers, values),
        on_drift=OnDrift(answers.text("on_drift")),
        without_gpu=WithoutGpu(answers.text("without_gpu")),
        reload_timeout=answers.seconds("reload_timeout"),
        reload_budget=budget(answers.text("reload_budget")),
        engine_of=tuple((name, other) for name, other in each if other != engine),
    )


def log_format(values: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> LogFormat | None:
    """How to log when the rest makes no sense; None where this does not either. Raises nothing."""
    try:
        word = Sources(values, environment, Program.TOOLKIT_INSTALLER).answer(BY_NAME["log_format"]).value
    except UsageError:
        return None
    return LogFormat(word) if isinstance(word, str) else None


def wants_debug(values: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> bool:
    """Whether to show a traceback when the rest makes no sense. Raises nothing."""
    try:
        return Sources(values, environment, Program.TOOLKIT_INSTALLER).answer(BY_NAME["debug"]).value is True
    except UsageError:
        return False


def destination_name(program: Program) -> str:
    """Return what the positional argument is called."""
    return "INSTALL_DIR" if program is Program.TOOLKIT_INSTALLER else "DESTINATION"


def _with_destination(values: Mapping[str, Sequence[str]], program: Program) -> dict[str, Sequence[str]]:
    """Take the positional argument as the install folder; a flag beside it must say the same."""
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


def _engine_names(sources: Sources) -> tuple[EngineName, ...]:
    words = sources.answer(BY_NAME["runtime"]).value
    assert isinstance(words, tuple)  # noqa: S101  # it has a default, and its reader makes tuples
    return () if AUTO in words else tuple(EngineName(word) for word in words)


_OF_ONE_ENGINE = ("config", "socket", "executable")
_OF_ONE_WITH_DROP_INS = ("drop_in", "drop_in_host_path")


def _refuse_what_names_one_engine(answers_of: Mapping[EngineName, Answers]) -> None:
    """Raise UsageError for a path that is given for several engines at once; each has variables of its own."""
    for name, answers in answers_of.items():
        others = [other for other in answers_of if other is not name and other is not EngineName.DOCKER]
        options = (*_OF_ONE_ENGINE, *(_OF_ONE_WITH_DROP_INS if others and name is not EngineName.DOCKER else ()))
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
    """Return whom to ask before anything is cleaned up. Raises UsageError for what is missing."""
    if Cleanup(answers.text("cleanup")) is not Cleanup.AUTO or answers.flag("no_daemon"):
        return None
    missing = [BY_NAME[name] for name in ("daemon_set", "node_name", "api_host") if not answers.given(name)]
    if missing:
        raise UsageError(
            f"--cleanup auto asks the Kubernetes API server, and {missing[0].variables[0]} is not set",
            hint="set NODE_NAME from the downward API's spec.nodeName and DAEMONSET_NAME to the DaemonSet's name; "
            "outside a pod use --cleanup always or never",
        )
    return ClusterSettings(
        daemon_set=answers.text("daemon_set"),
        node=answers.text("node_name"),
        host=answers.text("api_host"),
        port=answers.number("api_port"),
        service_account=answers.text("service_account"),
    )


def _driver_paths(answers: Answers, *, looking: bool) -> tuple[str, str, str, str]:
    """Return the driver root, the device root, and where each is mounted here; AUTO is what is to be found."""
    driver_root = AUTO if looking and not answers.given("driver_root") else answers.text("driver_root")
    found = looking or driver_root == AUTO

    def path(name: str, otherwise: str) -> str:
        return answers.text(name) if answers.given(name) else AUTO if found else otherwise

    node_root = answers.text_or_none("node_root")
    dev_root = path("dev_root", driver_root)
    if node_root is None:
        mounted_at = path("driver_root_ctr_path", answers.text("driver_root_ctr_path"))
        return driver_root, dev_root, mounted_at, path("dev_root_ctr_path", mounted_at)
    # all of the node is seen below one folder, and the driver with it
    mounted_at = path("driver_root_ctr_path", posixpath.normpath(f"{node_root}/{driver_root}"))
    dev_mounted_at = mounted_at if dev_root == driver_root else posixpath.normpath(f"{node_root}/{dev_root}")
    return driver_root, dev_root, mounted_at, path("dev_root_ctr_path", dev_mounted_at)


def _toolkit(answers: Answers, *, looking: bool) -> ToolkitSettings:
    driver_root, dev_root, driver_root_ctr_path, dev_root_ctr_path = _driver_paths(answers, looking=looking)
    prefixes = (*answers.words("cdi_annotation_prefixes"), *answers.words("engine_annotation_prefixes"))
    return ToolkitSettings(
        install_dir=answers.text("install_dir"),
        source_root=answers.text_or_none("source_root"),
        package_type=answers.text("package_type"),
        driver_root=driver_root,
        driver_root_ctr_path=driver_root_ctr_path,
        dev_root=dev_root,
        dev_root_ctr_path=dev_root_ctr_path,
        runtime_debug=answers.text_or_none("runtime_debug"),
        runtime_log_level=answers.text_or_none("runtime_log_level"),
        runtime_mode=answers.text_or_none("runtime_mode"),
        cdi_default_kind=answers.text_or_none("cdi_default_kind"),
        cdi_annotation_prefixes=tuple(dict.fromkeys(prefixes)),
        low_level_runtimes=answers.words("low_level_runtimes"),
        hook_skip_mode_detection=answers.flag("hook_skip_mode_detection"),
        cli_debug=answers.text_or_none("cli_debug"),
        accept_envvar_when_unprivileged=answers.flag("accept_envvar_when_unprivileged"),
        accept_volume_mounts=answers.flag("accept_volume_mounts"),
        opt_in_features=answers.words("opt_in_features"),
        cdi=_cdi(answers),
    )


def _cdi(answers: Answers) -> CdiSettings:
    """Return what was asked for; a specification that is to be written nowhere is not asked for."""
    folder = answers.text("cdi_output_dir")
    return CdiSettings(
        enabled=answers.flag("cdi_enabled") and bool(folder),
        folder=folder or CdiSettings.folder,
        kind=answers.text("cdi_kind"),
        control_nodes=answers.text("create_device_nodes") == "control",
    )


def _engine(answers: Answers, name: EngineName | None, *, hooks: bool) -> EngineSettings:
    """Return the engine step's settings. `hooks`: the caller is of the time when CRI-O had hook mode only."""
    config_mode = "hook" if hooks and not answers.given("config_mode") else answers.text("config_mode")
    reload_mode = answers.text_or_none("restart_mode")
    executable = answers.text_or_none("executable")
    has_drop_ins = name is not EngineName.DOCKER
    return EngineSettings(
        config=answers.text_or_none("config"),
        drop_in=answers.text_or_none("drop_in") if has_drop_ins else None,
        drop_in_host_path=answers.text_or_none("drop_in_host_path") if has_drop_ins else None,
        socket=answers.text_or_none("socket"),
        executable=executable if executable and posixpath.isabs(executable) else None,
        reload_mode=None if reload_mode is None else ReloadMode(reload_mode),
        runtime_name=answers.text("runtime_name"),
        set_as_default=answers.flag("set_as_default"),
        runtime_type=answers.text_or_none("runtime_type"),
        runtime_config_override=answers.text("runtime_config_override"),
        use_legacy_config=answers.flag("use_legacy_config"),
        allow_restart=answers.flag("allow_restart"),
        container_annotations=tuple(f"{prefix}*" for prefix in answers.words("engine_annotation_prefixes")),
        enable_cdi=answers.flag("enable_cdi_in_runtime")
        if answers.given("enable_cdi_in_runtime")
        else _cdi(answers).enabled,
        config_sources=answers.words("config_sources"),
        answer_timeout=answers.seconds("reload_timeout"),
        config_mode=ConfigMode(config_mode) if name is EngineName.CRIO else ConfigMode.CONFIG,
        hooks_dir=answers.text("hooks_dir"),
        hook_filename=answers.text("hook_filename"),
    )


def _keep_toolkit(answers: Answers, values: Mapping[str, Sequence[str]]) -> bool:
    """--remove-toolkit is the other word for --keep-toolkit=false, and wins over a variable as that would."""
    keep = answers.flag("keep_toolkit")
    if not answers.given("remove_toolkit"):
        return keep
    remove = bool(answers.by_name["remove_toolkit"].value)
    if "keep_toolkit" in values and keep == remove:
        raise UsageError("--keep-toolkit and --remove-toolkit contradict each other", hint="give one of them")
    return not remove


def _refuse_what_is_not_built(answers: Answers) -> None:
    for name, answer in answers.by_name.items():
        unbuilt = BY_NAME[name].unbuilt
        if unbuilt is None or answer.label is None or answer.value is None or not unbuilt.asked_for(answer.value):
            continue
        raise UsageError(
            f"{answer.label}: {answer.text!r} asks for {unbuilt.feature}, which is not built yet",
            hint="nothing was changed",
        )
