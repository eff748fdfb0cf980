"""The seams are where the program has them: what a capture asks by is there to be asked by."""

from __future__ import annotations

import pytest

from toolkit_installer.lifecycle.capture import seams
from toolkit_installer.lifecycle.capture.seams import Question, Seam

ALL = (*seams.SEAMS, seams.DIGEST, seams.REST, seams.MONOTONIC)


@pytest.mark.parametrize("seam", ALL, ids=str)
def test_a_seam_tells_its_questions_apart_by_arguments_that_its_function_has(seam: Seam) -> None:
    """Else a plan ends with an error about the program as soon as it comes there: many a function is seldom called."""
    question = Question.of(seam)
    assert set(seam.asked) <= set(question.parameters)
    given = dict.fromkeys(question.parameters, "given")
    assert question.arguments((), given) == ["given"] * len(seam.asked)


@pytest.mark.parametrize("name, seam", [*seams.trials(), *seams.talks()], ids=str)
def test_an_engine_is_asked_at_a_method_that_its_adapter_has(name: str, seam: Seam) -> None:
    place, method = seam.owner()
    assert callable(vars(place)[method]), name
