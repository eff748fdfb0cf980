"""An option: its names, its variables, and the type of its value, which converts the text that a user gave."""

from __future__ import annotations

import contextlib
import enum
import json
import posixpath
import re
import types
import typing
from collections.abc import Callable, Mapping

import msgspec

from toolkit_installer.engines import registry
from toolkit_installer.settings import AUTO, CONDITION, Address, EngineName, Program, Taint

Value: typing.TypeAlias = bool | int | float | str | tuple[str, ...] | tuple[int, float]
"""An option's value, parsed and validated."""


class Kind(enum.StrEnum):
    """How an option's text is parsed and validated. The member's value is its placeholder in the help."""

    FLAG = ""
    CHOICE = "WORD"
    ENGINES = "ENGINE[,ENGINE]"
    PATH = "PATH"
    LOCAL_PATH = "LOCAL_PATH"
    """A path on the machine that runs the command, relative to the current folder."""
    ROOT = "PATH|auto"
    EXECUTABLE = "FILE"
    INSTALL_DIR = "DIR"
    PID_FILE = "PIDFILE"
    FILE_NAME = "NAME"
    HANDLER = "HANDLER"
    RUNTIME_TYPE = "TYPE"
    CDI_KIND = "VENDOR/CLASS"
    NAMESPACE = "NAMESPACE"
    OBJECT = "OBJECT"
    CONDITION = "true|TYPE"
    TAINT = "KEY=VALUE:EFFECT"
    ADDRESS = "[IP]:PORT"
    HOST = "HOST"
    PORT = "PORT"
    INDEX = "0..99"
    SECONDS = "SECONDS"
    BUDGET = "N/SECONDS"
    RELOAD_WHEN = "now|idle|WINDOW"
    JSON_OBJECT = "JSON"
    ARGUMENTS = "'FLAGS'"
    PREFIXES = "PREFIX,..."
    FEATURES = "FEATURE,..."
    RUNTIMES = "RUNTIME,..."
    SOURCES = "SOURCE,..."
    NAMESPACES = "NAMESPACE,..."
    VERSIONS = "ENGINE=VERSION,..."

    @property
    def is_list(self) -> bool:
        """Whether the option is repeatable, and each time a comma list."""
        return self.value.endswith(",...")


class Step(enum.StrEnum):
    """The part of the job that an option belongs to: decides which `*_ARGS` string may hold it."""

    INSTALL = "install"
    RUNTIME = "runtime"
    INSTALLER = "installer"


class HelpSection(enum.StrEnum):
    """The section titles of the help, in its order."""

    JOB = "What is done"
    INSTALLER = "This installer"
    TOOLKIT = "The toolkit"
    TOOLKIT_CONFIG = "The toolkit's own config.toml"
    ENGINE = "The container engine"
    CRIO = "CRI-O"
    KUBERNETES = "Kubernetes"
    CDI = "CDI specifications"
    NRI = "NRI plugin"


class Option(msgspec.Struct, frozen=True):
    """One option: its spellings, its type, its help and its default.

    `name` is also the field of Settings, EngineSettings or ToolkitSettings that it fills
    (`OptionValues.make_settings`); `build` has the exceptions.
    `flags` begins with the name that messages use, by default the option's own. `variables` are read in order, and a
    variable that is named after an engine (`DOCKER_CONFIG`) counts for that engine only; by default they are named like
    the long flags (`--log-format`, LOG_FORMAT). `default` is written as a user would write it.
    """

    name: str
    kind: Kind
    section: HelpSection
    step: Step
    help: str
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    no_variable: bool = False
    default: str | None = None
    default_of: Mapping[Program, str] = msgspec.field(default_factory=dict)
    """Where a program's default differs from `default`."""
    default_note: str | None = None
    """The help's description of the default, in place of `default`."""
    choices: tuple[str, ...] = ()
    may_be_empty: bool = False
    empty_variable_counts: bool = False
    hidden: bool = False

    def __post_init__(self) -> None:
        """Fill in the usual flags and variables if the row has none; a FLAG without a default is false."""
        msgspec.structs.force_setattr(self, "flags", self.flags or (f"--{self.name.replace('_', '-')}",))
        if self.kind is Kind.FLAG and self.default is None and self.default_note is None:
            msgspec.structs.force_setattr(self, "default", "false")
        if not self.variables and not self.no_variable:
            usual = (name.upper().replace("-", "_").replace(".", "_") for name in self.long_names)
            msgspec.structs.force_setattr(self, "variables", tuple(dict.fromkeys(usual)))

    @property
    def long_names(self) -> tuple[str, ...]:
        """The flags of more than one letter, without their dashes."""
        return tuple(flag[2:] for flag in self.flags if flag.startswith("--"))

    @property
    def letters(self) -> tuple[str, ...]:
        """The flags of one letter, without their dash."""
        return tuple(flag[1:] for flag in self.flags if not flag.startswith("--"))

    def default_under(self, program: Program) -> str | None:
        """Return the default's text for the program under this name."""
        return self.default_of.get(program, self.default)

    def variables_for(self, engine: EngineName | None) -> tuple[str, ...]:
        """Return the variables that count for this engine; for None those of the engine of most nodes."""
        wanted = engine or registry.MOST_USED
        return tuple(name for name in self.variables if find_engine(name) in {None, wanted})


