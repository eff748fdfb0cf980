"""The files of an installed toolkit, in the order in which they are written, and the content of its config.toml."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from toolkit_installer import __version__
from toolkit_installer.documents.changes import ABSENT, EditMismatchError, Set, Table, apply_changes, is_same, lookup
from toolkit_installer.errors import PayloadError
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit import wrappers
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
    recipe = compute_recipe(*parts)

    def generated(name: str) -> bytes:
        if name != wrappers.CONFIG_NAME:
            return wrappers.build_wrapper(name, folder=toolkit_folder, low_level=runtimes).encode()
        return cached[recipe] if recipe in cached else build_config(*parts)

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


DEFAULTS: Final = b"""\
# The NVIDIA container toolkit's configuration.
disable-require = false

[nvidia-container-cli]
environment = []
load-kmods = true

[nvidia-container-runtime]
log-level = "info"
mode = "auto"

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/nvidia-container-runtime/host-files-for-container.d"
"""
"""The template if the payload has no config.toml: those of the toolkit's built-in defaults that every release knows."""

_LINE = r"\(at line (\d+), column \d+\)"


def compute_recipe(
    payload: Payload, settings: ToolkitSettings, toolkit_folder: str, low_level: Sequence[str], driver_root: str
) -> str:
    """Return the SHA-256 of all inputs of `build_config`, including this installer's version.

    Callers cache results of `build_config` by it: importing tomlkit, which that needs, takes a tenth of a start.
    """
    programs = sorted(payload.executables)
    parts = (__version__, payload.config, programs, settings, toolkit_folder, tuple(low_level), driver_root)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()


def build_config(
    payload: Payload, settings: ToolkitSettings, toolkit_folder: str, low_level: Sequence[str], driver_root: str
) -> bytes:
    """Return the config.toml for an installation of `payload` in `toolkit_folder` on the node.

    `low_level` are the low-level runtimes, best first (`payload.choose_low_level`), `driver_root` is the driver's root
    on the node. The same arguments return the same bytes.

    Raises PayloadError if the payload's config.toml is broken, naming file and line.
    """
    template = payload.config if payload.config and payload.config.strip() else DEFAULTS
    source = _decoded(template, payload.config_path)
    before = _parsed(source, payload.config_path)
    root = posixpath.normpath(driver_root)
    # as the template names it: Ubuntu's /sbin/ldconfig is a script around ldconfig.real
    template_says = posixpath.basename(str(lookup(before, (CLI, "ldconfig"))))
    ldconfig = "ldconfig.real" if template_says == "ldconfig.real" else "ldconfig"
    driver = {"root": root, "ldconfig": "@" + posixpath.join(root, "sbin", ldconfig)}
    changes = _changes(payload, settings, toolkit_folder, low_level, driver)
    _check_tables(before, changes, payload.config_path)
    wanted = apply_changes(before, changes)
    # only this function needs tomlkit: other users of the module do not import it
    import tomlkit.exceptions  # noqa: PLC0415

    from toolkit_installer.toolkit.toml_put import set_values  # noqa: PLC0415

    try:
        after = set_values(
            source, [change for change in changes if not is_same(lookup(before, change.path), change.value)]
        )
    except tomlkit.exceptions.TOMLKitError as error:
        raise PayloadError(f"cannot be edited: {error}", path=payload.config_path) from error
    if not is_same(tomllib.loads(after), wanted):
        raise EditMismatchError("the edited config.toml does not say what it should", path=payload.config_path)
    return after.encode()


