"""An error that a capture names: it says what the file says, and nothing where that says nothing."""

from __future__ import annotations

import msgspec
import pytest

from toolkit_installer.errors import InstallerError
from toolkit_installer.fleet import values
from toolkit_installer.fleet.values import CapturedError


@pytest.mark.parametrize(
    "said, path, line, hint",
    [
        (["ConfigurationError"], None, None, None),
        (["ConfigurationError", "is wrong"], None, None, None),
        (["ConfigurationError", "is wrong", "/a"], "/a", None, None),
        (["ConfigurationError", "is wrong", "/a", 7], "/a", 7, None),
        (["ConfigurationError", "is wrong", "/a", 7, "mend it"], "/a", 7, "mend it"),
    ],
    ids=["its class alone", "a reason", "a path", "a line", "all"],
)
def test_an_error_of_which_a_file_says_less_has_no_place_and_no_remedy(
    said: list[object], path: str | None, line: int | None, hint: str | None
) -> None:
    error = values.decode_error(msgspec.convert(said, CapturedError))
    assert isinstance(error, InstallerError)
    assert (error.path, error.line, error.hint) == (path, line, hint)
    assert error.reason == (said[1] if len(said) > 1 else "")
