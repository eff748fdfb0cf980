"""daemon.json with us and without us: what is not ours keeps its meaning, and untouched its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.documents import json_document
from toolkit_installer.documents.changes import Path, Remove, Set, apply_changes, is_same, lookup
from toolkit_installer.engines.docker import config as docker_config
from toolkit_installer.engines.ownership import Ownership, list_low_level_runtimes
from toolkit_installer.engines.target import Handler
from toolkit_installer.errors import ConfigurationError

FOLDER = "/usr/local/nvidia/toolkit"
HANDLERS = tuple(
    Handler(name, f"{FOLDER}/nvidia-container-runtime{end}")
    for name, end in (("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))
)
OURS = frozenset(handler.name for handler in HANDLERS)

TEXTS = st.text('abn"\\é ', max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
RUNTIME_NAMES = st.sampled_from(["runsc", "kata", "nvidia-old", "n"])
ENTRIES = st.fixed_dictionaries({"path": st.sampled_from(["/usr/bin/runsc", "/opt/kata"])}, optional={"args": VALUES})
RUNTIMES = st.dictionaries(RUNTIME_NAMES | st.sampled_from(sorted(OURS)), ENTRIES, max_size=4)
OTHER_KEYS = st.sampled_from(["log-driver", "debug", "features", "data-root"])


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Return a daemon.json of any content that docker takes, in one of the ways in which people lay it out."""
    document: dict[str, Any] = draw(st.dictionaries(OTHER_KEYS, VALUES, max_size=3))
    if draw(st.booleans()):
        document["runtimes"] = draw(st.none() | RUNTIMES)
    if draw(st.booleans()):
        known = sorted(document.get("runtimes") or {})  # dockerd takes no default that it does not know
        document["default-runtime"] = draw(st.sampled_from(["runc", "", *known]))
    keys = draw(st.permutations(list(document)))
    indent = draw(st.sampled_from([None, 2, 4, "\t"]))
    text = json.dumps({key: document[key] for key in keys}, indent=indent, ensure_ascii=draw(st.booleans()))
    return (text + draw(st.sampled_from(["", "\n"]))).replace("\n", draw(st.sampled_from(["\n", "\r\n"]))).encode()


@st.composite
def edits(draw: st.DrawFn) -> list[Set | Remove]:
    """Return what an operator may do meanwhile, away from our own handlers."""
    changes: list[Set | Remove] = []
    for _ in range(draw(st.integers(1, 4))):
        other: Path = (draw(OTHER_KEYS),)
        runtime: Path = ("runtimes", draw(RUNTIME_NAMES))
        changes.append(
            draw(
                st.one_of(
                    st.builds(Set, st.just(other), VALUES),
                    st.builds(Remove, st.just(other)),
                    st.builds(Set, st.just(runtime), ENTRIES),
                    st.builds(Remove, st.just(runtime)),
                )
            )
        )
    return changes


def with_us(base: bytes, default: str | None = "nvidia") -> tuple[bytes, Ownership]:
    return docker_config.add_handlers(base, HANDLERS, default)


@settings(max_examples=100, deadline=None)
@given(documents(), st.sampled_from(["nvidia", None]))
def test_installed_nothing_changes_in_meaning_but_what_is_ours(base: bytes, default: str | None) -> None:
    text, _ = with_us(base, default)
    before, after = json_document.parse(base), json_document.parse(text)
    for handler in HANDLERS:
        assert is_same(lookup(after, ("runtimes", handler.name)), {"path": handler.executable, "args": []})
    assert default is None or after["default-runtime"] == default
    others = {"runtimes", "default-runtime"} if default else {"runtimes"}
    assert is_same(
        {k: v for k, v in before.items() if k not in others}, {k: v for k, v in after.items() if k not in others}
    )
    theirs = {name: entry for name, entry in (before.get("runtimes") or {}).items() if name not in OURS}
    assert is_same(theirs, {name: entry for name, entry in after["runtimes"].items() if name not in OURS})


