"""Decides by the name of a key, variable, flag or parameter how much of its value may be shown.

A name that sounds like a secret is taken for one. The names that only sound so are listed here.
"""

from __future__ import annotations

import enum
import functools
import re
from typing import Final

from toolkit_installer import patterns


class Kind(enum.IntEnum):
    """What a name says of its value: of a greater kind, less is shown."""

    ORDINARY = 0
    """The parts of the value that look like secrets are masked."""
    KNOWN = 1
    """The value is shown although it may look like a secret, as digests and image references do."""
    PLACE = 2
    """The value is shown if it is a path and nothing else."""
    PROXY = 3
    """The value is masked up to its last `@`."""
    SECRET = 4
    """The value is masked."""


_ANYWHERE = patterns.lazy(
    "auth|passw|passphrase|pwd|token|secret|credential|signature|"
    "apikey|accesskey|privatekey|sharedaccess|keydata|keypem|header|bearer|cookie|sessionid"
)
"""Searched in a name of which only letters and digits are left."""
_WORDS: Final = frozenset(
    {"sas", "pw", "creds", "cred", "jwt", "otp", "totp", "hmac", "nonce", "salt", "seed"}
    | {"dsn", "fernet", "pat", "pin", "webhook", "webhooks"}
)
_ENDS: Final = ("key", "keys", "sig", "sigs", "psk", "psks", "pass")
"""Ends of words: of `key` and of `licensekey`, but not of `keyring`."""
_OTHER_WORDS: Final = frozenset({"bypass", "compass", "donkey", "hockey", "monkey", "monkeys", "turkey", "whiskey"})
_WORD = patterns.lazy(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PROXY_WORDS: Final = ("proxy", "proxies")

_NOT_SECRET: Final = frozenset(
    {"authorizationplugins", "credhelpers", "credsstore"}  # docker: plugins; its config.json: names of programs
    | {"keymodel", "x509keypairstreaming"}  # containerd: image_decryption's `node`, a table of paths
    | {"unauthorized"}  # what registries answer
)
_PLACES: Final = frozenset(
    {"globalauthfile", "metricskey", "namespacedauthdir", "pauseimageauthfile"}  # CRI-O
    | {"signaturepolicy", "signaturepolicydir", "streamtlskey"}  # CRI-O
    | {"decryptionkeyspath"}  # CRI-O; a flag of containerd's stream processors
    | {"deprecatedkeypath", "tlskey"}  # docker
    | {"kvkeyfile", "syslogtlskey"}  # the same: its cluster-store-opts, its log-opts
    | {"keyfile", "tcptlskey", "tlskeyfile"}  # containerd: of a registry, grpc, x509_key_pair_streaming
    | {"authfile", "keypath"}  # podman and skopeo; containers' policy.json
)
_KNOWN: Final = frozenset(
    {"checksum", "commit", "digest", "gitcommit", "revision", "sha256", "sha512"}
    | {"image", "images", "pauseimage", "pinnedimages", "sandboximage"}
    | {"container", "containerid", "id", "podsandboxid", "sandbox", "sandboxid", "uid", "uuid"}  # IDs in engines' logs
)

_ESCAPE = patterns.lazy(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([^uUx]))", re.DOTALL)
_LAST_CODE_POINT: Final = 0x10FFFF


def kind_of(name: str) -> Kind:
    """Return the kind of value that a name has; `name` may be quoted, escaped, dotted, and begin with dashes."""
    return _kind_of_short(name) if len(name) <= _SHORT else _kind_of(name)


def is_secret_name(name: str) -> bool:
    """Tell whether a key, variable or flag of that name holds a secret."""
    return kind_of(name) is Kind.SECRET


def plain(token: str) -> str:
    """Return a string with its escapes resolved; an escape that stands for no character is left out."""

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is None:
            return match[4]
        return chr(int(code, 16)) if int(code, 16) <= _LAST_CODE_POINT else ""

    return _ESCAPE.sub(character, token) if "\\" in token else token


def _kind_of(name: str) -> Kind:
    name = plain(name)
    rest, _, last = name.rpartition(".")
    whole, last = _squashed(name), _squashed(last)  # a dotted key is known by its last part
    if whole in _NOT_SECRET or (last in _NOT_SECRET and not _sounds_secret(rest)):
        return Kind.ORDINARY
    if whole in _PLACES or (last in _PLACES and not _sounds_secret(rest)):
        return Kind.PLACE
    if _sounds_secret(name):
        return Kind.SECRET
    if whole.endswith(_PROXY_WORDS):
        return Kind.PROXY
    return Kind.KNOWN if last in _KNOWN else Kind.ORDINARY


_kind_of_short = functools.lru_cache(maxsize=2048)(_kind_of)
"""Remembered, as the same names come again and again, in both versions of a file."""
_SHORT: Final = 64


def _squashed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _sounds_secret(name: str) -> bool:
    if _ANYWHERE.search(_squashed(name)):
        return True
    words = {word.lower() for word in (*_WORD.findall(name), *re.findall(r"[A-Za-z]+", name))}
    return any(word in _WORDS or (word.endswith(_ENDS) and word not in _OTHER_WORDS) for word in words)
