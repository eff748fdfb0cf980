"""The metrics: Prometheus' own parser reads back what was meant, whatever files and releases are called."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from toolkit_installer.events import Event, EventKind
from toolkit_installer.reporting import metrics_text
from toolkit_installer.reporting.metrics_text import Counts, Metrics

DOCUMENT = Path(__file__).parents[3] / "docs/metrics.md"


def read(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return each sample by its name and labels, as Prometheus reads them."""
    return {
        (sample.name.removeprefix("toolkit_installer_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics_text.format_text(metrics))
        for sample in family.samples
    }


def test_everything_is_read_back_as_it_was_meant() -> None:
    metrics = Metrics(
        ready=True,
        served={"docker": True, "containerd": False},
        reloads={("docker", "install"): 2, ("docker", "rollback"): 1},
        reload_seconds={"docker": 1.23456},
        rollbacks=1,
        drifted=("/etc/docker/daemon.json",),
        result="engine-rejected",
        converged_at=1_800_000_000.0,
        payload="1.19.0",
        driver_usable=False,
        reload_pending=True,
        damaged=3,
    )
    assert read(metrics) == {
        ("ready", ()): 1,
        ("engine_served", (("engine", "docker"),)): 1,
        ("engine_served", (("engine", "containerd"),)): 0,
        ("reloads_total", (("engine", "docker"), ("reason", "install"))): 2,
        ("reloads_total", (("engine", "docker"), ("reason", "rollback"))): 1,
        ("engine_away_seconds", (("engine", "docker"),)): 1.235,
        ("rollbacks_total", ()): 1,
        ("drift", (("file", "/etc/docker/daemon.json"),)): 1,
        ("last_result", (("code", "engine-rejected"),)): 1,
        ("last_converge_timestamp_seconds", ()): 1_800_000_000,
        ("payload_info", (("version", "1.19.0"),)): 1,
        ("driver_usable", ()): 0,
        ("reload_pending", ()): 1,
        ("toolkit_files_damaged", ()): 3,
    }


def test_of_what_is_not_installed_no_release_is_told() -> None:
    """Else each node without a GPU would count for a release without a name."""
    assert not [name for name, _ in read(Metrics(ready=True)) if name == "payload_info"]


@given(st.lists(st.text(), unique=True, max_size=4))
def test_a_file_of_any_name_is_one_label_of_one_line(names: list[str]) -> None:
    text = metrics_text.format_text(Metrics(ready=False, drifted=tuple(names)))
    drift = [line for line in text.split("\n") if line.startswith("toolkit_installer_drift{")]
    assert len(drift) == len(names)
    text.encode()
    if not any("\r" in name or "\x85" in name or re.search(r"[\x0b\x0c\x1c-\x1e\u2028\u2029]", name) for name in names):
        found = {
            dict(labels)["file"]
            for (name, labels) in read(Metrics(ready=False, drifted=tuple(names)))
            if name == "drift"
        }
        assert found == {name.encode(errors="backslashreplace").decode() for name in names}


def test_the_page_names_each_metric_with_its_labels_and_its_type() -> None:
    full = {
        "served": {"e": True},
        "reloads": {("e", "r"): 1},
        "reload_seconds": {"e": 1.0},
        "drifted": ("f",),
        "payload": "1",
    }
    full |= {"nri_connected": False}
    metrics = msgspec.convert({"ready": True, **full}, Metrics)
    told = set()
    for family in text_string_to_metric_families(metrics_text.format_text(metrics)):
        (sample,) = family.samples
        labels = f"{{{','.join(sample.labels)}}}" if sample.labels else ""
        told.add((f"{sample.name}{labels}", family.type))
    rows = re.findall(r"^\| `(toolkit_installer_[^`]+)` \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert set(rows) == told


# --- what is counted ---


def counted(*events: tuple[EventKind, float], engine: str = "docker") -> Counts:
    found = Counts()
    for kind, at in events:
        found = metrics_text.count_event(found, Event(kind, "", engine), at)
    return found


def test_a_reload_counts_for_what_it_was_made_and_how_long_the_engine_was_away() -> None:
    found = counted(
        (EventKind.RELOADING, 10.0),
        (EventKind.ENGINE_SERVES, 12.5),
        (EventKind.ROLLBACK, 13.0),
        (EventKind.RELOADING, 14.0),
    )
    assert found.reloads == (("docker", "install", 1), ("docker", "rollback", 1))
    assert found.reload_seconds == (("docker", 2.5),)
    assert found.rollbacks == 1
    found = metrics_text.count_outcome(found, "engine-rejected")
    assert (found.result, found.phase) == ("engine-rejected", "install")
    found = metrics_text.count_event(found, Event(EventKind.ENGINE_SERVES, "", "docker"), 99.0)
    assert found.reload_seconds == (("docker", 2.5),), "nobody reloaded it"


def test_a_look_that_fails_leaves_the_time_of_the_last_that_did_not() -> None:
    found = metrics_text.count_outcome(Counts(), "bad-configuration")
    assert (found.result, found.converged_at) == ("bad-configuration", 0.0)
    found = metrics_text.count_outcome(found, "done", 1_800_000_000.5)
    assert (found.result, found.converged_at) == ("done", 1_800_000_000.5)
    assert metrics_text.count_outcome(found, "engine-down").converged_at == 1_800_000_000.5
    assert metrics_text.count_outcome(found, "done").converged_at == 1_800_000_000.5


def test_other_events_count_nothing() -> None:
    assert counted((EventKind.CONFIGURED, 1.0), (EventKind.DRIFT, 2.0)) == Counts()
