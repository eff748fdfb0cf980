from __future__ import annotations

import hashlib
import json

from toolkit_installer.engines.crio import config as crio_config

FOLDER = "/usr/local/nvidia/toolkit"
OURS = crio_config.build_hook(FOLDER)
WRITTEN = frozenset({hashlib.sha256(OURS).hexdigest()})
THEIRS = b'{"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-toolkit"}, "when": {}, "stages": []}'


def test_the_file_is_what_an_oci_hook_has_to_be() -> None:
    document = json.loads(OURS)
    assert document["version"] == "1.0.0"
    assert document["hook"]["path"] == f"{FOLDER}/nvidia-container-runtime-hook"
    assert document["hook"]["args"] == ["nvidia-container-runtime-hook", "prestart"]
    assert document["when"] == {"always": True, "commands": [".*"]}
    assert document["stages"] == ["prestart"]


def test_what_we_wrote_gives_back_what_stood_there() -> None:
    assert crio_config.remove_our_hook(OURS, THEIRS, WRITTEN, FOLDER) == (THEIRS, ())
    assert crio_config.remove_our_hook(OURS, None, WRITTEN, FOLDER) == (None, ())


def test_somebodys_edit_of_our_hook_goes_with_the_program_that_it_runs_and_is_named() -> None:
    edited = OURS.replace(b'".*"', b'"cuda.*"')
    base, left = crio_config.remove_our_hook(edited, None, WRITTEN, FOLDER)
    assert base is None
    assert len(left) == 1


def test_a_hook_that_runs_something_else_by_now_is_theirs() -> None:
    assert crio_config.remove_our_hook(THEIRS, None, WRITTEN, FOLDER) == (THEIRS, ())
    assert crio_config.remove_our_hook(b"{ broken", None, WRITTEN, FOLDER) == (b"{ broken", ())


def test_an_older_installers_hook_is_known_without_a_record() -> None:
    older = OURS.replace(b"nvidia-container-runtime-hook", b"nvidia-container-toolkit")
    assert crio_config.remove_our_hook(older, None, frozenset(), FOLDER) == (None, ())
