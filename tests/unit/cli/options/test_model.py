"""What is allowed as a value of each kind, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.cli.options.model import NotAllowedError, Value, parse_boolean, parse_value
from toolkit_installer.cli.options.table import BY_NAME


@pytest.mark.parametrize("word", ["1", "t", "T", "true", "True", "TRUE", "yes", "Yes", "on", "ON", "tRuE"])
def test_the_words_for_true(word: str) -> None:
    assert parse_boolean(word) is True


@pytest.mark.parametrize("word", ["0", "f", "F", "false", "False", "FALSE", "no", "NO", "off"])
def test_the_words_for_false(word: str) -> None:
    assert parse_boolean(word) is False


@pytest.mark.parametrize("word", ["", "2", "y", "n", "enabled", " true", "true ", "truefalse", "null"])
def test_a_word_that_is_neither_true_nor_false_is_refused(word: str) -> None:
    with pytest.raises(NotAllowedError, match="true or false"):
        parse_boolean(word)


ALLOWED: list[tuple[str, str, Value]] = [
    ("runtime", "Docker", ("docker",)),
    ("restart_mode", "NONE", "none"),
    ("config", "/runtime/config-dir/config.toml", "/runtime/config-dir/config.toml"),
    ("config", "/etc/with space/ünïcode.toml", "/etc/with space/ünïcode.toml"),
    ("driver_root", "/", "/"),
    ("install_dir", "/usr/local//nvidia/", "/usr/local/nvidia"),
    ("install_dir", "/./opt/nvidia/.", "/opt/nvidia"),
    ("install_dir", "/devices", "/devices"),
    ("pid_file", "/run/nvidia/toolkit/toolkit.pid", "/run/nvidia/toolkit/toolkit.pid"),
    ("executable", "containerd", "containerd"),
    ("executable", "/var/lib/k0s/bin/containerd", "/var/lib/k0s/bin/containerd"),
    ("runtime_name", "nvidia-cdi", "nvidia-cdi"),
    ("runtime_name", "my_nvidia.2", "my_nvidia.2"),
    ("runtime_type", "io.containerd.runc.v2", "io.containerd.runc.v2"),
    ("runtime_type", "/opt/shim", "/opt/shim"),
    ("cdi_kind", "management.nvidia.com/gpu", "management.nvidia.com/gpu"),
    ("nri_plugin_index", "0", 0),
    ("nri_plugin_index", "99", 99),
    ("reload_timeout", "0.5", 0.5),
    ("reload_timeout", "86400", 86400.0),
    ("runtime_config_override", '{"SystemdCgroup": true}', '{"SystemdCgroup": true}'),
    ("runtime_config_override", " { } ", "{}"),
    ("cdi_output_dir", "", ""),
    ("runtime_args", "", ""),
    ("low_level_runtimes", "runc, /usr/bin/crun,runc", ("runc", "/usr/bin/crun")),
    ("config_sources", "command,file=/etc/a.toml,file", ("command", "file=/etc/a.toml", "file")),
    ("cdi_annotation_prefixes", "cdi.k8s.io/,nvidia.cdi.k8s.io/", ("cdi.k8s.io/", "nvidia.cdi.k8s.io/")),
    ("opt_in_features", "disable-cuda-compat-lib-hook", ("disable-cuda-compat-lib-hook",)),
    ("hook_filename", "oci-nvidia-hook.json", "oci-nvidia-hook.json"),
]


@pytest.mark.parametrize("name, text, value", ALLOWED)
def test_a_good_value_is_read(name: str, text: str, value: Value) -> None:
    assert parse_value(BY_NAME[name], (text,)) == value


REFUSED = [
    ("runtime", "podman"),
    ("runtime", ""),
    ("restart_mode", "sighup"),
    ("package_type", "apk"),
    ("cleanup", "sometimes"),
    ("runtime_mode", "Legacy mode"),
    ("runtime_log_level", "loud"),
    ("config", ""),
    ("config", "config.toml"),
    ("config", "/etc/a\nb"),
    ("config", "/etc/a\0b"),
    ("config", "/etc/a\x7fb"),
    ("config", "/etc/\udcff"),
    ("install_dir", ""),
    ("install_dir", "/"),
    ("install_dir", "//"),
    ("install_dir", "/./"),
    ("install_dir", "usr/local/nvidia"),
    ("install_dir", "/usr/local/../nvidia"),
    ("install_dir", "/proc"),
    ("install_dir", "/proc/1/root"),
    ("install_dir", "//sys/fs"),
    ("install_dir", "/dev/nvidia"),
    ("install_dir", "/./dev"),
    ("install_dir", "/opt/a:b"),
    ("install_dir", "/opt/a\tb"),
    ("pid_file", "/run/nvidia/other.pid"),
    ("pid_file", "toolkit.pid"),
    ("pid_file", "/run/toolkit.pid/"),
    ("executable", "containerd-shim"),
    ("executable", "bin/containerd"),
    ("runtime_name", "runc"),
    *(("runtime_name", name) for name in ("", "a b", "a/b", ".a", "-a", "ü", "a\n", "[a]", 'a"b')),
    *(("opt_in_features", name) for name in ("a.b", "a b", 'a"', "a\nb")),
    ("runtime_name", "-nvidia"),
    ("runtime_name", 'nvidia"]'),
    ("runtime_name", "nv idia"),
    ("runtime_type", "io containerd"),
    ("cdi_kind", "gpu"),
    ("cdi_kind", "nvidia.com/"),
    ("cdi_kind", "nvidia.com/gpu/0"),
    ("cdi_kind", "1nvidia.com/gpu"),
    ("cdi_kind", "nvidia.com/gpu=all"),
    ("cdi_kind", "nvidia.com/gpu\n"),
    ("nri_plugin_index", "100"),
    ("nri_plugin_index", "-1"),
    ("nri_plugin_index", "1.5"),
    ("nri_namespace", "GPU"),
    ("nri_management_cdi_device_namespaces", "a,,b"),
    ("reload_timeout", "0"),
    ("reload_timeout", "nan"),
    ("reload_timeout", "inf"),
    ("reload_timeout", "1e9"),
    ("reload_timeout", "60s"),
    ("reload_timeout", "86401"),
    ("runtime_config_override", "[]"),
    ("runtime_config_override", "{"),
    ("runtime_config_override", '{"a": NaN}'),
    ("runtime_config_override", "[" * 100_000),
    ("low_level_runtimes", "bin/runc"),
    ("low_level_runtimes", "runc,"),
    ("config_sources", "command=/x"),
    ("config_sources", "file="),
    ("config_sources", "file=relative"),
    ("config_sources", "socket"),
    ("cdi_annotation_prefixes", "*"),
    ("opt_in_features", "a=b"),
    ("opt_in_features", ""),
    ("hook_filename", "../hook.json"),
    *(("hook_filename", name) for name in ("", ".", "..")),
]


@pytest.mark.parametrize("name, text", REFUSED, ids=[f"{name}-{text[:20]!r}" for name, text in REFUSED])
def test_a_bad_value_is_refused_and_what_is_allowed_is_said(name: str, text: str) -> None:
    with pytest.raises(NotAllowedError) as caught:
        parse_value(BY_NAME[name], (text,))
    assert caught.value.allowed


def test_the_last_of_several_texts_counts() -> None:
    assert parse_value(BY_NAME["socket"], ("/a", "/b")) == "/b"


def test_a_repeated_list_is_one_list() -> None:
    assert parse_value(BY_NAME["low_level_runtimes"], ("runc,crun", "youki", "runc")) == ("runc", "crun", "youki")


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_an_install_folder_that_is_accepted_is_safe_to_write_into_a_wrapper(text: str) -> None:
    try:
        folder = parse_value(BY_NAME["install_dir"], (text,))
    except NotAllowedError:
        return
    assert isinstance(folder, str)
    assert folder.startswith("/")
    assert not folder.endswith("/")
    assert not {"", ".", ".."} & set(folder.split("/")[1:])
    assert not set(":\0\n") & set(folder)
    assert folder.split("/")[1] not in {"proc", "sys", "dev"}


@given(st.lists(st.sampled_from(["usr", "dev", "..", ".", "", "proc", "a:b", "nvidia"]), max_size=5))
def test_reading_an_install_folder_twice_changes_nothing(parts: list[str]) -> None:
    option = BY_NAME["install_dir"]
    try:
        once = parse_value(option, ("/" + "/".join(parts),))
    except NotAllowedError:
        return
    assert isinstance(once, str)
    assert parse_value(option, (once,)) == once
