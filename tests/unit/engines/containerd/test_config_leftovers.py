"""After cleanup of a file that somebody edited meanwhile: what is still ours in it is said, and nothing else is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import ABSENT, Path, Remove, Set, Table, is_same, lookup
from toolkit_installer.engines.api import DesiredFile, EngineFile, LiveState, RecordedFile
from toolkit_installer.engines.containerd.config import build_built_in, find_unrecorded
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.containerd.inspection import DROP_IN_ROLE, ROOT_ROLE, DistributionInspection
from toolkit_installer.engines.containerd.inspection import ContainerdInspection as Inspection
from toolkit_installer.engines.containerd.layouts import DROP_IN_ROLE as PLACED_ROLE
from toolkit_installer.engines.containerd.layouts import GENERATED_ROLE, Layout
from toolkit_installer.engines.containerd.tables import FILE_VERSIONS, PLUGINS, build_shape
from toolkit_installer.engines.ownership import MARKER
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.receipt.file_records import digest_of
from toolkit_installer.settings import EngineName, EngineSettings

FOLDER = "/usr/local/nvidia/toolkit"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
REQUEST = Request(
    EngineTarget(EngineName.CONTAINERD),
    (Handler("nvidia", f"{FOLDER}/r"), Handler("nvidia-cdi", f"{FOLDER}/r.cdi")),
    "nvidia",
    FOLDER,
)
BASES = [
    None,
    b"",
    b"\n",
    b"# only a comment\n",
    b"# several\n\n# comments, without an end of line",
    b"# with crlf\r\n",
    b"oom_score = -999 # said\n[debug]\nlevel = 'info'\n",
    b"version = 2\n",
    b"version = 2\nimports = ['/etc/containerd/more/*.toml']\n",
    b"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n",
    b"version = 3\n# no runtimes\n[debug]\nlevel = 'info'\n",
]
RELEASES = [None, "1.6.20", "1.7.24", "v2.0.5", "v2.1.9", "v2.4.2"]
Edit = Callable[[bytes], bytes]


@dataclasses.dataclass(frozen=True)
class Story:
    """A file while we are installed, what is remembered of it, and how it is taken back."""

    role: str
    text: bytes
    memory: RecordedFile

    def without_us(self, edited: bytes) -> DesiredFile:
        return Containerd().remove_ours(file(self.role, f"/etc/{self.role}", edited), self.memory, FOLDER)


def file(role: str, path: str, content: bytes | None) -> EngineFile:
    found = None if content is None else Found(path, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    return EngineFile(role, path, found)


def stories(base: bytes | None, release: str | None) -> list[Story]:
    """Return the files that are changed when the handlers are registered on `base`; none if it is refused."""
    live = LiveState(release, {"runc": None}, "runc") if release is not None else None
    files = (file(ROOT_ROLE, "/etc/containerd/config.toml", base), file(DROP_IN_ROLE, DROP_IN, None))
    goals = Containerd().build_desired_state(Inspection("/s", files, live), REQUEST, {}).files
    return [made(goal) for goal in goals if goal.target not in (None, goal.base)]


def beside(content: bytes, drop_in: bytes | None) -> Story:
    """Return a distribution's drop-in."""
    version = toml_document.parse(content)["version"]
    layout = Layout("k3s", "/c/config.toml", version, drop_in="/c/d/99-nvidia.toml", source="/c/config.toml")
    files = (file(GENERATED_ROLE, layout.generated, content), file(PLACED_ROLE, layout.drop_in, drop_in))
    inspection = Inspection("/s", files, None, distribution=DistributionInspection(layout, content))
    (goal,) = Containerd().build_desired_state(inspection, REQUEST, {}).files
    return made(goal)


def made(goal: DesiredFile) -> Story:
    assert goal.target is not None
    return Story(goal.role, goal.target, RecordedFile(goal.base, frozenset({digest_of(goal.target)}), goal.ownership))


# --- what others do meanwhile ---


def setting(path: Path, value: object) -> Edit:
    return lambda text: toml_document.edit(text, [Set(path, value)], marker="theirs")


def removing(path: Path) -> Edit:
    return lambda text: toml_document.edit(text, [Remove(path)], marker="theirs")


def importing(text: bytes) -> bytes:
    imports = toml_document.parse(text).get("imports", [])
    return toml_document.edit(text, [Set(("imports",), ["/theirs.toml", *imports])], marker="theirs")


def above(text: bytes) -> bytes:
    return b"# above\n" + text


def below(text: bytes) -> bytes:
    return text + (b"" if text.endswith(b"\n") or not text else b"\n") + b"# below\n"


def doubled(text: bytes) -> bytes:
    """Put an empty line and a comment before each table."""
    return text.replace(b"\n[", b"\n\n# theirs\n[")


def in_plugin(plugin: str, *path: str) -> Path:
    return (*build_shape(plugin).runtimes[:-1], *path)


