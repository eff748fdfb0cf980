"""From flags and variables to Settings."""

from __future__ import annotations

import contextlib
import re
import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.cli.options.build import DESTINATION, build, read_log_options
from toolkit_installer.cli.options.model import Kind
from toolkit_installer.cli.options.table import OPTIONS
from toolkit_installer.errors import ExitCode, UsageError
from toolkit_installer.settings import (
    CdiSettings,
    Cleanup,
    ClusterSettings,
    ConfigMode,
    EngineName,
    EngineSettings,
    LogFormat,
    Method,
    NriSettings,
    OnDrift,
    Program,
    ReloadMode,
    ReportSettings,
    Settings,
    Taint,
    ToolkitSettings,
)

OURS = Program.TOOLKIT_INSTALLER
OLD = Program.NVIDIA_TOOLKIT
CTK = Program.NVIDIA_CTK_INSTALLER


def of_variables(**environment: str) -> Settings:
    return build({}, environment, OURS)


def refusal(values: dict[str, tuple[str, ...]], environment: dict[str, str], program: Program = OURS) -> UsageError:
    with pytest.raises(UsageError) as caught:
        build(values, environment, program)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


# --- defaults ---


def test_with_nothing_given_the_settings_are_their_own_defaults() -> None:
    assert build({}, {}, OURS) == Settings()


