"""Whatever value of a capture is replaced: it is planned for, or refused by name; nothing else is raised."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import capture_mutations, fleet_captures
from tests.support.quick import Few
from toolkit_installer.cli import capture_workers, compare, replay
from toolkit_installer.errors import ExitCode
from toolkit_installer.fleet.forecast import Refusal
from toolkit_installer.run import preload

NODES = 6
PATH = "/captures/node.capture"
MOST_AT_ONCE = 50
"""How many of the mutations of a node `make test` tries: there are 5,000 and more."""
MOST = int(os.environ.get("MUTATIONS", "1000"))
"""How many `make test-all` tries, at even distances: all of them take minutes."""
MOST_SECONDS = 5
"""Of processor time. Unchanged, it takes a hundredth of one."""


MOST_SHOWN = 40


class EndlessError(BaseException):
    """It takes too long: nothing may catch this."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("fleet") / "captures"
    fleet_captures.make(folder, NODES, variants=1)
    preload.import_all()
    return [file.read_bytes() for file in sorted(folder.iterdir())]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Yield what holds the content of each file that is read; and let no error be taken for a capture's."""
    content: list[bytes] = []

    def unexpected(error: Exception) -> str:
        raise error

    def end(_number: int, _frame: object) -> None:
        raise EndlessError

    monkeypatch.setattr(capture_workers, "unexpected", unexpected)
    monkeypatch.setattr(capture_workers, "read_bounded", lambda *_: content[0])
    before = signal.signal(signal.SIGPROF, end)
    yield content
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def refusals(content: bytes, given: list[bytes], *, compared: bool) -> Iterator[Refusal]:
    """Yield why a replay of a capture is refused, and a comparison with itself, if they are."""
    given[:] = [content]
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    replayed = replay._replay_capture(PATH, replay.ReplayOptions(given={}))
    assert replayed.file == PATH
    if replayed.refusal is not None:
        yield replayed.refusal
    if compared:
        found = compare._compare_pair(compare._CapturePair("node", PATH, PATH), debug=False)
        if isinstance(found, compare._UnusableCapture):
            assert found.path == PATH
            yield found.refusal
    signal.setitimer(signal.ITIMER_PROF, 0)


@pytest.mark.parametrize("number", range(NODES))
def test_no_mutation_of_a_capture_raises_anything_but_a_refusal(
    fleet: list[bytes], given: list[bytes], few: Few, number: int
) -> None:
    shapes: set[capture_mutations.Place] = set()
    for content in fleet[:number]:  # their shapes were tried with all values
        capture_mutations.mutations(capture_mutations.opened(content), shapes)
    value = capture_mutations.opened(fleet[number])
    every = capture_mutations.mutations(value, shapes)
    every = every[:: -(-len(every) // MOST)]
    failed = []
    for place, index in few(every, MOST_AT_ONCE):
        mutant = capture_mutations.closed(capture_mutations.mutated(value, place, index))
        try:
            for refusal in refusals(mutant, given, compared=index % 3 == 0):
                assert refusal.reason
                assert refusal.code != ExitCode.BUG
        except (Exception, EndlessError) as error:  # noqa: BLE001  # all of them are shown together
            said: Any = str(capture_mutations.VALUES[index])[:80]
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed.append(f"{place} = {said}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})")
    assert not failed, "\n".join([f"{len(failed)} of {len(every)}", *failed[:MOST_SHOWN]])


def test_a_damaged_answer_is_refused_by_the_name_of_its_capture(fleet: list[bytes], given: list[bytes]) -> None:
    value = capture_mutations.opened(fleet[0])
    seam = "node.reading.Reader.status"
    value["answers"][seam] = {asked: [[-1] * 11] for asked in value["answers"][seam]}
    found = list(refusals(capture_mutations.closed(value), given, compared=True))
    assert len(found) == 2
    for refusal in found:
        assert refusal.reason.startswith(f"{PATH}: is damaged: {seam}: a stat_result out of range")
        assert refusal.code == ExitCode.BAD_CONFIGURATION
