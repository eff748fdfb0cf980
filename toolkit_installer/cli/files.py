"""The commands `capture` and `report`, and writing a new file of the installer's own file system, or stdout.

A capture holds what a node shows, so that a run on it can be planned anywhere. A report holds everything needed to
diagnose a node. Neither is written to a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from toolkit_installer import __version__, log
from toolkit_installer.cli import output, show_detect, show_plan, show_status
from toolkit_installer.cli.options.table import OPTIONS
from toolkit_installer.cli.output import OutputError
from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import ConfigurationError, UsageError
from toolkit_installer.fleet import archive, capture
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.capture import AnswerRecorder
from toolkit_installer.fleet.masking import KeyedMasker
from toolkit_installer.node import machine, queries
from toolkit_installer.node.node import Node
from toolkit_installer.planning.prepare import prepare
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import diagnosis, status, status_verdict, support_bundle
from toolkit_installer.run.dry_run import DryRun
from toolkit_installer.settings import Settings

STDOUT: Final = "-"
_MODE: Final = 0o600
_HINT: Final = "nothing was written; name a file that is not there yet, in a folder that is"


def require_new_file(path: str) -> None:
    """Raise UsageError, before the work is done, if the path is not a new file's, or stdout is a terminal."""
    if path == STDOUT:
        if sys.stdout.isatty():
            raise UsageError("the answer is no text: it is not written to a terminal", hint="name a file, or > a file")
        return
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already", hint=_HINT)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}", hint=_HINT)


def write(path: str, content: bytes) -> None:
    """Write the file, readable by its owner alone; symlinks are not followed, and existing files not replaced.

    Raises OutputError, and BrokenPipeError if stdout has no reader any more.
    """
    if path == STDOUT:
        _write_all(sys.stdout.fileno(), content, "the standard output")
        return
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        _write_all(fd, content, path)
    except OutputError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _write_all(fd: int, content: bytes, name: str) -> None:
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _refused(name, error) from error


def _refused(name: str, error: OSError) -> OutputError:
    return OutputError(f"the answer cannot be written to {name}: {error.strerror}", hint="send it elsewhere")


_KEY_BYTES = 32
_LONGEST_KEY = 4096
_NODE_NAME = "NODE_NAME"


def write_capture(
    node: Node,
    settings: Settings,
    path: str,
    given: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    *,
    keep_secrets: bool,
    key_file: str | None,
) -> None:
    """Write the capture to `path`, a new file of the installer's own file system, or to stdout for "-".

    `given` are the option texts that the settings are made from, `key_file` a file with the key for stand-ins.
    Raises UsageError, OutputError, and ConfigurationError if querying an engine would start it.
    """
    masker = None if keep_secrets else KeyedMasker(_read_key(key_file))
    require_new_file(path)
    recorder = AnswerRecorder()
    with log.suppress_lines(), queries.intercepted(recorder):
        capture.query_everything(node, settings, _show)
    for place, why in recorder.unread.items():
        log.get().warning(
            "A part of the node could not be captured", key="capture-part-missing", file=place, reason=why
        )
    answers, digests = recorder.mask_answers(masker, node.root.folder)
    known = {variable for option in OPTIONS for variable in option.variables}
    head = Archive(
        schema=archive.SCHEMA,
        version=__version__,
        node=environment.get(_NODE_NAME) or machine.name(),
        given={name: tuple(texts) for name, texts in sorted(given.items())},
        environment={name: value for name, value in sorted(environment.items()) if name in known},
        root=node.root.folder,
        programs_root=node.programs.root.folder,
        whole=node.whole,
        digests=digests,
        unread=recorder.unread,
        secrets_kept=keep_secrets,
        answers={},
        key="" if masker is None else masker.key_name,
    )
    packed = archive.packed(head, answers)
    write(path, packed)
    log.get().info(
        "Wrote the capture of this node",
        key="capture-written",
        file=None if path == STDOUT else path,
        bytes=len(packed),
        answers=sum(map(len, answers.values())),
        secrets="kept" if keep_secrets else "hidden",
    )


def _read_key(path: str | None) -> bytes:
    """Return the key in a file, or a new key for None. Raises UsageError."""
    if path is None:
        return os.urandom(_KEY_BYTES)
    try:
        with open(path, "rb") as file:
            key = file.read(_LONGEST_KEY)
    except OSError as error:
        raise UsageError(f"--key-file {path}: {error.strerror}") from error
    if len(key) < _KEY_BYTES:
        raise UsageError(
            f"--key-file {path} has {len(key)} bytes, and a key has at least {_KEY_BYTES}",
            hint=f"make one with `head -c {_KEY_BYTES} /dev/urandom >FILE`",
        )
    return key


def _show(node: Node, settings: Settings, found: DryRun) -> None:
    """Build the output of `plan`, which queries the node as well."""
    show_plan.as_value(node, settings, found.seen, found.stops)


def write_report(node: Node, settings: Settings, looking: Settings, path: str) -> None:
    """Write the support bundle to `path`, a new file of the installer's own file system, or to stdout for "-".

    `settings` are those of `run`, `looking` those of `status`. Raises UsageError, OutputError.
    """
    require_new_file(path)
    store = ReceiptStore(node, settings.toolkit.install_dir)
    gathering = support_bundle.BundleTexts()
    gathering.add("status.json", support_bundle.TextKind.OWN, partial(_status, node, looking, store))
    gathering.add("detect.json", support_bundle.TextKind.OWN, partial(_detect, node, settings, store))
    gathering.add("diagnose.txt", support_bundle.TextKind.CLEAN, partial(_diagnosis, node, settings))
    gathering.add("plan.txt", support_bundle.TextKind.OWN, partial(_plan, node, settings, store))
    support_bundle.collect_parts(node, settings, store, gathering)
    for name, why in gathering.missing.items():
        log.get().warning("A part of the report could not be made", key="report-part-missing", part=name, reason=why)
    packed = support_bundle.pack_archive(gathering.mask_texts(), machine.now())
    write(path, packed)
    log.get().info(
        "Wrote the report: look through it before you hand it on, though values that may be secret are hidden",
        key="report-written",
        file=None if path == STDOUT else path,
        bytes=len(packed),
    )


def _status(node: Node, settings: Settings, store: ReceiptStore) -> str:
    health = status_verdict.judge_node(status.inspect_node(node, settings, store, trust.load(node, store)))
    return f"{show_status.status_json(health)}\n"


def _detect(node: Node, settings: Settings, store: ReceiptStore) -> str:
    _refuse_starting(node, settings, store)
    facts, _ = show_detect.gather_facts(node, settings)
    return f"{json.dumps(facts, indent=2)}\n"


def _diagnosis(node: Node, settings: Settings) -> str:
    own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
    return "".join(
        f"{output.plain(line)}\n" for line in show_status.diagnosis_lines(diagnosis.diagnose(node, settings))
    )


def _plan(node: Node, settings: Settings, store: ReceiptStore) -> str:
    _refuse_starting(node, settings, store)
    seen = prepare(trust.load(node, store), settings, node, store)
    return "".join(f"{output.plain(line)}\n" for line in show_plan.lines(node, seen))


def _refuse_starting(node: Node, settings: Settings, store: ReceiptStore) -> None:
    """Raise ConfigurationError if querying an engine would start it."""
    why = support_bundle.explain_blocked_queries(node, settings, trust.load_if_usable(node, store))
    if why is not None:
        raise ConfigurationError(why)