@settings(max_examples=100, deadline=None)
@given(documents(), st.sampled_from(["nvidia", None]))
def test_taken_out_again_the_file_means_what_it_meant(base: bytes, default: str | None) -> None:
    text, ownership = with_us(base, default)
    without, left = docker_config.without_us(text, ownership, FOLDER)
    assert is_same(json_document.parse(without), json_document.parse(base))
    assert left == ()


@settings(max_examples=100, deadline=None)
@given(documents(), edits())
def test_an_operators_edits_meanwhile_are_all_that_is_left_of_the_difference(
    base: bytes, changes: list[Set | Remove]
) -> None:
    text, ownership = with_us(base)
    edited = json_document.edit(text, changes)
    without, left = docker_config.without_us(edited, ownership, FOLDER)
    meaning = json_document.parse(base)
    expected = apply_changes(meaning, tuple(changes))
    if expected.get("runtimes") == {} and not meaning.get("runtimes"):
        expected = {key: value for key, value in expected.items() if key != "runtimes"}
        if "runtimes" in meaning:
            expected["runtimes"] = meaning["runtimes"]
    assert is_same(json_document.parse(without), expected)
    assert left == ()


@settings(max_examples=60, deadline=None)
@given(documents(), st.sampled_from(["runc", "kata", "mine"]))
def test_a_default_that_the_operator_set_meanwhile_stays_theirs(base: bytes, default: str) -> None:
    text, ownership = with_us(base)
    edited = json_document.edit(text, [Set(("default-runtime",), default)])
    without, left = docker_config.without_us(edited, ownership, FOLDER)
    assert json_document.parse(without)["default-runtime"] == default
    assert any("default runtime" in note for note in left)


@settings(max_examples=60, deadline=None)
@given(documents())
def test_doing_it_twice_changes_nothing_more(base: bytes) -> None:
    text, ownership = with_us(base)
    once, _ = docker_config.without_us(text, ownership, FOLDER)
    assert docker_config.without_us(once, ownership, FOLDER)[0] == once
    assert docker_config.add_handlers(once, HANDLERS, "nvidia")[0] == with_us(once)[0]


@settings(max_examples=100, deadline=None)
@given(documents())
def test_what_docker_is_signalled_on_names_both_keys_and_otherwise_says_the_same(base: bytes) -> None:
    text = docker_config.make_explicit(base)
    meaning, before = json_document.parse(text), json_document.parse(base)
    assert isinstance(meaning["runtimes"], dict)
    assert meaning["default-runtime"]
    assert docker_config.is_explicit(text)
    assert docker_config.is_explicit(base) == (text == base)
    assert is_same(meaning["runtimes"], before.get("runtimes") or {})
    assert meaning["default-runtime"] == (before.get("default-runtime") or "runc")
    rest = {"runtimes", "default-runtime"}
    assert is_same(
        {k: v for k, v in meaning.items() if k not in rest}, {k: v for k, v in before.items() if k not in rest}
    )


def test_a_handler_that_the_operator_changed_since_is_theirs_now() -> None:
    text, ownership = with_us(b"{}")
    mine = {"path": "/opt/mine"}
    edited = json_document.edit(text, [Set(("runtimes", "nvidia"), mine)])
    without, left = docker_config.without_us(edited, ownership, FOLDER)
    document = json_document.parse(without)
    assert document["runtimes"] == {"nvidia": mine}
    assert any("'nvidia'" in note for note in left)


def test_a_handmade_entry_returns_with_all_that_it_said() -> None:
    base = b'{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": ["-v"]}}, "x": 1e3}'
    text, ownership = with_us(base)
    edited = json_document.edit(text, [Set(("x",), 5)])
    without, _ = docker_config.without_us(edited, ownership, FOLDER)
    assert is_same(json_document.parse(without), json_document.parse(base.replace(b"1e3", b"5")))


