"""A second run on CRI-O's files: cleanup goes back to what stood there before the first, and nothing changes."""

from __future__ import annotations

import pytest

from toolkit_installer.engines.api import DesiredState, EngineFile, RecordedFile
from toolkit_installer.engines.crio.desired import DROP_IN_ROLE, ROOT_ROLE, CrioInspection
from toolkit_installer.engines.crio.engine import Crio
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.receipt.file_records import digest_of
from toolkit_installer.settings import EngineName, EngineSettings

FOLDER = "/usr/local/nvidia/toolkit"
ROOT, DROP_IN = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/99-nvidia.toml"
REQUEST = Request(
    EngineTarget(EngineName.CRIO, EngineSettings()),
    (Handler("nvidia", f"{FOLDER}/nvidia-container-runtime"),),
    "nvidia",
    FOLDER,
)
CONFIGURED = b"""[crio.runtime]
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/bin/runc"
"""
HANDMADE = b"""# by hand
[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.nvidia]
runtime_path = "/opt/site/nvidia-container-runtime"
"""
COMMENT = b"# nothing yet\n"


def run(root: bytes, drop_in: bytes | None, records: dict[str, RecordedFile]) -> DesiredState:
    """Return what a run makes of the two files."""
    files = (_file(ROOT_ROLE, ROOT, root), _file(DROP_IN_ROLE, DROP_IN, drop_in))
    return Crio().build_desired_state(CrioInspection("/s", files, None), REQUEST, records)


def _file(role: str, path: str, content: bytes | None) -> EngineFile:
    found = None if content is None else Found(path, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    return EngineFile(role, path, found)


@pytest.mark.parametrize("before", [None, COMMENT, HANDMADE], ids=["no file", "a comment", "a handler made by hand"])
def test_what_stood_there_before_the_first_run_is_what_the_second_would_give_back(before: bytes | None) -> None:
    first = {each.path: each for each in run(CONFIGURED, before, {}).files}
    target = first[DROP_IN].target
    assert target is not None
    assert first[DROP_IN].base == before != target
    records = {
        path: RecordedFile(
            each.base, frozenset({digest_of(each.target)} if each.target is not None else ()), each.ownership
        )
        for path, each in first.items()
    }
    second = {each.path: each for each in run(CONFIGURED, target, records).files}
    assert (second[DROP_IN].base, second[DROP_IN].target) == (before, target)
    assert second[DROP_IN].ownership == first[DROP_IN].ownership
    assert not any(each.changes for each in second.values())


def test_what_somebody_added_since_stays_beside_what_stood_there_before() -> None:
    first = next(each for each in run(CONFIGURED, HANDMADE, {}).files if each.path == DROP_IN)
    assert first.target is not None
    records = {DROP_IN: RecordedFile(HANDMADE, frozenset({digest_of(first.target)}), first.ownership)}
    edited = first.target + b'[crio.image]\npause_image = "registry.example/pause"\n'
    second = next(each for each in run(CONFIGURED, edited, records).files if each.path == DROP_IN)
    assert second.base is not None
    assert b"/opt/site/nvidia-container-runtime" in second.base
    assert b"registry.example/pause" in second.base
    assert FOLDER.encode() not in second.base


def test_a_drop_in_that_crio_would_not_read_is_refused_with_the_reason() -> None:
    why = "CRI-O reads only what lies in /etc/crio/crio.conf.d"
    files = (_file(ROOT_ROLE, ROOT, CONFIGURED), _file(DROP_IN_ROLE, "/srv/99-nvidia.toml", None))
    with pytest.raises(ConfigurationError) as refused:
        Crio().build_desired_state(CrioInspection("/s", files, None, unread=why), REQUEST, {})
    assert (refused.value.reason, refused.value.path) == (why, "/srv/99-nvidia.toml")
