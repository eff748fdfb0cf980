"""What containerd 2.4.2 and the plugin of nvidia-ctk-installer v1.20.1 said to each other, and what ours says to it.

tests/e2e/nri/test_plugin.py has recorded it, and says of which pods it is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.nri import engine
from toolkit_installer.nri.decision import Policy
from toolkit_installer.nri.session import RUNTIME, Answered, PluginConfigured, PluginIdentity, Serving, Session

FOLDER = Path(__file__).parents[2] / "data" / "nri" / "containerd-2.4.2"
BY_ENGINE = (FOLDER / "by-engine").read_bytes()
BY_PEER = (FOLDER / "by-peer").read_bytes()


def test_ours_registers_as_the_peer_does() -> None:
    (theirs,) = engine.messages(BY_PEER, RUNTIME)
    (ours,) = engine.messages(engine.ours(BY_ENGINE), RUNTIME)
    assert ours[:2] == theirs[:2]
    said, theirs_said = (dict(engine.fields(body)) for _, _, body in (ours, theirs))
    assert (said[1], said[2]) == (theirs_said[1], theirs_said[2])
    asked, theirs_asked = (dict(engine.fields(bytes(parts[3]))) for parts in (said, theirs_said))
    assert asked[2] == theirs_asked[2] == b"10"


def test_every_container_has_the_devices_that_the_peer_gives_it() -> None:
    given = engine.given(BY_ENGINE, BY_PEER)
    assert engine.given(BY_ENGINE, engine.ours(BY_ENGINE)) == given
    assert given["bare"] == (0, ["example.com/gpu=0"])
    assert given["operand"] == (0, ["management.nvidia.com/gpu=all"])
    assert given["thief"] == (0, [])


def test_all_else_is_answered_as_the_peer_does() -> None:
    """Configure and Synchronize: the same events, and nothing more."""
    theirs, ours = engine.answers(BY_PEER), engine.answers(engine.ours(BY_ENGINE))
    assert list(ours) == list(theirs)
    first = sorted(theirs)[:2]
    assert [ours[call] for call in first] == [theirs[call] for call in first]


def test_strict_rules_refuse_forbidden_containers_and_answer_the_others_alike() -> None:
    given, strict = engine.given(BY_ENGINE, BY_PEER), engine.given(BY_ENGINE, engine.ours(BY_ENGINE, lenient=False))
    assert {name for name, (code, _) in strict.items() if code} == {"thief", "both"}
    same = {"plain", "bare", "pod", "own", "others", "unknown", "operand"}
    assert {name for name in given if given[name] == strict[name]} == same
    assert strict["twice"] == (0, ["example.com/gpu=0"])
    assert strict["blank"] == (0, ["example.com/gpu=0", "example.com/gpu=1"])
    assert strict["empty"] == (0, [])


@pytest.mark.parametrize("size", [1, 2, 7, 9, 64, 4096])
def test_it_may_come_in_pieces_of_any_size(size: int) -> None:
    made = Session(PluginIdentity("toolkit-installer", 10), Policy(frozenset({"gpu-operator"}), lenient=True))
    sent, kinds = made.begin(), []
    for start in range(0, len(BY_ENGINE), size):
        more, events = made.receive(BY_ENGINE[start : start + size])
        sent += more
        kinds += [type(event) for event in events]
    assert sent == engine.ours(BY_ENGINE)
    assert kinds[:2] == [PluginConfigured, Serving]
    assert kinds[2:] == [Answered] * (len(kinds) - 2)
