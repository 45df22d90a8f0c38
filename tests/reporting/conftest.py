"""A browser without a screen, spoken to through a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """Chromium, told what to do in the DevTools protocol: JSON texts that end with a zero byte."""

    def __init__(self, program: str, profile: Path) -> None:
        # 3 and 4 are the browser's numbers; ours must not be the same when they are put there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (*os.pipe(), *os.pipe())]
        theirs_in, ours_out, ours_in, theirs_out = ends

        def connect() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self._process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                f"--user-data-dir={profile}",
                "--remote-debugging-pipe",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self._number = 0
        self._session = ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.send("Page.enable")
        self.send("Network.enable")
        self.requests: list[str] = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command; requests that come by are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._in.read(1)) not in (b"\0", b""):
            text += byte
        if not text:
            raise RuntimeError("the browser went away")
        event = json.loads(text)
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        return event

    def open(self, page: Path, *, width: int, height: int, scheme: str = "light") -> None:
        """Load a page on a screen of so many pixels."""
        mobile = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        self.requests.clear()
        self.send("Page.navigate", url=page.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, script: str) -> Any:
        """Return what a JavaScript expression gives in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of what is on the screen, or of the whole page."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser."""
        try:
            self._session = ""
            self.send("Browser.close")
        except (RuntimeError, BrokenPipeError):
            self._process.terminate()
        self._process.wait(20)
        self._out.close()
        self._in.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"there is no browser here: none of {', '.join(_NAMES)}")
    started = Browser(program, tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.fixture
def attributes() -> Callable[[str, str], list[str]]:
    """``attributes(html, name)``: the values of all attributes of that name."""
    from html.parser import HTMLParser

    def collect(html: str, name: str) -> list[str]:
        found: list[str] = []

        class Parser(HTMLParser):
            def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
                found.extend(value or "" for key, value in attrs if key == name)

        Parser().feed(html)
        return found

    return collect
