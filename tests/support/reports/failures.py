"""What failed, once more, after all else that a run of tests prints: a log is often read from its end.

    python -m tests.support.reports.failures REPORT...

Each REPORT is a file that pytest wrote for --junitxml; one that does not exist is of tests that did not run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET  # our own tests wrote it

_LONGEST = 200
"""Characters. The whole reason stands in the log above."""


def failures(report: Path) -> Iterator[str]:
    """Yield a line for each test of a report that failed or could not be set up: its name, and the reason's first line.

    Raises ParseError of xml.etree where the file is no XML.
    """
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  # see above
        for verdict in (*case.iterfind("failure"), *case.iterfind("error")):
            reason = next(iter((verdict.get("message") or verdict.text or "").splitlines()), "")
            yield f"{case.get('classname')}::{case.get('name')}: {reason[:_LONGEST]}"


def main(reports: Iterable[str]) -> None:
    """Print what failed in these reports, if anything did."""
    lines = [line for report in map(Path, reports) if report.exists() for line in failures(report)]
    if lines:
        sys.stdout.write("\n  ".join([f"\n{len(lines)} failed:", *lines]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
