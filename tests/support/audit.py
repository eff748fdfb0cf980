"""Known vulnerabilities of the packages that go into the image: pip-audit asks the database OSV about each.

    python -m tests.support.audit PIP-AUDIT      (make audit)

Ends with 0 where none is known, 1 where one is, 2 where the database could not be asked: then nothing is known. What
images/not-affected.toml has is left out. OSV_URL is a mirror of the database, such as https://osv.example/v1/query.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from images import statements

PROJECT = Path(__file__).parents[2]
_SECONDS = 600


def main(program: str) -> int:
    """Ask, print what is known, and return the exit code."""
    mirror = os.environ.get("OSV_URL", "")
    left_out = statements.not_affected((PROJECT / "images/not-affected.toml").read_text())
    command = [
        *(program, "--disable-pip", "--require-hashes", "--requirement", str(PROJECT / "locks/runtime.txt")),
        *("--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off"),
        *(("--osv-url", mirror) if mirror else ()),
        *(word for each in left_out for word in ("--ignore-vuln", each.vulnerability)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        print(f"make audit: NOT AUDITED: the database could not be asked: {why[0]}", file=sys.stderr)
        print("make audit: ask it from a machine that reaches it, or name a mirror: OSV_URL=…", file=sys.stderr)
        return 2
    found = [(each, hole) for each in packages for hole in each["vulns"]]
    for package, hole in found:
        names = ", ".join(dict.fromkeys([hole["id"], *hole["aliases"]]))
        fixed = ", ".join(hole["fix_versions"]) or "no version yet"
        print(f"{package['name']} {package['version']}: {names}; fixed in {fixed}")
    said = f"{len(found)} known" if found else "none is known"
    without = f", {len(left_out)} left out" if left_out else ""
    print(f"vulnerabilities of {len(packages)} packages: {said}{without}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