def fits(value: object, hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(fits(value, each) for each in typing.get_args(hint))
    if isinstance(value, msgspec.Struct) and isinstance(value, hint):
        return all(fits(getattr(value, name), each) for name, each in typing.get_type_hints(hint).items())
    return type(value) is (typing.get_origin(hint) or hint)


def test_what_options_say_is_of_the_types_that_the_settings_say() -> None:
    samples = {Kind.ENGINES: "docker", Kind.SECONDS: "5", Kind.PREFIXES: "a/", Kind.SOURCES: "file"}
    for option in OPTIONS:
        text = option.choices[0] if option.kind is Kind.CHOICE else samples.get(option.kind, option.default or "/a")
        with contextlib.suppress(UsageError):  # no path is meant
            assert fits(build({option.name: (text,)}, {}, OURS, installing=False), Settings), option.name


def test_nvidia_toolkit_has_its_generations_defaults() -> None:
    assert build({}, {}, OLD) == Settings(program=OLD, runtimes=(EngineName.DOCKER,), keep_toolkit=True)


def test_nvidia_ctk_installer_has_its_own_pid_file() -> None:
    assert build({}, {}, CTK) == Settings(
        program=CTK, runtimes=(EngineName.DOCKER,), keep_toolkit=True, pid_file="/run/nvidia/toolkit/toolkit.pid"
    )


# --- what the field's DaemonSets say ---

OPERATOR = {
    "ROOT": "/usr/local/nvidia",
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
    "NRI_NAMESPACE": "gpu-operator",
    "RUNTIME": "containerd",
    "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
    "CONTAINERD_CONFIG": "/runtime/config-dir/config.toml",
    "RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.toml",
    "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/containerd/conf.d/99-nvidia.toml",
    "RUNTIME_SOCKET": "/runtime/sock-dir/containerd.sock",
    "CONTAINERD_SOCKET": "/runtime/sock-dir/containerd.sock",
    "CONTAINERD_RUNTIME_CLASS": "nvidia",
    "IS_HOST_DRIVER": "true",
    "NVIDIA_DRIVER_ROOT": "/",
    "DRIVER_ROOT_CTR_PATH": "/host",
    "NVIDIA_DEV_ROOT": "/",
    "DEV_ROOT_CTR_PATH": "/host",
}
OPERATOR_WITH_CDI = {
    "CDI_ENABLED": "true",
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
    "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
    "CRIO_CONFIG_MODE": "config",
}


def test_the_gpu_operators_environment_is_understood_without_arguments() -> None:
    assert build({}, OPERATOR, OLD) == Settings(
        program=OLD,
        runtimes=(EngineName.CONTAINERD,),
        toolkit=ToolkitSettings(
            install_dir="/usr/local/nvidia",
            driver_root="/",
            driver_root_ctr_path="/host",
            dev_root="/",
            dev_root_ctr_path="/host",
            cdi_default_kind="management.nvidia.com/gpu",
        ),
        engine=EngineSettings(
            config="/runtime/config-dir/config.toml",
            drop_in="/runtime/config-dir.d/99-nvidia.toml",
            drop_in_host_path="/etc/containerd/conf.d/99-nvidia.toml",
            socket="/runtime/sock-dir/containerd.sock",
        ),
        pid_file="/run/nvidia/toolkit/toolkit.pid",
        keep_toolkit=True,
    )


def test_the_gpu_operator_with_cdi_gets_its_specification_and_no_default_runtime() -> None:
    settings = build({}, OPERATOR | OPERATOR_WITH_CDI, OLD)
    assert settings.toolkit.cdi == CdiSettings(enabled=True)
    assert settings.toolkit.cdi.path == "/var/run/cdi/management.nvidia.com-gpu.yaml"
    assert settings.toolkit.runtime_mode == "cdi"
    assert settings.engine.enable_cdi
    assert not settings.engine.set_as_default


def test_a_daemonset_of_2020_is_understood() -> None:
    environment = {
        "RUNTIME": "containerd",
        "RUNTIME_ARGS": "-s /run/k3s/containerd/containerd.sock -r gpu -d=false --restart-mode NONE",
        "TOOLKIT_ARGS": "--nvidia-container-runtime-debug /var/log/nvidia.log",
        "NO_DAEMON": "1",
    }
    settings = build({DESTINATION: ("/opt/nvidia",)}, environment, OLD)
    assert settings.toolkit == ToolkitSettings(install_dir="/opt/nvidia", runtime_debug="/var/log/nvidia.log")
    assert settings.engine == EngineSettings(
        socket="/run/k3s/containerd/containerd.sock",
        runtime_name="gpu",
        set_as_default=False,
        reload_mode=ReloadMode.NONE,
    )
    assert not settings.daemon


# --- who wins ---


def test_the_command_line_wins_over_the_string_and_that_over_the_variable() -> None:
    values = {"socket": ("/line",), "runtime_args": ("--socket /string -c /string",)}
    environment = {"RUNTIME_SOCKET": "/variable", "RUNTIME_CONFIG": "/variable", "RUNTIME_RESTART_MODE": "none"}
    engine = build(values, environment, OURS).engine
    assert (engine.socket, engine.config, engine.reload_mode) == ("/line", "/string", ReloadMode.NONE)


def test_the_flag_for_the_string_wins_over_the_variable_for_it() -> None:
    values = {"runtime_args": ("--socket /flag",)}
    engine = build(values, {"RUNTIME_ARGS": "--socket /variable --config /variable"}, OURS).engine
    assert (engine.socket, engine.config) == ("/flag", None)


def test_of_two_variables_the_first_that_is_set_counts() -> None:
    assert of_variables(NVIDIA_DRIVER_ROOT="/a", DRIVER_ROOT="/b").toolkit.driver_root == "/a"
    assert of_variables(NVIDIA_DRIVER_ROOT="", DRIVER_ROOT="/b").toolkit.driver_root == "/b"


def test_an_empty_variable_counts_as_unset() -> None:
    names = ("RUNTIME", "RUNTIME_ARGS", "NO_DAEMON", "ROOT", "PID_FILE", "CDI_ENABLED", "RUNTIME_CONFIG_SOURCES")
    assert of_variables(**dict.fromkeys(names, "")) == Settings()


def test_an_empty_output_folder_is_the_one_empty_variable_that_counts() -> None:
    assert of_variables(CDI_OUTPUT_DIR="", CDI_ENABLED="true") == Settings()
    assert of_variables(CDI_KIND="", CDI_ENABLED="true").toolkit.cdi == CdiSettings(enabled=True)


@given(
    st.sampled_from(["", "/a"]), st.sampled_from(["", "/b"]), st.sampled_from(["", "/c"]), st.sampled_from(["", "/d"])
)
def test_precedence_is_the_same_in_every_combination(line: str, string: str, first: str, second: str) -> None:
    values = {name: (text,) for name, text in (("driver_root", line),) if text}
    environment = {
        "TOOLKIT_ARGS": f"--driver-root {string}" if string else "",
        "NVIDIA_DRIVER_ROOT": first,
        "DRIVER_ROOT": second,
    }
    expected = line or string or first or second or "/run/nvidia/driver"
    assert build(values, environment, OURS).toolkit.driver_root == expected


def test_the_device_root_follows_the_driver_root() -> None:
    toolkit = of_variables(DRIVER_ROOT="/", DRIVER_ROOT_CTR_PATH="/host").toolkit
    assert (toolkit.dev_root, toolkit.dev_root_ctr_path) == ("/", "/host")


# --- variables of one engine ---

PER_ENGINE = {
    "CONTAINERD_CONFIG": "/containerd",
    "DOCKER_CONFIG": "/docker",
    "CONTAINERD_SOCKET": "/containerd.sock",
    "DOCKER_RUNTIME_NAME": "docker-nvidia",
    "CONTAINERD_RESTART_MODE": "systemd",
    "RUNTIME_DROP_IN_CONFIG": "/drop-in",
}


def test_docker_does_not_take_containerds_variables() -> None:
    assert of_variables(RUNTIME="docker", **PER_ENGINE).engine == EngineSettings(
        config="/docker", runtime_name="docker-nvidia"
    )


def test_containerd_does_not_take_dockers_variables() -> None:
    assert of_variables(RUNTIME="containerd", **PER_ENGINE).engine == EngineSettings(
        config="/containerd", socket="/containerd.sock", drop_in="/drop-in", reload_mode=ReloadMode.SYSTEMD
    )


def test_a_bad_variable_of_another_engine_does_not_matter() -> None:
    assert of_variables(RUNTIME="containerd", DOCKER_CONFIG="relative").engine == EngineSettings()


def test_auto_knows_what_to_ask_of_whichever_engine_is_found() -> None:
    settings = of_variables(**PER_ENGINE)
    assert settings.runtimes == ()
    assert settings.engine == of_variables(RUNTIME="containerd", **PER_ENGINE).engine
    for name in ("docker", "containerd"):
        named = of_variables(RUNTIME=name, **PER_ENGINE)
        assert settings.settings_of(EngineName(name)) == named.engine, name
        assert msgspec.structs.replace(settings, runtimes=named.runtimes, engine=named.engine, engine_of=()) == named, (
            name
        )


def test_auto_leaves_crio_without_containerds_socket() -> None:
    crio = of_variables(**PER_ENGINE, CRIO_CONFIG="/crio").settings_of(EngineName.CRIO)
    assert crio == EngineSettings(config="/crio", drop_in="/drop-in")


# --- every other field ---


def test_every_flag_reaches_its_field() -> None:
    values = {
        "runtime": ("containerd",),
        "node_root": ("/host",),
        "host_root": ("/h",),
        "no_daemon": ("true",),
        "no_runtime_config": ("true",),
        "pid_file": ("/p/toolkit.pid",),
        "debug": ("true",),
        "log_format": ("json",),
        "cleanup": ("never",),
        "keep_toolkit": ("true",),
        "on_drift": ("repair",),
        "reload_timeout": ("2.5",),
        "allow_restart": ("true",),
        "require_live": ("true",),
        "verify_with_canary": ("true",),
        "wait_for_driver": ("true",),
        "install_dir": ("/i",),
        "source_root": ("/s",),
        "package_type": ("rpm",),
        "runtime_debug": ("/d",),
        "runtime_log_level": ("debug",),
        "runtime_mode": ("cdi",),
        "cdi_default_kind": ("nvidia.com/gpu",),
        "cdi_annotation_prefixes": ("a.io/",),
        "engine_annotation_prefixes": ("b.io/", "a.io/"),
        "low_level_runtimes": ("crun",),
        "hook_skip_mode_detection": ("false",),
        "cli_debug": ("/e",),
        "accept_envvar_when_unprivileged": ("false",),
        "accept_volume_mounts": ("true",),
        "opt_in_features": ("x,y",),
        "executable": ("/bin/containerd",),
        "runtime_type": ("t",),
        "config_sources": ("file",),
    }
    assert build(values, {}, OURS) == Settings(
        runtimes=(EngineName.CONTAINERD,),
        node_root="/host",
        host_root="/h",
        toolkit=ToolkitSettings(
            install_dir="/i",
            source_root="/s",
            package_type="rpm",
            driver_root_ctr_path="/host/run/nvidia/driver",
            dev_root_ctr_path="/host/run/nvidia/driver",
            runtime_debug="/d",
            runtime_log_level="debug",
            runtime_mode="cdi",
            cdi_default_kind="nvidia.com/gpu",
            cdi_annotation_prefixes=("a.io/", "b.io/"),
            low_level_runtimes=("crun",),
            hook_skip_mode_detection=False,
            cli_debug="/e",
            accept_envvar_when_unprivileged=False,
            accept_volume_mounts=True,
            opt_in_features=("x", "y"),
        ),
        engine=EngineSettings(
            executable="/bin/containerd",
            runtime_type="t",
            allow_restart=True,
            container_annotations=("b.io/*", "a.io/*"),
            config_sources=("file",),
            answer_timeout=2.5,
        ),
        daemon=False,
        configure_engine=False,
        pid_file="/p/toolkit.pid",
        debug=True,
        log_format=LogFormat.JSON,
        require_live=True,
        verify_with_canary=True,
        wait_for_driver=True,
        cleanup=Cleanup.NEVER,
        keep_toolkit=True,
        on_drift=OnDrift.REPAIR,
        reload_timeout=2.5,
    )


def test_annotation_prefixes_by_variable_reach_the_engine_too() -> None:
    settings = of_variables(NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES="cdi.k8s.io/")
    assert settings.toolkit.cdi_annotation_prefixes == ("cdi.k8s.io/",)
    assert settings.engine.container_annotations == ("cdi.k8s.io/*",)


def test_the_engines_name_as_its_executable_means_the_running_one() -> None:
    assert of_variables(RUNTIME_EXECUTABLE_PATH="containerd").engine.executable is None


@pytest.mark.parametrize(
    "program, values, environment, kept",
    [
        (OURS, {}, {}, False),
        (OLD, {}, {}, True),
        (OURS, {}, {"KEEP_TOOLKIT": "true"}, True),
        (OURS, {"remove_toolkit": ("true",)}, {"KEEP_TOOLKIT": "true"}, False),
        (OLD, {"remove_toolkit": ("true",)}, {}, False),
        (OURS, {"remove_toolkit": ("false",)}, {}, True),
        (OLD, {"keep_toolkit": ("false",)}, {}, False),
        (OLD, {"keep_toolkit": ("false",), "remove_toolkit": ("true",)}, {}, False),
    ],
)
def test_whether_the_toolkit_stays(
    program: Program, values: dict[str, tuple[str, ...]], environment: dict[str, str], *, kept: bool
) -> None:
    assert build(values, environment, program).keep_toolkit is kept


# --- refusals ---


def test_keeping_and_removing_the_toolkit_at_once_is_refused() -> None:
    error = refusal({"keep_toolkit": ("true",), "remove_toolkit": ("true",)}, {})
    assert "--keep-toolkit and --remove-toolkit contradict each other" in error.reason


def test_two_install_folders_are_refused_and_one_said_twice_is_not() -> None:
    assert "DESTINATION '/a'" in refusal({DESTINATION: ("/a",), "install_dir": ("/b",)}, {}, OLD).reason
    assert "INSTALL_DIR '/a'" in refusal({DESTINATION: ("/a",), "install_dir": ("/b",)}, {}, OURS).reason
    assert build({DESTINATION: ("/a/",), "install_dir": ("/a",)}, {}, OURS).toolkit.install_dir == "/a"


def test_the_positional_argument_wins_over_the_variable() -> None:
    assert build({DESTINATION: ("/a",)}, {"ROOT": "/b"}, OLD).toolkit.install_dir == "/a"


@pytest.mark.parametrize(
    "values, environment, words",
    [
        ({DESTINATION: ("",)}, {}, ("INSTALL_DIR", "''")),
        ({DESTINATION: ("uninstall",)}, {}, ("INSTALL_DIR", "'uninstall'")),
        ({}, {"ROOT": "/proc/x"}, ("ROOT", "'/proc/x'")),
        ({"install_dir": ("/",)}, {}, ("--toolkit-install-dir", "'/'")),
        ({"runtime": ("podman",)}, {}, ("--runtime", "'podman'", "containerd")),
        ({}, {"RUNTIME": "lxc"}, ("RUNTIME", "'lxc'", "docker")),
        ({}, {"NO_DAEMON": "maybe"}, ("NO_DAEMON", "'maybe'", "true or false")),
        ({"socket": ("",)}, {}, ("--socket", "''")),
        ({}, {"RUNTIME": "containerd", "CONTAINERD_SOCKET": "run/x"}, ("CONTAINERD_SOCKET", "'run/x'")),
        ({}, {"RUNTIME_ARGS": "--socket run/x"}, ("--socket in RUNTIME_ARGS", "'run/x'")),
        ({"runtime_args": ("-s run/x",)}, {}, ("--socket in --runtime-args", "'run/x'")),
        ({}, {"TOOLKIT_ARGS": "--runtime-class x"}, ("TOOLKIT_ARGS", "'--runtime-class'")),
        ({}, {"CDI_KIND": "gpu", "CDI_ENABLED": "true"}, ("CDI_KIND", "'gpu'", "vendor/class")),
        ({}, {"NRI_PLUGIN_INDEX": "100", "ENABLE_NRI_PLUGIN": "true"}, ("NRI_PLUGIN_INDEX", "'100'", "0 to 99")),
        ({}, {"RUNTIME_CONFIG_OVERRIDE": "{"}, ("RUNTIME_CONFIG_OVERRIDE", "'{'", "a JSON object")),
        ({}, {"TOOLKIT_PID_FILE": "/run/x.pid"}, ("TOOLKIT_PID_FILE", "'/run/x.pid'", "toolkit.pid")),
        ({}, {"RUNTIME": "crio", "CRIO_CONFIG_MODE": "both"}, ("CRIO_CONFIG_MODE", "'both'", "hook, config")),
        ({}, {"DOCKER_CONFIG": "relative"}, ("DOCKER_CONFIG", "'relative'")),
        ({}, {"ROOT": "/a\nb"}, ("ROOT", r"'/a\nb'")),
    ],
)
def test_a_refusal_names_who_said_it_what_was_said_and_what_is_allowed(
    values: dict[str, tuple[str, ...]], environment: dict[str, str], words: tuple[str, ...]
) -> None:
    error = refusal(values, environment)
    assert error.reason.startswith(words[0])
    for word in words[1:]:
        assert word in str(error)
    assert error.hint
    assert "\n" not in str(error)


def test_a_very_long_bad_value_does_not_fill_the_log() -> None:
    assert len(str(refusal({}, {"ROOT": "x" * 100_000}))) < 500


# --- the NRI plugin ---

IN_A_POD = {"NRI_NAMESPACE": "gpu-operator", "ENABLE_NRI_PLUGIN": "true"}


def test_the_plugin_is_asked_for_as_the_gpu_operator_does() -> None:
    given = {**IN_A_POD, "NRI_SOCKET": "/runtime/nri-sock-dir/nri.sock", "RUNTIME": "containerd"}
    built = build({}, given, OLD)
    assert built.nri == NriSettings(("gpu-operator",), "/runtime/nri-sock-dir/nri.sock", strict=False)
    assert not built.configure_engine


@pytest.mark.parametrize(
    "values, environment",
    [
        ({}, {"ENABLE_NRI_PLUGIN": "yes"}),
        ({}, {"RUNTIME_ARGS": "--enable-nri-plugin"}),
        ({"enable_nri_plugin": ("true",)}, {}),
    ],
)
@pytest.mark.parametrize("program, strict", [(OURS, True), (OLD, False), (CTK, False)])
def test_under_its_own_name_the_plugin_refuses(
    values: dict[str, tuple[str, ...]], environment: dict[str, str], program: Program, *, strict: bool
) -> None:
    where = {"NRI_NAMESPACE": "gpu", "NRI_PLUGIN_INDEX": "20", "NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES": "a,gpu,b"}
    built = build(values, where | environment, program)
    assert built.nri == NriSettings(("gpu", "a", "b"), index=20, strict=strict)
    turned = build({**values, "nri_strict": (str(not strict).lower(),)}, where | environment, program)
    assert turned.nri is not None
    assert turned.nri.strict is not strict


def test_a_run_that_does_not_wait_serves_no_plugin_and_leaves_the_engine_alone() -> None:
    built = build({"no_daemon": ("true",)}, IN_A_POD, OURS)
    assert built.nri is None
    assert not built.configure_engine


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"ENABLE_NRI_PLUGIN": "true"}, ("--enable-nri-plugin", "NRI_NAMESPACE", "metadata.namespace")),
        ({**IN_A_POD, "RUNTIME": "docker"}, ("--enable-nri-plugin", "docker asks no NRI plugin")),
    ],
)
def test_a_plugin_that_would_serve_nobody_is_refused(environment: dict[str, str], words: tuple[str, ...]) -> None:
    error = refusal({}, environment)
    assert error.hint
    for word in words:
        assert word in str(error)


