"""How one containerd's own files are read: which version counts, which view, and what is refused before any edit."""

from __future__ import annotations

from typing import Any

import pytest

from toolkit_installer.engines.api import DesiredFile, EngineFile, LiveState
from toolkit_installer.engines.containerd.config_files import ImportedFile
from toolkit_installer.engines.containerd.inspection import DROP_IN_ROLE, ROOT_ROLE, ContainerdInspection
from toolkit_installer.engines.containerd.own_files import OwnFiles
from toolkit_installer.engines.containerd.tables import GRPC, RUNTIME, SHORT, View
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.settings import EngineName, EngineSettings

ROOT, DROP_IN, OTHER = "/c/config.toml", "/c/conf.d/99-nvidia.toml", "/c/other.toml"
HANDLERS = (Handler("nvidia", "/t/nvidia-container-runtime"),)


def wanted(role: str, path: str, base: bytes | None, now: bytes | None = None) -> DesiredFile:
    content = base if now is None else now
    found = None if content is None else Found(path, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    return DesiredFile(EngineFile(role, path, found), base, base)


def asking(default: str | None = None, *, legacy: bool = False) -> Request:
    settings = EngineSettings(use_legacy_config=legacy)
    return Request(EngineTarget(EngineName.CONTAINERD, settings), HANDLERS, default, "/t")


def read(
    root: bytes,
    release: str | None = None,
    *,
    other: bytes | None = None,
    drop_in: bytes | None = None,
    now: bytes | None = None,
    deep: bool = False,
    request: Request = asking(),  # noqa: B008  # it is frozen
    **seen: Any,
) -> OwnFiles:
    """Return what is made of a root file, of another one that it imports, and of our drop-in, all without us."""
    graph = [] if other is None else [ImportedFile(OTHER, OTHER, other, file=OTHER)]
    if drop_in is not None:
        graph.append(ImportedFile(DROP_IN, DROP_IN, drop_in, drop_in=True, file=DROP_IN))
    live = None if release is None else LiveState(release, {}, None)
    without = {ROOT_ROLE: wanted(ROOT_ROLE, ROOT, root, now), DROP_IN_ROLE: wanted(DROP_IN_ROLE, DROP_IN, drop_in)}
    files = tuple(each.file for each in without.values())
    inspection = ContainerdInspection("/s", files, live, graph=tuple(graph), **seen)
    return OwnFiles(inspection, request, without, deep=deep)


def runtimes(plugin: str) -> bytes:
    return f"[plugins.'{plugin}'.containerd.runtimes.runc]\n".encode()


# --- the version that counts, and the one that is written ---


@pytest.mark.parametrize(
    "release, version, new",
    [("v1.6.20", None, 2), ("1.7.24", None, 2), ("v2.1.4", None, 3), (None, None, 2)],
)
def test_an_empty_file_gets_the_version_of_its_daemon(release: str | None, version: int | None, new: int) -> None:
    work = read(b"", release)
    assert (work.version, work.new_version, work.effective_version) == (version, new, new)


@pytest.mark.parametrize("release", ["1.7.24", "v2.1.4", None])
def test_a_file_with_a_version_keeps_it(release: str | None) -> None:
    work = read(b"version = 2\n", release)
    assert (work.version, work.new_version, work.effective_version) == (2, None, 2)


@pytest.mark.parametrize(
    "root, release, new",
    [
        (b"root = '/srv'\n", "1.7.24", 2),
        (b"disabled_plugins = ['x']\n", "1.7.24", None),  # names differ between the versions
        (b"required_plugins = []\nroot = '/srv'\n", "1.7.24", 2),
        (b"root = '/srv'\n", "v2.3.0", None),
    ],
)
def test_a_file_without_a_version_gets_one_only_where_it_means_the_same(
    root: bytes, release: str, new: int | None
) -> None:
    assert read(root, release).new_version == new


@pytest.mark.parametrize(
    "root, release, new",
    [(b"", "1.7.24", 1), (b"", None, 1), (b"root = '/srv'\n", None, None), (b"", "v2.1.4", 3)],
)
def test_the_legacy_form_is_written_for_daemons_that_read_it_alone(
    root: bytes, release: str | None, new: int | None
) -> None:
    assert read(root, release, request=asking(legacy=True)).new_version == new


def test_the_last_version_of_any_file_counts_until_each_file_is_read_by_its_own() -> None:
    assert read(b"version = 2\n", "1.7.24", other=b"version = 2\n").version == 2
    assert read(b"version = 3\n", "v2.1.4", other=b"version = 2\n").version == 2
    assert read(b"version = 3\n", "v2.3.9", other=b"version = 2\n").version == 3


def test_of_two_versions_an_unknown_daemon_makes_nobody_knows_what() -> None:
    with pytest.raises(ConfigurationError, match=f"is of version 3, and {ROOT} of version 2") as refused:
        read(b"version = 2\n", other=b"\nversion = 3\n")
    assert (refused.value.path, refused.value.line) == (OTHER, 2)
    read(b"version = 2\n", other=b"version = 2\n")


# --- files that the daemon does not read ---


@pytest.mark.parametrize(
    "root, release, reason, line",
    [
        (
            b"\nversion = 3\n",
            "1.7.24",
            "is of version 3, and containerd 1.7, which runs here, reads versions 1 to 2",
            2,
        ),
        (b"version = 4\n", "v2.2.0", "reads versions 1 to 3", 1),
        (b"version = 1\n", "v2.0.1", "is of version 1", 1),
        (runtimes(SHORT), "v2.2.0", "is of version 1", 1),
        (b"root = '/srv'\n" + runtimes(GRPC), None, "has no `version` line", 2),
    ],
)
def test_a_file_that_the_daemon_refuses_or_ignores_is_named_with_its_line(
    root: bytes, release: str | None, reason: str, line: int
) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        read(root, release)
    assert (refused.value.path, refused.value.line) == (ROOT, line)
    assert refused.value.hint


def test_from_2_3_on_a_file_of_version_1_is_read() -> None:
    assert read(b"version = 1\n", "v2.3.9").version == 1


def test_a_disabled_cri_is_refused_where_kubernetes_uses_it_and_nowhere_else() -> None:
    root = b"version = 2\ndisabled_plugins = ['cri']\n"
    read(root, "1.7.24")
    for seen, why in ({"kubelet": 7}, "the kubelet .PID 7. needs it"), ({"detected": True}, "Kubernetes will not work"):
        with pytest.raises(ConfigurationError, match=why) as refused:
            read(root, "1.7.24", **seen)
        assert (refused.value.path, refused.value.line) == (ROOT, 2)


# --- which files are read, and how ---


@pytest.mark.parametrize(
    "root, release, views",
    [
        (b"version = 2\n", "1.6.33", (View.OLDEST,)),
        (b"version = 2\n", "v2.0.1", (View.SHALLOW,)),
        (b"version = 3\n", "v2.1.4", (View.DEEP,)),
        (b"version = 2\n", None, tuple(View)),
        (b"version = 3\n", None, (View.SHALLOW, View.DEEP)),
        (runtimes(RUNTIME), None, (View.DEEP,)),
    ],
)
def test_the_view_is_the_daemons_or_that_of_each_that_reads_the_file(
    root: bytes, release: str | None, views: tuple[View, ...]
) -> None:
    assert read(root, release).views == views


def test_a_legacy_file_of_an_unknown_daemon_is_not_read_as_by_a_new_one() -> None:
    assert read(b"", request=asking(legacy=True)).views == (View.OLDEST, View.SHALLOW)


def test_a_drop_in_of_ours_shows_how_the_daemon_merges_unless_it_has_more() -> None:
    assert read(b"version = 2\n", deep=True).views == (View.DEEP,)
    theirs = read(b"version = 2\n", drop_in=b"version = 2\n" + runtimes(GRPC), deep=True)
    assert theirs.deep is False
    assert len(theirs.views) > 1


def test_our_drop_in_is_read_only_where_others_import_it_and_have_put_something_in() -> None:
    def roles(root: bytes, now: bytes | None = None) -> list[str]:
        return [file.role for file in read(root, "v2.1.4", drop_in=b"version = 3\n", now=now).files]

    imported = f"version = 3\nimports = ['{DROP_IN}']\n".encode()
    assert roles(imported) == [ROOT_ROLE, DROP_IN_ROLE]
    assert roles(b"version = 3\n", now=imported) == [ROOT_ROLE], "the import is ours, and goes with us"
    assert [file.path for file in read(b"version = 3\n", "v2.1.4", other=b"").files] == [ROOT, OTHER]


def test_a_drop_in_that_nobody_imports_must_be_toml_all_the_same() -> None:
    with pytest.raises(ConfigurationError) as refused:
        read(b"version = 3\n", "v2.1.4", drop_in=b"x = = 1\n", now=f"imports = ['{DROP_IN}']\n".encode())
    assert refused.value.path == DROP_IN


def test_a_default_that_no_file_has_is_refused_unless_ours_takes_its_place() -> None:
    root = f"version = 2\n[plugins.'{GRPC}'.containerd]\ndefault_runtime_name = 'gone'\n".encode()
    with pytest.raises(ConfigurationError, match="its CRI does not start") as refused:
        read(root, "1.7.24")
    assert refused.value.path == ROOT
    work = read(root, "1.7.24", request=asking("nvidia"))
    assert [fault.mended for fault in work.faults] == [True]


def test_runtimes_are_where_the_version_has_them() -> None:
    assert read(b"version = 2\n", "1.7.24").plugin(View.SHALLOW) == GRPC
    assert read(b"version = 3\n", "v2.1.4").plugin(View.DEEP) == RUNTIME
    assert read(b"version = 3\n" + runtimes(GRPC), "v2.3.9").plugin(View.DEEP) == GRPC
