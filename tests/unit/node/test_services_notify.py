"""What a service manager is told: nothing where none asks, and nothing stops the program where none listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from toolkit_installer.node import services


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_receives_that_the_service_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, abstract: bool
) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else name)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        services.report_ready("waiting")
        assert manager.recv(100) == b"READY=1\nSTATUS=waiting"


@pytest.mark.parametrize("address", [None, "", "vsock:2:1", "/no/such/socket"])
def test_where_nobody_listens_nothing_happens(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    services.report_ready("waiting")
