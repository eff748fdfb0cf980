"""Somebody edits an engine's file while we are installed: their edit stays, ours goes, what stood there returns."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.node.drift import (
    Edit,
    Templates,
    becomes,
    both,
    content_of,
    formatted_toml,
    parsed,
    put,
    reversed_json,
    sorted_json,
    swap,
    unchanged,
)
from tests.node.faults import Outcome
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, STORE, TOOLKIT, FakeNode
from toolkit_installer.documents.changes import is_same

RUNTIME = f"{TOOLKIT}/nvidia-container-runtime".encode()

DOCKER = b"""{
  "log-driver": "json-file",
  "default-runtime": "crun",
  "runtimes": {
    "crun": { "path": "/usr/bin/crun" }
  },
  "debug": true
}
"""

VERSION_2 = b"""\
version = 2
# what the operator thinks
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.9" # pinned
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "crun" # chosen with care
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
      BinaryName = "/usr/bin/crun"
[debug]
  level = "info"
"""
PLUGIN_2, PLUGIN_3 = b"io.containerd.grpc.v1.cri", b"io.containerd.cri.v1.runtime"
VERSION_3 = VERSION_2.replace(b"version = 2", b"version = 3").replace(PLUGIN_2, PLUGIN_3)


@dataclasses.dataclass(frozen=True)
class Case:
    """An edit of the installed file, what cleanup is to leave, and what it must say; `exact`: to the byte.

    `alone` is the same edit of the file without us; what it makes is what must be left. `refused`: the file lost what
    it had, so that a run does not touch it.
    """

    name: str
    edit: Edit
    alone: Edit
    says: tuple[str, ...] = ()
    exact: bool = True
    refused: bool = False

    def __str__(self) -> str:
        return self.name


RESTORED = "what stood there before is restored"
THEIRS = "runtime 'nvidia': somebody changed it since; it is theirs now"
OURS_BY_PATH = "somebody else wrote it, but it runs our executable: it goes"

DOCKER_CASES = [
    Case("a-line-next-to-ours", swap(b'"json-file"', b'"journald"'), swap(b'"json-file"', b'"journald"')),
    Case("a-new-line-at-the-top", swap(b"{\n", b'{\n  "a": 1,\n'), swap(b"{\n", b'{\n  "a": 1,\n')),
    Case(
        "a-new-line-at-the-end",
        swap(b'"debug": true', b'"debug": true,\n  "a": 1'),
        swap(b'"debug": true', b'"debug": true,\n  "a": 1'),
    ),
    Case(
        "a-runtime-of-theirs-among-ours",
        swap(b'"nvidia-cdi": {', b'"kata": {"path": "/usr/bin/kata"},\n    "nvidia-cdi": {'),
        swap(b'"crun": {', b'"kata": {"path": "/usr/bin/kata"},\n    "crun": {'),
        exact=False,
    ),
    Case(
        "our-handler-runs-something-else",
        swap(b'"' + RUNTIME + b'"', b'"/opt/mine"'),
        swap(b'"crun": {', b'"nvidia": {"path": "/opt/mine", "args": []},\n    "crun": {'),
        (THEIRS,),
        exact=False,
    ),
    Case(
        "an-option-more-in-our-handler", swap(b'"args": []', b'"args": ["-v"]'), unchanged, ("'nvidia'", OURS_BY_PATH)
    ),
    Case("our-handler-renamed", swap(b'"nvidia": {', b'"gpu": {'), unchanged, ("'gpu'", OURS_BY_PATH)),
    Case(
        "our-handler-renamed-and-still-the-default",
        both(swap(b'"nvidia": {', b'"gpu": {'), swap(b'-runtime": "nvidia"', b'-runtime": "gpu"')),
        unchanged,
        ("'gpu'", OURS_BY_PATH),
    ),
    Case("another-of-ours-as-default", swap(b'-runtime": "nvidia"', b'-runtime": "nvidia-cdi"'), unchanged),
    Case(
        "a-handler-of-ours-removed",
        swap(b'"nvidia-legacy": {\n      "path": "' + RUNTIME + b'.legacy",\n      "args": []\n    },\n    ', b""),
        unchanged,
    ),
    Case(
        "runc-as-default",
        swap(b'-runtime": "nvidia"', b'-runtime": "runc"'),
        swap(b'-runtime": "crun"', b'-runtime": "runc"'),
        ("default runtime 'runc': somebody set it since; it is theirs now",),
    ),
    Case(
        "the-old-default-as-default",
        swap(b'-runtime": "nvidia"', b'-runtime": "crun"'),
        unchanged,
        ("default runtime 'crun': somebody set it since; it is theirs now",),
    ),
    Case(
        "no-default",
        swap(b'  "default-runtime": "nvidia",\n', b""),
        swap(b'  "default-runtime": "crun",\n', b""),
    ),
    Case(
        "the-runtime-that-was-the-default-is-gone",
        swap(b',\n    "crun": { "path": "/usr/bin/crun" }', b""),
        becomes(b'{"log-driver": "json-file", "runtimes": {}, "debug": true}'),
        ("default runtime 'crun': not given back, because somebody removed that runtime since",),
        exact=False,
    ),
    Case("sorted-by-a-tool", sorted_json, sorted_json),
    Case("turned-around", reversed_json, reversed_json),
    Case(
        "on-one-line", lambda text: json.dumps(json.loads(text)).encode(), lambda t: json.dumps(json.loads(t)).encode()
    ),
    Case("made-anew-from-the-original", becomes(DOCKER), unchanged),
    Case("made-anew-from-something-else", becomes(b'{ "debug":false }'), becomes(b'{ "debug":false }'), refused=True),
    Case("emptied", becomes(b""), unchanged, (RESTORED,)),
    Case("deleted", becomes(None), unchanged, (RESTORED,)),
]

ANEW = b"version = 2\n[debug]\n"
OLDER = b"[plugins.cri.containerd]\n  snapshotter = 'overlayfs'\n"
MARKER = b"# Added by toolkit-installer, which removes it when it stops.\n"
LEVEL = swap(b'level = "info"', b'level = "debug"')
KATA = b"[plugins.%b.containerd.runtimes.kata]\n  runtime_type = 'io.containerd.kata.v2'\n"
BINARY = b'BinaryName = "' + RUNTIME + b'"'


def containerd_cases(plugin: bytes) -> list[Case]:
    quoted = b'"' + plugin + b'"'
    table = b"[plugins." + quoted + b".containerd.runtimes."
    nvidia = (
        table + b"nvidia]\n"
        b'  runtime_type = "io.containerd.runc.v2"\n' + table + b"nvidia.options]\n"
        b'  BinaryName = "/opt/mine"\n'
    )
    legacy = (
        table + b"nvidia-legacy]\n"
        b'  runtime_type = "io.containerd.runc.v2"\n'
        + table
        + b"nvidia-legacy.options]\n  "
        + BINARY[:-1]
        + b'.legacy"\n'
    )
    kata = KATA % quoted
    crun = (
        b"  " + table + b"crun]\n"
        b'    runtime_type = "io.containerd.runc.v2"\n    ' + table + b"crun.options]\n"
        b'      BinaryName = "/usr/bin/crun"\n'
    )
    runc = swap(b'name = "nvidia"', b'name = "runc"')
    return [
        Case("a-line-next-to-ours", LEVEL, LEVEL),
        Case("a-comment-next-to-ours", swap(b"[debug]", b"# why\n[debug]"), swap(b"[debug]", b"# why\n[debug]")),
        Case("a-runtime-of-theirs-at-the-end", lambda text: text + kata, lambda text: text + kata, exact=False),
        Case(
            "a-runtime-of-theirs-before-ours", swap(b"[debug]", kata + b"[debug]"), swap(b"[debug]", kata + b"[debug]")
        ),
        Case(
            "our-handler-runs-something-else",
            swap(BINARY, b'BinaryName = "/opt/mine"'),
            lambda text: text + nvidia,
            (THEIRS,),
            exact=False,
        ),
        Case(
            "an-option-more-in-our-handler",
            swap(BINARY, BINARY + b"\n  Root = '/run/mine'"),
            unchanged,
            ("'nvidia'", OURS_BY_PATH),
        ),
        Case(
            "our-handler-renamed",
            both(swap(table + b"nvidia]", table + b"gpu]"), swap(table + b"nvidia.options]", table + b"gpu.options]")),
            unchanged,
            ("'gpu'", OURS_BY_PATH),
        ),
        Case("our-marker-removed", swap(MARKER, b""), unchanged, exact=False),
        Case("our-tables-moved", both(swap(legacy, b""), swap(b"[debug]", legacy + b"[debug]")), unchanged),
        Case(
            "our-tables-written-inline",
            both(
                swap(legacy, b""),
                swap(
                    b"[debug]",
                    table[:-1]
                    + b"]\n  nvidia-legacy = { runtime_type = 'io.containerd.runc.v2', options = { "
                    + BINARY[:-1]
                    + b'.legacy" } }\n[debug]',
                ),
            ),
            unchanged,
            exact=False,
        ),
        Case("another-of-ours-as-default", swap(b'name = "nvidia"', b'name = "nvidia-cdi"'), unchanged),
        Case(
            "runc-as-default",
            runc,
            swap(b'name = "crun"', b'name = "runc"'),
            ("default runtime 'runc': somebody set it since; it is theirs now",),
        ),
        Case(
            "no-default",
            swap(b'  default_runtime_name = "nvidia" # chosen with care\n', b""),
            swap(b'  default_runtime_name = "crun" # chosen with care\n', b""),
        ),
        Case(
            "the-runtime-that-was-the-default-is-gone",
            swap(crun, b""),
            both(swap(crun, b""), swap(b'default_runtime_name = "crun" ', b"")),
            ("default runtime 'crun': not given back, because somebody removed that runtime since",),
            exact=False,
        ),
        Case("sorted-by-a-tool", formatted_toml, formatted_toml, exact=False),
        Case("made-anew-from-something-else", becomes(ANEW), becomes(ANEW), refused=True),
        Case("made-anew-for-an-older-containerd", becomes(OLDER), becomes(OLDER), refused=True),
        Case("emptied", becomes(b""), unchanged, (RESTORED,)),
        Case("deleted", becomes(None), unchanged, (RESTORED,)),
    ]


def check_left(case: Case, node: FakeNode, path: str, expected: bytes | None, done: Outcome) -> None:
    left = content_of(node, path)
    assert (left is None) == (expected is None)
    if case.exact:
        assert left == expected
    elif left is not None and expected is not None:
        assert is_same(parsed(path, left or b"{}"), parsed(path, expected))
    for words in case.says:
        assert words in done.output
    if not case.says:
        assert "somebody" not in done.output, done.output
    assert not node.exists(TOOLKIT)
    assert not node.exists(STORE)


BASES = {"docker": (DAEMON_JSON, DOCKER), "2": (CONFIG_TOML, VERSION_2), "3": (CONFIG_TOML, VERSION_3)}
CASES = [("docker", case) for case in DOCKER_CASES]
CASES += [("2", case) for case in containerd_cases(PLUGIN_2)] + [("3", case) for case in containerd_cases(PLUGIN_3)]
EACH = pytest.mark.parametrize("base, case", CASES, ids=[f"{base}-{case}" for base, case in CASES])


@EACH
def test_cleanup_takes_ours_and_nothing_else(templates: Templates, base: str, case: Case) -> None:
    path, original = BASES[base]
    node = templates.installed(path, original)
    put(node, path, case.edit(node.read(path)))
    done = templates.run(node, path, "uninstall")
    assert done.code == 0, done.output
    check_left(case, node, path, case.alone(original), done)


@EACH
def test_a_run_puts_the_handlers_back_and_the_cleanup_after_it_is_still_exact(
    templates: Templates, base: str, case: Case
) -> None:
    path, original = BASES[base]
    node = templates.installed(path, original)
    put(node, path, case.edit(node.read(path)))
    before = content_of(node, path)
    again = templates.run(node, path, "run", "--no-daemon")
    assert again.code == (3 if case.refused else 0), again.output
    for words in case.says:
        assert words in again.output
    if case.refused:
        assert content_of(node, path) == before
    else:
        assert {"nvidia", "nvidia-cdi", "nvidia-legacy"} <= set(node.named_runtimes())
    assert node.broken_runtimes() == []
    done = templates.run(node, path, "uninstall")
    assert done.code == 0, done.output
    check_left(dataclasses.replace(case, says=()), node, path, case.alone(original), done)
