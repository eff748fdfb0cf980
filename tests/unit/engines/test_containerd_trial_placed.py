"""What containerd's own binary is asked about additions to a file that a distribution made, and what it may say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Table, lookup
from toolkit_installer.engines.api import DesiredFile, DesiredState, EngineFile, Live
from toolkit_installer.engines.common import trial
from toolkit_installer.engines.containerd import templates
from toolkit_installer.engines.containerd import trial as containerd_trial
from toolkit_installer.engines.containerd.config import Part
from toolkit_installer.engines.containerd.inspection import ContainerdInspection, Placed
from toolkit_installer.engines.containerd.layouts import DROP_IN_ROLE, TEMPLATE_ROLE, Layout
from toolkit_installer.engines.containerd.tables import CRI_PLUGIN, shape
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process

PLUGIN = CRI_PLUGIN[2]
OURS = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
GENERATED = b"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
HANDLER = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": OURS}}
DROP_IN = f"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "{OURS}"
""".encode()
LAYOUT = Layout("k3s", "/c/config.toml", 2, drop_in="/c/d/99-nvidia.toml", template="/c/config.toml.tmpl")


class Binary:
    """Prints all that it is given, or what `answers` has in place of that, in their order."""

    def __init__(self) -> None:
        self.given: list[Table] = []
        self.answers: list[tuple[Table | None, str] | None] = []

    def dump(self, _: object, binary: str, content: bytes) -> tuple[Table | None, str]:
        assert binary == "/usr/bin/containerd"
        self.given.append(toml_document.parse(content))
        answer = self.answers.pop(0) if self.answers else None
        return answer if answer is not None else (self.given[-1], "")

    def runtimes(self) -> list[Table]:
        """Return those of each text that it was given."""
        found = [lookup(each, shape(PLUGIN).runtimes) for each in self.given]
        return [each for each in found if isinstance(each, dict)]


@pytest.fixture
def binary() -> Iterator[Binary]:
    found = Binary()
    with mock.patch.object(trial, "containerd_dump", found.dump):
        yield found


def try_out(role: str, base: bytes | None, target: bytes | None, default: str | None = None) -> None:
    """Try a file that is to hold `target`, without us `base`."""
    process = Process(os.getpid(), "containerd", "/usr/bin/containerd", (), 0.0, None)
    inspection = ContainerdInspection(
        "/s", (), Live("2.1.4", {}, None, process), placed=Placed(LAYOUT, content=GENERATED)
    )
    place = LAYOUT.template if role == TEMPLATE_ROLE else LAYOUT.drop_in
    served = {} if target is None else {"nvidia": OURS}
    files = (DesiredFile(EngineFile(role, str(place), None), base, target),)
    containerd_trial.try_out(Node("/"), inspection, DesiredState(files, served, default))


def test_the_binary_is_asked_what_it_makes_of_the_generated_file_without_and_with_the_drop_in(binary: Binary) -> None:
    try_out(DROP_IN_ROLE, None, DROP_IN, "nvidia")
    without, with_us = binary.runtimes()
    assert (list(without), sorted(with_us), with_us["nvidia"]) == (["runc"], ["nvidia", "runc"], HANDLER)
    assert lookup(binary.given[1], shape(PLUGIN).default) == "nvidia"


def test_a_drop_in_that_goes_is_tried_as_the_generated_file_alone(binary: Binary) -> None:
    try_out(DROP_IN_ROLE, DROP_IN, None)
    assert [list(each) for each in binary.runtimes()] == [["runc"], ["runc"]]


def test_a_file_that_stays_as_it_is_needs_no_trial(binary: Binary) -> None:
    try_out(DROP_IN_ROLE, DROP_IN, DROP_IN)
    assert binary.given == []


@pytest.mark.parametrize("theirs", [b"", b'{{ template "base" . }}\n'], ids=["new", "with the base"])
def test_the_binary_is_given_what_becomes_of_a_template_and_not_the_template(binary: Binary, theirs: bytes) -> None:
    try_out(TEMPLATE_ROLE, theirs, templates.with_block(theirs, Part(PLUGIN, (("nvidia", HANDLER),), None)))
    assert binary.runtimes()[1]["nvidia"] == HANDLER


def test_a_handler_that_the_binary_does_not_see_is_refused_and_the_file_named(binary: Binary) -> None:
    binary.answers = [None, (toml_document.parse(GENERATED), "")]
    with pytest.raises(ConfigurationError, match="it does not see the handler nvidia") as refused:
        try_out(DROP_IN_ROLE, None, DROP_IN)
    assert refused.value.path == LAYOUT.drop_in
    assert LAYOUT.generated in str(refused.value.hint)


def test_what_the_binary_would_not_start_with_is_refused_in_its_words(binary: Binary) -> None:
    binary.answers = [None, (None, "containerd: invalid plugin config: boom")]
    with pytest.raises(ConfigurationError, match="invalid plugin config: boom"):
        try_out(DROP_IN_ROLE, None, DROP_IN)


def test_a_runtime_that_the_binary_would_lose_is_refused(binary: Binary) -> None:
    binary.answers = [None, (toml_document.parse(DROP_IN), "")]
    with pytest.raises(ConfigurationError, match="the runtime runc would not be what it was"):
        try_out(DROP_IN_ROLE, None, DROP_IN)


def test_a_binary_that_fails_on_what_it_runs_with_is_not_asked_about_more(binary: Binary) -> None:
    binary.answers = [(None, "no such plugin")]
    try_out(DROP_IN_ROLE, None, DROP_IN)
    assert len(binary.given) == 1
