"""What one of containerd's files is once we are gone, as far as the receipt remembers what stood there. Pure."""

from __future__ import annotations

import hashlib

from toolkit_installer.engines.api import Memory
from toolkit_installer.engines.containerd import config


def without_us(
    content: bytes | None, memory: Memory, toolkit_folder: str, *, whole: bool
) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the file without us, None if nothing else is left, and what there is to say of it.

    The very bytes from before return if nobody touched ours, else ours are taken out. `whole`: it is a drop-in, which
    was made for us unless something else is in it. Raises DocumentError, ConfigurationError.
    """
    if content is None or content == memory.before:
        return content, ()
    if hashlib.sha256(content).hexdigest() in memory.written:
        return memory.before, ()
    foreign = whole and not memory.written and not config.is_marked(content)
    if foreign and config.ours(content, toolkit_folder):
        return None, ()  # an older installer's, whole: it wrote nothing of anybody else's into this file
    base, left = config.without_us(content, memory.ownership, toolkit_folder, memory.before)
    made = memory.before is None and (memory.written or (whole and base != content))
    if made and not base.strip():
        return None, left  # it was created for us, and nobody else put anything in
    return base, left
