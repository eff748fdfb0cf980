from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from tests.support import payloads
from toolkit_installer.documents.changes import Set, apply_changes, is_same
from toolkit_installer.errors import PayloadError
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit import layout
from toolkit_installer.toolkit.payload import HOOK, Payload
from toolkit_installer.toolkit.toml_put import set_values

DATA = Path(__file__).parents[2] / "data" / "toolkit" / "config"
FOLDER = "/usr/local/nvidia/toolkit"
LOW_LEVEL = ("/usr/bin/runc", "runc", "crun")

EVERYTHING = ToolkitSettings(
    driver_root="/",
    runtime_debug="/var/log/runtime.log",
    runtime_log_level="debug",
    runtime_mode="cdi",
    cdi_default_kind="management.nvidia.com/gpu",
    cdi_annotation_prefixes=("cdi.k8s.io/", "nvidia.cdi.k8s.io/"),
    cli_debug="/var/log/cli.log",
    hook_skip_mode_detection=False,
    accept_envvar_when_unprivileged=False,
    accept_volume_mounts=True,
    opt_in_features=("disable-cuda-compat-lib-hook", "ignore-imex-channel-requests"),
)


def payload(template: bytes | None, *programs: str) -> Payload:
    return Payload(
        root="/artifacts/deb",
        programs=tuple((name, f"/usr/bin/{name}") for name in programs or ("nvidia-container-runtime", "nvidia-ctk")),
        libraries=(),
        hook=HOOK,
        config=template,
    )


def written(template: bytes | None, settings: ToolkitSettings | None = None) -> str:
    settings = settings or ToolkitSettings()
    return layout.build_config(payload(template), settings, FOLDER, LOW_LEVEL, settings.driver_root).decode()


def meaning(template: bytes | None, settings: ToolkitSettings | None = None) -> dict[str, Any]:
    return tomllib.loads(written(template, settings))


CASES = sorted(path.stem.removesuffix(".in") for path in DATA.glob("*.in.toml"))


def test_there_are_golden_cases() -> None:
    assert len(CASES) >= 5


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wish, settings", [("plain", ToolkitSettings()), ("everything", EVERYTHING)])
def test_the_config_is_as_written_down(case: str, wish: str, settings: ToolkitSettings) -> None:
    template = (DATA / f"{case}.in.toml").read_bytes()
    assert written(template, settings) == (DATA / f"{case}.{wish}.out.toml").read_text()


def test_without_a_template_the_meaning_is_the_toolkits_own_defaults() -> None:
    """The values are what nvidia-ctk-installer 1.19 writes with the same settings, less those that it leaves empty."""
    assert meaning(None) == {
        "accept-nvidia-visible-devices-as-volume-mounts": False,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": True,
        "disable-require": False,
        "nvidia-container-cli": {
            "environment": [],
            "ldconfig": "@/run/nvidia/driver/sbin/ldconfig",
            "load-kmods": True,
            "path": f"{FOLDER}/nvidia-container-cli",
            "root": "/run/nvidia/driver",
        },
        "nvidia-container-runtime": {
            "log-level": "info",
            "mode": "auto",
            "runtimes": list(LOW_LEVEL),
            "modes": {
                "cdi": {
                    "annotation-prefixes": ["cdi.k8s.io/"],
                    "default-kind": "nvidia.com/gpu",
                    "spec-dirs": ["/etc/cdi", "/var/run/cdi"],
                },
                "csv": {"mount-spec-path": "/etc/nvidia-container-runtime/host-files-for-container.d"},
            },
        },
        "nvidia-container-runtime-hook": {
            "path": f"{FOLDER}/nvidia-container-runtime-hook",
            "skip-mode-detection": True,
        },
        "nvidia-ctk": {"path": f"{FOLDER}/nvidia-ctk"},
    }


@pytest.mark.parametrize("empty", [b"", b"\n \n", None])
def test_an_empty_template_counts_as_none(empty: bytes | None) -> None:
    assert written(empty) == written(layout.DEFAULTS)


@pytest.mark.parametrize(
    "driver_root, template, expected",
    [
        ("/", "@/sbin/ldconfig", "@/sbin/ldconfig"),
        ("/", "@/sbin/ldconfig.real", "@/sbin/ldconfig.real"),
        ("/run/nvidia/driver", "@/sbin/ldconfig.real", "@/run/nvidia/driver/sbin/ldconfig.real"),
        ("/run/nvidia/driver/", "/sbin/ldconfig", "@/run/nvidia/driver/sbin/ldconfig"),
        ("/driver root", "", "@/driver root/sbin/ldconfig"),
    ],
)
def test_ldconfig_is_the_drivers_and_never_the_containers(driver_root: str, template: str, expected: str) -> None:
    source = f'nvidia-container-cli.ldconfig = "{template}"\n'.encode()
    assert meaning(source, ToolkitSettings(driver_root=driver_root))["nvidia-container-cli"]["ldconfig"] == expected


