"""What is said where nvidia-ctk makes no CDI specification: its own last word for it, and nothing around that."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.driver import cdi
from toolkit_installer.driver.roots import Driver
from toolkit_installer.errors import DriverNotReadyError, PayloadError
from toolkit_installer.node.programs import CompletedProgram
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.payload import CDI_HOOK, CTK, Payload

INFO = 'time="2026-01-01T00:00:00Z" level=info msg="Using driver"\n'
ERROR = 'time="2026-01-01T00:00:00Z" level=error msg="{}"\n'


def generator(root: str = "/") -> cdi.SpecificationGenerator:
    payload = Payload("/p", ((CTK, "/ctk"), (CDI_HOOK, "/hook")), (), "hook")
    return cdi.SpecificationGenerator(payload, ToolkitSettings(), Driver("/", root, "/", root))


@pytest.mark.parametrize(
    "errors, words",
    [
        (INFO + ERROR.format("no driver") + INFO, "no driver"),
        (ERROR.format("first") + ERROR.format("last"), "last"),
        (ERROR.format(r"two\nlines of \"it\""), 'two; lines of "it"'),
        (f"{INFO}panic: nil map\n\ngoroutine 1 [running]:\n", "panic: nil map"),
        ("Segmentation fault\nin libcuda", "Segmentation fault; in libcuda"),
        ("usage: nvidia-ctk\nflags:\n-a\n-b\nno such flag", "-a; -b; no such flag"),
        ("", "it says nothing"),
        (ERROR.format("x" * 1000), "…" + "x" * 400),
    ],
    ids=["among others", "the last", "escaped", "a panic", "no log", "the last lines", "nothing", "long"],
)
def test_the_error_itself_is_told_and_not_all_that_was_printed(
    monkeypatch: pytest.MonkeyPatch, errors: str, words: str
) -> None:
    monkeypatch.setattr(cdi, "run", lambda *_, **__: CompletedProgram(3, b"", errors))
    with pytest.raises(DriverNotReadyError) as raised:
        generator().specification()
    assert raised.value.reason.endswith(f"{CTK} ends with 3: {words}")
    assert raised.value.hint


def test_a_specification_that_cannot_be_written_is_not_blamed_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "failed to write CDI spec to STDOUT: open /tmp/nvcdi-spec-1.yaml: read-only file system"
    monkeypatch.setattr(cdi, "run", lambda *_, **__: CompletedProgram(1, b"", ERROR.format(words)))
    with pytest.raises(PayloadError) as raised:
        generator().specification()
    assert raised.value.reason == f"{CTK} ends with 1: {words}"
    assert raised.value.path == "/p/ctk"
    assert "emptyDir" in (raised.value.hint or "")


def test_paths_that_cannot_be_replaced_are_not_blamed_on_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = iter(
        [CompletedProgram(0, b"...", ""), CompletedProgram(1, b"", ERROR.format("failed to parse CDI spec"))]
    )
    monkeypatch.setattr(cdi, "run", lambda *_, **__: next(answers))
    with pytest.raises(PayloadError, match=f"{CTK} ends with 1: failed to parse CDI spec"):
        generator(str(tmp_path)).specification()
