"""Metrics as values and as text: counts of the run's events, and Prometheus's exposition format 0.0.4. Pure.

The counts cover the run since it started: reloads, how long they took, rollbacks. The format is that of "Exposition
formats" in the Prometheus documentation; names and units follow its "Metric and label naming".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from toolkit_installer.events import Event, EventKind

REASONS = ("install", "rollback")
"""The reasons for reloads."""


class Counts(msgspec.Struct, frozen=True):
    """Counts that the run saves over its sleep."""

    reloads: tuple[tuple[str, str, int], ...] = ()
    """Engine, reason, count."""
    reload_seconds: tuple[tuple[str, float], ...] = ()
    """Engine, seconds from its last reload until it served again."""
    rollbacks: int = 0
    result: str = ""
    """The name of the last inspection's exit code; empty before the first inspection."""
    converged_at: float = 0.0
    """The last time that the node was complete, in seconds since 1970; 0: never."""
    reloading_since: tuple[tuple[str, float], ...] = ()
    """Engines with a reload in progress, with its start time."""
    phase: str = "install"
    """The reason for the next reloads: install or rollback."""


def count_event(counted: Counts, event: Event, at: float) -> Counts:
    """Return the counts after an event, which happened at time `at` (seconds, of any clock)."""
    engine = event.engine
    match event.kind:
        case EventKind.ROLLBACK:
            return msgspec.structs.replace(counted, rollbacks=counted.rollbacks + 1, phase="rollback")
        case EventKind.RELOADING:
            reloads = {(name, why): count for name, why, count in counted.reloads}
            key = engine, counted.phase
            reloads[key] = reloads.get(key, 0) + 1
            return msgspec.structs.replace(
                counted,
                reloads=tuple((*key, count) for key, count in reloads.items()),
                reloading_since=_replace_pair(counted.reloading_since, engine, at),
            )
        case EventKind.ENGINE_SERVES:
            began = dict(counted.reloading_since).get(engine)
            if began is None:
                return counted
            others = tuple(each for each in counted.reloading_since if each[0] != engine)
            return msgspec.structs.replace(
                counted,
                reload_seconds=_replace_pair(counted.reload_seconds, engine, at - began),
                reloading_since=others,
            )
    return counted


def count_outcome(counted: Counts, code: str, converged_at: float | None = None) -> Counts:
    """Return the counts after an inspection that ended with the exit code named `code`.

    `converged_at` is when the node became complete, in seconds since 1970; None: this inspection did not complete it.
    """
    at = counted.converged_at if converged_at is None else converged_at
    return msgspec.structs.replace(counted, result=code, converged_at=at, reloading_since=(), phase="install")


def _replace_pair(pairs: tuple[tuple[str, float], ...], key: str, value: float) -> tuple[tuple[str, float], ...]:
    return *(each for each in pairs if each[0] != key), (key, value)


class Metrics(msgspec.Struct, frozen=True):
    """The node's status, and the run's counts since it started."""

    ready: bool
    """Whether pods that ask for the handlers can be started."""
    served: Mapping[str, bool] = {}
    """Whether each engine serves the handlers, by its name."""
    reloads: Mapping[tuple[str, str], int] = {}
    """The number of this run's reloads of an engine, by the engine's name and the reason: install or rollback."""
    reload_seconds: Mapping[str, float] = {}
    """Seconds from the last reload of an engine until it served again, by its name."""
    rollbacks: int = 0
    drifted: tuple[str, ...] = ()
    """Managed files that were changed by others."""
    result: str = "done"
    """The name of the last inspection's exit code; empty before the first inspection."""
    converged_at: float = 0.0
    """The last time that the node was complete, in seconds since 1970; 0: never."""
    payload: str = ""
    """The installed release, empty if none is installed."""
    driver_usable: bool = True
    reload_pending: bool = False
    """Whether a reload is due and not allowed yet."""
    damaged: int = 0
    """The number of the toolkit's files that differ from the installed ones."""
    nri_connected: bool | None = None
    """Whether the NRI plugin is connected, None if no plugin is served."""


def format_text(metrics: Metrics) -> str:
    """Return the metrics in Prometheus's text format."""
    return "".join(
        [
            _format_metric("ready", "Whether pods that ask for the handlers can be started.", [({}, metrics.ready)]),
            _format_metric(
                "engine_served",
                "Whether the engine serves the handlers.",
                [({"engine": name}, served) for name, served in sorted(metrics.served.items())],
            ),
            _format_metric(
                "reloads_total",
                "Reloads of the engine since the run started.",
                [({"engine": name, "reason": why}, count) for (name, why), count in sorted(metrics.reloads.items())],
                kind="counter",
            ),
            _format_metric(
                "engine_away_seconds",
                "Seconds from the last reload of the engine until it served again.",
                [({"engine": name}, seconds) for name, seconds in sorted(metrics.reload_seconds.items())],
            ),
            _format_metric(
                "rollbacks_total",
                "Changes that failed and were taken back since the run started.",
                [({}, metrics.rollbacks)],
                kind="counter",
            ),
            _format_metric(
                "drift",
                "1 for each managed file that somebody changed.",
                [({"file": path}, 1) for path in sorted(metrics.drifted)],
            ),
            _format_metric(
                "last_result",
                "1 for the name of the exit code of the last look.",
                [({"code": metrics.result}, 1)] if metrics.result else [],
            ),
            _format_metric(
                "last_converge_timestamp_seconds",
                "When the node was last brought to where it should be.",
                [({}, metrics.converged_at)],
            ),
            _format_metric(
                "payload_info",
                "1 for the release of the installed toolkit.",
                [({"version": metrics.payload}, 1)] if metrics.payload else [],
            ),
            _format_metric(
                "driver_usable", "Whether the driver that is needed is usable.", [({}, metrics.driver_usable)]
            ),
            _format_metric(
                "reload_pending", "Whether a reload is due and not allowed yet.", [({}, metrics.reload_pending)]
            ),
            _format_metric(
                "toolkit_files_damaged",
                "Files of the toolkit that are not what was put there.",
                [({}, metrics.damaged)],
            ),
            _format_metric(
                "nri_connected",
                "Whether the engine asks the NRI plugin about each container.",
                [({}, metrics.nri_connected)] if metrics.nri_connected is not None else [],
            ),
        ]
    )


def _format_metric(
    name: str, about: str, samples: Iterable[tuple[Mapping[str, str], float]], kind: str = "gauge"
) -> str:
    """Return a metric with its samples: labels with a value."""
    full = f"toolkit_installer_{name}"
    lines = [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
    for labels, value in samples:
        pairs = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        lines.append(f"{full}{f'{{{pairs}}}' if pairs else ''} {_format_number(value)}")
    return "".join(f"{line}\n" for line in lines)


def _escape(text: str) -> str:
    """Return a label's value as it is written between quotes, with bytes that are no UTF-8 as escapes."""
    plain = text.encode(errors="backslashreplace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 3))
