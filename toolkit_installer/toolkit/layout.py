"""The files of an installed toolkit, in the order in which they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit import config, wrappers
from toolkit_installer.toolkit.payload import CDI_HOOK, CLI, CTK, HOOK, HOOK_2021, RUNTIMES, Payload, choose_low_level

_EXECUTABLE, _PLAIN = 0o755, 0o644

FOLDERS = (".config", ".config/nvidia-container-runtime")
"""The folders within the toolkit's folder, outermost first."""

_PROGRAMS = frozenset({CLI, CTK, CDI_HOOK, HOOK, HOOK_2021, *RUNTIMES, "nvidia-container-runtime.experimental"})
"""Every program that an installer has put into the toolkit's folder since 2019."""


class ToolkitFile(msgspec.Struct, frozen=True):
    """One file of the toolkit's folder. Exactly one of `source`, `content` and `target` is given."""

    name: str
    """Relative to the toolkit's folder."""
    mode: int
    """Permission bits; ignored for a symlink."""
    source: str | None = None
    """The payload's file to copy: a path below the payload's root, free of symlinks."""
    content: bytes | None = None
    """The bytes of a regular file."""
    target: str | None = None
    """The target of a symlink: the name of another file of the same folder."""
    recipe: str | None = None
    """The digest of the inputs of `content` (config.recipe), if it takes long enough to build to be worth caching."""

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one of `source`, `content` and `target` is given."""
        if [self.source, self.content, self.target].count(None) != 2:  # noqa: PLR2004 - all but one
            raise ValueError(f"{self.name} must have one of source, content and target")


def desired_files(
    payload: Payload,
    settings: ToolkitSettings,
    low_level: tuple[str, ...],
    toolkit_folder: str,
    driver_root: str,
    cached: Mapping[str, bytes] = MappingProxyType({}),
) -> tuple[ToolkitFile, ...]:
    """Return the files that the toolkit's folder should have, in the order in which they must be written.

    `low_level` are the paths of the engine's own low-level runtimes; `toolkit_folder` and `driver_root` are paths on
    the node; `cached` are cached contents by recipe. If each file is renamed into place in this order, into an empty
    folder or over another version, every wrapper finds all that it runs at every instant: its libraries and
    configuration, its .real, and the programs that it calls in turn.

    Raises PayloadError for a broken config.toml, UsageError for a folder or runtimes that cannot be used.
    """
    runtimes = choose_low_level(settings, low_level, toolkit_folder)
    parts = (payload, settings, toolkit_folder, runtimes, driver_root)
    recipe = config.compute_recipe(*parts)

    def generated(name: str) -> bytes:
        if name != wrappers.CONFIG_NAME:
            return wrappers.build_wrapper(name, folder=toolkit_folder, low_level=runtimes).encode()
        return cached[recipe] if recipe in cached else config.build_config(*parts)

    return tuple(_files(payload, generated, recipe))


def list_sources(payload: Payload) -> dict[str, str | None]:
    """Return the names of the `desired_files`, each with the payload's file that it copies, or None."""
    return {file.name: file.source for file in _files(payload, lambda _: b"")}


def _files(payload: Payload, generated: Callable[[str], bytes], recipe: str = "") -> Iterator[ToolkitFile]:
    """Yield the files in order; `generated` returns the content of a file by name, `recipe` is that of config.toml."""
    programs = dict(payload.programs)
    for library in payload.libraries:
        yield ToolkitFile(library.name, _PLAIN, source=library.source)
        if library.name != library.soname:
            yield ToolkitFile(library.soname, _PLAIN, target=library.name)
    yield ToolkitFile(wrappers.CONFIG_NAME, _PLAIN, content=generated(wrappers.CONFIG_NAME), recipe=recipe)
    if CDI_HOOK in programs:
        yield ToolkitFile(CDI_HOOK, _EXECUTABLE, source=programs[CDI_HOOK])
    # A program comes after those that it runs: the runtime runs the hook, the hook runs the CLI.
    for name in (CLI, CTK, payload.hook, *RUNTIMES):
        if name in programs:
            yield ToolkitFile(f"{name}.real", _EXECUTABLE, source=programs[name])
            yield ToolkitFile(name, _EXECUTABLE, content=generated(name))
        if name == payload.hook:
            other = HOOK if name == HOOK_2021 else HOOK_2021
            yield ToolkitFile(other, _EXECUTABLE, target=name)


def find_installer_files(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, of those in a toolkit's folder, that any installer since 2019 has put there."""
    return tuple(
        name
        for name in names
        if name.removesuffix(".real") in _PROGRAMS or (name.startswith("libnvidia-container") and ".so" in name)
    )
