"""Who holds the toolkit is told by pod and namespace; what a pod's author wrote elsewhere reaches no log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.planning import toolkit_users
from toolkit_installer.planning.toolkit_users import Bundle

ID = "c0ffee" + "0" * 58
CONTAINERD = {
    "io.kubernetes.cri.container-name": "cuda",
    "io.kubernetes.cri.sandbox-name": "train-0",
    "io.kubernetes.cri.sandbox-namespace": "research",
}
CRIO = {
    "io.kubernetes.container.name": "cuda",
    "io.kubernetes.pod.name": "train-0",
    "io.kubernetes.pod.namespace": "research",
}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    (tmp_path / "bundle").mkdir()
    return Bundle(str(tmp_path / "bundle"), str(tmp_path))


def specify(bundle: Bundle, **body: Any) -> None:
    (Path(bundle.folder) / "config.json").write_text(json.dumps(body))


def remember(bundle: Bundle, folder: str, **body: Any) -> None:
    place = Path(bundle.root) / folder[1:] / ID
    place.mkdir(parents=True)
    (place / "config.v2.json").write_text(json.dumps(body))


@pytest.mark.parametrize("annotations", [CONTAINERD, CRIO], ids=["containerd", "CRI-O"])
def test_a_pod_is_named_with_its_namespace_and_container(bundle: Bundle, annotations: dict[str, str]) -> None:
    specify(bundle, annotations=annotations)
    assert toolkit_users.find_name(ID, bundle).words == " of pod research/train-0 (cuda)"


def test_a_pods_first_container_has_no_name(bundle: Bundle) -> None:
    specify(bundle, annotations={key: value for key, value in CONTAINERD.items() if "container" not in key})
    assert toolkit_users.find_name(ID, bundle).words == " of pod research/train-0"


def test_docker_knows_the_labels_that_cri_dockerd_gave(bundle: Bundle) -> None:
    specify(bundle, annotations={})
    remember(bundle, "/var/lib/docker/containers", Name="/k8s_cuda_train-0_research_1_0", Config={"Labels": CRIO})
    assert toolkit_users.find_name(ID, bundle).words == " of pod research/train-0 (cuda)"


def test_a_container_of_no_pod_is_called_as_docker_calls_it(bundle: Bundle) -> None:
    specify(bundle)
    remember(bundle, "/var/lib/docker/containers", Name="/eager_curie", Config={"Labels": {}})
    assert toolkit_users.find_name(ID, bundle).words == ", which docker calls eager_curie,"


def test_a_docker_that_keeps_its_data_elsewhere_is_found_by_what_it_mounts(bundle: Bundle) -> None:
    specify(bundle, mounts=[{"destination": "/etc/hosts", "source": f"/data/docker/containers/{ID}/hosts"}])
    remember(bundle, "/data/docker/containers", Name="/eager_curie")
    assert toolkit_users.find_name(ID, bundle).words == ", which docker calls eager_curie,"


def test_a_folder_that_a_user_prepared_names_nobody(bundle: Bundle) -> None:
    specify(bundle, mounts=[{"destination": "/etc/hosts", "source": f"/home/user/{'ab' * 32}/hosts"}])
    remember(bundle, "/home/user", Name="/system")
    assert toolkit_users.find_name(ID, bundle).words == ""


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b"{", b"[" * 100_000, b'{"annotations": []}', b'{"annotations": {"a": 1}}', b"\xff"]
)
def test_what_cannot_be_read_names_nobody_and_stops_nothing(bundle: Bundle, content: bytes | None) -> None:
    if content is not None:
        (Path(bundle.folder) / "config.json").write_bytes(content)
    assert toolkit_users.find_name(ID, bundle).words == ""
    assert toolkit_users.find_name("x", None).words == ""


def test_a_pipe_in_its_place_is_not_waited_for(bundle: Bundle) -> None:
    os.mkfifo(Path(bundle.folder) / "config.json")
    assert toolkit_users.find_name(ID, bundle).words == ""


NAMES = st.text() | st.sampled_from(
    ["ok", "a\nlevel=error", "\x1b[2J", "a b", "../x", "é", "A", "-a", "a" * 300, "a\n", "ok\u202e", "1.2.3"]
)


@given(namespace=NAMES, pod=NAMES, container=NAMES)
def test_whatever_the_labels_say_only_names_are_shown(namespace: str, pod: str, container: str) -> None:
    labels = {
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.name": pod,
        "io.kubernetes.container.name": container,
    }
    shown = toolkit_users._parse_pod(labels).words
    assert set(shown) <= set(" of pod/().-abcdefghijklmnopqrstuvwxyz0123456789")
    assert len(shown) < 400
    assert shown in ("", f" of pod {namespace}/{pod}", f" of pod {namespace}/{pod} ({container})")
