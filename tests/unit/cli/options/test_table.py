"""The option table against what the field speaks."""

from __future__ import annotations

import collections

import pytest

from toolkit_installer.cli.options import model
from toolkit_installer.cli.options.model import Kind, Option
from toolkit_installer.cli.options.table import BY_NAME, OPTIONS
from toolkit_installer.settings import EngineName, Program

# flags, variables, default; one line an option of the peer's interface, aliases and order included
INTERFACE = """
--runtime -r | RUNTIME | docker
--no-daemon -n | NO_DAEMON | false
--no-runtime-config | NO_RUNTIME_CONFIG | false
--toolkit-args -t | TOOLKIT_ARGS |
--runtime-args -u | RUNTIME_ARGS |
--toolkit-install-dir --root | TOOLKIT_INSTALL_DIR ROOT | /usr/local/nvidia
--toolkit-source-root | TOOLKIT_SOURCE_ROOT |
--toolkit-package-type | TOOLKIT_PACKAGE_TYPE | auto
--pid-file | TOOLKIT_PID_FILE PID_FILE | /run/nvidia/toolkit.pid
--debug | TOOLKIT_DEBUG | false
--driver-root --nvidia-driver-root | NVIDIA_DRIVER_ROOT DRIVER_ROOT | /run/nvidia/driver
--driver-root-ctr-path | DRIVER_ROOT_CTR_PATH | /run/nvidia/driver
--dev-root | NVIDIA_DEV_ROOT DEV_ROOT |
--dev-root-ctr-path | DEV_ROOT_CTR_PATH |
--nvidia-container-runtime.debug --nvidia-container-runtime-debug | NVIDIA_CONTAINER_RUNTIME_DEBUG |
--nvidia-container-runtime.log-level --nvidia-container-runtime-debug-log-level | NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL |
--nvidia-container-runtime.mode --nvidia-container-runtime-mode | NVIDIA_CONTAINER_RUNTIME_MODE |
--nvidia-container-runtime.modes.cdi.default-kind | NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND |
--nvidia-container-runtime.modes.cdi.annotation-prefixes | NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES |
--nvidia-container-runtime-modes.cdi.annotation-prefixes | NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES |
--nvidia-container-runtime.runtimes | NVIDIA_CONTAINER_RUNTIME_RUNTIMES |
--nvidia-container-runtime-hook.skip-mode-detection | NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION | true
--nvidia-container-cli.debug --nvidia-container-cli-debug | NVIDIA_CONTAINER_CLI_DEBUG |
--accept-nvidia-visible-devices-envvar-when-unprivileged | ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED | true
--accept-nvidia-visible-devices-as-volume-mounts | ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS | false
--cdi-enabled --enable-cdi | CDI_ENABLED ENABLE_CDI | false
--cdi-output-dir | CDI_OUTPUT_DIR | /var/run/cdi
--cdi-kind | CDI_KIND | management.nvidia.com/gpu
--create-device-nodes | CREATE_DEVICE_NODES | control
--opt-in-features | NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES |
--config | RUNTIME_CONFIG CONTAINERD_CONFIG DOCKER_CONFIG CRIO_CONFIG |
--drop-in-config | RUNTIME_DROP_IN_CONFIG |
--drop-in-config-host-path | RUNTIME_DROP_IN_CONFIG_HOST_PATH |
--executable-path | RUNTIME_EXECUTABLE_PATH |
--socket | RUNTIME_SOCKET CONTAINERD_SOCKET DOCKER_SOCKET |
--restart-mode | RUNTIME_RESTART_MODE CONTAINERD_RESTART_MODE |
--enable-cdi-in-runtime | RUNTIME_ENABLE_CDI |
--host-root | HOST_ROOT_MOUNT | /host
--runtime-name --nvidia-runtime-name --runtime-class | NVIDIA_RUNTIME_NAME CONTAINERD_RUNTIME_CLASS DOCKER_RUNTIME_NAME\
 | nvidia
--set-as-default | NVIDIA_RUNTIME_SET_AS_DEFAULT CONTAINERD_SET_AS_DEFAULT DOCKER_SET_AS_DEFAULT | true
--config-source --config-sources | RUNTIME_CONFIG_SOURCES RUNTIME_CONFIG_SOURCE |
--use-legacy-config | CONTAINERD_USE_LEGACY_CONFIG | false
--runtime-type | CONTAINERD_RUNTIME_TYPE |
--runtime-config-override | RUNTIME_CONFIG_OVERRIDE CONTAINERD_RUNTIME_CONFIG_OVERRIDE | {}
--hooks-dir | CRIO_HOOKS_DIR | /usr/share/containers/oci/hooks.d
--hook-filename | CRIO_HOOK_FILENAME | oci-nvidia-hook.json
--config-mode | CRIO_CONFIG_MODE | config
--enable-nri-plugin -p | ENABLE_NRI_PLUGIN | false
--nri-plugin-index | NRI_PLUGIN_INDEX | 10
--nri-socket | NRI_SOCKET | /var/run/nri/nri.sock
--nri-namespace | NRI_NAMESPACE |
--nri-management-cdi-device-namespaces | NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES |
"""
LINES = INTERFACE.strip().splitlines()
OURS = {
    "--node-root": ("NODE_ROOT",),
    "--log-format": ("LOG_FORMAT",),
    "--cleanup": ("CLEANUP",),
    "--ready-file": ("READY_FILE",),
    "--daemonset": ("DAEMONSET_NAME",),
    "--node-name": ("NODE_NAME",),
    "--metrics-textfile": ("METRICS_TEXTFILE",),
    "--metrics-address": ("METRICS_ADDRESS",),
    "--node-condition": ("NODE_CONDITION",),
    "--startup-taint": ("STARTUP_TAINT",),
    "--retaint": ("RETAINT",),
    "--node-labels": ("NODE_LABELS",),
    "--verify-with-canary": ("VERIFY_WITH_CANARY",),
    "--node-events": ("NODE_EVENTS",),
    "--service-account-dir": ("SERVICE_ACCOUNT_DIR",),
    "--kubernetes-service-host": ("KUBERNETES_SERVICE_HOST",),
    "--kubernetes-service-port": ("KUBERNETES_SERVICE_PORT",),
    "--keep-toolkit": ("KEEP_TOOLKIT",),
    "--remove-toolkit": (),
    "--verify-payload": ("VERIFY_PAYLOAD",),
    "--on-drift": ("ON_DRIFT",),
    "--method": ("TOOLKIT_METHOD",),
    "--without-gpu": ("WITHOUT_GPU",),
    "--reload-timeout": ("RELOAD_TIMEOUT",),
    "--reload-budget": ("RELOAD_BUDGET",),
    "--reload-when": ("RELOAD_WHEN",),
    "--allow-restart": ("ALLOW_RESTART",),
    "--require-live": ("REQUIRE_LIVE",),
    "--nri-strict": ("NRI_STRICT",),
    "--wait-for-driver": ("WAIT_FOR_DRIVER",),
}


