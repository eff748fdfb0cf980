"""Which keys, flags and words of somebody's files are shown, and in which form alone their values are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents import shown
from toolkit_installer.engines.containerd import tables
from toolkit_installer.engines.crio import config as crio_config
from toolkit_installer.engines.docker import config as docker_config


def test_everything_that_planning_reads_of_a_configuration_is_on_the_list() -> None:
    runtime = "nvidia"
    of_containerd = [
        path
        for plugin in tables.PLUGINS
        for path in (
            tables.build_shape(plugin).default,
            tables.legacy_type(plugin),
            tables.enable_cdi(plugin),
            (*tables.build_shape(plugin).runtimes, runtime, "runtime_type"),
            (*tables.build_shape(plugin).runtimes, runtime, "options", "BinaryName"),
            (*tables.build_shape(plugin).runtimes, runtime, "options", "Runtime"),
            (*tables.build_shape(plugin).runtimes, runtime, "container_annotations"),
            (*tables.build_shape(plugin).runtimes, runtime, "sandbox_mode"),
        )
    ]
    shapes = (docker_config.SHAPE, crio_config.SHAPE)
    of_others = [path for each in shapes for path in (each.default, (*each.runtimes, runtime, "path"))]
    of_others += [
        (*crio_config.SHAPE.runtimes, runtime, name) for name in ("runtime_path", "runtime_type", "runtime_root")
    ]
    for path in (
        *of_containerd,
        *of_others,
        tables.VERSION,
        tables.IMPORTS,
        ("disabled_plugins",),
        ("features", "cdi"),
    ):
        assert shown.is_shown_key(path), path


@pytest.mark.parametrize(
    "path, is_listed",
    [
        (("plugins", "x", "containerd", "default_runtime_name"), True),
        (("runtimes", "any name", "path"), True),
        (("runtimes", "any name", "env"), False),
        (("x", "runtimes", "a", "b", "path"), False),
        (("imports",), True),
        (("site", "imports"), False),
        ((), False),
    ],
)
def test_a_key_is_listed_by_the_end_of_its_path_or_at_the_top_alone(path: tuple[str, ...], *, is_listed: bool) -> None:
    assert shown.is_shown_key(path) is is_listed


@given(st.sampled_from(sorted(shown.KEYS)), st.lists(st.sampled_from(["a", "plugins", "x.y"]), max_size=3))
def test_a_listed_key_is_shown_below_any_other_unless_it_is_of_the_top(path: tuple[str, ...], above: list[str]) -> None:
    of_top = path[0] == shown.TOP
    names = ["name" if name == shown.ANY else name for name in path if name != shown.TOP]
    assert shown.is_shown_key(names)
    if of_top and above and not shown.is_shown_key([*above[-1:], *names]):  # another row may list it there
        assert not shown.is_shown_key([*above, *names])
    elif not of_top:
        assert shown.is_shown_key([*above, *names])


@pytest.mark.parametrize(
    "value, is_harmless, is_place",
    [
        ("/usr/bin/runc", True, True),
        ("unix:///run/x.sock", True, True),
        ("@/run/abstract", True, True),
        ("127.0.0.1:1338", True, True),
        ("[::1]:80", True, True),
        ("${SNAP_DATA}/etc", True, True),
        ("${RUNTIME}", True, False),
        ("runc", True, False),
        ("/a=b+c", True, False),  # Base64 may begin with a slash
        ("docker.io/library/pause:3.9", True, False),
        ("r.example/pause@sha256:" + "0" * 64, True, False),
        ("https://hooks.example/abcd", False, False),
        ("http:/x", False, False),
        ("two words", False, False),
        ("a?b", False, False),
        ("p@ss", False, False),
        ("x" * 1024, True, False),
        ("x" * 1025, False, False),
    ],
)
def test_only_names_paths_numbers_and_images_are_harmless(value: str, *, is_harmless: bool, is_place: bool) -> None:
    assert shown.is_harmless(value) is is_harmless
    assert shown.is_place(value) is is_place
    assert (shown.named(value) == value) is is_harmless
    assert shown.quote_name(value) == (repr(value) if is_harmless else shown.HIDDEN)


def test_a_path_with_blanks_may_be_named_and_is_no_place() -> None:
    assert shown.named("/opt/my dir/a@1.yaml") == "/opt/my dir/a@1.yaml"
    assert not shown.is_place("/opt/my dir/a@1.yaml")
    assert shown.is_shown_value(("runtimes", "a", "path"), "/opt/my dir/a@1")
    assert shown.named("my dir") == shown.HIDDEN


@pytest.mark.parametrize(
    "path, value, is_shown",
    [
        (("root",), "/var/lib/containerd", True),
        (("root",), "hunter2", False),  # a key of places has no other value
        (("log-level",), "hunter2", True),
        (("PRETTY_NAME",), "Rocky Linux 9.4 (Blue Onyx)", True),
        (("PRETTY_NAME",), "it's <me>", False),
        (("After",), "network.target containerd.service", True),
        (("After",), "the password.service", False),
        (("token",), "x", False),
        (("kubelet-arg", "cgroup-driver"), "systemd", True),
        (("kubelet-arg", "token"), "systemd", False),
        (("kubelet-arg",), "cgroup-driver", True),
        (("kubelet-arg", "kubelet-arg"), "systemd", False),
    ],
)
def test_the_value_of_a_listed_key_is_shown_in_the_form_of_its_kind(
    path: tuple[str, ...], value: str, *, is_shown: bool
) -> None:
    assert shown.is_shown_value(path, value) is is_shown


@pytest.mark.parametrize(
    "flag, value, is_shown",
    [
        ("cgroup-driver", "systemd", True),
        ("config", "/etc/my dir/k@1", True),
        ("G", "/etc/my dir/k@1", False),
        ("add-runtime", "nvidia=/usr/bin/n", True),
        ("runtimes", "nvidia:/usr/bin/n:/run/n", True),
        ("add-runtime", "nvidia=abcd", False),
        ("kubelet-arg", "cgroup-driver=systemd", True),
        ("kubelet-arg", "kubelet-arg=cgroup-driver=systemd", False),
        ("kubelet-arg", "token=x", False),
        ("bundle", "/run", True),
        ("p", "/abcd", False),
        ("p", "/run/x.pid", True),
        ("token", "/run/x", False),
    ],
)
def test_the_value_of_a_listed_flag_is_shown_in_the_form_of_its_kind(flag: str, value: str, *, is_shown: bool) -> None:
    assert shown.is_shown_flag(flag, value) is is_shown


@pytest.mark.parametrize(
    "action, is_plain",
    [
        ("{{ .NodeConfig.AgentConfig.Snapshotter }}", True),
        ('{{- template "base" . -}}', True),
        ("{{ range $k, $v := .ExtraRuntimes }}", True),
        ('{{ if not (index .ExtraRuntimes "nvidia") }}', True),
        ('{{ printf "abcd" }}', False),
        ('{{ template "two words" . }}', False),
        ('{{ "abcd" }}', False),
        ('{{ .Password "abcd" }}', False),
    ],
)
def test_a_template_action_is_shown_if_it_has_no_text_of_its_own(action: str, *, is_plain: bool) -> None:
    assert shown.is_plain_action(action) is is_plain
