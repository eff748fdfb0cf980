"""A process's command line: whether it is the one that the process was started with, and what it gives a flag. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_ARGUMENTS_START, _ARGUMENTS_END = 45, 46
"""Where a process's arguments lay at its start: the fields 48 and 49 of proc_pid_stat(5), counted after the name."""


def is_wiped(said: bytes, words: Sequence[bytes], given: int | None) -> bool:
    """Tell whether a command line is not the one that the process was started with.

    A program may write over its arguments, and some do, lest a password is seen there: what remains is one word, and
    the rest is zeros (proc_pid_cmdline(5)). A program that was given nothing but empty arguments looks the same.
    `given`: how many bytes the arguments took at its start, None where that is not told.
    """
    return not said or (len(words) > 1 and not any(words[1:])) or (given is not None and given != len(said))


def length_given(told: Sequence[bytes]) -> int | None:
    """Return how many bytes of arguments a process was started with, None where the kernel does not tell us.

    `told` are the fields of proc_pid_stat(5) after the name: arg_start and arg_end are 0 to whoever may not look.
    """
    if len(told) <= _ARGUMENTS_END:
        return None
    start, end = int(told[_ARGUMENTS_START]), int(told[_ARGUMENTS_END])
    return end - start if start else None


def flag_value(arguments: Sequence[str], *flags: str) -> str | None:
    """Return what a command line gives one of the flags, as `FLAG VALUE` or `FLAG=VALUE`; None if it does not."""
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in flags and equals:
            return value
        if word in flags and index + 1 < len(arguments):
            return arguments[index + 1]
    return None