def find_engine(variable: str) -> EngineName | None:
    """Return the only engine that a variable counts for, None if it counts for all."""
    prefix = variable.partition("_")[0].lower()
    return EngineName(prefix) if prefix in registry.names() else None


TRUE_WORDS = frozenset({"1", "t", "true", "yes", "on"})
"""The words of Go's strconv.ParseBool, which existing manifests use, and words that YAML authors try."""
FALSE_WORDS = frozenset({"0", "f", "false", "no", "off"})

PID_FILE_NAME = "toolkit.pid"
_LONGEST_RELOAD_SECONDS = 86_400
_KERNEL_FOLDERS = ("proc", "sys", "dev")
_DEFAULT_EXECUTABLES = frozenset({"containerd", "crio"})
_RESERVED_HANDLERS = frozenset({"runc"})

_CONTROL_CHARACTER = r"[\x00-\x1f\x7f]"
# Strings, each of which is compiled at its first use: a start uses few of them.
_HANDLER = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
# Both halves of a CDI kind follow one rule: https://github.com/cncf-tags/container-device-interface, SPEC.md, "kind".
_CDI_KIND = r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_NAMESPACE = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # an RFC 1123 label, as Kubernetes requires
# The names of DaemonSets and nodes: an RFC 1123 subdomain, as Kubernetes requires.
_SUBDOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_OBJECT = rf"(?=.{{1,253}}$){_SUBDOMAIN}"
# A qualified name with or without its prefix, and the value of a label, as Kubernetes requires.
_QUALIFIED = rf"((?=[^/]{{1,253}}/){_SUBDOMAIN}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
_LABEL_VALUE = r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
_LONGEST_CONDITION = 316
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_HOST = r"[A-Za-z0-9.:_-]+(%[A-Za-z0-9._-]+)?"
_VERSION = r"v?[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})?([-+~.][0-9A-Za-z.+~-]{1,40})?"  # as engines report theirs
_HIGHEST_PORT = 65_535


class NotAllowedError(ValueError):
    """A text that is no value of its option; `allowed` describes the valid texts."""

    def __init__(self, allowed: str) -> None:
        super().__init__(allowed)
        self.allowed = allowed


def parse_value(option: Option, texts: tuple[str, ...]) -> Value:
    """Return the value of an option given as these texts: the last one, but all for lists. Raises NotAllowedError."""
    if option.kind.is_list:
        items = tuple(item.strip() for text in texts for item in text.split(","))
        for item in items:
            _READERS[option.kind](item)
        return tuple(dict.fromkeys(items))
    text = texts[-1]
    if not text and option.may_be_empty:
        return text
    if option.kind is Kind.CHOICE:
        for choice in option.choices:
            if choice == text.lower():
                return choice  # a member of an enumeration, if the choices are members
        raise NotAllowedError(", ".join(option.choices))
    if option.kind is Kind.ENGINES:
        return _engines(option.choices, text)
    return _READERS[option.kind](text)


def parse_boolean(text: str) -> bool:
    """Parse a boolean. Raises NotAllowedError."""
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise NotAllowedError("true or false (also 1, 0, t, f, yes, no, on, off)")


def _engines(choices: tuple[str, ...], text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip().lower() for word in text.split(",")))
    if any(word not in choices for word in words) or (AUTO in words and len(words) > 1):
        names = ", ".join(choice for choice in choices if choice != AUTO)
        raise NotAllowedError(f"{names}, a comma list of these, or {AUTO}")
    return words


