"""What is said where nvidia-ctk makes no CDI specification: its own last word for it, and nothing around that."""

from __future__ import annotations

import pytest

from toolkit_installer.driver import cdi
from toolkit_installer.driver.roots import Driver
from toolkit_installer.errors import DriverNotReadyError
from toolkit_installer.node.programs import Completed
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.payload import CDI_HOOK, CTK, Payload

INFO = 'time="2026-01-01T00:00:00Z" level=info msg="Using driver"\n'
ERROR = 'time="2026-01-01T00:00:00Z" level=error msg="{}"\n'


@pytest.mark.parametrize(
    "errors, words",
    [
        (INFO + ERROR.format("no driver") + INFO, "no driver"),
        (ERROR.format("first") + ERROR.format("last"), "last"),
        (ERROR.format(r"two\nlines of \"it\""), 'two; lines of "it"'),
        (f"{INFO}panic: nil map\n\ngoroutine 1 [running]:\n", "panic: nil map"),
        ("Segmentation fault\nin libcuda", "Segmentation fault in libcuda"),
        ("", "it says nothing"),
        (ERROR.format("x" * 1000), "x" * 400),
    ],
    ids=["among others", "the last", "escaped", "a panic", "no log", "nothing", "long"],
)
def test_the_error_itself_is_told_and_not_all_that_was_printed(
    monkeypatch: pytest.MonkeyPatch, errors: str, words: str
) -> None:
    monkeypatch.setattr(cdi, "run", lambda *_, **__: Completed(3, b"", errors))
    payload = Payload("/p", ((CTK, "/ctk"), (CDI_HOOK, "/hook")), (), "hook")
    with pytest.raises(DriverNotReadyError) as raised:
        cdi.Generator(payload, ToolkitSettings(), Driver("/", "/", "/", "/")).specification()
    assert raised.value.reason.endswith(f"{CTK} ends with 3: {words}")
    assert raised.value.hint
