"""The CDI specification for management containers, made by the payload's own nvidia-ctk. Reads, but for device nodes.

It names all device nodes of the driver and all of its files, where the node has them: what containers of the GPU
Operator ask for as `management.nvidia.com/gpu=all`. What is run, and with what, is what NVIDIA's own installer does by
its library (generateCDISpec in cmd/nvidia-ctk-installer/toolkit/toolkit.go of nvidia-container-toolkit 1.19).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from toolkit_installer import log
from toolkit_installer.driver.roots import Driver
from toolkit_installer.errors import DriverNotReadyError, PayloadError
from toolkit_installer.node import root
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.programs import Completed, ProgramError, ProgramTimeoutError, run
from toolkit_installer.node.reading import Tree
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.payload import CDI_HOOK, CTK, Payload

CONTROL_NODES = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
"""The device nodes that belong to no GPU (CreateNVIDIAControlDevices in pkg/system/nvdevices of the toolkit)."""

_SECONDS = 120.0
"""Without a persistence daemon NVML initialises every GPU first, which takes seconds for each."""
_NO_NODES = "no NVIDIA device nodes found"
"""What the generator says where there is none, 1.17 to 1.20."""
_NOT_WRITTEN = "failed to write"
"""What the generator's reason begins with where it found the driver, and could not write its file, 1.17 to 1.20."""
_ERROR = r'(?m)level=error msg="((?:[^"\\]|\\.)*)"|^(panic: .*)$'
_LONGEST_SAID = 400
_LAST_LINES = 3
_HINT = (
    "the driver's libraries and device nodes must be seen from here: --driver-root-ctr-path and "
    "--dev-root-ctr-path say where; --wait-for-driver waits; without --cdi-enabled no specification is generated"
)


