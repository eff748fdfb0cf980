"""All programs that the test on a real GPU runs, in one folder: it can be brought to a machine that has nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.support.built import go_tools
from tests.support.built.go_tools import GoToolError
from tests.support.engines.daemons import PATH

FOLDER = Path(__file__).parents[2] / ".cache" / "gpu-kit"
TOOLS = (go_tools.CONTAINERD, go_tools.CTR, go_tools.RUNC, go_tools.TOOLKIT)
BUSYBOX = "busybox"


def gather(folder: Path = FOLDER) -> Path:
    """Return the folder, made by Go and from Debian's busybox-static if it is not there. Raises GoToolError."""
    if not folder.exists():
        busybox = shutil.which(BUSYBOX, path=PATH)
        if busybox is None:
            raise GoToolError("not installed: busybox (Debian's package busybox-static)")
        built = [go_tools.build(tool) for tool in TOOLS]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="gpu-kit.", dir=folder.parent) as work:
            made = Path(work) / "made"
            made.mkdir(mode=0o755)
            for path in [Path(busybox), *(program for each in built for program in each.iterdir())]:
                shutil.copy2(path, made)
            os.replace(made, folder)  # as a whole or not at all, also where another run was first
    return folder
