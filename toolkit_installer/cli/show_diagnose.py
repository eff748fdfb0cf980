"""The output of `diagnose`: each illness with file and line, its effect, and its remedy."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

import msgspec

from toolkit_installer.cli import output
from toolkit_installer.reporting.diagnosis_form import TITLES, Diagnosis, Finding


def show(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """Print a diagnosis. Raises OutputError."""
    if as_json:
        output.show(json_text(diagnosis).split("\n"))
    else:
        output.show(lines(diagnosis, output.width()))


def json_text(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as JSON."""
    return json.dumps(msgspec.to_builtins(diagnosis), indent=2)


def lines(diagnosis: Diagnosis, width: int | None = None) -> list[str]:
    """Return a diagnosis as lines of at most `width` columns; None: of any length."""
    count = len(diagnosis.findings)
    found = [line for finding in diagnosis.findings for line in _finding(finding, width)]
    unseen = [line for each in diagnosis.unseen for line in _wrapped("Not inspected: ", each, width)]
    return [
        f"{count} {'illness' if count == 1 else 'illnesses'} found" if count else "No illness found",
        *found,
        *([""] if unseen else []),
        *unseen,
    ]


def _finding(finding: Finding, width: int | None) -> Iterator[str]:
    where = finding.path if finding.line is None else f"{finding.path}:{finding.line}"
    yield ""
    yield f"{where}: {TITLES[finding.illness]}"
    yield from _wrapped("  What:   ", finding.what, width)
    yield from _wrapped("  Causes: ", finding.causes, width)
    yield from _wrapped("  Remedy: ", finding.remedy, width)


def _wrapped(label: str, text: str, width: int | None) -> list[str]:
    if width is None:
        return [f"{label}{text}"]
    return textwrap.wrap(
        text,
        width,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
