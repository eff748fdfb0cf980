"""Which engines give a container the CDI devices that a plugin names. Pure.

Older ones accept the plugin and its answers, and leave the devices out without a word: the container runs, and has no
GPU. All of them read the field; what it takes is an injector that the engine hands over when it applies the answer
(`nrigen.WithCDIDeviceInjector`). Where that is called, by the sources:

- containerd: pkg/cri/nri/nri_api_linux.go of v1.7.30, v1.7.31 and v1.7.35, not of v1.7.24 and v1.7.29;
  internal/cri/nri/nri_api_linux.go of v2.1.0, v2.1.3 and v2.4.2, not of v2.0.0, v2.0.7, v2.0.13 and v2.0.14.
- CRI-O: server/nri-api.go of v1.35.2 and v1.36.1, not of v1.34.0 as Go's module proxy has it, which is of May 2025.
  The change is cri-o's pull request 9128, merged in July 2025, before 1.34 was released. What says that it is 1.34.0
  may be either, so the first that is served is 1.34.1.
"""

from __future__ import annotations

import re

from toolkit_installer import patterns

_NUMBERS = patterns.lazy(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})((?:[-+~.].*)?)", re.ASCII | re.DOTALL)
"""containerd writes "v2.1.4", its packagers "1.6.20~ds1" and "v2.1.4-k3s1", CRI-O "1.34.0"."""
_CANDIDATE = patterns.lazy(r"[-~](alpha|beta|rc)", re.ASCII)
_SHOWN = 100

_Version = tuple[int, int, int, int]
"""The last is 0 for a candidate, which comes before its version, and 1 otherwise."""
_NO_END: _Version = (1 << 30, 0, 0, 0)
_GIVES: dict[str, tuple[tuple[_Version, _Version], ...]] = {
    "containerd": (((1, 7, 30, 1), (2, 0, 0, 0)), ((2, 1, 0, 1), _NO_END)),
    "cri-o": (((1, 34, 1, 1), _NO_END),),
}
"""By what the engine calls itself in Configure: from which version on, and before which."""
_WANTED = {"containerd": "containerd 1.7.30 or 2.1.0, or a later one of these,", "cri-o": "CRI-O 1.34.1 or later"}


def refusal(name: str, version: str) -> str | None:
    """Return why an engine is not served, None: it is. Both are what it says of itself in Configure."""
    said = f"{name[:_SHOWN]} {version[:_SHOWN]}".strip()
    if name not in _GIVES:
        return f"the engine calls itself {said!r}, and it is not known whether it gives a container what a plugin names"
    match = _NUMBERS.fullmatch(version)
    if match is None:
        return f"the engine calls itself {said!r}, which has no version that can be read: {_WANTED[name]} is needed"
    candidate = _CANDIDATE.match(match[4]) is not None
    numbers = int(match[1]), int(match[2]), int(match[3]), int(not candidate)
    if any(first <= numbers < end for first, end in _GIVES[name]):
        return None
    return (
        f"{said} accepts a plugin's answer and leaves the CDI devices out of the container without a word: "
        f"{_WANTED[name]} is needed"
    )
