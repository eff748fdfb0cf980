"""Choose how to reload an engine, and check a new configuration with the daemon's own binary before writing it.

The candidate reaches the binary through its standard input and a memory file. A configuration that is known to be good,
given to it the same way, shows whether the binary supports that at all.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence

from toolkit_installer import log
from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import DocumentError, Table, is_same, lookup
from toolkit_installer.engines.api import Inspection, Reload
from toolkit_installer.engines.common.serving import PROCESS_NAMES, find_process
from toolkit_installer.engines.containerd.config import strip_defaults
from toolkit_installer.engines.containerd.tables import PLUGINS, table_of
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import ProgramError, Programs
from toolkit_installer.settings import EngineName, ReloadMode


def choose_reload(
    node: Node, engine: EngineName, inspection: Inspection, asked: ReloadMode | None, usual: ReloadMode
) -> Reload:
    """Return how to reload: as requested, else the engine's usual way.

    An engine that does not run is not reloaded: it reads its files when it starts. Raises ConfigurationError if the
    engine should respond and does not, or cannot be reloaded as requested.
    """
    mode = asked or usual
    if mode is ReloadMode.NONE:
        return Reload(ReloadMode.NONE)
    if inspection.live is None:
        running = find_process(node, engine, inspection.socket)
        if asked is None and running is None:
            log.get().info(
                "The engine does not answer: it reads its files when it starts",
                key="engine-reads-at-start",
                engine=engine,
                socket=inspection.socket,
                reason=inspection.silence,
            )
            return Reload(ReloadMode.NONE)
        detail = f", although {engine} runs with PID {running.pid}" if running is not None else ""
        raise ConfigurationError(
            f"{engine} does not answer on its socket{detail}: {inspection.silence}",
            path=inspection.socket,
            hint=f"start {engine}, mount its socket's folder and name it with --socket, or use --restart-mode none",
        )
    process = inspection.live.process
    if process is None:
        raise ConfigurationError(
            f"the process of {engine} behind the socket cannot be seen from here",
            path=inspection.socket,
            hint="run with `hostPID: true`, or use --restart-mode none",
        )
    if mode is ReloadMode.SIGNAL:
        if process.name not in PROCESS_NAMES[engine]:
            raise ConfigurationError(
                f"the process behind the socket is {process.name!r} (PID {process.pid}), not {engine}: not signalled",
                path=inspection.socket,
                hint="check --socket, or use --restart-mode none",
            )
        return Reload(ReloadMode.SIGNAL)
    unit = process.unit
    if unit is None:
        raise ConfigurationError(
            f"the process of {engine} belongs to no systemd service, so it cannot be restarted",
            hint="use --restart-mode none and restart it yourself",
        )
    if not node.services.knows(unit):
        raise ConfigurationError(
            f"the node's systemd cannot be asked about {unit}, the unit of {engine}",
            hint="mount the node's / at --host-root, or use --restart-mode none and restart it yourself",
        )
    return Reload(ReloadMode.SYSTEMD, unit, restarts=True)


_SECONDS = 20.0
_INPUT = "/dev/stdin"
_LINE_PATTERNS = (
    re.compile(r"\brow[ =]([0-9]{1,7})\b"),  # containerd from 2.0 on
    re.compile(r"\(([0-9]{1,7}), [0-9]{1,7}\)"),  # containerd 1.x
    re.compile(r"\bline ([0-9]{1,7})\b"),  # CRI-O
)
"""How the engines' binaries report the line of an error in their input."""
_VERSION = re.compile(r"\bv?([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}\S*)")
_LONGEST_SHOWN = 200


def format_message(words: str, content: bytes | None = None) -> str:
    """Return a binary's messages for people, with the line that they point at; secrets are masked.

    `content`: its input, if that was a single text. The input is on no disk, so nobody could look the line up; values
    in the line are hidden as in a diff.
    """
    from toolkit_installer import foreign_words  # noqa: PLC0415  # for errors only
    from toolkit_installer.documents.masking import mask  # noqa: PLC0415

    masked = foreign_words.mask_program_text(words)
    line = find_line(words) if content is not None else None
    lines = mask((content or b"").decode(errors="replace")).split("\n")
    if line is None or not 0 < line <= len(lines):
        return masked
    return f"{masked.rstrip()}; line {line} of what it was given: {lines[line - 1].strip()[:_LONGEST_SHOWN]}"