def test_without_an_engine_that_was_named_the_old_names_serve_the_plugin_too() -> None:
    assert build({}, IN_A_POD, CTK).nri is not None


def test_the_method_nri_serves_the_plugin_and_has_the_engine_looked_at() -> None:
    built = build({"method": ("nri",)}, {"NRI_NAMESPACE": "gpu"}, OURS)
    assert built.nri == NriSettings(("gpu",), strict=True)
    assert (built.method, built.configure_engine, built.toolkit.cdi.enabled) == (Method.NRI, True, True)
    assert build({"method": ("nri",), "enable_nri_plugin": ("true",)}, {"NRI_NAMESPACE": "gpu"}, OURS).configure_engine


@pytest.mark.parametrize(
    "more, word",
    [
        ({"no_daemon": ("true",)}, "--no-daemon"),
        ({"no_runtime_config": ("true",)}, "--no-runtime-config"),
        ({"cdi_output_dir": ("",)}, "--cdi-output-dir"),
        ({"method": ("cdi",), "enable_nri_plugin": ("true",)}, "--enable-nri-plugin"),
        ({"runtime": ("docker",)}, "docker asks no NRI plugin"),
    ],
)
def test_what_contradicts_the_method_nri_is_refused(more: dict[str, tuple[str, ...]], word: str) -> None:
    with pytest.raises(UsageError, match=re.escape(word)):
        build({"method": ("nri",), **more}, {"NRI_NAMESPACE": "gpu"}, OURS)


