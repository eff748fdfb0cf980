"""The many spellings of a flag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.cli.options.argv import Given, grammar_of, normalize_arguments, read
from toolkit_installer.cli.options.model import Kind, Option
from toolkit_installer.cli.options.table import OPTIONS

GRAMMAR = grammar_of(OPTIONS)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--runtime", "docker"], ["--runtime=docker"]),
        (["-runtime", "docker"], ["--runtime=docker"]),
        (["-runtime=docker"], ["--runtime=docker"]),
        (["-r", "docker"], ["--runtime=docker"]),
        (["-rdocker"], ["--runtime=docker"]),
        (["-r=docker"], ["--runtime=docker"]),
        (["-nr", "docker"], ["--no-daemon=true", "--runtime=docker"]),
        (["-n=false"], ["--no-daemon=false"]),
        (["--no-daemon", "/usr/local/nvidia"], ["--no-daemon=true", "/usr/local/nvidia"]),
        (["--no-daemon", "false"], ["--no-daemon=true", "false"]),
        (["--root", "/a"], ["--toolkit-install-dir=/a"]),
        (["-u", "--socket /x"], ["--runtime-args=--socket /x"]),
        (["-t", ""], ["--toolkit-args="]),
        (["--socket=a=b"], ["--socket=a=b"]),
        (["--socket"], ["--socket"]),
        (["-r"], ["-r"]),
        (["--", "--no-daemon"], ["--", "--no-daemon"]),
        (["-"], ["-"]),
        (["-help", "-version"], ["--help", "--version"]),
        (["--nonsense", "-x", "-nx", "-v", "--n"], ["--nonsense", "-x", "-nx", "-v", "--n"]),
        (["---runtime", "docker"], ["---runtime", "docker"]),
        (["/usr/local/nvidia", "-n"], ["/usr/local/nvidia", "--no-daemon=true"]),
    ],
)
def test_one_spelling_for_all(arguments: list[str], expected: list[str]) -> None:
    assert normalize_arguments(arguments, GRAMMAR) == expected


@st.composite
def spelled(draw: st.DrawFn) -> tuple[list[str], Option, str]:
    """An option in any of its spellings, with its text."""
    option = draw(st.sampled_from(OPTIONS))
    flag = draw(st.sampled_from(option.flags))
    if flag.startswith("--"):
        flag = draw(st.sampled_from([flag, flag[1:]]))
    if option.kind is Kind.FLAG and draw(st.booleans()):
        return [flag], option, "true"
    text = draw(st.text(max_size=8))
    glued = option.kind is Kind.FLAG or draw(st.booleans())
    return ([f"{flag}={text}"] if glued else [flag, text]), option, text


@given(st.lists(st.one_of(spelled(), st.sampled_from(["/usr/local/nvidia", "positional"])), max_size=6))
def test_whatever_the_spelling_no_flag_swallows_its_neighbour(
    pieces: list[tuple[list[str], Option, str] | str],
) -> None:
    arguments: list[str] = []
    expected: list[Given | str] = []
    for piece in pieces:
        if isinstance(piece, str):
            arguments.append(piece)
            expected.append(piece)
        else:
            words, option, text = piece
            arguments += words
            expected.append(Given(option, text))
    assert list(read(arguments, GRAMMAR)) == expected
    once = normalize_arguments(arguments, GRAMMAR)
    assert normalize_arguments(once, GRAMMAR) == once
