"""What a distribution says of itself that makes its containerd's files.

Every start reads the table of all distributions: what a layout is made with, TOML's parser among it, is imported only
where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolkit_installer.engines.registry import Distribution
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.settings import EngineName

if TYPE_CHECKING:
    from toolkit_installer.engines.containerd.layouts import Layout

Read = Callable[[str], bytes | None]
"""Returns a file's content, None where there is none."""


class Generating(Distribution, frozen=True, kw_only=True):
    """A distribution that makes its containerd's files, and has a place of its own for what is added.

    `programs` and `roots` are patterns of its containerd's executable and of its `root` folder
    (containerd-config.toml(5)), each with the file that such a containerd is started with (re.Match.expand).
    """

    engine: EngineName = EngineName.CONTAINERD
    programs: tuple[str, str] | None = None
    roots: tuple[str, str] | None = None

    @property
    def started_with(self) -> str:
        """The file that its containerd is started with where nobody moved it."""
        return self.config

    def layout(self, read: Read, config: str) -> Layout | None:
        """Return where its files are if its containerd is started with `config`, or somebody named that file of its.

        None if that is not its own. Raises ConfigurationError where its files cannot be told yet.
        """
        raise NotImplementedError(self.name)

    def started_by(self, executable: str) -> str | None:
        """Return the file that a containerd with this executable is started with, None if that does not tell."""
        return _expanded(self.programs, executable)

    def started_in(self, folder: str) -> str | None:
        """Return the file of the containerd whose `root` is this folder, None likewise."""
        return _expanded(self.roots, folder)


def _expanded(rule: tuple[str, str] | None, text: str) -> str | None:
    found = re.match(rule[0], text) if rule is not None else None
    return found.expand(rule[1]) if rule is not None and found is not None else None


def not_made(name: str, config: str) -> ConfigurationError:
    """Return the error for a file that a distribution makes when it is first started."""
    return ConfigurationError(
        f"{name} has not made it yet, so its version is not known", path=config, hint=f"start {name} once, then again"
    )