PARTS: dict[str, Any] = {
    "payload": payload(None),
    "settings": ToolkitSettings(),
    "toolkit_folder": FOLDER,
    "low_level": LOW_LEVEL,
    "driver_root": "/run/nvidia/driver",
}
OTHERS: list[tuple[str, Any]] = [
    ("payload", payload(b"mine = true\n")),
    ("payload", payload(None, "nvidia-container-runtime")),
    *(("settings", msgspec.structs.replace(ToolkitSettings(), **{name: other})) for name, other in [
        ("runtime_debug", "/d"), ("runtime_log_level", "info"), ("runtime_mode", "csv"), ("cdi_default_kind", "a/b"),
        ("cdi_annotation_prefixes", ("a/",)), ("low_level_runtimes", ("crun",)), ("hook_skip_mode_detection", False),
        ("cli_debug", "/c"), ("accept_envvar_when_unprivileged", False), ("accept_volume_mounts", True),
        ("opt_in_features", ("disable-cuda-compat-lib-hook",)),
    ]),
    ("toolkit_folder", "/opt/nvidia/toolkit"),
    ("low_level", ["/usr/bin/crun"]),
    ("low_level", list(reversed([*LOW_LEVEL, "/usr/bin/crun"]))),
    ("driver_root", "/"),
]  # fmt: skip


def test_the_same_recipe_is_of_the_same_parts() -> None:
    again = {**PARTS, "payload": payload(None), "settings": ToolkitSettings(), "low_level": tuple(LOW_LEVEL)}
    assert layout.compute_recipe(**PARTS) == layout.compute_recipe(**again)


@pytest.mark.parametrize("part, other", OTHERS)
def test_whatever_the_text_is_made_of_is_in_its_recipe(part: str, other: Any) -> None:
    assert layout.compute_recipe(**{**PARTS, part: other}) != layout.compute_recipe(**PARTS)


def test_another_release_of_the_installer_makes_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout.compute_recipe(**PARTS)
    monkeypatch.setattr(layout, "__version__", "99.0.0")
    assert layout.compute_recipe(**PARTS) != before


def test_a_program_that_is_not_installed_is_not_named() -> None:
    content = layout.build_config(
        payload(None, "nvidia-container-runtime"), ToolkitSettings(), FOLDER, LOW_LEVEL, "/run/nvidia/driver"
    )
    assert "nvidia-ctk" not in tomllib.loads(content.decode())


def test_what_is_not_asked_for_stays_as_the_payload_has_it() -> None:
    template = b'[nvidia-container-runtime]\ndebug = "/d"\nlog-level = "warn"\nmode = "csv"\n[features]\nmine = true\n'
    runtime = meaning(template)["nvidia-container-runtime"]
    assert (runtime["debug"], runtime["log-level"], runtime["mode"]) == ("/d", "warn", "csv")
    assert meaning(template)["features"] == {"mine": True}


def test_a_comment_behind_a_value_that_changes_survives() -> None:
    template = b"""\
[nvidia-container-cli]
root = "/old" # the driver
[nvidia-container-runtime-hook]
skip-mode-detection = false # why
"""
    assert 'root = "/run/nvidia/driver" # the driver\n' in written(template)
    assert "skip-mode-detection = true # why\n" in written(template)


def test_a_new_key_does_not_come_between_the_next_table_and_its_comment() -> None:
    template = (
        b"[nvidia-container-cli]\nload-kmods = true\n\n# about the runtime\n[nvidia-container-runtime]\nmode = 'auto'\n"
    )
    assert "\n\n# about the runtime\n[nvidia-container-runtime]\n" in written(template)


def test_a_new_table_does_not_come_between_the_next_table_and_its_comment() -> None:
    template = b"[nvidia-container-runtime.modes.csv]\nx = 1\n\n# about the hook\n[nvidia-container-runtime-hook]\n"
    assert "\n\n# about the hook\n[nvidia-container-runtime-hook]\n" in written(template, EVERYTHING)