def find_line(words: str) -> int | None:
    """Return the last line number in a message, None if it has none: warnings may precede the error."""
    for each in reversed(words.splitlines()):
        found = next((match for pattern in _LINE_PATTERNS if (match := pattern.search(each)) is not None), None)
        if found is not None:
            return int(found[1])
    return None


def validate_docker_config(programs: Programs, binary: str, flags: Sequence[str], candidate: bytes) -> str | None:
    """Return dockerd's message if it refuses the candidate; None if it accepts it, or cannot validate (before 23.0).

    `flags` are those of the running daemon: dockerd refuses a file that repeats one of them. An empty configuration,
    which dockerd always accepts, shows whether it can validate.
    """
    command = [binary, *flags, "--validate", f"--config-file={_INPUT}"]
    try:
        if programs.run(command, seconds=_SECONDS, given=b"{}").status != 0:
            return None
        tried = programs.run(command, seconds=_SECONDS, given=candidate)
    except ProgramError:
        return None
    return None if tried.status == 0 else tried.errors


def dump_containerd_files(programs: Programs, binary: str, contents: Sequence[bytes]) -> tuple[Table | None, str]:
    """Return containerd's effective configuration for several files, in this order: the root, then its imports."""
    versions = (toml_document.parse(content).get("version") for content in contents)
    version = next((f"version = {version}\n" for version in versions if version is not None), "")
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_memory_file(content)) for content in contents]
        paths = ", ".join(f'"/proc/self/fd/{file}"' for file in files)
        root = f"{version}imports = [{paths}]\n".encode()
        return dump_containerd_config(programs, binary, root, keep=files)


def dump_containerd_config(
    programs: Programs, binary: str, root: bytes = b"", *, path: str = _INPUT, keep: Sequence[int] = ()
) -> tuple[Table | None, str]:
    """Return containerd's effective configuration for a root file, or for the file at `path`, and its messages.

    None if containerd refuses it. Its exit code proves little, so the output counts.
    """
    try:
        done = programs.run([binary, "--config", path, "config", "dump"], seconds=_SECONDS, given=root, keep=keep)
        return (toml_document.parse(done.output) if done.status == 0 else None), done.errors
    except (ProgramError, DocumentError) as error:
        return None, str(error)


def query_containerd_version(programs: Programs, binary: str) -> str:
    """Return the version that a containerd binary prints, such as "1.7.24", "" if it prints none."""
    try:
        done = programs.run([binary, "--version"], seconds=_SECONDS)
    except ProgramError:
        return ""
    found = _VERSION.search(done.output.decode(errors="replace"))
    return found[1] if done.status == 0 and found is not None else ""


@contextlib.contextmanager
def open_memory_file(content: bytes) -> Iterator[int]:
    """Yield the descriptor of a memory file with that content."""
    fd = os.memfd_create("toolkit-installer-candidate")
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


def compare_containerd_dumps(before: Table, after: Table, handlers: dict[str, str], default: str | None) -> list[str]:
    """Return in words what the new effective configuration lacks: a handler, the default, or an existing runtime.

    Pure: `before` and `after` are the binary's output.
    """
    old, new = (
        next((found for plugin in PLUGINS if isinstance(found := lookup(dump, table_of(plugin)), dict)), {})
        for dump in (before, after)  # the CRI plugin's name depends on the version
    )
    wrong = [
        f"it does not see the handler {name}"
        for name, path in handlers.items()
        if lookup(new, ("runtimes", name, "options", "BinaryName")) != path
    ]
    if default is not None and new.get("default_runtime_name") != default:
        wrong.append(f"its default runtime would be {new.get('default_runtime_name')!r}, not {default!r}")
    return wrong + [
        f"the runtime {name} would not be what it was"
        for name, entry in (old.get("runtimes") or {}).items()
        if name not in handlers and not is_same(strip_defaults(lookup(new, ("runtimes", name))), strip_defaults(entry))
    ]
