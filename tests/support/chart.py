"""What Helm makes of daemonset/chart, and whether that is what kustomize makes of the folder that it stands for.

python -m tests.support.chart               lints the chart and compares it, with each of its files of values
python -m tests.support.chart package FOLDER    lints it, and makes the archive that Helm installs
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support import manifests
from tests.support.built import commands, go_tools
from tests.support.built.go_tools import GoToolError
from tests.support.manifests import FOLDER, ManifestError, Object, flat

CHART = FOLDER / "chart"
RELEASE = "toolkit-installer"
_SECONDS = 120
_AT_ONCE = {"GOGC": "off", "GOMAXPROCS": "1"}
"""Helm ends before its garbage matters, and is started often: looking for it takes a quarter of its time."""
_HOOK = "helm.sh/hook"
"""The annotation of what Helm creates at a time of its own: it is no part of what is installed."""


class ChartError(Exception):
    """Helm refuses the chart or its values; the message is its own."""


def overlays() -> list[str]:
    """Return the overlays, each of which has a file of values by its name."""
    return sorted(path.parent.name for path in (FOLDER / "overlays").glob("*/kustomization.yaml"))


def values_of(overlay: str) -> Path:
    """Return the file of values that stands for an overlay."""
    return CHART / "values" / f"{overlay}.yaml"


def rendered(*arguments: str | Path) -> list[Object]:
    """Return what Helm makes of the chart with these arguments, hooks included. Raises ChartError, GoToolError."""
    return manifests.objects(helm("template", RELEASE, CHART, *arguments))


def installed(*arguments: str | Path) -> list[Object]:
    """Return the same without the hooks. Raises likewise."""
    return [each for each in rendered(*arguments) if _HOOK not in each["metadata"].get("annotations", {})]


def leaves(*values: str) -> dict[str, Any]:
    """Return each place of what Helm makes with these values (KEY=JSON), hooks included, and what stands there."""
    return {
        f"{each['kind']}/{each['metadata']['name']}{path}": leaf
        for each in rendered(*(word for value in values for word in ("--set-json", value)))
        for path, leaf in flat(each).items()
    }


def changes(value: str, *others: str) -> dict[str, Any]:
    """Return what a value changes beside others, by its place; what is taken away is None."""
    before, after = _leaves_once(*others), leaves(*others, value)
    return {path: after.get(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


@functools.cache
def _leaves_once(*values: str) -> dict[str, Any]:
    return leaves(*values)


def helm(command: str, *arguments: str | Path) -> str:
    """Run Helm, and return what it prints. Raises ChartError, GoToolError."""
    program = go_tools.build(go_tools.HELM) / "helm"
    return commands.output([program, command, *arguments], ChartError, seconds=_SECONDS, environment=_AT_ONCE)


def differences(chart: list[Object], kustomized: list[Object]) -> Iterator[str]:
    """Yield in words where objects of the chart are not those of a kustomization. Comments and order do not count."""
    ours, theirs = _by_name(chart), _by_name(kustomized)
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            yield f"{' '.join(name)} is of {'kustomize' if name in theirs else 'the chart'} alone"
            continue
        one, other = flat(ours[name]), flat(theirs[name])
        for path in sorted(one.keys() | other.keys()):
            if one.get(path) != other.get(path):
                yield f"{' '.join(name)}{path}: the chart has {one.get(path)!r}, kustomize {other.get(path)!r}"


def _by_name(objects: list[Object]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    found: dict[tuple[str, str, str], Mapping[str, Any]] = {
        (str(each["kind"]), str(each["metadata"].get("namespace", "")), str(each["metadata"]["name"])): each
        for each in objects
    }
    assert len(found) == len(objects), "two objects have one name"
    return found


def problems() -> Iterator[str]:
    """Yield all that is wrong with the chart. Raises ChartError, GoToolError, ManifestError."""
    helm("lint", "--strict", CHART)
    for overlay in [None, *overlays()]:
        arguments: tuple[str | Path, ...] = () if overlay is None else ("--values", values_of(overlay))
        kustomization = "base" if overlay is None else f"overlays/{overlay}"
        found = installed(*arguments)
        for difference in differences(found, manifests.rendered(kustomization)):
            yield f"daemonset/{kustomization}: {difference}"
    for each in rendered("--set", "test.gpuPod.enabled=true", "--set", "test.gpuPod.image=registry.example/cuda:1"):
        yield from manifests.problems(each, manifests.minors())


def main(*arguments: str) -> int:
    """Do what the arguments say; return the exit code."""
    try:
        if arguments[:1] == ("package",):
            helm("lint", "--strict", CHART)
            print(helm("package", CHART, "--destination", *arguments[1:]).strip())  # noqa: T201  # what it is for
            return 0
        wrong = list(problems())
    except (ChartError, GoToolError, ManifestError, subprocess.SubprocessError) as error:
        wrong = [str(error)]
    for each in wrong:
        print(f"daemonset/chart: {each}", file=sys.stderr)  # noqa: T201  # likewise
    if not wrong:
        print(f"daemonset/chart makes what kustomize makes of base and {', '.join(overlays())}")  # noqa: T201  # likewise
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
