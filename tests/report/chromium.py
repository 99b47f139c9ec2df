"""A headless browser over the DevTools protocol, by pipe: no port, no extra package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_PATIENCE_S = 60.0


def executable() -> str | None:
    """Path of the browser; None where there is none."""
    return next((path for path in map(shutil.which, _NAMES) if path), None)


@dataclass
class Page:
    """One page, with everything that it asked for or complained about."""

    pid: int
    reader: int
    writer: int
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _buffer: bytes = b""
    _last: int = 0
    _session: str = ""
    _loaded: bool = False

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        answer = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = answer["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, file: Path) -> None:
        self._loaded = False
        self.call("Page.navigate", url=file.resolve().as_uri())
        deadline = time.monotonic() + _PATIENCE_S
        while not self._loaded:
            self._take(deadline)
        self.evaluate("new Promise(done => setTimeout(done, 200))")

    def evaluate(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        return answer["result"].get("value")

    def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {
            "name": "prefers-color-scheme",
            "value": "dark" if dark else "light",
        }
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def pdf(self) -> bytes:
        answer = self.call("Page.printToPDF", preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            answer = self._take(deadline)
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _take(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.reader], [], [], left)[0]
            assert ready, "the browser does not answer"
            data = os.read(self.reader, 1 << 20)
            assert data, "the browser has gone"
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A page of a fresh browser with an empty profile; the browser ends with it."""
    found = executable()
    assert found is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        page = _start(found, profile)
        try:
            page.attach()
            yield page
        finally:
            _stop(page)


def _start(found: str, profile: str) -> Page:
    commands, ours_out = os.pipe()
    ours_in, events = os.pipe()
    # High numbers, so that neither end is in the way of 3 and 4.
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64) for end in (commands, events)]
    pid = os.posix_spawn(
        found,
        [found, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, high[0], 3),
            (os.POSIX_SPAWN_DUP2, high[1], 4),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
    )
    for end in (commands, events, *high):
        os.close(end)
    return Page(pid=pid, reader=ours_in, writer=ours_out)


def _stop(page: Page) -> None:
    os.close(page.writer)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if os.waitpid(page.pid, os.WNOHANG)[0]:
            break
        time.sleep(0.05)
    else:
        os.kill(page.pid, signal.SIGKILL)
        os.waitpid(page.pid, 0)
    os.close(page.reader)
