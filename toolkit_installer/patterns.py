"""Regular expressions that are compiled when they are first used.

The program names a hundred, and most commands use ten.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, Generic, cast


class Lazy(Generic[AnyStr]):
    """Stands for a pattern. The first use compiles it; from then on its own methods are found here without a detour."""

    def __init__(self, text: AnyStr, flags: int) -> None:
        self.pattern: AnyStr = text
        self.flags = flags

    def compiled(self) -> re.Pattern[AnyStr]:
        """Return the pattern itself.

        Raises re.error: its text is no regular expression.
        """
        return re.compile(self.pattern, self.flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.compiled(), name)
        setattr(self, name, value)
        return value


def lazy(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what can be used as `re.compile(text, flags)` can; `re.sub` and the like do not take it."""
    return cast("re.Pattern[AnyStr]", Lazy(text, flags))
