"""Finds values that look like secrets, whatever their name: keys and tokens that a machine made. Pure; linear time.

Random characters differ from words, names and versions in their neighbours: in words most pairs of letters are common
ones, and digits, capitals and small letters come in groups.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from toolkit_installer import patterns

MASK: Final = "****"

_SHORTEST: Final = 16
"""Letters and digits. A shorter text is masked because of its name, or if it is very mixed."""
_SHORTEST_MIXED: Final = 12
_FEWEST_CHARACTERS: Final = 6
"""Different ones: `xxxxxxxxxxxxxxxx` is not a secret."""
_RANDOM: Final = 0.4
"""The share of uncommon pairs that random text has at least: 0.7 is usual there, and 0.1 in words."""
_VERY_RANDOM: Final = 0.55
_PART: Final = 5
"""The shortest part between dashes, dots and the like that counts; shorter ones are versions and models."""

_COMMON_PAIRS: Final = frozenset(
    first + second
    for first, seconds in re.findall(
        r"(\w):(\w+)",
        "a:bcdefgiklmnprstuvwxy b:abcdeijlorsuy c:acdehiklmorstu d:abcdefilmorstuz e:abcdefgilmnopqrstvwxyz "
        "f:acdefilorstu g:aehilnorsu h:aeiort i:abcdefglmnoprstvxz j:eo k:eis l:acdeilopstuy m:abdeilmopsu "
        "n:acdefgiklnoprstuv o:abcdfgiklmnoprstuvw p:aeiloprstuy q:u r:abcdefgiklmnoprstuvwyz s:acehiklmoprstuwyz "
        "t:acdefhilmnoprstuyz u:abcdefgilmnprst v:aei w:aehinors x:ceipt y:nprst z:e",
    )
    for second in seconds
)
"""The 300 most frequent pairs of letters in the words of manuals and source code: nine tenths of all pairs there."""

_RUN = patterns.lazy(r"[A-Za-z0-9+/_~.-]{12,}={0,2}")
_PARTS = patterns.lazy(r"[A-Za-z0-9]+")
_HEX = patterns.lazy(r"(?=[0-9a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{16,}")
_UUID_TEXT: Final = "(?i:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-z]))"
_UUID = patterns.lazy(rf"(?<![0-9A-Za-z]){_UUID_TEXT}")
_DEVICE = patterns.lazy(rf"(?:GPU|MIG(?:-GPU)?)-{_UUID_TEXT}")
"""NVIDIA's names of GPUs and of their parts."""
_DIGEST = patterns.lazy(r"sha(256|384|512):\Z")
_PATH = patterns.lazy(r"/[a-z][a-z0-9_.+-]{0,24}(?:/|\Z)")
"""How an absolute path of Linux begins. Base64 that begins with a slash differs from it soon."""
_REVISION = patterns.lazy(r"-(?:g[0-9a-f]{7,40}|[0-9.]*[0-9]{14}-[0-9a-f]{12})(?![0-9A-Za-z])")
"""The end of a version by `git describe`, and of Go's pseudo-versions."""
_IN_REPOSITORY = patterns.lazy(r"/(?:blob|commit|tree|compare|sha256)/(?:[0-9a-f]{40}|[0-9a-f]{64})(?![0-9A-Za-z])")
"""A commit in an address, a digest in a path."""
_PUBLIC = patterns.lazy(r"-----BEGIN (CERTIFICATE|PUBLIC KEY|X509 CRL)-----[A-Za-z0-9+/=\\\s]*-----END \1-----")


def without_tokens(text: str) -> str:
    """Mask everything in a text that looks like a key or a token."""
    if "-----BEGIN " not in text:
        return _RUN.sub(_shown, text)
    parts: list[str] = []
    position = 0
    for public in _PUBLIC.finditer(text):
        parts += (_RUN.sub(_shown, text[position : public.start()]), public[0])
        position = public.end()
    return "".join((*parts, _RUN.sub(_shown, text[position:])))


def is_path(text: str) -> bool:
    """Tell whether a text is an absolute path and nothing else."""
    return _PATH.match(text) is not None and "\n" not in text


def _shown(match: re.Match[str]) -> str:
    """Return a run of letters, digits and a few marks as it may be shown."""
    run, before = match[0], match.string[max(0, match.start() - 7) : match.start()]
    digest = _DIGEST.search(before)
    if digest and re.match(rf"[0-9a-f]{{{int(digest[1]) // 4}}}(?![0-9A-Za-z])", run):
        return run
    if run.startswith("/") and not before.endswith(":") and _PATH.match(run):
        return run
    if run.startswith("///") and _PATH.match(run, 2):  # of a URL such as unix:///run/x.sock
        return run
    if "/" in run or "+" in run:
        if _is_long_base64(run):
            return MASK
        known = " ".join(_IN_REPOSITORY.findall(run)).replace("/", " ").split()
        return "/".join(MASK if _is_token(part) and part not in known else part for part in run.split("/"))
    return MASK if _is_token(run) else run


def _is_token(text: str) -> bool:
    """Tell whether a text without slashes is a token or has one in it."""
    text = _REVISION.sub("", _DEVICE.sub("", text))
    if _UUID.search(text):
        return True
    parts: list[str] = _PARTS.findall(text)
    return any(map(_is_random, parts)) or _is_random("".join(part for part in parts if len(part) >= _PART))


def _is_long_base64(text: str) -> bool:
    plain = "".join(_PARTS.findall(text))
    if len(plain) < _SHORTEST or len(set(plain)) < _FEWEST_CHARACTERS or re.search(r"[_~.-]", text):
        return False
    return _is_mixed(plain) and _share(plain) >= _RANDOM


def _is_random(text: str) -> bool:
    """Tell whether letters and digits are in an order that only a machine gives them."""
    if len(text) < _SHORTEST_MIXED or len(set(text)) < _FEWEST_CHARACTERS or text.isdecimal():
        return False
    if len(text) < _SHORTEST:
        return _is_mixed(text) and _share(text) >= _VERY_RANDOM
    return _HEX.fullmatch(text) is not None or _share(text) >= _RANDOM


def _is_mixed(text: str) -> bool:
    return all(map(re.search, ("[a-z]", "[A-Z]", "[0-9]"), (text,) * 3))


def _share(text: str) -> float:
    """Return the share of uncommon pairs among all pairs of neighbours."""
    uncommon = sum(not _is_common(first, second) for first, second in itertools.pairwise(text))
    return uncommon / (len(text) - 1)


def _is_common(first: str, second: str) -> bool:
    if first.isdecimal() or second.isdecimal():
        return first.isdecimal() and second.isdecimal()
    if first.islower() and second.isupper():
        return False
    return (first + second).lower() in _COMMON_PAIRS
