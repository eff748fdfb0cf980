"""Makes settings from the texts of a command's options, and calls the command's function in `actions`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from toolkit_installer.cli.options import build
from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.model import Option
from toolkit_installer.cli.options.resolve import Sources, find_near_misses
from toolkit_installer.cli.options.table import (
    DELETION_TIMEOUT,
    DRIVER_TIMEOUT,
    EACH,
    ENGINE_VERSION,
    HTML,
    KEEP_SECRETS,
    KEY_FILE,
    PAYLOAD,
    REFRESH_TIMEOUT,
    STATUS_CHECK,
    STATUS_JSON,
    UNLESS_INSTALLED,
)
from toolkit_installer.settings import Program

SEVERAL = "..."
"""Suffix of the name of an argument that may be given several times."""
_Values = dict[str, Sequence[str]]

_OWN_OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "plan": {"as_json": STATUS_JSON},
    "status": {"as_json": STATUS_JSON, "check": STATUS_CHECK},
    "refresh": {"seconds": REFRESH_TIMEOUT},
    "detect": {"as_json": STATUS_JSON},
    "diagnose": {"as_json": STATUS_JSON},
    "wait-driver": {"seconds": DRIVER_TIMEOUT, "unless_installed": UNLESS_INSTALLED},
    "delete-daemonset": {"seconds": DELETION_TIMEOUT},
    "capture": {"keep_secrets": KEEP_SECRETS, "key_file": KEY_FILE},
    "replay": {
        "as_json": STATUS_JSON,
        "each": EACH,
        "payload": PAYLOAD,
        "engine_versions": ENGINE_VERSION,
        "html": HTML,
    },
    "compare": {"as_json": STATUS_JSON},
}
"""Options of single commands besides the settings, by the parameters of their functions in `actions`."""


_ABOUT_THE_INSTALLATION = frozenset({"plan", "report", "status", "uninstall"})
"""The commands that take options that were not given from the run that waits (`run_options`)."""


def _complete_values(name: str, values: _Values, environment: Mapping[str, str], program: Program) -> _Values:
    """Return the option texts, with those that the run on the node has and the caller did not give."""
    from toolkit_installer import log  # noqa: PLC0415  # see below
    from toolkit_installer.cli import run_options  # noqa: PLC0415  # see below

    log_format, debug = build.read_log_options(values, environment)
    log.configure(log_format, debug=debug, stream=sys.stderr, environment=environment)
    return run_options.complete_options(
        values, environment, program, [row.name for row in cli_help.COMMANDS[name].options]
    )


def parameter(argument: str) -> str:
    """Return the name of the parameter that receives an argument."""
    return argument.removesuffix(SEVERAL).lower()


def make_job(name: str, program: Program, environment: Mapping[str, str]) -> Callable[[_Values], int]:
    """Return a function that runs the command `name` with the texts of its options."""

    def job(values: _Values) -> int:
        options = _OWN_OPTIONS.get(name, {})
        if name in _ABOUT_THE_INSTALLATION:
            values = _complete_values(name, values, environment, program)
        argument = parameter(cli_help.COMMANDS[name].argument or "")
        sources = Sources(values, environment, program)
        own: dict[str, object] = {parameter: sources.answer(option).value for parameter, option in options.items()}
        beside = {
            *map(parameter, (cli_help.COMMANDS[name].argument or "").split()),
            *(option.name for option in options.values()),
        }
        given = {key: texts for key, texts in values.items() if key not in beside}
        installing = name in {"run", "plan", "capture"}
        looks = name in {"wait-driver", "status"}
        settings = build.build(given, environment, program, installing=installing, looking_for_driver=looks)
        if name == "report":
            looking = build.build(given, environment, program, installing=False, looking_for_driver=True)
            own |= {argument: values[argument][0], "looking": looking}
        if name == "capture":
            own |= {argument: values[argument][0], "given": given, "environment": environment}
        if name == "replay":
            own |= {argument: tuple(values[argument]), "given": given}
        if name == "compare":
            own |= {"before": values["before"][0], "after": values["after"][0]}
        if name == "delete-daemonset":
            own["deletion"] = build.build_deletion(values[argument][0], given, environment, program)
        # late: --help and a mistyped flag need none of these imports
        from toolkit_installer import log  # noqa: PLC0415

        log.configure(settings.log_format, debug=settings.debug, stream=sys.stderr, environment=environment)
        if name in {"run", "plan"}:
            _report_near_misses(environment)
        from toolkit_installer.cli import actions  # noqa: PLC0415

        return int(getattr(actions, name.replace("-", "_"))(settings, **own))

    return job


def _report_near_misses(environment: Mapping[str, str]) -> None:
    """Warn of misspelt variables: once, and not each time that a waiting run wakes."""
    from toolkit_installer import log  # noqa: PLC0415
    from toolkit_installer.node import idling  # noqa: PLC0415

    for variable, meant in find_near_misses(environment) if idling.RESUME not in environment else ():
        log.get().warning(
            "No option has this variable: it changes nothing", key="variable-unknown", variable=variable, meant=meant
        )
