"""The type of the rows of the option table."""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping

import msgspec

from toolkit_installer.engines import registry
from toolkit_installer.settings import EngineName, Program

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


class Group(enum.StrEnum):
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

    `name` is also the field of Settings, EngineSettings or ToolkitSettings that it fills (`Answers.settings`); `build`
    has the exceptions.
    `flags` begins with the name that messages use, by default the option's own. `variables` are read in order, and a
    variable that is named after an engine (`DOCKER_CONFIG`) counts for that engine only; by default they are named like
    the long flags (`--log-format`, LOG_FORMAT). `default` is written as a user would write it.
    """

    name: str
    kind: Kind
    group: Group
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
        return tuple(name for name in self.variables if engine_of(name) in {None, wanted})


def engine_of(variable: str) -> EngineName | None:
    """Return the only engine that a variable counts for, None if it counts for all."""
    prefix = variable.partition("_")[0].lower()
    return EngineName(prefix) if prefix in registry.names() else None