COMMENTS: list[Edit] = [above, below, doubled]
INDEPENDENT: list[Edit] = [
    setting(("oom_score",), 5),
    setting(("debug", "level"), "warn"),
    setting(("grpc", "gid"), 7),
    setting(("proxy_plugins", "stargz"), {"type": "snapshot", "address": "/run/s.sock"}),
]
DEPENDENT: list[Edit] = [
    setting(("plugins", "io.containerd.other", "a"), 1),
    setting(("disabled_plugins",), ["io.containerd.snapshotter.v1.zfs"]),
    setting(("required_plugins",), ["io.containerd.grpc.v1.cri"]),
    importing,
]
OURS: list[Edit] = [
    edit
    for plugin in PLUGINS
    for edit in (
        setting(in_plugin(plugin, "runtimes", "kata"), {"runtime_type": "io.containerd.kata.v2"}),
        setting(in_plugin(plugin, "default_runtime_name"), "runc"),
        removing(in_plugin(plugin, "default_runtime_name")),
        removing(in_plugin(plugin, "runtimes", "nvidia")),
        removing(in_plugin(plugin, "runtimes", "runc")),
        setting(in_plugin(plugin, "runtimes", "nvidia", "options", "BinaryName"), "/opt/theirs"),
    )
]
REMOVED: list[Edit] = [removing(("imports",)), removing(("plugins",))]


def edits(*groups: list[Edit]) -> st.SearchStrategy[list[Edit]]:
    return st.lists(st.sampled_from([edit for group in groups for edit in group]), min_size=1, max_size=4)


def after(text: bytes, made: list[Edit]) -> bytes:
    for edit in made:
        text = edit(text)
    return text


def meaning(text: bytes | None) -> Table:
    return toml_document.parse(text or b"")


STORIES = st.one_of(
    st.tuples(st.sampled_from(BASES), st.sampled_from(RELEASES)).map(lambda drawn: _chosen(*drawn)),
    st.sampled_from([None, b"# theirs\n", b"version = 3\n[debug]\nlevel = 'info'\n"]).map(
        lambda drop_in: [beside(b"version = 3\n", drop_in)]
    ),
)


def _chosen(base: bytes | None, release: str | None) -> list[Story]:
    too_new = meaning(base).get("version") == 3 and (release or "v2").startswith("1.")
    return stories(base if not too_new else None, release)


@settings(max_examples=400, deadline=None)
@given(found=STORIES, made=edits(COMMENTS, INDEPENDENT, DEPENDENT, OURS, REMOVED))
def test_what_is_still_ours_after_a_cleanup_is_said(found: list[Story], made: list[Edit]) -> None:
    for story in found:
        edited = after(story.text, made)
        goal = story.without_us(edited)
        text, said = goal.base or b"", " ".join(goal.left)
        assert MARKER.encode() not in text
        assert FOLDER.encode() not in text
        before, now = meaning(story.memory.before), meaning(text)
        if now.get("version") != before.get("version"):
            assert "the version line" in said
        assert DROP_IN not in now.get("imports", []) or "imports" in said
        for plugin in PLUGINS:
            path = (*build_shape(plugin).runtimes, "runc")
            ours = is_same(lookup(now, path), build_built_in(plugin)) and lookup(before, path) is ABSENT
            assert not ours or "'runc'" in said


@settings(max_examples=400, deadline=None)
@given(found=STORIES, made=edits(COMMENTS, INDEPENDENT))
def test_what_needs_no_version_keeps_none_of_ours(found: list[Story], made: list[Edit]) -> None:
    for story in found:
        goal = story.without_us(after(story.text, made))
        assert is_same(meaning(goal.base), meaning(after(story.memory.before or b"", made)))
        assert "the version line" not in " ".join(goal.left)


@settings(max_examples=200, deadline=None)
@given(found=STORIES, made=edits(DEPENDENT))
def test_what_others_wrote_for_our_version_keeps_it_and_that_is_said(found: list[Story], made: list[Edit]) -> None:
    for story in found:
        edited = after(story.text, made)
        goal = story.without_us(edited)
        assert meaning(goal.base).get("version") == meaning(edited).get("version")
        kept = "version" in meaning(edited) and "version" not in meaning(story.memory.before)
        assert any(note.startswith("the version line") for note in goal.left) == kept


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("base", [base for base in BASES if base is not None and not meaning(base)])
@pytest.mark.parametrize("edit", [above, below], ids=["above", "below"])
def test_a_file_of_comments_that_gets_one_more_has_no_byte_of_ours(
    base: bytes, release: str | None, edit: Edit
) -> None:
    (story,) = stories(base, release)
    assert story.without_us(edit(story.text)).base == edit(base)


def test_a_version_1_that_we_wrote_goes_whatever_others_wrote() -> None:
    target = EngineTarget(EngineName.CONTAINERD, EngineSettings(use_legacy_config=True))
    request = msgspec.structs.replace(REQUEST, target=target)
    files = (file(ROOT_ROLE, "/c", b""), file(DROP_IN_ROLE, DROP_IN, None))
    story = made(Containerd().build_desired_state(Inspection("/s", files, None), request, {}).files[0])
    assert meaning(story.text)["version"] == 1
    goal = story.without_us(setting(("plugins", FILE_VERSIONS[1].plugin, "sandbox_image"), "pause")(story.text))
    assert meaning(goal.base) == {"plugins": {"cri": {"sandbox_image": "pause"}}}
    assert goal.left == ()


def test_without_a_receipt_a_version_line_above_what_others_wrote_is_theirs() -> None:
    table = b"[debug]\nlevel = 'info'\n"
    (drop_in, _) = stories(b"version = 3\n", "v2.1.9")
    for role, text in (
        (DROP_IN_ROLE, drop_in.text + table),
        (PLACED_ROLE, beside(b"version = 3\n", b"version = 3\n" + table).text),
    ):
        forgotten = Story(role, text, RecordedFile(ownership=find_unrecorded(text, whole=True)))
        assert meaning(forgotten.without_us(text).base) == {"version": 3, "debug": {"level": "info"}}
