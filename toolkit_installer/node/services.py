"""Units of the node's systemd, through the node's own systemctl. Never daemon-reload: running GPU pods lose devices."""

from __future__ import annotations

from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.programs import ProgramError, Programs


class Services:
    """The node's systemd."""

    def __init__(self, programs: Programs, calls: SystemCalls) -> None:
        self.programs = programs
        self.calls = calls

    def knows(self, unit: str) -> bool:
        """Tell whether systemd can be reached and has this unit loaded."""
        systemctl = self.programs.find("systemctl")
        if systemctl is None:
            return False
        try:
            shown = self.programs.run([systemctl, "show", "--property=LoadState", unit], seconds=10)
        except ProgramError:
            return False  # systemd cannot be reached: that is the answer
        return shown.status == 0 and shown.output.strip() == b"LoadState=loaded"

    def property(self, unit: str, name: str) -> str | None:
        """Return a unit's property, such as `Restart`, or None where systemd does not tell."""
        systemctl = self.programs.find("systemctl")
        if systemctl is None:
            return None
        try:
            shown = self.programs.run([systemctl, "show", f"--property={name}", unit], seconds=10)
        except ProgramError:
            return None
        text = shown.output.decode(errors="replace").strip()
        return text.removeprefix(f"{name}=") if shown.status == 0 and text else None

    def restart(self, unit: str, *, seconds: float) -> None:
        """Restart the unit and wait for it. Raises ProgramError with systemd's own words."""
        systemctl = self.programs.find("systemctl")
        if systemctl is None:
            raise ProgramError("the node has no systemctl", hint="use --restart-mode signal or none")
        command = [systemctl, "restart", unit]
        self.calls.restart_unit(command)
        done = self.programs.run(command, seconds=seconds)
        if done.status != 0:
            raise ProgramError(f"{' '.join(command)} ended with {done.status}: {done.errors}")
