"""Whether `make test` would notice: mutants of the program, each tried in a copy of the project, and what lets it live.

    python -m tests.mutants.run SEED COUNT        exits 1 where fewer than 97 of 100 are killed

A mutant is met first by the unit tests nearest to its module (`tests.support.changed`), then by all that `make test`
runs, likely ones before others, until one fails; and that one must fail twice, or it is passed over: a test that fails
now and then kills nothing. Those of `equivalent.toml` are left out: no test can tell them from the program. `make.py`
says of what no mutants are made. The copies lie in .cache/mutants, each with an environment whose program is the
copy's; before anything is tried, their tests must pass, and fail with a program that cannot be imported.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import difflib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import grimp

from tests.support import changed

PROJECT = changed.PROJECT
COPIES = PROJECT / ".cache/mutants"
MUTMUT = PROJECT / ".cache/mutants-venv/bin/python"
MEMORY = Path(__file__).with_name("equivalent.toml")
AT_LEAST = 97
"""Of 100 mutants so many must be killed."""
SIDE_BY_SIDE = 2
LONGEST = 1200
"""Seconds: a mutant whose tests take longer goes round in circles, and is killed by whoever waits for it. On a machine
that has little time for them it is as many times longer as the program's own tests take `USUAL` seconds."""
USUAL = 240
_UNIT, _NODE = "tests/unit", "tests/node/"
_LIKELY = 8
"""So many files of tests of the whole program are tried before all others."""
_FAILED = "FAILED "
BROKEN = "raise ImportError('a mutant that must die')\n"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A program with one change. `before`, `after`: the changed lines, without indentation; `source`: all of a file."""

    path: str
    before: str
    after: str
    source: str

    @property
    def name(self) -> tuple[str, str, str]:
        """What tells it from others, wherever in its file the lines are."""
        return self.path, self.before, self.after


def remembered(text: str) -> dict[tuple[str, str, str], str]:
    """Return why each known mutant is equivalent, by its name. Raises ValueError where a reason is missing. Pure."""
    found = {}
    for each in tomllib.loads(text).get("mutant", ()):
        if not each["reason"].strip():
            raise ValueError(f"a mutant of {each['path']} has no reason")
        found[each["path"], each["before"].strip("\n"), each["after"].strip("\n")] = str(each["reason"])
    return found


def sample(mutants: Iterable[Mutant], equivalent: Collection[tuple[str, str, str]], count: int) -> list[Mutant]:
    """Return the first `count` that count. Pure."""
    return [each for each in mutants if each.name not in equivalent][:count]


def enough(killed: int, tried: int) -> bool:
    """Tell whether so many of so many are what is asked for. Pure."""
    return killed * 100 >= AT_LEAST * tried


def diff(old: str, mutant: Mutant) -> str:
    """Return a mutant as a person reads it. Pure."""
    lines = old.splitlines(keepends=True), mutant.source.splitlines(keepends=True)
    return "".join(difflib.unified_diff(*lines, mutant.path, mutant.path, n=2))


class Copy:
    """A copy of the project that may be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.longest = float(LONGEST)
        self._changes = 0
        if folder.exists():
            shutil.rmtree(folder)
        subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(folder)], check=True)
        for path in _listed("--cached", "--modified", "--others", "--exclude-standard"):
            if (PROJECT / path).is_file():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(PROJECT / path, folder / path)
        for path in _listed("--deleted"):
            (folder / path).unlink(missing_ok=True)
        self._make_environment()

    def _make_environment(self) -> None:
        """Make an environment of the project's packages: all that names the project's folder names the copy's."""
        environment = self.folder / ".venv"
        subprocess.run(["cp", "--archive", "--link", str(PROJECT / ".venv"), str(environment)], check=True)
        packages = next(environment.glob("lib/*/site-packages"))
        for place in (*(environment / "bin").iterdir(), *packages.glob("*.pth")):
            if place.is_symlink() or not place.is_file():
                continue
            content, mode = place.read_bytes(), place.stat().st_mode
            if (changed_content := content.replace(os.fsencode(PROJECT), os.fsencode(self.folder))) != content:
                place.unlink()  # the project's own file has another name for the same bytes
                place.write_bytes(changed_content)
                place.chmod(mode)

    def write(self, path: str, source: str) -> None:
        """Put a module's text there; what was compiled of an older one is not taken for it."""
        place = self.folder / path
        place.write_text(source, encoding="utf-8")
        self._changes += 1
        time = place.stat().st_mtime + 10 * self._changes
        os.utime(place, (time, time))

    def failure_twice(self, *arguments: str) -> str | None:
        """Return what `failure` does, of tests that fail again when they are run by themselves."""
        passed_over: list[str] = []
        while (failed := self.failure(*arguments, *passed_over)) is not None:
            test = failed.removeprefix(_FAILED)
            if test == failed or self.failure(test) is not None:
                return failed
            _say(f"    {test} failed once, and not again: it is passed over")
            passed_over += ["--deselect", test]
        return None

    def failure(self, *arguments: str) -> str | None:
        """Run tests until one fails; return what failed, None where all pass."""
        command = [".venv/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
        with subprocess.Popen(
            ["tests/support/setup/worker", *command],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=self.longest)
            except subprocess.TimeoutExpired:
                return f"no end after {self.longest:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return None if process.returncode == 0 else why(output, process.returncode)


def why(output: str, status: int) -> str:
    """Return which test failed, by what pytest printed. Pure."""
    told = [line for line in output.splitlines() if line.startswith((_FAILED, "ERROR "))]
    if told:
        return told[0].partition(" - ")[0]
    lines = output.splitlines() or [""]
    return f"pytest exited with {status}: {lines[-1]}"


def likely(mutant: Mutant, files: Mapping[str, str]) -> list[str]:
    """Return files of tests, those first whose texts have the rarer words of the mutant's path and line. Pure."""
    words = set(re.findall("[a-z]{3,}", f"{mutant.path} {mutant.before}".lower()))
    texts = {path: f"{path} {text}".lower() for path, text in files.items()}
    weights = {word: sum(word in text for text in texts.values()) for word in words}
    score = {path: sum(1 / weights[word] for word in words if word in text) for path, text in texts.items()}
    return sorted(files, key=lambda path: (-score[path], path))


@dataclasses.dataclass(frozen=True)
class Tests:
    """The files of tests, as they are chosen for a mutant: their texts, what they import, and who imports whom."""

    texts: Mapping[str, str]
    imported: Mapping[str, Collection[str]]
    graph: grimp.ImportGraph

    @classmethod
    def found(cls) -> Tests:
        """Return those of the project."""
        files = {str(path.relative_to(PROJECT)): path for path in sorted(PROJECT.glob("tests/**/*.py"))}
        texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
        imported = {name: changed.imports_in(text) for name, text in texts.items()}
        return cls(texts, imported, grimp.build_graph(changed.PACKAGE, cache_dir=None))

    def nearest_to(self, path: str) -> list[str]:
        """Return the unit tests that are tried first on a mutant of a module."""
        near = changed.nearest([path], self.imported, self.graph.find_modules_that_directly_import)
        return [test for test in near if test.startswith(_UNIT)]

    def in_order(self, mutant: Mutant) -> list[str]:
        """Return what pytest is given, beside --quick, to try all, those of the whole program that are likely first."""
        whole = {path: text for path, text in self.texts.items() if path.startswith(_NODE) and changed.is_test(path)}
        files = likely(mutant, whole)
        # each by its name: of a file and its folder, pytest would see the folder alone
        return ["-o", f"testpaths={' '.join([*files[:_LIKELY], _UNIT, *files[_LIKELY:]])}"]


def killer(copy: Copy, mutant: Mutant, tests: Tests) -> str | None:
    """Return which test notices a mutant, None where none does."""
    original = (PROJECT / mutant.path).read_text(encoding="utf-8")
    copy.write(mutant.path, mutant.source)
    try:
        nearest = tests.nearest_to(mutant.path)
        by = copy.failure_twice(*nearest) if nearest else None
        return by or copy.failure_twice("--quick", *tests.in_order(mutant))
    finally:
        copy.write(mutant.path, original)


def mutants_of(seed: str, count: int) -> list[Mutant]:
    """Return the first `count` mutants in the seed's order."""
    command = [str(MUTMUT), str(Path(__file__).with_name("make.py")), str(PROJECT), seed, str(count)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=PROJECT).stdout
    return [Mutant(**each) for each in json.loads(made)["mutants"]]


def main(seed: str, count: str) -> int:
    """Try a sample, and print what came of it."""
    known = remembered(MEMORY.read_text(encoding="utf-8"))
    mutants = sample(mutants_of(seed, int(count) + len(known)), known, int(count))
    tests = Tests.found()
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    first, *others = [Copy(COPIES / str(number)) for number in range(SIDE_BY_SIDE)]
    prove(first, tests)
    for copy in (first, *others):
        copy.longest = first.longest
        copies.put(copy)

    def tried(mutant: Mutant) -> str | None:
        copy = copies.get()
        try:
            return killer(copy, mutant, tests)
        finally:
            copies.put(copy)

    alive = []
    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for number, (mutant, by) in enumerate(zip(mutants, pool.map(tried, mutants), strict=True), 1):
            _say(f"{number:3d} {mutant.path}: {'SURVIVED' if by is None else 'killed by ' + by}")
            if by is None:
                alive.append(mutant)
                _say(diff((PROJECT / mutant.path).read_text(encoding="utf-8"), mutant))
    killed = len(mutants) - len(alive)
    _say(f"seed {seed}: {killed} of {len(mutants)} mutants were killed; {AT_LEAST} of 100 are asked for")
    for mutant in alive:
        _say(diff((PROJECT / mutant.path).read_text(encoding="utf-8"), mutant))
    return 0 if enough(killed, len(mutants)) else 1


def prove(copy: Copy, tests: Tests) -> None:
    """See that a copy's tests are those of the copy's program: they pass, and fail where it is broken.

    Raises RuntimeError.
    """
    begun = time.monotonic()
    if (failed := copy.failure("--quick", "--dist", "loadgroup", "-n", str(SIDE_BY_SIDE))) is not None:
        raise RuntimeError(f"the tests must pass before a mutant is tried: {failed}")
    copy.longest = LONGEST * max(1.0, (time.monotonic() - begun) / USUAL)
    killed = killer(copy, Mutant(f"{changed.PACKAGE}/settings.py", "", "", BROKEN), tests)
    if killed is None:
        raise RuntimeError("the tests pass with a program that cannot be imported: it is not the copy that they try")


def _listed(*which: str) -> list[str]:
    command = ["git", "-C", str(PROJECT), "ls-files", "-z", *which]
    return [
        path for path in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0") if path
    ]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
