"""A real browser, Debian's chromium, told what to do over a pipe: no port is opened, and no driver installed.

The messages are JSON that a zero byte ends, on descriptors 3 and 4 of the browser (`--remote-debugging-pipe`); what
they say is the Chrome DevTools Protocol.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

PROGRAM = "chromium"
_SECONDS = 60
"""So long an answer may take."""


class Browser:
    """One that has a page open. What the page said wrong is in `complaints`."""

    def __init__(self, folder: Path) -> None:
        """Start it; `folder` is for what it writes."""
        program = shutil.which(PROGRAM)
        if program is None:
            raise FileNotFoundError(PROGRAM)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        command = [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"),
            *(f"--user-data-dir={folder}", "--window-size=1200,900", "about:blank"),
        ]
        # the pipe's ends have the numbers that the browser looks at
        wired = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command]
        self._process = subprocess.Popen(
            wired, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        self._number = 0
        self._got = b""
        self.complaints: list[str] = []
        pages = [each for each in self._do("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        attached = self._do("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, file: Path, said: str = "") -> None:
        """Open a file, with what is to stand behind it in the address, and wait until it is loaded."""
        self.do("Page.navigate", url="about:blank")
        self.do("Page.navigate", url=file.as_uri() + said)
        while self.value("document.readyState") != "complete" or self.value("location.protocol") != "file:":
            pass

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def type(self, element: str, text: str) -> None:
        """Type into what a selector finds."""
        self.value(f"document.querySelector({json.dumps(element)}).focus()")
        self.do("Input.insertText", text=text)

    def click(self, element: str) -> None:
        """Click with a mouse on what a selector finds, which is brought into view."""
        place = self.value(
            f"(() => {{ const element = document.querySelector({json.dumps(element)});"
            "element.scrollIntoView({block: 'center'}); const box = element.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def prefer(self, scheme: str) -> None:
        """Have the page believe that its reader prefers `light` or `dark`."""
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self) -> bytes:
        """Return what is seen now, as PNG."""
        return base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"])

    def do(self, method: str, **parameters: Any) -> Any:
        """Have the page do something, and return its answer."""
        return self._do(method, **parameters)

    def _do(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self) -> Any:
        while b"\0" not in self._got:
            if not select.select([self._from], [], [], _SECONDS)[0]:
                raise TimeoutError(f"{PROGRAM} does not answer")
            piece = os.read(self._from, 1 << 16)
            if not piece:
                raise ConnectionError(f"{PROGRAM} has ended")
            self._got += piece
        first, _, self._got = self._got.partition(b"\0")
        return json.loads(first)

    def _note(self, event: Any) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(said["entry"]["text"])
