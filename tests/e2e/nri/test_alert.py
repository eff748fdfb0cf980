"""The alert of a plugin that is not asked, as a real Prometheus fires it, and as it ends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.e2e.nri.made import nri
from tests.e2e.program import WAITING, Installer
from tests.support import prometheus
from tests.support.engines.daemons import ContainerdEngine
from tests.support.prometheus import Prometheus

ALERT = "ToolkitPluginNotConnected"


@pytest.mark.skipif(bool(prometheus.missing()), reason="not installed: prometheus and promtool (Debian's prometheus)")
def test_the_alert_of_an_unused_plugin_fires_and_resolves_when_the_engine_returns(
    containerd: ContainerdEngine, installer: Installer, payload: Path, folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    run = installer.start(
        *("toolkit-installer", "run", "--enable-nri-plugin", "--nri-namespace", "gpu-operator"),
        *("--nri-socket", nri(containerd), "--metrics-address", address, "--log-format", "logfmt"),
        *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    )
    run.wait_for(WAITING)
    with Prometheus(folder / "prometheus", address) as watching:
        watching.wait_for("toolkit_installer_nri_connected == 1")
        containerd.shut_down()
        watching.wait_until(ALERT)
        containerd.start()
        watching.wait_until(ALERT, fires=False)
        assert ALERT in watching.resolved
    assert run.terminate() == 0, run.output
