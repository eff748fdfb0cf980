"""A real Prometheus that scrapes one address, once a second, and evaluates the alerts without waiting for them."""

from __future__ import annotations

import contextlib
import json
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

from tests.support.manifests import FOLDER

PROGRAMS = ("prometheus", "promtool")
RULES = FOLDER / "overlays/prometheus-operator/rules.yaml"
DASHBOARD = FOLDER / "overlays/prometheus-operator/dashboard.json"
NODE = "a-node"
_GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
_MEANWHILE = "4s"
"""Stands for the ten minutes in which a run that fails was there at least once."""
_SECONDS = 90.0
"""A waiting run looks around every 30 s."""


def missing() -> list[str]:
    """Return which of the programs are not there."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def rules() -> dict[str, Any]:
    """Return the rules as Prometheus itself reads them."""
    found: dict[str, Any] = yaml.safe_load(RULES.read_text())["spec"]
    return found


def queries() -> list[str]:
    """Return the dashboard's queries."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


class Prometheus:
    """Scrapes `address` below `folder`; `within` stands in the rules for the hour that they look back.

    It runs in the network that `enter` leads into, and is asked there.
    """

    def __init__(self, folder: Path, address: str, within: str, enter: Sequence[str] = ()) -> None:
        folder.mkdir()
        self._folder, self._enter = folder, enter
        hasty = rules()
        for group in hasty["groups"]:
            del group["interval"]
            for rule in group["rules"]:
                rule.pop("for", None)
                rule["expr"] = rule["expr"].replace("[10m]", f"[{_MEANWHILE}]").replace("[1h]", f"[{within}]")
        (folder / "rules.yaml").write_text(yaml.safe_dump(hasty))
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
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API. Raises CalledProcessError where it does not answer."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        command = [*self._enter, sys.executable, "-I", "-c", _GET, url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what an expression is now: metrics with their values."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the labels of each alert that fires, by its name; of several, the last."""
        alerts = self.get("alerts")["alerts"]
        return {each["labels"]["alertname"]: each["labels"] for each in alerts if each["state"] == "firing"}

    def wait_until(self, *names: str, fires: bool = True) -> None:
        """Wait until these alerts fire, or until none of them does any more."""
        deadline = time.monotonic() + _SECONDS
        found: dict[str, dict[str, str]] = {}
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.CalledProcessError):
                found = self.firing()
                if all((name in found) == fires for name in names):
                    return
            time.sleep(0.5)
        log = (self._folder / "log").read_text()[-2000:]
        raise AssertionError(f"within {_SECONDS:g} s {names} did not become {fires}: {found}\n{log}")

    def wait_for(self, expression: str) -> None:
        """Wait until there is something of which the expression holds."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.CalledProcessError):
                if self.query(expression):
                    return
            time.sleep(0.5)
        log = (self._folder / "log").read_text()[-2000:]
        raise AssertionError(f"within {_SECONDS:g} s there was nothing of which holds: {expression}\n{log}")
