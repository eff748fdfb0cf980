"""A real Prometheus that scrapes one address, once a second, by the shipped rules with every duration shortened."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support import coprocess
from tests.support.manifests import FOLDER

PROGRAMS = ("prometheus", "promtool")
RULES = FOLDER / "overlays/prometheus-operator/rules.yaml"
DASHBOARD = FOLDER / "overlays/prometheus-operator/dashboard.json"
NODE = "a-node"
_ASKS = """
import json, sys, urllib.request
for line in sys.stdin:
    try:
        with urllib.request.urlopen(json.loads(line), timeout=30) as answer:
            told = {"data": json.load(answer)["data"]}
    except OSError as error:
        told = {"refusal": str(error)}
    print(json.dumps(told), flush=True)
"""
"""A program that stays: to start one each time that one looks took longer than the answer."""
HASTE = 60
"""How many times as fast the rules' clock goes: an hour of theirs is a minute, and a minute is a second."""
_DURATION = re.compile(r"(?<![\w.])(\d+)(ms|s|m|h|d)(?!\w)")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SECONDS = 300.0
"""A waiting run looks around every 30 s, and what the rules look back at for an hour is over in a minute."""


def missing() -> list[str]:
    """Return which of the programs are not there."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def rules() -> dict[str, Any]:
    """Return the rules as Prometheus itself reads them."""
    found: dict[str, Any] = yaml.safe_load(RULES.read_text())["spec"]
    return found


def durations(text: str) -> list[int]:
    """Return the durations that stand in a rule's text, in milliseconds."""
    return [int(count) * _MILLISECONDS[unit] for count, unit in _DURATION.findall(text)]


def hastened(text: str) -> str:
    """Return a rule's text with each of its durations divided by HASTE. Raises ValueError for what leaves a rest.

    Prometheus knows no shorter time than a millisecond.
    """

    def shorter(found: re.Match[str]) -> str:
        (milliseconds,) = durations(found[0])
        if milliseconds % HASTE:
            raise ValueError(f"{found[0]} is no whole number of milliseconds when it is divided by {HASTE}")
        return f"{milliseconds // HASTE}ms"

    return _DURATION.sub(shorter, text)


def hastened_rules() -> dict[str, Any]:
    """Return the rules with everything that is a time divided by HASTE, and nothing else changed."""
    found = copy.deepcopy(rules())
    for group in found["groups"]:
        timed = [(group, "interval"), *((rule, field) for rule in group["rules"] for field in ("expr", "for"))]
        for each, field in timed:
            if field in each:
                each[field] = hastened(each[field])
    return found


def queries() -> list[str]:
    """Return the dashboard's queries."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


class NoAnswerError(Exception):
    """Prometheus does not answer, or not yet; the message has the reason."""


class Prometheus:
    """Scrapes `address` below `folder`, and evaluates the rules, hastened.

    It runs in the network that `enter` leads into, and is asked there.
    """

    def __init__(self, folder: Path, address: str, enter: Sequence[str] = ()) -> None:
        folder.mkdir()
        self._folder, self._enter = folder, enter
        self._fired: set[str] = set()
        self.resolved: set[str] = set()
        """The alerts that were waited for until they fired, and then until they did no more."""
        (folder / "rules.yaml").write_text(yaml.safe_dump(hastened_rules()))
        scraped = {"targets": [address], "labels": {"node": NODE}}
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "toolkit-installer", "static_configs": [scraped]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._asks: coprocess.Program | None = None

    def __enter__(self) -> Self:
        command = (
            *self._enter,
            "prometheus",
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
        )
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._asks = coprocess.Program([*self._enter, sys.executable, "-I", "-c", _ASKS])
        return self

    def __exit__(self, *_: object) -> None:
        if self._asks is not None:
            self._asks.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API. Raises NoAnswerError."""
        assert self._asks is not None
        told = self._asks.ask(f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        if "data" not in told:
            raise NoAnswerError(told["refusal"])
        return told["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression is now: metrics with their values."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the labels of each alert that fires, by its name; of several, the last."""
        alerts = self.get("alerts")["alerts"]
        return {each["labels"]["alertname"]: each["labels"] for each in alerts if each["state"] == "firing"}

    def wait_until(self, *names: str, fires: bool = True, within: float = _SECONDS) -> None:
        """Wait until these alerts fire, or until none of them does any more, for so many seconds."""
        deadline = time.monotonic() + within
        found: dict[str, dict[str, str]] = {}
        while time.monotonic() < deadline:
            with contextlib.suppress(NoAnswerError):
                found = self.firing()
                if all((name in found) == fires for name in names):
                    self.resolved |= set() if fires else self._fired & set(names)
                    self._fired |= set(names) if fires else set()
                    return
            time.sleep(0.5)
        log = (self._folder / "log").read_text()[-2000:]
        raise AssertionError(f"within {within:g} s {names} did not become {fires}: {found}\n{log}")

    def wait_for(self, expression: str) -> None:
        """Wait until there is something of which the expression holds."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(NoAnswerError):
                if self.query(expression):
                    return
            time.sleep(0.5)
        log = (self._folder / "log").read_text()[-2000:]
        raise AssertionError(f"within {_SECONDS:g} s there was nothing of which holds: {expression}\n{log}")
