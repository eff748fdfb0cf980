"""Queries: the functions through which the program learns anything of the node.

Each is declared with `Query` where it is defined. It runs as it is, unless calls are intercepted: by a recorder, which
keeps the answers, or by a replayer, which gives the answers of a capture and never reads this machine. The queries that
a query makes itself are part of its own answer.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import posixpath
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, ParamSpec, Protocol, TypeVar

_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")
_PACKAGE: Final = f"{__name__.partition('.')[0]}."


class Secrecy(enum.Enum):
    """The part of an answer that may hold a secret."""

    NONE = "nothing"
    TEXT = "the bytes and words of a file, or of a program's output"
    PUBLIC = "nothing: it is a file of the payload, as NVIDIA ships it"
    JSON = "an object of names and values"
    WORDS = "the words of a command line"


class Query:
    """Declares a function to be a query, as a decorator.

    `ignored` are parameters that do not affect the answer; all others distinguish one call from another. `polled`: the
    caller repeats the query until an engine responds, so that the last answer counts. `os_errors`: it may raise OSError
    as well as the program's own errors. `recorded`: captures contain its answers. `keep` returns the part of an answer
    to record, None: all of it. `is_valid` returns whether a node can give the answer, beyond the limits of its type.
    """

    function: Callable[..., Any]

    def __init__(
        self,
        *,
        ignored: tuple[str, ...] = (),
        secrecy: Secrecy = Secrecy.NONE,
        polled: bool = False,
        os_errors: bool = False,
        recorded: bool = True,
        keep: Callable[[Any], Any] | None = None,
        is_valid: Callable[[Any], bool] | None = None,
    ) -> None:
        self.ignored = ignored
        self.secrecy = secrecy
        self.polled = polled
        self.os_errors = os_errors
        self.recorded = recorded
        self.keep = keep
        self.is_valid = is_valid

    def __call__(self, function: Callable[_Parameters, _Answer]) -> Callable[_Parameters, _Answer]:
        """Return a function that runs `function` unless calls are intercepted."""
        self.function = function

        @functools.wraps(function)
        def call(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Answer:
            interceptor = _Interception.current
            if interceptor is None:
                return function(*arguments, **named)
            answer: _Answer = interceptor.answer(self, arguments, named)
            return answer

        DECLARED[call] = self
        return call

    @functools.cached_property
    def name(self) -> str:
        """The function's module and name, without the package's: its name in captures."""
        return f"{self.function.__module__.removeprefix(_PACKAGE)}.{self.function.__qualname__}"

    @functools.cached_property
    def parameters(self) -> dict[str, Any]:
        """The function's parameters with their defaults."""
        import inspect  # noqa: PLC0415  # only captures need it

        return {name: each.default for name, each in inspect.signature(self.function).parameters.items()}

    @functools.cached_property
    def answer_type(self) -> Any:
        """The type that the function returns."""
        from toolkit_installer.node.processes import Process  # noqa: PLC0415  # its module declares queries

        returned = types.SimpleNamespace(__annotations__={"return": self.function.__annotations__["return"]})
        # modules that import Process for the type checker alone name it, too
        return typing.get_type_hints(returned, self.function.__globals__, {"Process": Process})["return"]

    def select_arguments(self, arguments: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        """Return the arguments that distinguish this call from others, in the order of the parameters."""
        given = {**self.parameters, **dict(zip(self.parameters, arguments, strict=False)), **named}
        return [value for name, value in given.items() if name not in self.ignored]


class Interceptor(Protocol):
    """Answers queries in place of their functions."""

    def answer(self, query: Query, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the answer to a call of the query with these arguments, or raise its error."""


class _Interception:
    current: ClassVar[Interceptor | None] = None


DECLARED: Final[dict[Callable[..., Any], Query]] = {}
"""All queries of the modules imported so far, by the functions that `Query` returned."""


@contextlib.contextmanager
def intercepted(interceptor: Interceptor) -> Iterator[None]:
    """Let the interceptor answer every query inside the block."""
    before, _Interception.current = _Interception.current, interceptor
    try:
        yield
    finally:
        _Interception.current = before


# --- limits of plain answers ---

_MAX_PID: Final = 1 << 22
"""PID_MAX_LIMIT (proc_sys_kernel(5))."""
_MAX_ID: Final = (1 << 32) - 1
_MAX_WORD: Final = (1 << 31) - 1
_LATEST: Final = 1 << 40
"""Seconds since the epoch: beyond the year 30,000, which clocks and calendars can still write."""


def is_canonical(path: str) -> bool:
    """Return whether a path is canonical, as far as its text shows."""
    return path.startswith("/") and not path.startswith("//") and posixpath.normpath(path) == path


def is_absolute_if_any(path: str | None) -> bool:
    """Return whether a path, if there is one, is absolute."""
    return path is None or path.startswith("/")


def are_file_names(names: list[str]) -> bool:
    """Return whether a folder can contain these names."""
    return all(each and "/" not in each and each not in {".", ".."} for each in names)


def is_pid(number: int) -> bool:
    """Return whether a process can have this number."""
    return 1 <= number <= _MAX_PID


def is_pid_if_any(number: int | None) -> bool:
    """Return whether this is None, a PID, or 0, which stands for a process outside of the PID namespace."""
    return number is None or number == 0 or is_pid(number)


def are_pids_and_names(processes: list[tuple[int, str]]) -> bool:
    """Return whether these can be PIDs and names of processes."""
    return all(is_pid(pid) for pid, _ in processes)


def are_user_ids(numbers: Iterable[int]) -> bool:
    """Return whether users, or groups, can have these numbers."""
    return all(0 <= each <= _MAX_ID for each in numbers)


def is_time(seconds: float) -> bool:
    """Return whether a clock can show these seconds."""
    return 0 <= seconds <= _LATEST


def is_word_if_any(number: int) -> bool:
    """Return whether this is a number of 31 bits, or -1 for an unknown one."""
    return -1 <= number <= _MAX_WORD
