"""Expected failures say where, what and what to do."""

from __future__ import annotations

import pytest

from toolkit_installer import errors
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError, located


def test_each_kind_of_failure_has_an_exit_code_of_its_own() -> None:
    kinds = InstallerError.__subclasses__()
    public = {kind.exit_code for kind in kinds if kind.__module__ == errors.__name__}
    assert public == set(ExitCode) - {ExitCode.DONE, ExitCode.BUG}


@pytest.mark.parametrize(
    "error, text",
    [
        (InstallerError("is bad"), "is bad"),
        (InstallerError("is bad", path="/x"), "/x: is bad"),
        (InstallerError("is bad", path="/x", line=3), "/x:3: is bad"),
        (InstallerError("is bad", path="/x", line=3, hint="mend it"), "/x:3: is bad (mend it)"),
        (InstallerError("is bad", line=3), "is bad"),
    ],
)
def test_the_message_begins_with_the_place_and_ends_with_the_remedy(error: InstallerError, text: str) -> None:
    assert str(error) == text


def test_who_knows_the_file_adds_it_to_an_error_that_does_not() -> None:
    with pytest.raises(ConfigurationError) as raised, located("/etc/x"):
        raise ConfigurationError("is bad", line=3)
    assert str(raised.value) == "/etc/x:3: is bad"


def test_a_file_that_is_named_already_stays_named() -> None:
    with pytest.raises(ConfigurationError) as raised, located("/etc/outer"):
        raise ConfigurationError("is bad", path="/etc/inner")
    assert raised.value.path == "/etc/inner"
