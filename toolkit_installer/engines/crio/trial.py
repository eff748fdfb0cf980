"""CRI-O's own binary reads the new configuration before the daemon does; nothing is written for it.

`crio config` reads what the daemon would, checks it as far as that changes nothing, prints it and ends. The root file
reaches it through its standard input, the rest through a memory file: a --config-dir that is a file is read as one.
What it makes of the configuration without us, given the same way, tells whether it can be asked at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import DocumentError, Table
from toolkit_installer.engines.api import DesiredState
from toolkit_installer.engines.common import trial
from toolkit_installer.engines.crio import config
from toolkit_installer.node.programs import Completed, ProgramError, Programs

_SECONDS = 20.0


def wrong(
    programs: Programs, binary: str, root: bytes, drop_ins: tuple[bytes, bytes], desired: DesiredState
) -> list[str]:
    """Return in words what CRI-O says against a change of the drop-ins; nothing if it cannot be asked.

    `drop_ins` are what they say together before the change and after it.
    """
    before, after = drop_ins
    old, _ = _read(programs, binary, root, before)
    if old is None:
        return []
    new, words = _read(programs, binary, root, after)
    if new is None:
        return [words]
    return config.losses(old, new, desired.served, desired.default)


def refusal(programs: Programs, binary: str, flags: Sequence[str]) -> str | None:
    """Return CRI-O's last words about its files as they are, None if it takes them or cannot be asked.

    `flags` name the files, as far as they are not the usual ones.
    """
    try:
        done = programs.run([binary, *flags, "config"], seconds=_SECONDS)
    except ProgramError:
        return None
    return None if done.status == 0 else _last_words(done)


def _last_words(done: Completed) -> str:
    last = done.errors.splitlines()[-1:]  # what stands before it is the log of its reading
    return last[0] if last else f"it ended with {done.status}"


def _read(programs: Programs, binary: str, root: bytes, drop_in: bytes) -> tuple[Table | None, str]:
    """Return what CRI-O makes of a root file and a drop-in; None, and its last words, if it refuses them."""
    try:
        with trial.memory(drop_in) as fd:
            command = [binary, "--config", "/dev/stdin", "--config-dir", f"/proc/self/fd/{fd}", "config"]
            done = programs.run(command, seconds=_SECONDS, given=root, keep=(fd,))
        return (toml_document.parse(done.output), "") if done.status == 0 else (None, _last_words(done))
    except (ProgramError, DocumentError) as error:
        return None, str(error)