@pytest.mark.parametrize("environment", [{"ENABLE_NRI_PLUGIN": "yes"}, {"RUNTIME_ARGS": "--enable-nri-plugin"}])
def test_a_node_can_be_given_back_whatever_its_pod_asks_for(environment: dict[str, str]) -> None:
    built = build({}, environment, OURS, installing=False)
    assert built.toolkit == ToolkitSettings()
    assert built.nri is None


@pytest.mark.parametrize(
    "environment",
    [
        {"ENABLE_NRI_PLUGIN": "0", "NRI_PLUGIN_INDEX": "20", "NRI_NAMESPACE": "gpu"},
        {"CRIO_CONFIG_MODE": "hook"},
    ],
)
def test_turning_a_feature_off_is_no_use_of_it(environment: dict[str, str]) -> None:
    built = build({}, environment, OURS)
    assert msgspec.structs.replace(built, engine_of=()) == Settings()


# --- CDI ---


@pytest.mark.parametrize(
    "values, environment, wanted, in_engine",
    [
        ({}, {}, CdiSettings(), False),
        ({}, {"TOOLKIT_ARGS": "--enable-cdi"}, CdiSettings(enabled=True), True),
        ({}, {"CDI_ENABLED": "true", "CDI_OUTPUT_DIR": ""}, CdiSettings(), False),
        ({"cdi_enabled": ("true",)}, {"RUNTIME_ENABLE_CDI": "false"}, CdiSettings(enabled=True), False),
        ({"enable_cdi_in_runtime": ("true",)}, {"CDI_ENABLED": "false"}, CdiSettings(), True),
        (
            {"cdi_output_dir": ("/etc/cdi/",)},
            {"ENABLE_CDI": "1", "CDI_KIND": "example.com/gpu", "CREATE_DEVICE_NODES": "none"},
            CdiSettings(enabled=True, folder="/etc/cdi/", kind="example.com/gpu", control_nodes=False),
            True,
        ),
    ],
    ids=["nothing", "on", "nowhere", "not-in-the-engine", "only-in-the-engine", "elsewhere"],
)
def test_a_specification_is_written_if_asked_for_and_somewhere(
    values: dict[str, tuple[str, ...]],
    environment: dict[str, str],
    wanted: CdiSettings,
    in_engine: bool,  # noqa: FBT001  # a case's
) -> None:
    settings = build(values, {"RUNTIME": "docker", **environment}, OURS)
    assert settings.toolkit.cdi == wanted
    assert settings.engine.enable_cdi == in_engine