@pytest.mark.parametrize("folder", [FOLDER, FOLDER + "/"])
def test_entries_in_our_folder_are_ours_whoever_wrote_them(folder: str) -> None:
    old = {"path": f"{FOLDER}/nvidia-container-runtime.experimental"}
    other = {"path": f"{FOLDER}-other/nvidia-container-runtime"}
    base = json.dumps({"default-runtime": "exp", "runtimes": {"exp": old, "other": other}}).encode()
    without, left = docker_config.without_us(base, Ownership(), folder)
    assert json_document.parse(without) == {"runtimes": {"other": other}}
    assert left == ()


def test_an_older_installers_default_is_taken_back_but_an_operators_stays() -> None:
    old = {"path": f"{FOLDER}/nvidia-container-runtime"}
    base = json.dumps({"default-runtime": "kata", "runtimes": {"nvidia": old, "kata": {"path": "/k"}}}).encode()
    without, _ = docker_config.without_us(base, Ownership(), FOLDER)
    assert json_document.parse(without) == {"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}


@pytest.mark.parametrize(
    "content, line, word",
    [
        (b'{\n"runtimes": []}', 2, '"runtimes" must be an object'),
        (b'{\n\n"runtimes": {\n"a": 5}}', 4, '"runtimes.a" must be an object'),
        (b'{"runtimes": {"a":\n{"path": 5}}}', 2, '"runtimes.a.path" must be a string'),
        (b'{"a": 1,\n "default-runtime": {}}', 2, '"default-runtime" must be a string'),
    ],
)
def test_a_wrong_type_is_named_with_its_line(content: bytes, line: int, word: str) -> None:
    for act in (
        lambda: docker_config.add_handlers(content, HANDLERS, "nvidia"),
        lambda: docker_config.without_us(content, Ownership(), FOLDER),
        lambda: docker_config.make_explicit(content),
    ):
        with pytest.raises(ConfigurationError) as raised:
            act()
        assert (raised.value.line, raised.value.reason) == (line, word)


@pytest.mark.parametrize(
    "arguments, flags",
    [
        (["dockerd", "-H", "fd://"], []),
        (["dockerd", "--add-runtime", "x=/y"], ["--add-runtime"]),
        (["dockerd", "--default-runtime=x", "--add-runtime=x=/y"], ["--add-runtime", "--default-runtime"]),
        (["dockerd", "--default-runtime-or-so"], []),
    ],
)
def test_flags_that_collide_with_our_keys_are_seen(arguments: list[str], flags: list[str]) -> None:
    assert docker_config.find_flag_conflicts(arguments) == flags


# --- CDI ---


@pytest.mark.parametrize(
    "base, features",
    [
        (b"", {"cdi": True}),
        (b'{"features": null}', {"cdi": True}),
        (b'{"features": {}}', {"cdi": True}),
        (b'{"features": {"buildkit": true, "containerd-snapshotter": false}}', None),
        (b'{\r\n\t"features": {\r\n\t\t"cdi": false\r\n\t}\r\n}', {"cdi": True}),
        (b'{"features": {"cdi": null}}', {"cdi": True}),
        (b'{"features": {"cdi": true}}', {"cdi": True}),
        (b'\xef\xbb\xbf{"features": {"cdi": false}}\n', {"cdi": True}),
    ],
)
def test_cdi_is_turned_on_beside_all_other_features_and_what_stood_there_returns(
    base: bytes, features: dict[str, bool] | None
) -> None:
    text, ownership = docker_config.add_handlers(base, HANDLERS, "nvidia", cdi=True)
    wanted = features or {"buildkit": True, "containerd-snapshotter": False, "cdi": True}
    assert json_document.parse(text)["features"] == wanted
    without, left = docker_config.without_us(text, ownership, FOLDER)
    assert is_same(json_document.parse(without), json_document.parse(base))
    assert left == ()


def test_cdi_that_somebody_turned_off_meanwhile_stays_off_and_their_feature_stays() -> None:
    text, ownership = docker_config.add_handlers(b'{"debug": true}', HANDLERS, None, cdi=True)
    edited = json_document.edit(
        text, [Set(("features", "cdi"), value=False), Set(("features", "buildkit"), value=True)]
    )
    without, _ = docker_config.without_us(edited, ownership, FOLDER)
    assert json_document.parse(without) == {"debug": True, "features": {"cdi": False, "buildkit": True}}


def test_a_feature_that_somebody_added_to_ours_stays_without_ours() -> None:
    text, ownership = docker_config.add_handlers(b"{}", HANDLERS, None, cdi=True)
    edited = json_document.edit(text, [Set(("features", "buildkit"), value=True)])
    without, _ = docker_config.without_us(edited, ownership, FOLDER)
    assert json_document.parse(without) == {"features": {"buildkit": True}}


@pytest.mark.parametrize(
    "base, line",
    [(b'{\n"features": []}', 2), (b'{"features": {\n\n"cdi": "yes"}}', 3), (b'{"features": {\n"cdi": 1}}', 2)],
)
def test_features_that_cdi_cannot_join_are_found_with_their_line(base: bytes, line: int) -> None:
    with pytest.raises(ConfigurationError, match="features") as caught:
        docker_config.add_handlers(base, HANDLERS, None, cdi=True)
    assert caught.value.line == line
    text, _ = docker_config.add_handlers(base, HANDLERS, None)  # not ours to judge where nothing of it is touched
    assert is_same(json_document.parse(text)["features"], json_document.parse(base)["features"])


@settings(max_examples=50, deadline=None)
@given(documents())
def test_with_cdi_only_that_feature_changes(base: bytes) -> None:
    features = json_document.parse(base).get("features")
    theirs = features if isinstance(features, dict) else {}
    if (features is not None and not isinstance(features, dict)) or not isinstance(theirs.get("cdi", True), bool):
        return
    plain, _ = docker_config.add_handlers(base, HANDLERS, "nvidia")
    text, ownership = docker_config.add_handlers(base, HANDLERS, "nvidia", cdi=True)
    expected = apply_changes(json_document.parse(plain), (Set(("features",), {**theirs, "cdi": True}),))
    assert is_same(json_document.parse(text), expected)
    without, _ = docker_config.without_us(text, ownership, FOLDER)
    assert is_same(json_document.parse(without), json_document.parse(base))


def test_a_default_that_containerds_shim_runs_is_the_low_level_runtime() -> None:
    base = json_document.parse(
        b'{"default-runtime": "y", "runtimes": {"y": {"runtimeType": "io.containerd.runc.v2", '
        b'"options": {"BinaryName": "/usr/bin/crun"}}, "kata": {"runtimeType": "io.containerd.kata.v2"}}}'
    )
    assert list_low_level_runtimes(base, docker_config.SHAPE) == ("/usr/bin/crun",)


@pytest.mark.parametrize(
    "content, line",
    [
        (b'{\n"runtimes": {"a": {"path": "/a"}},\n"Runtimes": {}}', 3),
        (b'{"runtimes": {"a": {\n"path": "/a",\n"Path": "/b"}}}', 3),
        (b'{\n"Default-Runtime": "runc"}', 2),
        (b'{\n"FEATURES": {}}', 2),
    ],
)
def test_a_key_in_another_case_is_refused(content: bytes, line: int) -> None:
    with pytest.raises(ConfigurationError, match="ignores case") as caught:
        docker_config.parse_checked(content)
    assert caught.value.line == line


def test_runtimes_whose_names_differ_in_case_are_two() -> None:
    content = b'{"runtimes": {"kata": {"path": "/a"}, "Kata": {"path": "/b"}}}'
    assert docker_config.parse_checked(content)["runtimes"].keys() == {"kata", "Kata"}
