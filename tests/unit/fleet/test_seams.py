"""The seams are where the program has them: what a capture asks by is there to be asked by."""

from __future__ import annotations

import pytest

from toolkit_installer.fleet import seams
from toolkit_installer.fleet.seams import Question, Seam

UNTOLD = {
    "node.reading.Reader.read_file": {"limit"},
    "node.reading.read_bounded": {"limit"},
    "node.sockets.find_responding_process": {"greeting"},
    "reporting.diagnosis.diagnose": {"settings"},
    "applying.impact.find_running_containers": {"inspection"},
    "planning.toolkit_users.list_users": {"ours"},
    "planning.files_naming.find_naming_files": {"known"},
}
"""What of a question is the same, or makes no difference, whenever it is asked again."""
ALL = (*seams.SEAMS, seams.DIGEST, seams.REST, seams.MONOTONIC)


@pytest.mark.parametrize("seam", ALL, ids=str)
def test_a_seam_tells_its_questions_apart_by_arguments_that_its_function_has(seam: Seam) -> None:
    """Else the answer about one path, or engine, is that about another, or there is none, and a plan is wrong."""
    question = Question.of(seam)
    untold = UNTOLD.get(str(seam), set()) | ({"seconds"} if seam in seams.SEAMS else {*question.parameters})
    assert {*seam.asked, *untold} >= {*question.parameters} >= {*seam.asked}
    given = dict.fromkeys(question.parameters, "given")
    assert question.arguments((), given) == ["given"] * len(seam.asked)


@pytest.mark.parametrize("name, seam", [*seams.trials(), *seams.talks()], ids=str)
def test_an_engine_is_asked_at_a_method_that_its_adapter_has(name: str, seam: Seam) -> None:
    place, method = seam.owner()
    assert callable(vars(place)[method]), name


def test_reading_a_file_raises_the_nodes_own_error_and_querying_an_engine_does_not() -> None:
    says_why = {str(each) for each in seams.SEAMS if each.says_why}
    assert {"node.reading.Reader.read_file", "node.files.find_obstacle", "node.root.is_folder"} <= says_why
    assert not any(each.startswith(("engines.", "driver.")) for each in says_why)
