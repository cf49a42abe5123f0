"""Headless Chromium as a reader of pages, driven over a pair of pipes: no package beside the browser is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.environments import CannotHaveError

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60


def program() -> str:
    """A Chromium of this machine, or `CannotHaveError`."""
    for name in (os.environ.get("SHOAL_CHROMIUM", ""), *PROGRAMS):
        if name and (found := shutil.which(name)):
            return found
    msg = f"none of {', '.join(PROGRAMS)} is installed, and SHOAL_CHROMIUM names none"
    raise CannotHaveError(msg)


class Browser:
    """One tab. Commands are those of the DevTools protocol; ``events`` are what the browser told meanwhile."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, os.fdopen(from_browser, "rb")
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        self._from.close()

    def look(self, page: Path | str, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Open a page, or an address, on a screen of this width, in a light or dark scheme; wait until it is there."""
        self.events.clear()
        phone = width < 600
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def evaluate(self, script: str) -> Any:
        """What a script in the page gives."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13}[key]
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
            if key == "Enter" and kind == "rawKeyDown":
                self._call("Input.dispatchKeyEvent", type="char", key=key, text="\r")

    def names(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader can tell."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        shown = [node for node in nodes if not node["ignored"]]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in shown]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._from.read1(1 << 20)
            assert more, "the browser went away"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a screen, with a profile of its own that goes with it."""
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads commands from descriptor 3 and answers on 4.
        arguments = ["--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
        arguments += ["--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb", "--disable-dev-shm-usage"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            arguments.append("--no-sandbox")  # which root cannot have
        shell = f'exec 3<&{from_us} 4>&{to_us}; exec "$0" "$@"'
        process = subprocess.Popen(
            ["/bin/bash", "-c", shell, program(), *arguments],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        try:
            with Browser(to_browser, from_browser) as tab:
                yield tab
        finally:
            process.terminate()
            process.wait(_SECONDS)