def test_a_specification_is_named_after_its_kind() -> None:
    assert CdiSettings(folder="/etc/cdi/", kind="example.com/gpu").path == "/etc/cdi/example.com-gpu.yaml"


# --- CRI-O ---


def test_hook_mode_is_crios_alone() -> None:
    settings = build({"config_mode": ("hook",)}, {"CRIO_HOOKS_DIR": "/hooks", "CRIO_HOOK_FILENAME": "gpu.json"}, OURS)
    assert settings.settings_of(EngineName.CONTAINERD).config_mode is ConfigMode.CONFIG
    crio = settings.settings_of(EngineName.CRIO)
    assert (crio.config_mode, crio.hooks_dir, crio.hook_filename) == (ConfigMode.HOOK, "/hooks", "gpu.json")


@pytest.mark.parametrize(
    "values, program, mode",
    [
        ({"destination": ("/usr/local/nvidia",)}, OLD, ConfigMode.HOOK),
        ({"destination": ("/usr/local/nvidia",), "runtime_args": ("-d /hooks",)}, OLD, ConfigMode.HOOK),
        ({"destination": ("/usr/local/nvidia",), "runtime_args": ("--config-mode config",)}, OLD, ConfigMode.CONFIG),
        ({"destination": ("/usr/local/nvidia",)}, OURS, ConfigMode.CONFIG),
        ({}, OLD, ConfigMode.CONFIG),
    ],
)
def test_callers_of_the_time_when_crio_had_hooks_only_get_a_hook(
    values: dict[str, tuple[str, ...]], program: Program, mode: ConfigMode
) -> None:
    assert build(values, {"RUNTIME": "crio"}, program).engine.config_mode is mode


