"""Where the package says that it is from: PROJECT_URL of the build's environment. Whoever publishes it knows that.

A build without the variable makes a package without addresses. `make release-check` asks for one.
"""

from __future__ import annotations

import os
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "PROJECT_URL"
"""The address of the repository's page, such as https://git.example/team/toolkit-installer."""


def urls(address: str, version: str) -> dict[str, str]:
    """Return the package's addresses by their labels, for a repository's page and the version that is built. Pure.

    The labels are the well-known ones of Python's packaging specifications. The changelog is that of the version's tag,
    at the path that GitHub, GitLab and Gitea answer for. Raises ValueError.
    """
    if not re.fullmatch(r"https://[a-z0-9][a-z0-9.-]*(:\d+)?(/[\w.~-]+)+/?", address):
        raise ValueError(f"{VARIABLE}={address!r} is no address of a repository: https://git.example/team/name is one")
    page = address.rstrip("/")
    return {
        "Homepage": page,
        "Source": page,
        "Issues": f"{page}/issues",
        "Changelog": f"{page}/blob/v{version}/CHANGELOG.md",
    }


class ProjectUrls(MetadataHookInterface):
    """Adds the addresses to what the package says of itself; hatchling calls it at each build."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `urls`. Raises ValueError, which ends the build."""
        address = os.environ.get(VARIABLE, "")
        metadata["urls"] = urls(address, metadata["version"]) if address else {}