def _changes(
    payload: Payload, settings: ToolkitSettings, folder: str, low_level: Sequence[str], driver: dict[str, str]
) -> tuple[Set, ...]:
    """Return the values to set, in the order in which new keys are written; `driver` has its root and ldconfig."""
    runtime, cli, hook = RUNTIMES[0], CLI, HOOK
    cdi = (runtime, "modes", "cdi")
    always: list[tuple[tuple[str, ...], Any]] = [
        (("accept-nvidia-visible-devices-envvar-when-unprivileged",), settings.accept_envvar_when_unprivileged),
        (("accept-nvidia-visible-devices-as-volume-mounts",), settings.accept_volume_mounts),
        ((cli, "root"), driver["root"]),
        ((cli, "path"), f"{folder}/{CLI}"),
        ((cli, "ldconfig"), driver["ldconfig"]),
        ((runtime, "runtimes"), list(low_level)),
        ((hook, "path"), f"{folder}/{HOOK}"),
        ((hook, "skip-mode-detection"), settings.hook_skip_mode_detection),
    ]
    if CTK in payload.executables:
        always.append(((CTK, "path"), f"{folder}/{CTK}"))
    requested: list[tuple[tuple[str, ...], Any]] = [
        ((cli, "debug"), settings.cli_debug),
        ((runtime, "debug"), settings.runtime_debug),
        ((runtime, "log-level"), settings.runtime_log_level),
        ((runtime, "mode"), settings.runtime_mode),
        ((*cdi, "default-kind"), settings.cdi_default_kind),
        ((*cdi, "annotation-prefixes"), list(settings.cdi_annotation_prefixes)),
    ]
    features = [(("features", name), True) for name in settings.opt_in_features]
    return tuple(Set(path, value) for path, value in (*always, *((p, v) for p, v in requested if v), *features))


def _decoded(template: bytes, path: str) -> str:
    try:
        decoded = template.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = template.count(b"\n", 0, error.start) + 1
        raise PayloadError("is not UTF-8", path=path, line=line) from error
    decoded = decoded.replace("\r\n", "\n")  # the file is ours: one kind of line end
    return decoded if decoded.endswith("\n") else f"{decoded}\n"


def _parsed(source: str, path: str) -> Table:
    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        place = re.search(_LINE, str(error))
        line = int(place[1]) if place else source.count("\n") + 1  # no line: at the end of the document
        raise PayloadError(f"is not TOML: {error}", path=path, line=line) from error
    except RecursionError as error:
        raise PayloadError("is nested too deeply", path=path) from error


def _check_tables(before: Table, changes: Sequence[Set], path: str) -> None:
    """Raise PayloadError if the template has a value where a table belongs, or a table where a value belongs."""
    for change in changes:
        for depth in range(1, len(change.path) + 1):
            value = lookup(before, change.path[:depth])
            expected = depth < len(change.path)
            if value is not ABSENT and isinstance(value, dict) is not expected:
                name = ".".join(change.path[:depth])
                raise PayloadError(f"{name} must {'' if expected else 'not '}be a table", path=path)


_DANGEROUS_FEATURES: Final = {
    "allow-ldconfig-from-container": "a program of the container is run with the node's privileges",
    "allow-cuda-compat-libs-from-container": "libraries of the container take the place of the driver's",
}


def find_config_warnings(settings: ToolkitSettings, config: bytes) -> list[str]:
    """Return warnings, one sentence each, about the security of the config.toml that will be installed."""
    document = tomllib.loads(config.decode())
    features = lookup(document, ("features",))
    found = [
        f"features.{name} is on: {danger}"
        for name, danger in _DANGEROUS_FEATURES.items()
        if isinstance(features, dict) and features.get(name) is True
    ]
    ldconfig = lookup(document, (CLI, "ldconfig"))
    if isinstance(ldconfig, str) and not ldconfig.startswith("@"):
        found.append(f"{CLI}.ldconfig = {ldconfig!r} names the container's ldconfig, not the node's: it needs a '@'")
    return [*found, *_device_request_notes(settings)]


def _device_request_notes(settings: ToolkitSettings) -> list[str]:
    """Return warnings about the two accept-… keys, of which exactly one should be true, by default the variable's.

    The keys decide whether an unprivileged pod may request GPUs by a variable, or by volume mounts.
    """
    variable, mounts = (
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
        "accept-nvidia-visible-devices-as-volume-mounts",
    )
    if settings.accept_envvar_when_unprivileged != settings.accept_volume_mounts:
        return []
    if settings.accept_volume_mounts:
        return [f"{mounts} protects nothing while {variable} is true: any pod can still ask for every GPU"]
    advice = "set the latter to true and the device plugin's strategy to volume-mounts"
    return [f"{variable} and {mounts} are both false: unprivileged pods get no GPU; {advice}"]