def option_of(flag: str) -> Option:
    return next(option for option in OPTIONS if option.flags[0] == flag)


@pytest.mark.parametrize("line", LINES, ids=[line.split()[0] for line in LINES])
def test_the_fields_flags_variables_and_defaults_are_all_there(line: str) -> None:
    flags, variables, default = (part.split() for part in line.split("|"))
    option = option_of(flags[0])
    assert option.flags == tuple(flags)
    assert option.variables == tuple(variables)
    assert option.default_under(Program.NVIDIA_TOOLKIT) == (default[0] if default else None)


def test_nothing_is_in_the_table_that_neither_the_field_nor_we_asked_for() -> None:
    theirs = {line.split()[0] for line in LINES}
    assert {option.flags[0] for option in OPTIONS} == theirs | set(OURS)
    assert {flag: option_of(flag).variables for flag in OURS} == OURS


def test_the_three_names_differ_in_four_defaults_only() -> None:
    by_program = {
        option.flags[0]: tuple(option.default_under(program) for program in Program)
        for option in OPTIONS
        if option.default_of
    }
    assert by_program == {
        "--runtime": ("auto", "docker", "docker"),
        "--keep-toolkit": ("false", "true", "true"),
        "--nri-strict": ("true", "false", "false"),
        "--pid-file": (
            "/run/nvidia/toolkit.pid",
            "/run/nvidia/toolkit.pid",
            "/run/nvidia/toolkit/toolkit.pid",
        ),
    }


def test_no_flag_means_two_things() -> None:
    counts = collections.Counter(flag for option in OPTIONS for flag in option.flags)
    assert [flag for flag, count in counts.items() if count > 1] == []
    assert len(BY_NAME) == len(OPTIONS)


def test_a_variable_means_two_things_only_where_the_field_wants_it() -> None:
    counts = collections.Counter(variable for option in OPTIONS for variable in option.variables)
    assert [variable for variable, count in counts.items() if count > 1] == [
        "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES"
    ]


@pytest.mark.parametrize("program", list(Program))
def test_every_default_is_a_value_that_a_user_could_give(program: Program) -> None:
    for option in OPTIONS:
        default = option.default_under(program)
        if default is not None:
            model.parse_value(option, (default,))


def test_choices_are_given_for_choices_alone() -> None:
    for option in OPTIONS:
        assert bool(option.choices) == (option.kind in (Kind.CHOICE, Kind.ENGINES)), option.name


@pytest.mark.parametrize(
    "engine, counting",
    [
        (EngineName.DOCKER, ("RUNTIME_CONFIG", "DOCKER_CONFIG")),
        (EngineName.CONTAINERD, ("RUNTIME_CONFIG", "CONTAINERD_CONFIG")),
        (EngineName.CRIO, ("RUNTIME_CONFIG", "CRIO_CONFIG")),
        (None, ("RUNTIME_CONFIG", "CONTAINERD_CONFIG")),
    ],
)
def test_another_engines_variable_does_not_count(engine: EngineName | None, counting: tuple[str, ...]) -> None:
    assert BY_NAME["config"].variables_for(engine) == counting
