"""Regular expressions that are compiled when they are first used.

The program names a hundred, and most commands use ten. The libraries that it imports name three dozen more.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, AnyStr, Generic, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

_compile = re.compile


class Lazy(Generic[AnyStr]):
    """Stands for a pattern. The first use compiles it; from then on its own methods are found here without a detour."""

    def __init__(self, text: AnyStr, flags: int) -> None:
        self.pattern: AnyStr = text
        self.flags = flags

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> type[re.Pattern[AnyStr]]:  # type: ignore[override]  # that is what it is for
        """Whoever asks what this is, `re.sub` and the like among them, takes it for what it stands for."""
        return re.Pattern

    def compiled(self) -> re.Pattern[AnyStr]:
        """Return the pattern itself.

        Raises re.error: its text is no regular expression.
        """
        return _compile(self.pattern, self.flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.compiled(), name)
        setattr(self, name, value)
        return value


def lazy(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what can be used as `re.compile(text, flags)` can."""
    return cast("re.Pattern[AnyStr]", Lazy(text, flags))


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Have the patterns of the modules that are imported meanwhile compiled when they are first used, too."""
    before, re.compile = re.compile, _put_off
    try:
        yield
    finally:
        re.compile = before


def _put_off(pattern: Any, flags: int = 0) -> Any:
    return lazy(pattern, flags) if isinstance(pattern, (str, bytes)) else _compile(pattern, flags)
