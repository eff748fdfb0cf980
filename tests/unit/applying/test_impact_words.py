"""What a reload touches, said in sentences and in keys of a log line; what is not known is called so."""

from __future__ import annotations

import msgspec
import pytest

from toolkit_installer.applying import impact
from toolkit_installer.applying.impact import DependentUnit, ReloadImpact
from toolkit_installer.settings import EngineName

KUBELET = DependentUnit("kubelet.service", "Requires", "containerd.service")
UNSAID = "docker does not say whether live-restore is on"
TOUCHED = ReloadImpact(
    restarts=True,
    containers_keep_running=True,
    running=41,
    through_handlers=3,
    names=("kube-system/dcgm", "ml/train-0", "ml/train-1"),
    units=(KUBELET,),
    units_at_stop=(),
    kubelet_in_unit=False,
    unknown=(),
)
BLIND = msgspec.structs.replace(
    TOUCHED,
    containers_keep_running=None,
    running=None,
    through_handlers=None,
    names=(),
    units=None,
    units_at_stop=None,
    unknown=("systemd does not say it", "nothing is seen"),
)


def said(engine: EngineName, *, by_systemd: bool = True, **changed: object) -> list[str]:
    return impact.describe_impact(
        engine, "containerd.service", msgspec.structs.replace(TOUCHED, **changed), by_systemd=by_systemd
    )


def test_a_restart_is_described_with_its_units_and_the_pods_of_our_handlers() -> None:
    assert said(EngineName.CONTAINERD) == [
        "containerd is restarted, and its containers keep running.",
        "With it systemd restarts kubelet.service (Requires=containerd.service).",
        f"Running now: 41 containers, 3 of them through handlers of this program: {', '.join(TOUCHED.names)}.",
    ]


def test_a_reload_that_is_no_restart_touches_no_container_and_no_unit() -> None:
    lines = said(EngineName.DOCKER, restarts=False, units=(), names=(), running=2, through_handlers=0)
    assert lines == [
        "docker is not restarted: no container is touched.",
        "Running now: 2 containers, none of them through a handler of this program.",
    ]


@pytest.mark.parametrize(
    "keeps, line",
    [
        (True, "docker is restarted, and its containers keep running: live-restore is on."),
        (False, "docker is restarted, and ITS CONTAINERS END WITH IT: live-restore is off."),
        (
            None,
            f"docker is restarted, and whether its containers keep running is unknown: {UNSAID}.",
        ),
    ],
)
def test_whether_a_restart_of_docker_ends_its_containers_is_told_by_its_live_restore(
    line: str, *, keeps: bool | None
) -> None:
    assert said(EngineName.DOCKER, containers_keep_running=keeps)[0] == line


def test_what_cannot_be_seen_is_unknown_and_the_reason_is_told() -> None:
    assert impact.describe_impact(EngineName.CRIO, "crio.service", BLIND, by_systemd=True) == [
        "crio is restarted, and whether its containers keep running is unknown.",
        "Which other units systemd restarts with it is unknown.",
        "How many containers run now is unknown.",
        "Unknown: systemd does not say it.",
        "Unknown: nothing is seen.",
    ]


@pytest.mark.parametrize(
    "running, ours, line",
    [
        (0, 0, "No container runs now."),
        (1, 1, "Running now: 1 container, 1 of them through handlers of this program: kube-system/dcgm."),
        (7, None, "Running now: 7 containers; how many of them run through handlers of this program is unknown."),
    ],
)
def test_few_containers_and_those_of_unknown_handlers_are_counted_as_they_are(
    running: int, ours: int | None, line: str
) -> None:
    assert said(EngineName.CRIO, running=running, through_handlers=ours, names=("kube-system/dcgm",))[-1] == line


def test_a_restart_that_takes_no_unit_along_says_so() -> None:
    assert said(EngineName.CRIO, units=())[1] == "With it systemd restarts no other unit."


def test_an_engine_that_ends_at_a_signal_may_have_units_stopped_that_are_bound_to_it() -> None:
    line = "With it systemd restarts or stops kubelet.service (Requires=containerd.service)."
    assert said(EngineName.CONTAINERD, by_systemd=False)[1] == line


def test_units_that_only_a_stop_takes_along_are_told_apart() -> None:
    stopped = (DependentUnit("b.service", "StopPropagatedFrom", "containerd.service"),)
    assert said(EngineName.CONTAINERD, units_at_stop=stopped)[2] == (
        "It would stop with it, and not every release of systemd leaves alone at a restart, "
        "b.service (StopPropagatedFrom=containerd.service)."
    )


def test_a_distributions_unit_has_the_kubelet_in_it() -> None:
    line = "The kubelet is restarted as well: it runs in containerd.service, too."
    assert said(EngineName.CONTAINERD, kubelet_in_unit=True)[1] == line
    assert line in said(EngineName.CONTAINERD, kubelet_in_unit=True, units=None)


def test_docker_that_restarts_with_containerd_may_end_its_containers() -> None:
    docker = DependentUnit("docker.service", "Requires", "containerd.service")
    line = "The containers of docker end with docker.service unless live-restore is on."
    assert said(EngineName.CONTAINERD, units=(KUBELET, docker))[2] == line
    assert line not in said(EngineName.CONTAINERD)


def test_many_names_are_cut_for_people_and_whole_in_the_log() -> None:
    names = tuple(f"ml/train-{number:02}" for number in range(13))
    line = said(EngineName.CONTAINERD, names=names, through_handlers=13)[-1]
    assert line.endswith("ml/train-09 and 3 more.")
    assert impact.build_log_fields(msgspec.structs.replace(TOUCHED, names=names))["names"] == ",".join(names)


def test_a_line_of_the_log_has_the_same_facts() -> None:
    assert impact.build_log_fields(TOUCHED) == {
        "restarts": True,
        "containers_keep_running": True,
        "units": "kubelet.service",
        "units_at_stop": None,
        "kubelet_in_unit": False,
        "running": 41,
        "through_handlers": 3,
        "names": "kube-system/dcgm,ml/train-0,ml/train-1",
        "unknown": None,
    }


def test_a_line_of_the_log_calls_unknown_what_is_not_known() -> None:
    line = impact.build_log_fields(BLIND)
    unknown = {key for key, value in line.items() if value == "unknown"}
    assert unknown == {"containers_keep_running", "units", "running", "through_handlers"}
    assert line["unknown"] == "systemd does not say it; nothing is seen"


def test_a_line_of_the_log_calls_it_none_where_no_unit_is_restarted() -> None:
    stopped = (DependentUnit("b.service", "StopPropagatedFrom", "containerd.service"),)
    line = impact.build_log_fields(msgspec.structs.replace(TOUCHED, units=(), units_at_stop=stopped))
    assert (line["units"], line["units_at_stop"]) == ("none", "b.service")
