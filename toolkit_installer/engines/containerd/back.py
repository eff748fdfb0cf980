"""What one of containerd's files is once we are gone, as far as the receipt remembers what stood there. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from toolkit_installer.documents import toml_document
from toolkit_installer.engines.api import DesiredFile, EngineFile, Recorded
from toolkit_installer.engines.containerd import config, layouts, templates
from toolkit_installer.engines.containerd.inspection import DROP_IN_ROLE, ROOT_ROLE, ContainerdInspection
from toolkit_installer.engines.ownership import MARKER, Ownership, revert_content
from toolkit_installer.errors import located


def without_us(file: EngineFile, recorded: Recorded, toolkit_folder: str) -> DesiredFile:
    """Return a file without us: its target is its base. Raises ConfigurationError.

    The very bytes from before return if nobody touched ours, else ours are taken out.
    """
    if file.role == layouts.GENERATED_ROLE:
        return DesiredFile(file, file.content, file.content)  # never ours, whatever a receipt says

    def without_ours(content: bytes) -> tuple[bytes | None, tuple[str, ...]]:
        if file.role != layouts.TEMPLATE_ROLE:
            return _toml(file.role, content, recorded, toolkit_folder)
        base = templates.without_block(content)
        created = recorded.before is None and base != content and base.strip() in (b"", templates.BASE.strip())
        return (None if created else base), ()  # nobody else put anything into what was created for us

    with located(file.path):
        base, left = revert_content(file.content, recorded.before, recorded.written, without_ours)
    if file.role == DROP_IN_ROLE and recorded.before is None and base is not None and base != file.content:
        left = (*left, "the rest is somebody else's and stays; it counts only if config.toml imports it by itself")
    return DesiredFile(file, base, base, left=left)


def _toml(role: str, content: bytes, recorded: Recorded, toolkit_folder: str) -> tuple[bytes | None, tuple[str, ...]]:
    """Return a file of containerd's, or a drop-in, which was made for us unless something else is in it."""
    whole = role in (DROP_IN_ROLE, layouts.DROP_IN_ROLE)
    if (
        whole
        and not recorded.written
        and not toml_document.marked(content, MARKER)
        and config.ours(content, toolkit_folder)
    ):
        return None, ()  # an older installer's, whole: it wrote nothing of anybody else's into this file
    ownership = recorded.ownership
    if role == layouts.DROP_IN_ROLE and not ownership.keys:
        ownership = config.recognised(content, whole=True)
    base, left = config.without_us(content, ownership, toolkit_folder, recorded.before)
    made = recorded.before is None and (recorded.written or (whole and base != content))
    if made and not base.strip():
        return None, left  # it was created for us, and nobody else put anything in
    return base, left


def recognised(inspection: ContainerdInspection, toolkit_folder: str) -> Mapping[str, Ownership]:
    """Return what stands in our blocks, and the import of a drop-in that goes with us, though no receipt says so.

    containerd refuses to start with a literal import that leads nowhere. In a distribution's place, ours is marked or
    lies in our toolkit folder, and there is nothing more to be recognised. Raises ConfigurationError.
    """
    if inspection.placed is not None:
        return {}
    root, drop_in = inspection.file(ROOT_ROLE), inspection.file(DROP_IN_ROLE)
    found = {}
    for file in inspection.files:
        with located(file.path):
            found[file.path] = config.recognised(file.content or b"", whole=file is drop_in)
    goes = without_us(drop_in, Recorded(ownership=found[drop_in.path]), toolkit_folder).base is None
    if goes and drop_in.content is not None:
        imports = config.imports_of(root.content or b"", sorted({*inspection.drop_in_names, drop_in.path}))
        known = found[root.path]
        found[root.path] = dataclasses.replace(known, keys=(*known.keys, *imports.keys))
    return found
