"""Why a run has to wait before it can converge: no GPU, no driver, no allowed reload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from toolkit_installer.applying.reload_gate import ReloadGate, ReloadPendingError
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.errors import ConfigurationError, DriverNotReadyError, InstallerError
from toolkit_installer.node import idling
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.run.converge import Converger, MissingDriver, RunContext
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.waiting.node_watch import DriverWatch, GpuWatch

INSTALL_DIR = "/usr/local/nvidia"
INSTALLED = Receipt(State.INSTALLED, "1", f"{INSTALL_DIR}/toolkit", (), (), "/run/toolkit.pid", (), ())
HALF_DONE = msgspec.structs.replace(INSTALLED, state=State.APPLYING)
NO_DRIVER = DriverNotReadyError("nvidia-smi is missing")
CLOSED = ReloadPendingError("it is outside of 02:00-04:00")
PENDING = Pending(("docker",), "it is outside of 02:00-04:00", 1.0)


class Attempts:
    """A converger whose plans fail with these errors, in turn; it notes what it does."""

    def __init__(
        self, folder: Path, missing_driver: MissingDriver, receipt: Receipt | None, *errors: Exception
    ) -> None:
        self.errors = list(errors)
        self.waited = 0
        self.begun: list[Receipt | None] = []
        node = Node(str(folder))
        store = ReceiptStore(node, INSTALL_DIR)
        if receipt is not None:
            store.prepare()
            store.save(receipt, {})
        self.pid_file = PidFile.acquire(node.files, "/x.pid")
        context = RunContext(node, store, self.pid_file, SignalCollector(), INSTALL_DIR)
        toolkit = ToolkitSettings()
        gate, driver = ReloadGate("02:00-04:00", node), DriverWatch(node, toolkit)
        gpus = GpuWatch(node, toolkit, may_idle=False)
        self.converger = Converger(context, self._prepare, gate, driver, gpus, missing_driver, self._wait)

    def _prepare(self, _receipt: Receipt | None) -> NoReturn:
        raise self.errors.pop(0)

    def _wait(self) -> None:
        self.waited += 1

    def converge(self) -> InstallerError | None:
        return self.converger.converge(self.begun.append)


@pytest.fixture
def made(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Attempts]:
    attempts = Attempts(tmp_path, *request.param)
    yield attempts
    attempts.pid_file.release()


@pytest.mark.parametrize(
    "made",
    [
        (MissingDriver.IDLE, None, NO_DRIVER),
        (MissingDriver.IDLE, INSTALLED, NO_DRIVER),
        (MissingDriver.IDLE_UNLESS_INSTALLED, None, NO_DRIVER),
        (MissingDriver.IDLE_UNLESS_INSTALLED, HALF_DONE, NO_DRIVER),
    ],
    indirect=True,
)
def test_a_missing_driver_defers_the_change_of_a_run_that_idles(made: Attempts) -> None:
    assert made.converge() is NO_DRIVER
    assert made.converger.driver_missing
    assert made.converger.must_poll
    assert not made.converger.is_complete
    assert made.waited == 0


@pytest.mark.parametrize(
    "made",
    [(MissingDriver.END, None, NO_DRIVER), (MissingDriver.IDLE_UNLESS_INSTALLED, INSTALLED, NO_DRIVER)],
    indirect=True,
)
def test_a_missing_driver_is_an_error_of_any_other_run(made: Attempts) -> None:
    with pytest.raises(DriverNotReadyError):
        made.converge()


@pytest.mark.parametrize(
    "made", [(MissingDriver.BLOCK, None, NO_DRIVER, ConfigurationError("the second attempt"))], indirect=True
)
def test_a_run_that_blocks_waits_for_the_driver_and_tries_once_more(made: Attempts) -> None:
    with pytest.raises(ConfigurationError, match="the second attempt"):
        made.converge()
    assert made.waited == 1
    assert made.begun == [None]


@pytest.mark.parametrize("made", [(MissingDriver.END, INSTALLED, CLOSED)], indirect=True)
def test_a_reload_that_is_not_allowed_defers_the_change(made: Attempts) -> None:
    assert made.converge() is CLOSED
    assert made.begun == [INSTALLED]


@pytest.mark.parametrize("made", [(MissingDriver.END, None)], indirect=True)
def test_a_pending_reload_is_known_again_after_the_sleep_and_an_engine_may_end_it(made: Attempts) -> None:
    made.converger.restore(SavedState(pending=PENDING))
    assert made.converger.pending == PENDING
    assert not made.converger.is_complete
    assert made.converger.must_converge_after({idling.ENGINE})
    assert not made.converger.must_converge_after({idling.DRIFT})


@pytest.mark.parametrize("made", [(MissingDriver.END, None)], indirect=True)
def test_on_a_node_without_a_gpu_every_event_may_be_the_gpu(made: Attempts) -> None:
    made.converger.restore(SavedState(without_gpu=True))
    assert made.converger.without_gpu
    assert made.converger.must_converge_after({idling.DRIFT})
