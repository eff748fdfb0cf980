"""The files of an installed toolkit, in the order in which they are put in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit import config, wrappers
from toolkit_installer.toolkit import payload as low_level_runtimes
from toolkit_installer.toolkit.payload import CDI_HOOK, CLI, CTK, HOOK, HOOK_2021, RUNTIMES, Payload

# A subshell, because a stderr that nobody reads would kill whoever writes to it.


# containerd parses what `ps` and `state` print on stdout and stderr as one text, and kills the container where it
# cannot: a line of ours is for `create` and `run` alone, and for what then fails as nothing runs. A global flag without
# `=` takes the next word unless it is one of the few without a value. A flag that is missing here keeps a line back.

# `-ef` is no POSIX before 2024, but dash, bash, busybox and toybox have it. Where it is unknown, and where somebody
# else's script leads back here, the variable ends the circle. One that merely names this folder twice is skipped.


# An empty entry in LD_LIBRARY_PATH means the current folder, which may be anybody's: none may arise.

# The first is read from toolkit 1.18 on, the second by the runtimes of all before.

# The hook reads no variable before 1.18; all of them know the flag.


_EXECUTABLE, _PLAIN = 0o755, 0o644

FOLDERS = (".config", ".config/nvidia-container-runtime")
"""The folders within the toolkit's folder, outermost first."""

_PROGRAMS = frozenset({CLI, CTK, CDI_HOOK, HOOK, HOOK_2021, *RUNTIMES, "nvidia-container-runtime.experimental"})
"""Every program that an installer has put there since 2019."""


class ToolkitFile(msgspec.Struct, frozen=True):
    """One file of the toolkit's folder. Exactly one of `source`, `content` and `target` is given."""

    name: str
    """Relative to the toolkit's folder."""
    mode: int
    """Permission bits; of no meaning for a symlink."""
    source: str | None = None
    """Copy this file of the payload: a path beneath the payload's root, free of symlinks."""
    content: bytes | None = None
    """A regular file with these bytes."""
    target: str | None = None
    """A symlink that says this: the name of another file of the same folder."""
    recipe: str | None = None
    """What `content` was made of (config.recipe), where that took so long that it is worth remembering."""

    def __post_init__(self) -> None:
        """Refuse a file that is two things at once, or nothing."""
        if [self.source, self.content, self.target].count(None) != 2:  # noqa: PLR2004 - all but one
            raise ValueError(f"{self.name} must have one of source, content and target")


def desired(
    payload: Payload,
    settings: ToolkitSettings,
    low_level: tuple[str, ...],
    toolkit_folder: str,
    driver_root: str,
    made: Mapping[str, bytes] = MappingProxyType({}),
) -> tuple[ToolkitFile, ...]:
    """Return the files that the toolkit's folder is to have, in the order in which they must be put in place.

    `low_level` are the engine's own low-level runtimes, by path; `toolkit_folder` and `driver_root` are paths on the
    node; `made` is what recipes are known to give. If each file is replaced by rename in this order, over nothing or
    over another version, then at every instant what a wrapper runs is there: its libraries and configuration, its
    .real, and the programs that it calls in turn.

    Raises PayloadError for a broken config.toml, UsageError for a folder or runtimes that cannot be used.
    """
    runtimes = low_level_runtimes.choose_low_level(settings, low_level, toolkit_folder)
    parts = (payload, settings, toolkit_folder, runtimes, driver_root)
    recipe = config.recipe(*parts)

    def generated(name: str) -> bytes:
        if name != wrappers.CONFIG_NAME:
            return wrappers.text(name, folder=toolkit_folder, low_level=runtimes).encode()
        return made[recipe] if recipe in made else config.text(*parts)

    return tuple(_files(payload, generated, recipe))


def sources(payload: Payload) -> dict[str, str | None]:
    """Return the names of the files that `desired` returns, each with the payload's file that it is a copy of."""
    return {file.name: file.source for file in _files(payload, lambda _: b"")}


def _files(payload: Payload, generated: Callable[[str], bytes], recipe: str = "") -> Iterator[ToolkitFile]:
    """Yield the files in their order; `generated` returns what is no copy, `recipe` is that of config.toml."""
    programs = dict(payload.programs)
    for library in payload.libraries:
        yield ToolkitFile(library.name, _PLAIN, source=library.source)
        if library.name != library.soname:
            yield ToolkitFile(library.soname, _PLAIN, target=library.name)
    yield ToolkitFile(wrappers.CONFIG_NAME, _PLAIN, content=generated(wrappers.CONFIG_NAME), recipe=recipe)
    if CDI_HOOK in programs:
        yield ToolkitFile(CDI_HOOK, _EXECUTABLE, source=programs[CDI_HOOK])
    # What calls comes after what is called: the runtime runs the hook, the hook runs the CLI.
    for name in (CLI, CTK, payload.hook, *RUNTIMES):
        if name in programs:
            yield ToolkitFile(f"{name}.real", _EXECUTABLE, source=programs[name])
            yield ToolkitFile(name, _EXECUTABLE, content=generated(name))
        if name == payload.hook:
            other = HOOK if name == HOOK_2021 else HOOK_2021
            yield ToolkitFile(other, _EXECUTABLE, target=name)


def known(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names in a toolkit's folder that an installer put there, any installer since 2019."""
    return tuple(
        name
        for name in names
        if name.removesuffix(".real") in _PROGRAMS or (name.startswith("libnvidia-container") and ".so" in name)
    )
