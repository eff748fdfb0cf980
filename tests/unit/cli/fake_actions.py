"""The commands' functions as fakes that record their calls, and the start of the program with them."""

from __future__ import annotations

import json
import types
from typing import Any

import pytest

from toolkit_installer.cli import commands
from toolkit_installer.settings import DeletionSettings, Program, Settings

OURS = Program.TOOLKIT_INSTALLER
OLD = Program.NVIDIA_TOOLKIT
Call = tuple[str, Settings, bool | None]


class Actions(types.ModuleType):
    """Stands in for the real one, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__("toolkit_installer.cli.actions")
        self.calls: list[Call] = []
        self.answer: int | BaseException = 0
        self.prints = ""
        self.seconds: float | None = None
        self.unless_installed: bool | None = None
        self.check: bool | None = None

    def _do(self, name: str, settings: Settings, *, as_json: bool | None = None) -> int:
        self.calls.append((name, settings, as_json))
        if self.prints:
            print(self.prints)  # noqa: T201  # as the real one does
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def run(self, settings: Settings) -> int:
        return self._do("run", settings)

    def plan(self, settings: Settings, *, as_json: bool) -> int:
        return self._do("plan", settings, as_json=as_json)

    def uninstall(self, settings: Settings) -> int:
        return self._do("uninstall", settings)

    def status(self, settings: Settings, *, as_json: bool, check: bool) -> int:
        self.check = check
        return self._do("status", settings, as_json=as_json)

    def refresh(self, settings: Settings, *, seconds: float | None) -> int:
        self.seconds = seconds
        return self._do("refresh", settings)

    def detect(self, settings: Settings, *, as_json: bool) -> int:
        return self._do("detect", settings, as_json=as_json)

    def diagnose(self, settings: Settings, *, as_json: bool) -> int:
        return self._do("diagnose", settings, as_json=as_json)

    def wait_driver(self, settings: Settings, *, seconds: float | None, unless_installed: bool) -> int:
        self.seconds, self.unless_installed = seconds, unless_installed
        return self._do("wait-driver", settings)

    def report(self, settings: Settings, *, file: str, looking: Settings) -> int:
        self.file, self.looking = file, looking
        return self._do("report", settings)

    def capture(self, settings: Settings, **own: Any) -> int:
        self.own = own
        return self._do("capture", settings)

    def replay(self, settings: Settings, **own: Any) -> int:
        self.own = own
        return self._do("replay", settings)

    def compare(self, settings: Settings, **own: Any) -> int:
        self.own = own
        return self._do("compare", settings)

    def delete_daemonset(self, settings: Settings, *, deletion: DeletionSettings, seconds: float) -> int:
        self.deletion, self.seconds = deletion, seconds
        return self._do("delete-daemonset", settings)

    @property
    def asked(self) -> Settings:
        ((_, settings, _),) = self.calls
        return settings


def start(program: Program, *arguments: str, **environment: str) -> int:
    return commands.main(program, arguments, {"LOG_FORMAT": "json", **environment})


def error_of(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The one line that was logged."""
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    event = json.loads(line)
    assert event["level"] == "error"
    assert isinstance(event, dict)
    return event