def _is_plain(text: str) -> bool:
    """Return whether a text can be written into JSON, TOML and a log line."""
    return _is_writable(text) and re.search(_CONTROL_CHARACTER, text) is None


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, into which Python decodes a byte that is not UTF-8
        return False
    return True


def _is_path(text: str) -> bool:
    return text.startswith("/") and _is_plain(text)


def _is_file_name(text: str) -> bool:
    return text not in {"", ".", ".."} and "/" not in text and _is_plain(text)


def _is_engines_version(text: str) -> bool:
    name, _, version = text.partition("=")
    return name in registry.names() and re.fullmatch(_VERSION, version) is not None


def _is_source(text: str) -> bool:
    return text in {"command", "file"} or (text.startswith("file=") and _is_path(text.removeprefix("file=")))


def _install_dir(text: str) -> str:
    parts = [part for part in text.split("/") if part not in {"", "."}]
    bad = not _is_path(text) or not parts or ".." in parts or parts[0] in _KERNEL_FOLDERS
    if bad or ":" in text:  # the wrappers put the folder into PATH, where a colon separates
        raise NotAllowedError(
            "an absolute path in UTF-8, other than /, not in /proc, /sys or /dev, without '..', ':' and control "
            "characters"
        )
    return "/" + "/".join(parts)


def _budget(text: str) -> tuple[int, float]:
    """Return how many reloads are allowed, and within how many seconds."""
    match = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,6})", text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise NotAllowedError("a number of reloads and a number of seconds, such as 3/600")
    return int(match[1]), float(match[2])


def _reload_when(text: str) -> str:
    """Return the option's text in its normal form."""
    if text in ("now", "idle"):
        return text
    from toolkit_installer.applying import reload_windows

    try:
        return reload_windows.normalize_windows(text)
    except ValueError as error:
        raise NotAllowedError(f"{reload_windows.ALLOWED} ({error})") from error


def _condition(text: str) -> str:
    """Return the type of a condition: the usual one for a true word, empty for a false word."""
    with contextlib.suppress(NotAllowedError):
        return CONDITION if parse_boolean(text) else ""
    if re.fullmatch(_QUALIFIED, text) and len(text) <= _LONGEST_CONDITION:
        return text
    raise NotAllowedError(f"true for {CONDITION}, false, or a type of the same form")


def _taint(text: str) -> str:
    """Return the text of a taint, which `taint` parses."""
    parse_taint(text)
    return text


def parse_taint(text: str) -> Taint:
    """Parse KEY=VALUE:EFFECT or KEY:EFFECT, as `kubectl taint` does. Raises NotAllowedError."""
    said, _, effect = text.rpartition(":")
    key, _, value = said.partition("=")
    fits = re.fullmatch(_QUALIFIED, key) and re.fullmatch(_LABEL_VALUE, value) and effect in _EFFECTS
    if not fits:
        raise NotAllowedError(f"KEY=VALUE:EFFECT or KEY:EFFECT, where the effect is one of {', '.join(_EFFECTS)}")
    return Taint(key, value, effect)


def _address(text: str) -> str:
    """Return the text of an address, which `address` parses."""
    parse_address(text)
    return text


