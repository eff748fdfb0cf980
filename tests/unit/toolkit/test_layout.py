from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.support import payloads
from tests.support.payloads import Generation, Tree
from toolkit_installer.errors import PayloadError, UsageError
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.layout import ToolkitFile, desired_files
from toolkit_installer.toolkit.payload import RUNTIMES, find_payload
from toolkit_installer.toolkit.wrappers import CONFIG_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FOLDER = "/usr/local/nvidia/toolkit"


def files(root: Path, settings: ToolkitSettings | None = None, folder: str = FOLDER) -> tuple[ToolkitFile, ...]:
    return desired_files(
        find_payload(Tree(root), str(root)),
        settings or ToolkitSettings(),
        ("/usr/bin/runc",),
        folder,
        "/run/nvidia/driver",
    )


def test_what_a_recipe_is_known_to_give_is_not_made_again(tmp_path: Path) -> None:
    payloads.build(tmp_path)
    payload, settings = find_payload(Tree(tmp_path), str(tmp_path)), ToolkitSettings()

    def config_toml(made: dict[str, bytes]) -> ToolkitFile:
        (file,) = (
            file
            for file in desired_files(payload, settings, ("/usr/bin/runc",), FOLDER, "/driver", made)
            if file.recipe
        )
        return file

    first = config_toml({})
    assert first.name == CONFIG_NAME
    assert first.recipe is not None
    assert config_toml({first.recipe: b"known"}).content == b"known"
    assert config_toml({"of something else": b"known"}) == first


def kinds(listed: Iterable[ToolkitFile]) -> dict[str, str]:
    """Return name -> what it is, in words that can be compared."""
    return {
        file.name: f"copy of {file.source}" if file.source else f"link to {file.target}" if file.target else "text"
        for file in listed
    }


def test_a_current_payload_is_installed_in_full(tmp_path: Path) -> None:
    payloads.build(tmp_path, machine="x86_64")
    library = "/usr/lib/x86_64-linux-gnu"
    assert list(kinds(files(tmp_path)).items()) == [
        ("libnvidia-container.so.1.19.0", f"copy of {library}/libnvidia-container.so.1.19.0"),
        ("libnvidia-container.so.1", "link to libnvidia-container.so.1.19.0"),
        ("libnvidia-container-go.so.1.19.0", f"copy of {library}/libnvidia-container-go.so.1.19.0"),
        ("libnvidia-container-go.so.1", "link to libnvidia-container-go.so.1.19.0"),
        (CONFIG_NAME, "text"),
        ("nvidia-cdi-hook", "copy of /usr/bin/nvidia-cdi-hook"),
        ("nvidia-container-cli.real", "copy of /usr/bin/nvidia-container-cli"),
        ("nvidia-container-cli", "text"),
        ("nvidia-ctk.real", "copy of /usr/bin/nvidia-ctk"),
        ("nvidia-ctk", "text"),
        ("nvidia-container-runtime-hook.real", "copy of /usr/bin/nvidia-container-runtime-hook"),
        ("nvidia-container-runtime-hook", "text"),
        ("nvidia-container-toolkit", "link to nvidia-container-runtime-hook"),
        ("nvidia-container-runtime.real", "copy of /usr/bin/nvidia-container-runtime"),
        ("nvidia-container-runtime", "text"),
        ("nvidia-container-runtime.cdi.real", "copy of /usr/bin/nvidia-container-runtime.cdi"),
        ("nvidia-container-runtime.cdi", "text"),
        ("nvidia-container-runtime.legacy.real", "copy of /usr/bin/nvidia-container-runtime.legacy"),
        ("nvidia-container-runtime.legacy", "text"),
    ]


def test_a_payload_of_2021_leaves_what_its_own_installer_left(tmp_path: Path) -> None:
    payloads.build(tmp_path, generation=Generation.Y2021)
    assert set(kinds(files(tmp_path))) == {
        "libnvidia-container.so.1",
        "libnvidia-container.so.1.5.1",
        CONFIG_NAME,
        "nvidia-container-cli",
        "nvidia-container-cli.real",
        "nvidia-container-runtime",
        "nvidia-container-runtime.real",
        "nvidia-container-toolkit",
        "nvidia-container-toolkit.real",
        "nvidia-container-runtime-hook",
    }
    assert kinds(files(tmp_path))["nvidia-container-runtime-hook"] == "link to nvidia-container-toolkit"


def test_programs_are_executable_and_the_rest_is_not(tmp_path: Path) -> None:
    for file in files(payloads.build(tmp_path)):
        library_or_config = file.name.startswith(("lib", "."))
        assert file.mode == (0o644 if library_or_config else 0o755)


def broken_names(folder: dict[str, ToolkitFile]) -> list[str]:
    """Return the wrappers and symlinks of a folder that lack what they need."""
    lacking = []
    for name, file in folder.items():
        if file.target is not None:
            needs = [file.target]
        elif file.content is not None and name != CONFIG_NAME:
            needs = [f"{name}.real", CONFIG_NAME, "libnvidia-container.so.1"]
            needs += ["nvidia-container-cli"] if "cli" not in name and name != "nvidia-ctk" else []
            needs += ["nvidia-container-runtime-hook"] if name in RUNTIMES else []
        else:
            needs = []
        lacking += [f"{name} lacks {need}" for need in needs if need not in folder]
    return lacking


@pytest.mark.parametrize("before, after", list(itertools.permutations(["nothing", *Generation], 2)))
def test_at_no_instant_of_an_installation_does_a_wrapper_lack_what_it_runs(
    tmp_path: Path, before: str, after: str
) -> None:
    def listed(name: str) -> tuple[ToolkitFile, ...]:
        if name == "nothing":
            return ()
        return files(payloads.build(tmp_path / name, generation=Generation(name)))

    folder = {file.name: file for file in listed(before)}
    for file in listed(after):
        folder[file.name] = file
        assert broken_names(folder) == []


def test_the_check_for_broken_wrappers_finds_one(tmp_path: Path) -> None:
    backwards = {file.name: file for file in reversed(files(payloads.build(tmp_path))[-4:])}
    assert broken_names(backwards) != []


def test_the_users_low_level_runtimes_win_in_wrappers_and_config(tmp_path: Path) -> None:
    settings = ToolkitSettings(low_level_runtimes=("/opt/kata", "youki"))
    contents = {file.name: file.content for file in files(payloads.build(tmp_path), settings) if file.content}
    for name in (CONFIG_NAME, *RUNTIMES):
        assert b"youki" in contents[name]
        assert b"runc" not in contents[name].replace(b"docker-runc", b"")
    assert b'runtimes = ["/opt/kata", "youki"]' in contents[CONFIG_NAME]


def test_a_folder_that_cannot_stand_in_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="colon"):
        files(payloads.build(tmp_path), folder="/a:b/toolkit")


def test_a_broken_config_is_found_before_anything_is_installed(tmp_path: Path) -> None:
    payloads.build(tmp_path, config=b"a = 1\nb = [\n")
    with pytest.raises(PayloadError) as caught:
        files(tmp_path)
    assert caught.value.path == f"{tmp_path}/etc/nvidia-container-runtime/config.toml"
    assert caught.value.line is not None


@pytest.mark.parametrize("parts", [{}, {"source": "/a", "target": "b"}, {"content": b"", "source": "/a"}])
def test_a_file_is_exactly_one_thing(parts: dict[str, str | bytes]) -> None:
    with pytest.raises(ValueError, match="one of"):
        ToolkitFile("x", 0o644, **parts)  # type: ignore[arg-type] # wrong on purpose
