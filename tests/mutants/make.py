"""The mutants of the program in an order that a seed decides, made by mutmut's operators in an environment of its own.

    python make.py PROJECT SEED COUNT        prints the first COUNT of them, as JSON

It knows nothing of the tests: `run` chooses this script's Python, which has mutmut and nothing of the project's. What
is not made: anything in generated code, docstrings and type annotations, and texts for people, which are strings with a
blank in them: what is logged, the reasons and hints of errors, help. Their wording is no behaviour.

A mutant's place in the order follows from the seed and from its own lines alone: a seed's sample stays what it was when
other lines of the program change, so that what was mended stays mended, and a test that goes is missed.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import libcst
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

PACKAGE = "toolkit_installer"
GENERATED = ("cri_pb2.py", "nri_pb2.py")


def main(project: str, seed: str, count: str) -> None:
    """Print the first mutants."""
    found: list[tuple[str, libcst.Module, Mutation]] = []
    for place in sorted(Path(project, PACKAGE).rglob("*.py")):
        if place.name in GENERATED:
            continue
        path = str(place.relative_to(project))
        module, mutations, *_ = create_mutations(path, place.read_text(encoding="utf-8"))
        found += [(path, module, each) for each in mutations if not _is_about_text(each)]
    found = _in_order(found, seed)
    chosen: list[dict[str, str]] = []
    for path, module, mutation in found:
        if len(chosen) == int(count):
            break
        source = deep_replace(module, mutation.original_node, mutation.mutated_node).code
        if _is_another_program(module.code, source):
            before, after = _changed_lines(module.code, source)
            chosen.append({"path": path, "before": before, "after": after, "source": source})
    json.dump({"of": len(found), "mutants": chosen}, sys.stdout)


def _in_order(found: list[tuple[str, libcst.Module, Mutation]], seed: str) -> list[tuple[str, libcst.Module, Mutation]]:
    """Return the mutations by a number that their own text, and how many alike come before them, make of the seed."""
    seen: Counter[tuple[str, str, str]] = Counter()
    keys = []
    for path, module, mutation in found:
        name = path, module.code_for_node(mutation.original_node), module.code_for_node(mutation.mutated_node)
        keys.append(hashlib.sha256("\0".join((seed, *name, str(seen[name]))).encode()).digest())
        seen[name] += 1
    return [each for _, each in sorted(zip(keys, found, strict=True), key=lambda pair: pair[0])]


def _is_another_program(before: str, after: str) -> bool:
    """Tell whether a mutant can be imported at all, and says something else."""
    with contextlib.suppress(SyntaxError):
        compile(after, "mutant", "exec")
        return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    return False


def _changed_lines(before: str, after: str) -> tuple[str, str]:
    """Return the text of the lines that differ, without their indentation: it stays the same when others move them."""
    lines = before.splitlines(), after.splitlines()
    changes = [
        each for each in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes() if each[0] != "equal"
    ]
    first, last = changes[0], changes[-1]
    old, new = lines[0][first[1] : last[2]], lines[1][first[3] : last[4]]
    return "\n".join(map(str.strip, old)), "\n".join(map(str.strip, new))


def _is_about_text(mutation: Mutation) -> bool:
    """Tell whether all that a mutation changes is a text for people."""
    old, new = mutation.original_node, mutation.mutated_node
    if isinstance(old, libcst.Call) and isinstance(new, libcst.Call):
        return any(_is_text(each.value) for each in old.args if not any(each is other for other in new.args))
    if isinstance(old, libcst.Assign | libcst.AnnAssign):
        return old.value is not None and _is_text(old.value)
    return isinstance(old, libcst.BaseString) and _is_text(old)


def _is_text(node: libcst.CSTNode) -> bool:
    return any(" " in part for part in _parts(node))


def _parts(node: libcst.CSTNode) -> Iterator[str]:
    if isinstance(node, libcst.SimpleString):
        yield node.raw_value
    elif isinstance(node, libcst.FormattedString):
        yield from (part.value for part in node.parts if isinstance(part, libcst.FormattedStringText))
    elif isinstance(node, libcst.ConcatenatedString | libcst.BinaryOperation):
        yield from (*_parts(node.left), *_parts(node.right))


if __name__ == "__main__":
    main(*sys.argv[1:])
