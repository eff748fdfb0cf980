"""What the run and the plugin's process send each other, also if they are of different releases."""

from __future__ import annotations

import pytest

from toolkit_installer.settings import LogFormat, NriSettings, Settings
from toolkit_installer.waiting import plugin_protocol
from toolkit_installer.waiting.plugin_protocol import PluginStatus


@pytest.mark.parametrize("strict", [True, False])
def test_settings_survive_the_command_line(*, strict: bool) -> None:
    settings, nri = Settings(log_format=LogFormat.JSON), NriSettings(("gpu-operator", "b c"), index=7, strict=strict)
    sent = plugin_protocol.build_settings(settings, nri, "/host")
    assert plugin_protocol.parse_settings(plugin_protocol.pack_settings(sent)) == sent
    assert (sent.root, sent.place, sent.namespaces, sent.log_format) == ("/host", 7, ("gpu-operator", "b c"), "json")
    assert (sent.lenient, bool(sent.kinds)) == (not strict, strict)


@pytest.mark.parametrize("status", [PluginStatus(), PluginStatus(True, "containerd v2.1.4", "", True)])  # noqa: FBT003  # fields of a tuple
def test_a_status_survives_the_packet(status: PluginStatus) -> None:
    assert plugin_protocol.parse_packet(plugin_protocol.pack_status(status)) == status


@pytest.mark.parametrize("packet", [b"{}", b"[]", b'[true, "containerd", ""]', b'[1, "", "", false]', b'"connected"'])
def test_a_packet_of_another_release_is_no_connection(packet: bytes) -> None:
    status = plugin_protocol.parse_packet(packet)
    assert (status.connected, status.reason) == (False, "its process is of another release")
