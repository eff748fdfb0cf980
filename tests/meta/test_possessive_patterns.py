"""What the regular expressions of the package may not use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import toolkit_installer

_PACKAGE = Path(toolkit_installer.__file__).parent
_POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")


@pytest.mark.parametrize("path", sorted(_PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(_PACKAGE)))
def test_no_group_is_possessive_since_python_before_3_11_5_matches_those_wrongly(path: Path) -> None:
    """Debian 12 has 3.11.2. There `(?:a|bc)*+d` finds other texts than later ones do (Python's gh-106052)."""
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if _POSSESSIVE_GROUP.search(line)]
    assert not found


def test_the_rule_knows_such_a_group() -> None:
    for pattern in (r"(?:a|bc)*+", "(a){1,2}+", "(?>a)", "(a)?+"):
        assert _POSSESSIVE_GROUP.search(pattern), pattern
    for pattern in (r"[^a]*+", r"\)*+", "(?:[^a]++)*"):
        assert not _POSSESSIVE_GROUP.search(pattern), pattern
