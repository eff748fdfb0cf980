"""What is asked at a seam is told from all else that is asked there, and the same question is always the same line."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from toolkit_installer.fleet import archive
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import Root
from toolkit_installer.settings import ToolkitSettings

QUESTIONS: dict[str, list[list[Any]]] = {
    "words": [[""], ["a"], ["b"], ["a", "b"], ["ab"]],
    "values": [[None], [True], [1], [2], [1.5]],
    "bytes": [[b""], [b"a"], [memoryview(b"b")]],
    "processes": [[Process(pid, "runc", "/usr/bin/runc", (), 0.0, None)] for pid in (7, 8)],
    "roots": [[Root("/")], [Root("/host")]],
    "readers": [[Reader(Root("/"))], [Reader(Root("/host"))]],
    "nodes": [[Node("/")], [Node("/host")], [Node("/host", "/")], [Node("/host", whole=False)]],
    "toolkits": [
        [ToolkitSettings()],
        [ToolkitSettings(driver_root="/a")],
        [ToolkitSettings(driver_root_ctr_path="/a")],
        [ToolkitSettings(dev_root="/a")],
        [ToolkitSettings(dev_root_ctr_path="/a")],
    ],
    "lists": [[[]], [["a"]], [["a", "b"]], [["b", "a"]], [["a", 1]], [["ab"]]],
    "sets": [[frozenset({"a"})], [frozenset({"a", "b"})], [frozenset({"a", "c"})]],
    "several": [["a", ["b"]], ["a", ["b"], None], [["a"], "b", "c"]],
}


@pytest.mark.parametrize("questions", QUESTIONS.values(), ids=QUESTIONS)
def test_each_question_has_a_line_of_its_own(questions: list[list[Any]]) -> None:
    lines = [archive.make_line(each) for each in questions]
    assert [(one, other) for one, other in itertools.combinations(lines, 2) if one == other] == []
    assert lines == [archive.make_line(each) for each in questions]
    assert not any("\n" in each for each in lines)


def test_the_order_counts_in_a_list_and_not_in_a_set() -> None:
    assert archive.make_line([["b", "a"]]) != archive.make_line([("a", "b")])
    assert archive.make_line([["b", "a"]]) == archive.make_line([("b", "a")])
    assert archive.make_line([{"b", "a"}]) == archive.make_line([frozenset({"a", "b"})])


def test_what_no_seam_is_asked_with_is_an_error_and_no_line_that_differs_each_time() -> None:
    with pytest.raises(TypeError, match="a query has an argument of type object"):
        archive.make_line([object()])


def test_a_question_is_shown_in_words() -> None:
    line = archive.make_line(["/etc/a", ["b", "c"], ""])
    assert archive.split_line(line)[0] == "/etc/a"
    assert archive.describe_line("read", line) == "read of /etc/a, b c"
    assert archive.describe_line("names", archive.make_line([])) == "names"


def test_a_program_is_known_by_the_place_of_what_it_inherits_and_not_by_its_number() -> None:
    def run(number: int, text: bytes) -> str:
        words = ["/bin/x", f"/proc/self/fd/{number}"]
        return archive.ProgramRun.of("/", words, b"see /proc/self/fd/%d" % number, {number: text}).line

    assert run(7, b"a") == run(9, b"a") != run(7, b"b")