@pytest.mark.parametrize(
    "template, line, reason",
    [
        (b"a = 1\nb = \n", 2, "is not TOML"),
        (b"a = 1\na = 2\n", 2, "is not TOML"),
        (b'[nvidia-container-cli]\nroot = "x', 2, "is not TOML"),
        (b"a = 1\n# \xff\n", 2, "is not UTF-8"),
        (b"a = 1\x00\n", 1, "is not TOML"),
        (b"nvidia-container-cli = 3\n", None, "nvidia-container-cli must be a table"),
        (b"[[nvidia-container-runtime]]\n", None, "nvidia-container-runtime must be a table"),
        (b"[nvidia-container-cli.root]\n", None, "nvidia-container-cli.root must not be a table"),
        (b"x = " + b"[" * 100_000, None, "is nested too deeply"),
    ],
)
def test_a_broken_template_is_refused_with_file_and_line(template: bytes, line: int | None, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason) as caught:
        written(template)
    assert caught.value.path == "/artifacts/deb/etc/nvidia-container-runtime/config.toml"
    assert caught.value.line == line


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    template = b"\xef\xbb\xbf" + payloads.CONFIG.replace(b"\n", b"\r\n")
    assert written(template) == written(payloads.CONFIG)


@pytest.mark.parametrize("template", [payloads.CONFIG, payloads.CONFIG_2021, None])
def test_the_same_settings_give_the_same_bytes_and_a_second_pass_changes_none(template: bytes | None) -> None:
    once = written(template, EVERYTHING)
    assert once == written(template, EVERYTHING)
    assert written(once.encode(), EVERYTHING) == once


SNIPPETS = (
    "# root comment",
    "",
    "disable-require = false # trailing",
    'nvidia-container-cli.root = "/x"',
    '[nvidia-container-cli]\n# inside\nroot = "/x" # old',
    "[nvidia-container-cli]",
    '  [nvidia-container-runtime]\n  mode = "auto"',
    "nvidia-container-runtime = { mode = 'csv', modes.cdi = { default-kind = 'x' } }",
    "[nvidia-container-runtime.modes.csv]\nmount-spec-path = '/m'",
    '[nvidia-container-runtime."modes".cdi]\nannotation-prefixes = [\n  "a", # one\n]',
    "[nvidia-container-runtime.modes]",
    "[nvidia-container-runtime-hook]\npath = '''\n/x'''\n\n# closing",
    "[features]\nmine = true",
    "features.mine = false",
    "[[other]]\nname = 'ü'",
    "[other-table]\n'quoted key' = 1979-05-27",
)


@given(st.lists(st.sampled_from(SNIPPETS), max_size=8, unique=True).map("\n".join))
@profile(max_examples=100, deadline=None)
def test_any_template_keeps_what_we_do_not_own(template: str) -> None:
    template = template if template.strip() else layout.DEFAULTS.decode()
    try:
        before = tomllib.loads(template)
    except tomllib.TOMLDecodeError:
        return
    try:
        after = meaning(template.encode(), EVERYTHING)
    except PayloadError as error:
        # tomlkit refuses some orders of tables; nothing else may be refused.
        if "cannot be edited" not in error.reason:
            raise
        return
    for document in (before, after):
        for key in ("path", "root", "ldconfig", "debug"):
            document.get("nvidia-container-cli", {}).pop(key, None)
    assert after["nvidia-container-runtime-hook"]["skip-mode-detection"] is False
    for key in ("disable-require", "other", "other-table"):
        assert is_same(before.get(key), after.get(key))
    kept = written(template.encode(), EVERYTHING)
    for comment in ("# root comment", "# trailing", "# inside", "# old", "# closing"):
        assert kept.count(comment) == template.count(comment)


@given(
    st.sampled_from(
        [payloads.CONFIG.decode(), payloads.CONFIG_2021.decode(), "", "# only a comment\n", "[a]\n\n# x\n[b]\n"]
    ),
    st.dictionaries(
        st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z"])), min_size=1, max_size=1).map(
            tuple
        ),
        st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8"))),
        max_size=4,
    ),
)
@profile(max_examples=60, deadline=None)
def test_any_value_under_any_key_reads_back(source: str, values: dict[tuple[str, ...], Any]) -> None:
    changes = tuple(Set(("z", *path), value) for path, value in values.items())
    assert is_same(tomllib.loads(set_values(source, changes)), apply_changes(tomllib.loads(source), changes))


def test_settings_that_agree_with_the_payload_change_nothing() -> None:
    first = written(payloads.CONFIG)
    agreeing = msgspec.structs.replace(ToolkitSettings(), runtime_mode="auto", runtime_log_level="info")
    assert written(first.encode(), agreeing) == first