# --- when nothing else makes sense ---


def test_an_error_is_logged_as_asked_even_when_the_rest_is_nonsense() -> None:
    assert read_log_options({}, {"LOG_FORMAT": "json", "RUNTIME": "?"})[0] is LogFormat.JSON
    assert read_log_options({"log_format": ("console",)}, {"LOG_FORMAT": "json"})[0] is LogFormat.CONSOLE
    assert read_log_options({}, {"LOG_FORMAT": "xml"})[0] is None
    assert read_log_options({}, {})[0] is None


def test_a_traceback_is_shown_only_if_somebody_asked() -> None:
    assert read_log_options({}, {"TOOLKIT_DEBUG": "1"})[1]
    assert not read_log_options({}, {})[1]
    assert not read_log_options({}, {"TOOLKIT_DEBUG": "?"})[1]


def test_several_engines_are_named_once_each_and_in_the_order_given() -> None:
    assert build({"runtime": ("docker,containerd",)}, {}, OURS).runtimes == (EngineName.DOCKER, EngineName.CONTAINERD)
    assert build({}, {"RUNTIME": "Containerd, docker,containerd"}, OURS).runtimes == (
        EngineName.CONTAINERD,
        EngineName.DOCKER,
    )
    assert build({"runtime": ("docker", "containerd")}, {}, OURS).runtimes == (EngineName.CONTAINERD,)


def test_of_several_engines_each_has_its_own_paths() -> None:
    variables = {"DOCKER_CONFIG": "/d", "CONTAINERD_CONFIG": "/c", "CONTAINERD_SOCKET": "/s", "DOCKER_SOCKET": "/t"}
    settings = build({"runtime": ("docker,containerd",)}, variables, OURS)
    docker, containerd = (settings.settings_of(name) for name in settings.runtimes)
    assert (docker.config, docker.socket, containerd.config, containerd.socket) == ("/d", "/t", "/c", "/s")
    asked = build({"runtime": ("docker,containerd",), "drop_in": ("/x.toml",)}, {}, OURS)
    assert [asked.settings_of(name).drop_in for name in asked.runtimes] == [None, "/x.toml"]


