"""Headless Chromium, driven over its debugging pipe with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
DEADLINE_S = 60.0

# The browser reads commands from descriptor 3 and writes responses to 4.
_LAUNCH = """
import fcntl, os, sys
pair = [fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3]]
for number, descriptor in zip((3, 4), pair):
    os.dup2(descriptor, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def executable() -> str | None:
    """The browser of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of one browser. What the page says on its console is in `complaints`."""

    def __init__(self, width: int, height: int) -> None:
        self._profile = tempfile.TemporaryDirectory(
            prefix="ottla-browser-", ignore_cleanup_errors=True
        )
        theirs, self._out = os.pipe()
        self._in, ours = os.pipe()
        program = executable()
        assert program is not None
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(theirs), str(ours), program,
             "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-dev-shm-usage", f"--user-data-dir={self._profile.name}",
             "--remote-debugging-pipe", "--force-color-profile=srgb", "about:blank"],
            pass_fds=(theirs, ours), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        self._rest = b""
        self._number = 0
        self.complaints: list[str] = []
        #: Every address that the page requested.
        self.addresses: list[str] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for name in ("Page.enable", "Runtime.enable", "Log.enable", "Network.enable"):
            self.call(name)
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to the page."""
        return self._call(method, parameters, self._session)

    def _call(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            response = self._read()
            if response.get("id") == self._number:
                assert "error" not in response, response["error"]
                result: dict[str, Any] = response["result"]
                return result
            self._note(response)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.addresses.append(parameters["request"]["url"])

    def resize(self, width: int, height: int) -> None:
        """As wide and high as a device."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self) -> str:
        """What a person can read on the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def wait_for(self, what: str | Callable[[], Any]) -> None:
        """Until a text is on the page, or a condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if (what in self.text()) if isinstance(what, str) else what():
                return
            time.sleep(0.1)
        raise AssertionError(f"{what!r} is not there; the page says:\n{self.text()[:3000]}")

    def color_scheme(self, name: str) -> None:
        """ "light" or "dark", as the device prefers."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str) -> None:
        """A key of the keyboard: "Tab", "Enter", "Escape", or a character."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, 0)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        """Text at the cursor."""
        self.call("Input.insertText", text=text)

    def focused(self) -> str:
        """The id of the element with the focus, else its text."""
        return str(
            self.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
        )

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