def parse_address(text: str) -> Address:
    """Parse IP:PORT, [IPv6]:PORT or :PORT. Raises NotAllowedError."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if _is_ip(host[1:-1], 6) else host
    fits = not bare or (_is_ip(bare, 6) if bare != host else _is_ip(bare, 4))
    if not (fits and re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) <= _HIGHEST_PORT):
        raise NotAllowedError("an address and a port, such as 127.0.0.1:9101, [::1]:9101, or :9101 for all addresses")
    return Address(bare, int(port))


def _is_ip(text: str, version: int) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _json_object(text: str) -> str:
    """Return the text unchanged, or {} for an empty object."""

    def refuse(word: str) -> object:
        raise ValueError(word)

    try:
        value = json.loads(text, parse_constant=refuse)
        holds = isinstance(value, dict) and _fits_toml(value)
    except (ValueError, RecursionError):
        holds = False
    if not holds:
        raise NotAllowedError("a JSON object of values that TOML has too: no null, no number beyond 64 bits")
    return text if value else "{}"


def _fits_toml(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_fits_toml, (*value, *value.values())))
    if isinstance(value, list):
        return all(map(_fits_toml, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is not None and (not isinstance(value, str) or _is_writable(value))


def _if(fits: Callable[[str], object], allowed: str, value: Callable[[str], Value] = str) -> Callable[[str], Value]:
    """Return a parser that applies `value` to a text that fits; `allowed` describes such texts."""

    def reader(text: str) -> Value:
        if not fits(text):
            raise NotAllowedError(allowed)
        return value(text)

    return reader


def _like(pattern: str, allowed: str, value: Callable[[str], Value] = str) -> Callable[[str], Value]:
    return _if(lambda text: re.fullmatch(pattern, text), allowed, value)


_READERS: Mapping[Kind, Callable[[str], Value]] = types.MappingProxyType(
    {
        Kind.FLAG: parse_boolean,
        Kind.PATH: _if(_is_path, "an absolute path, without control characters, in UTF-8"),
        Kind.LOCAL_PATH: _if(lambda text: text and _is_plain(text), "a path, without control characters, in UTF-8"),
        Kind.ROOT: _if(
            lambda text: text == AUTO or _is_path(text),
            f"an absolute path, without control characters, in UTF-8, or {AUTO}",
        ),
        Kind.EXECUTABLE: _if(
            lambda text: text in _DEFAULT_EXECUTABLES or _is_path(text),
            "an absolute path, or containerd or crio for the engine's own",
        ),
        Kind.INSTALL_DIR: _install_dir,
        Kind.PID_FILE: _if(
            lambda text: _is_path(text) and posixpath.basename(text) == PID_FILE_NAME,
            f"an absolute path whose last part is {PID_FILE_NAME}",
        ),
        Kind.FILE_NAME: _if(_is_file_name, "the name of a file, without a folder"),
        Kind.HANDLER: _if(
            lambda text: re.fullmatch(_HANDLER, text) and text not in _RESERVED_HANDLERS,
            "letters, digits, '.', '_' and '-', and not runc, which is the engine's own",
        ),
        Kind.RUNTIME_TYPE: _like(r"[A-Za-z0-9/][A-Za-z0-9._/-]*", "a runtime type such as io.containerd.runc.v2"),
        Kind.CDI_KIND: _like(_CDI_KIND, "vendor/class, each a letter, then letters, digits, '.', '_' and '-'"),
        Kind.NAMESPACE: _like(_NAMESPACE, "a Kubernetes namespace: small letters, digits and '-', 63 at most"),
        Kind.OBJECT: _like(_OBJECT, "the name of a Kubernetes object: small letters, digits, '-' and '.'"),
        Kind.CONDITION: _condition,
        Kind.TAINT: _taint,
        Kind.ADDRESS: _address,
        Kind.HOST: _like(_HOST, "a host name or an address, an IPv6 one without brackets"),
        Kind.PORT: _if(
            lambda text: re.fullmatch(r"[0-9]{1,5}", text) and 0 < int(text) <= _HIGHEST_PORT,
            f"a whole number from 1 to {_HIGHEST_PORT}",
            int,
        ),
        Kind.INDEX: _like(r"[0-9]{1,2}", "a whole number from 0 to 99", int),
        Kind.SECONDS: _if(
            lambda text: (
                re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) and 0 < float(text) <= _LONGEST_RELOAD_SECONDS
            ),
            f"a number of seconds, more than 0 and at most {_LONGEST_RELOAD_SECONDS}",
            float,
        ),
        Kind.BUDGET: _budget,
        Kind.RELOAD_WHEN: _reload_when,
        Kind.JSON_OBJECT: _json_object,
        Kind.ARGUMENTS: str,  # split by shlex rules later
        # lists: the parser of one item
        Kind.PREFIXES: _like(r"[A-Za-z0-9][A-Za-z0-9._/-]*", "a comma list of annotation prefixes such as cdi.k8s.io/"),
        Kind.FEATURES: _like(
            r"[A-Za-z0-9][A-Za-z0-9_-]*", "a comma list of feature names: letters, digits, '_' and '-'"
        ),
        Kind.RUNTIMES: _if(
            lambda text: re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) or _is_path(text),
            "a comma list of runtimes, each a name such as runc or an absolute path",
        ),
        Kind.SOURCES: _if(_is_source, "a comma list of command, file and file=/path"),
        Kind.NAMESPACES: _like(_NAMESPACE, "a comma list of Kubernetes namespaces"),
        Kind.VERSIONS: _if(
            _is_engines_version,
            f"a comma list of an engine ({', '.join(registry.names())}), '=', and its version, such as containerd=2.2",
        ),
    }
)