@pytest.mark.parametrize(
    "values,environment,named",
    [
        ({"config": ("/x",)}, {}, "--config"),
        ({"socket": ("/x",)}, {}, "--socket"),
        ({}, {"RUNTIME_CONFIG": "/x"}, "RUNTIME_CONFIG"),
        ({}, {"RUNTIME_SOCKET": "/x", "DOCKER_SOCKET": "/y"}, "RUNTIME_SOCKET"),
        ({"runtime_args": ("--config /x",)}, {}, "--config in --runtime-args"),
        ({"executable": ("/x",)}, {}, "--executable-path"),
    ],
)
def test_one_path_cannot_be_that_of_several_engines(
    values: dict[str, tuple[str, ...]], environment: dict[str, str], named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build({"runtime": ("docker,containerd",), **values}, environment, OURS)
    assert named in str(caught.value)
    build({"runtime": ("containerd",), **values}, environment, OURS)


@pytest.mark.parametrize("text", ["auto,docker", "docker,", ",", "docker;containerd", "podman", "docker containerd"])
def test_what_is_no_list_of_engines_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--runtime"):
        build({"runtime": (text,)}, {}, OURS)


# --- the driver that is to be found ---

DRIVER = ("driver_root", "driver_root_ctr_path", "dev_root", "dev_root_ctr_path")
FOUR = {"driver_root": "/r", "driver_root_ctr_path": "/rc", "dev_root": "/d", "dev_root_ctr_path": "/dc"}


def driver_of(values: dict[str, str], *, looking: bool = False) -> tuple[str, ...]:
    texts = {name: (text,) for name, text in values.items()}
    toolkit = build(texts, {}, OURS, installing=not looking, looking_for_driver=looking).toolkit
    return tuple(getattr(toolkit, name) for name in DRIVER)


@pytest.mark.parametrize(
    "values, paths",
    [
        ({}, ("/run/nvidia/driver",) * 4),
        ({"driver_root": "/"}, ("/", "/run/nvidia/driver", "/", "/run/nvidia/driver")),
        ({"driver_root": "auto"}, ("auto",) * 4),
        ({"driver_root": "auto", "dev_root": "/d"}, ("auto", "auto", "/d", "auto")),
        ({**FOUR, "driver_root": "auto"}, ("auto", "/rc", "/d", "/dc")),
        (FOUR, ("/r", "/rc", "/d", "/dc")),
        ({"node_root": "/host"}, ("/run/nvidia/driver", "/host/run/nvidia/driver") * 2),
        ({"node_root": "/host", "driver_root": "/"}, ("/", "/host", "/", "/host")),
        ({"node_root": "/host", "dev_root": "/"}, ("/run/nvidia/driver", "/host/run/nvidia/driver", "/", "/host")),
        ({"node_root": "/host", "driver_root": "auto"}, ("auto",) * 4),
        ({"node_root": "/host", **FOUR}, ("/r", "/rc", "/d", "/dc")),
    ],
    ids=str,
)
def test_what_of_the_driver_is_not_given_goes_with_its_root(values: dict[str, str], paths: tuple[str, ...]) -> None:
    assert driver_of(values) == paths


@pytest.mark.parametrize(
    "values, paths",
    [
        ({}, ("auto",) * 4),
        ({"driver_root": "/r"}, ("/r", "auto", "auto", "auto")),
        (FOUR, ("/r", "/rc", "/d", "/dc")),
    ],
    ids=str,
)
def test_who_waits_for_the_driver_looks_for_what_is_not_given(values: dict[str, str], paths: tuple[str, ...]) -> None:
    assert driver_of(values, looking=True) == paths


@pytest.mark.parametrize("text", ["driver", "AUTO", "", "auto/", "/a\nb"])
def test_a_driver_root_is_a_path_or_auto(text: str) -> None:
    assert "auto" in str(refusal({"driver_root": (text,)}, {}).hint)


# --- what the cluster is told ---

TOLD = {"NODE_NAME": "n", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
LONGEST = f"{'a' * 252}/{'b' * 63}"


def test_what_is_told_reaches_the_settings() -> None:
    asked = {
        "NODE_CONDITION": "true",
        "STARTUP_TAINT": "nvidia.com/toolkit=missing:NoSchedule",
        "RETAINT": "1",
        "NODE_LABELS": "true",
        "NODE_EVENTS": "true",
        "DAEMONSET_NAME": "ds",
    }
    assert build({}, {**TOLD, **asked, "KUBERNETES_SERVICE_PORT": "6443"}, OURS).reports == ReportSettings(
        node="n",
        host="10.0.0.1",
        port=6443,
        daemon_set="ds",
        condition="nvidia.com/ContainerToolkitReady",
        taint=Taint("nvidia.com/toolkit", "missing", "NoSchedule"),
        retaint=True,
        labels=True,
        events=True,
    )


def test_nobody_is_told_unless_something_is_asked_for() -> None:
    assert build({}, {**TOLD, "DAEMONSET_NAME": "ds", "NODE_CONDITION": "false"}, OURS).reports is None
    assert build({"node_events": ("true",)}, {}, OURS, installing=False).reports is None


@pytest.mark.parametrize(
    "text, kind",
    [
        ("yes", "nvidia.com/ContainerToolkitReady"),
        ("example.com/Ready", "example.com/Ready"),
        ("X", "X"),
        pytest.param(LONGEST, LONGEST, id="the longest that the API server takes"),
    ],
)
def test_a_condition_has_the_usual_type_or_one_of_ones_own(text: str, kind: str) -> None:
    found = build({"node_condition": (text,)}, TOLD, OURS).reports
    assert found is not None
    assert found.condition == kind


@pytest.mark.parametrize(
    "text, taint",
    [
        ("a:NoExecute", Taint("a", "", "NoExecute")),
        ("a=:NoSchedule", Taint("a", "", "NoSchedule")),
        ("startup-taint.cluster-autoscaler.kubernetes.io/x=y:NoSchedule", None),
    ],
)
def test_a_taint_is_written_as_kubectl_has_it(text: str, taint: Taint | None) -> None:
    found = build({"startup_taint": (text,)}, TOLD, OURS).reports
    assert found is not None
    assert taint is None or found.taint == taint
    assert taint is not None or str(found.taint) == text


@pytest.mark.parametrize(
    "name, text",
    [
        *(
            ("startup_taint", text)
            for text in ("a", "a=b", "a:Never", ":NoSchedule", "a b:NoSchedule", "a=é:NoSchedule")
        ),
        *(("startup_taint", text) for text in ("a/b/c:NoSchedule", "=b:NoSchedule", "a:NoSchedule-", "a:noschedule")),
        *(("node_condition", text) for text in ("", "a b", "a/", "/a", "é", "a" * 400, "a/" + "b" * 64)),
        pytest.param("node_condition", f"a{LONGEST}", id="a condition that is longer by one character"),
    ],
)
def test_what_the_api_server_would_refuse_is_refused_before_anything_is_written(name: str, text: str) -> None:
    assert f"--{name.replace('_', '-')}" in refusal({name: (text,)}, TOLD).reason


@pytest.mark.parametrize(
    "values, environment, missing",
    [
        ({"node_events": ("true",)}, {"KUBERNETES_SERVICE_HOST": "h"}, "NODE_NAME"),
        ({"node_labels": ("true",)}, {"NODE_NAME": "n"}, "KUBERNETES_SERVICE_HOST"),
        ({"startup_taint": ("a:NoSchedule",), "retaint": ("true",)}, TOLD, "DAEMONSET_NAME"),
        ({"retaint": ("true",)}, TOLD, "--startup-taint"),
    ],
    ids=["whose", "where", "whose pods", "what"],
)
def test_what_is_missing_to_tell_anybody_is_said(
    values: dict[str, tuple[str, ...]], environment: dict[str, str], missing: str
) -> None:
    said = refusal(values, environment)
    assert missing in f"{said.reason} {said.hint}"


# --- whom cleanup asks ---

POD = {"DAEMONSET_NAME": "toolkit-installer", "NODE_NAME": "gpu-1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def test_a_pods_environment_says_whom_to_ask() -> None:
    built = build({"cleanup": ("auto",)}, {**POD, "KUBERNETES_SERVICE_PORT": "6443"}, OURS)
    assert built.cluster == ClusterSettings("toolkit-installer", "gpu-1", "10.96.0.1", 6443)
    assert build({}, POD, OURS).cluster is None
    assert build({"cleanup": ("auto",), "no_daemon": ("true",)}, {}, OURS).cluster is None


@pytest.mark.parametrize(
    "variable, text",
    [
        ("NODE_NAME", "a/b"),
        ("NODE_NAME", "A"),
        ("NODE_NAME", "a" * 254),
        ("DAEMONSET_NAME", "a..b"),
        ("DAEMONSET_NAME", "a?"),
        ("KUBERNETES_SERVICE_HOST", "a/b"),
        ("KUBERNETES_SERVICE_HOST", "a@b"),
        ("KUBERNETES_SERVICE_PORT", "0"),
        ("KUBERNETES_SERVICE_PORT", "65536"),
        ("KUBERNETES_SERVICE_PORT", "https"),
    ],
)
def test_what_could_lead_the_question_elsewhere_is_refused(variable: str, text: str) -> None:
    assert refusal({"cleanup": ("auto",)}, {**POD, variable: text}).reason.startswith(f"{variable}: ")