class Generator:
    """Makes the specification for a driver, with the nvidia-ctk of `payload`."""

    def __init__(self, payload: Payload, settings: ToolkitSettings, driver: Driver) -> None:
        """Raise PayloadError where the payload lacks what is run, now or by the specification."""
        programs = dict(payload.programs)
        missing = [name for name in (CTK, CDI_HOOK) if name not in programs]
        if missing:
            raise PayloadError(
                f"the payload has no {' and no '.join(missing)}, which a CDI specification needs",
                path=payload.root,
                hint="use a payload of 1.17 or later, or run without --cdi-enabled",
            )
        self._program = Tree(payload.root).outside(programs[CTK])
        self._settings = settings
        self._driver = driver
        # as the generator sees them: what it finds bears no name of a symlink's
        self._root = root.real(driver.seen_at)
        self._dev_root = root.real(driver.dev_seen_at)

    @property
    def asked(self) -> str:
        """What tells the specification that it makes from others, in one line."""
        cdi = self._settings.cdi
        places = (self._settings.folder, self._root, self._driver.root, self._dev_root, self._driver.dev_root)
        return " ".join((cdi.kind, *places, f"control_nodes={cdi.control_nodes}"))

    def missing_nodes(self) -> tuple[str, ...]:
        """Return the control device nodes that are to be created, as they are seen from here.

        Raises DriverNotReadyError where they could not be: the driver's kernel modules are not loaded.
        """
        if not self._settings.cdi.control_nodes:
            return ()
        places = [posixpath.join(self._dev_root, "dev", name) for name in CONTROL_NODES]
        missing = tuple(place for place in places if not root.leads_somewhere(place))
        if missing:
            folder = posixpath.join(self._dev_root, "dev")
            if not root.is_folder(folder):  # a dry run does not look for it
                raise DriverNotReadyError(
                    f"the driver's device nodes cannot be created: there is no folder {folder}", hint=_HINT
                )
            self._require(self._run([*self._creating(), "--dry-run"]), "the driver's device nodes cannot be created")
        return missing

    def create_nodes(self, calls: SystemCalls) -> None:
        """Create the control device nodes that are missing. They stay: the driver's own tools create them as well.

        Raises DriverNotReadyError, ProgramError.
        """
        calls.make_device_nodes([self._program, *self._creating()])
        self._require(self._run(self._creating()), "the driver's device nodes cannot be created")
        left = self.missing_nodes()
        if left:
            raise DriverNotReadyError(f"{CTK} did not create the driver's device nodes {', '.join(left)}", hint=_HINT)
        log.get().info(
            "Created the driver's control device nodes",
            key="device-nodes-created",
            folder=posixpath.join(self._dev_root, "dev"),
        )

    def specification(self, *, nodes_to_come: bool = False) -> bytes | None:
        """Return the specification as YAML, with the node's paths.

        With `nodes_to_come`, None where only device nodes are missing. Raises DriverNotReadyError, PayloadError.
        """
        cdi = self._settings.cdi
        vendor, _, name = cdi.kind.partition("/")
        hook = posixpath.join(self._settings.folder, CDI_HOOK)
        made = self._run(
            [
                *("cdi", "generate", "--mode=management", "--format=yaml", f"--vendor={vendor}", f"--class={name}"),
                *(f"--driver-root={self._root}", f"--dev-root={self._dev_root}", f"--nvidia-cdi-hook-path={hook}"),
            ]
        )
        if nodes_to_come and made.status != 0 and _NO_NODES in made.errors:
            return None
        self._require(made, f"no CDI specification can be generated for the driver in {self._root}")
        text = made.output
        places = [(self._root, self._driver.root)]
        if self._driver.dev_root != self._driver.root:
            places.insert(0, (posixpath.join(self._dev_root, "dev"), posixpath.join(self._driver.dev_root, "dev")))
        # each becomes the other, in this order: NewDriverTransformer in pkg/nvcdi/transform/root of the toolkit
        for here, there in ((here, there) for here, there in places if here != there):
            done = self._run(["cdi", "transform", "root", f"--from={here}", f"--to={there}"], given=text)
            if done.status != 0:
                raise self._failed(done)
            text = done.output
        if f"\nkind: {cdi.kind}\n".encode() not in text or hook.encode() not in text:
            raise PayloadError(
                f"its CDI specification is none of {cdi.kind} that runs {hook}: {text[:_LONGEST_SAID]!r}",
                path=self._program,
                hint="use a payload of 1.17 or later, or run without --cdi-enabled",
            )
        return text

    def _creating(self) -> list[str]:
        return ["system", "create-device-nodes", "--control-devices", f"--dev-root={self._dev_root}"]

    def _run(self, arguments: Sequence[str], given: bytes = b"") -> Completed:
        """Run nvidia-ctk. Raises PayloadError where it does not run here, DriverNotReadyError where it hangs."""
        try:
            return run([self._program, "--quiet", *arguments], seconds=_SECONDS, given=given)
        except ProgramTimeoutError as error:
            raise DriverNotReadyError(f"the driver does not answer: {error.reason}", hint=_HINT) from error
        except ProgramError as error:
            raise PayloadError(error.reason, path=self._program, hint="use a payload for this system") from error

    def _require(self, done: Completed, what: str) -> None:
        """Raise DriverNotReadyError, or PayloadError where the driver is not the reason, unless it ended well."""
        if done.status == 0:
            return
        failure = self._failed(done)
        if _reason(done.errors).startswith(_NOT_WRITTEN):
            raise failure
        raise DriverNotReadyError(f"{what}: {failure.reason}", hint=_HINT)

    def _failed(self, done: Completed) -> PayloadError:
        """Return the error that reports a failure of nvidia-ctk in its own words."""
        return PayloadError(
            f"{CTK} ends with {done.status}: {_reason(done.errors) or 'it says nothing'}",
            path=self._program,
            hint="remove the cause that it names; if it cannot write: mount a writable folder at /tmp, such as an "
            "emptyDir",
        )


def _reason(errors: str) -> str:
    """Return why nvidia-ctk failed, from what it printed: its last error, else its last lines."""
    said = ["".join(found) for found in re.findall(_ERROR, errors)]
    last = "; ".join(errors.splitlines()[-_LAST_LINES:])
    words = said[-1].replace("\\n", "; ").replace('\\"', '"') if said else last
    return words if len(words) <= _LONGEST_SAID else f"…{words[-_LONGEST_SAID:]}"
