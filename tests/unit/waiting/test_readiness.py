"""What is said of a node whose engines do not serve what they are to serve, and how it stands then."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.kubernetes.node_state import ConditionReason
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.waiting import readiness, refresh_command
from toolkit_installer.waiting.plugin_protocol import PluginStatus
from toolkit_installer.waiting.readiness import EngineAnswers, ReadinessWatch

INSTALLED = Receipt(State.INSTALLED, "1", "/usr/local/nvidia/toolkit", (), (), "/run/toolkit.pid", (), ())
TWO = ("docker: the handler nvidia is missing", "containerd: connection refused")
WRONG = EngineAnswers(TWO, unserved=frozenset({"docker", "containerd"}))
HANGS = EngineAnswers(("docker: it did not answer in time",), silent=True, hangs=True)


class Asked:
    """A node whose engines give these answers, one after the other, and then the last one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: EngineAnswers) -> None:
        self.left = list(answers)
        self.ready_file = folder / "ready"
        self.seconds: list[float] = []
        self.reported: list[str] = []
        monkeypatch.setattr(readiness, "query_engines", self._ask)
        self.watch = ReadinessWatch(
            Node(str(folder)), ToolkitSettings(), str(self.ready_file), 60, checks_toolkit=True, reports=False
        )

    def _ask(self, _node: Node, _receipt: Receipt | None, seconds: float) -> EngineAnswers:
        self.seconds.append(seconds)
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def update(
        self,
        receipt: Receipt | None = INSTALLED,
        *,
        driver_missing: bool = False,
        pending: Pending | None = None,
    ) -> ConditionReason:
        report = lambda: self.reported.append(str(self.watch.current.state.reason))  # noqa: E731
        self.watch.update(receipt, driver_missing=driver_missing, pending=pending, report=report)
        return self.watch.current.state.reason


def test_all_that_is_wrong_is_said_in_one_line_and_the_ready_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    node = Asked(tmp_path, monkeypatch, EngineAnswers(), WRONG)
    assert node.update() is ConditionReason.SERVING
    assert node.ready_file.exists()
    assert "Not ready" not in logged.getvalue()
    assert node.update() is ConditionReason.DRIFT
    assert not node.ready_file.exists()
    (line,) = [each for each in logged.getvalue().splitlines() if "Not ready" in each]
    assert "event=not-ready-engine" in line
    assert f'why="{"; ".join(TWO)}"' in line
    assert node.watch.current.unserved == {"docker", "containerd"}
    assert node.watch.current.state.message == "; ".join(TWO)


@pytest.mark.parametrize(
    "receipt", [None, msgspec.structs.replace(INSTALLED, state=State.APPLYING)], ids=["no", "half"]
)
def test_a_node_that_is_not_installed_is_not_ready_even_if_no_engine_has_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO, receipt: Receipt | None
) -> None:
    node = Asked(tmp_path, monkeypatch, EngineAnswers())
    assert node.update(receipt) is ConditionReason.INSTALLING
    assert "event=not-ready-engine" in logged.getvalue()
    assert not node.ready_file.exists()


def test_where_something_else_is_waited_for_the_engines_are_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    node = Asked(tmp_path, monkeypatch, EngineAnswers())
    assert node.update(None, driver_missing=True) is ConditionReason.DRIVER_NOT_READY
    assert node.update(None, pending=Pending(("docker",), "it is closed", 0.0)) is ConditionReason.RELOAD_PENDING
    assert "not-ready-engine" not in logged.getvalue()
    assert logged.getvalue().count("event=not-ready-driver") == 1


def test_a_plugin_that_is_not_connected_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    node = Asked(tmp_path, monkeypatch, EngineAnswers())
    node.watch.set_plugin(PluginStatus(reason="nobody listens"))
    assert node.update() is ConditionReason.PLUGIN_DOWN
    assert 'event=not-ready-plugin why="nobody listens"' in logged.getvalue()


def test_an_engine_that_hangs_is_told_of_before_it_is_waited_for_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    node = Asked(tmp_path, monkeypatch, HANGS)
    assert node.update() is ConditionReason.ENGINE_DOWN
    assert (node.seconds, node.reported) == ([5.0, 55.0], ["EngineDown"])
    assert node.watch.must_poll
    assert logged.getvalue().count("event=not-ready-engine") == 1


def test_an_engine_that_hung_and_then_says_something_else_is_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    node = Asked(tmp_path, monkeypatch, HANGS, WRONG)
    assert node.update() is ConditionReason.DRIFT
    assert logged.getvalue().count("event=not-ready-engine") == 2
    assert "it did not answer in time" in logged.getvalue()
    assert "the handler nvidia is missing" in logged.getvalue().splitlines()[-1]


def test_an_engine_that_hung_and_then_serves_makes_the_node_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Asked(tmp_path, monkeypatch, HANGS, EngineAnswers())
    assert node.update() is ConditionReason.SERVING
    assert node.ready_file.exists()


def test_the_way_into_the_container_is_named_while_the_engine_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    monkeypatch.setattr(refresh_command, "status_without_engine", lambda: "nsenter -t 7")
    node = Asked(tmp_path, monkeypatch, EngineAnswers(("docker: it is not running",), silent=True, stopped=True))
    assert node.update() is ConditionReason.ENGINE_DOWN
    words = "on the node, `nsenter -t 7` works without the engine"
    assert node.watch.current.state.message == f"docker: it is not running; {words}"
    assert f'hint="{words}"' in logged.getvalue()
    served = Asked(tmp_path, monkeypatch, WRONG)
    assert served.update() is ConditionReason.DRIFT
    assert "nsenter" not in served.watch.current.state.message


def test_damage_names_the_command_that_repairs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_command, "of_self", lambda: "kubectl exec POD -- toolkit-installer refresh")
    node = Asked(tmp_path, monkeypatch, EngineAnswers())
    folder = tmp_path / INSTALLED.toolkit_folder[1:]
    folder.mkdir(parents=True)
    (folder / "nvidia-cdi-hook").touch()
    damaged = msgspec.structs.replace(INSTALLED, toolkit_files=("nvidia-ctk", "nvidia-cdi-hook"))
    assert node.update(damaged) is ConditionReason.DRIFT
    assert node.watch.current.damaged == 2
    assert node.watch.current.state.message == (
        "nvidia-ctk: missing; nvidia-cdi-hook: it is empty (`--on-drift repair` or `kubectl exec POD -- "
        "toolkit-installer refresh` puts the toolkit's files back)"
    )


def test_a_lost_receipt_is_told_as_that_and_not_as_a_node_to_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_command, "of_self", lambda: "kubectl exec POD -- toolkit-installer refresh")
    node = Asked(tmp_path, monkeypatch, EngineAnswers())
    assert node.update(None) is ConditionReason.INSTALLING
    config = tmp_path / "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("")
    assert node.update(None) is ConditionReason.DRIFT
    assert node.watch.current.state.message == (
        "there is no receipt of what is installed: `kubectl exec POD -- toolkit-installer refresh` rebuilds it"
    )
