"""Debian's Chromium without a window, asked over a pair of pipes (the DevTools protocol), so that no port is needed.

    with chromium(folder) as browser:
        browser.open(url, width=360, height=800)
        browser.in_view("#ready")
        browser.screenshot(path)

Pages run no scripts, as with a user who has turned them off; questions about the page are asked from outside of it.
"""

import base64
import json
import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import HANG_S_MAX

ARGUMENTS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
)

_IN_VIEW = """(() => {
    const element = document.querySelector(SELECTOR);
    if (!element) return null;
    const box = element.getBoundingClientRect();
    const inside = box.width > 0 && box.height > 0 && box.top >= 0 && box.left >= 0
        && box.right <= innerWidth && box.bottom <= innerHeight;
    const at = document.elementFromPoint(box.left + 1, box.top + box.height / 2);
    return inside && at && (element.contains(at) || at.contains(element)) ? element.innerText : null;
})()"""


class Browser:
    """One tab."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self._write_to, self._read_from = write_to, read_from
        self._received = b""
        self._number = 0
        self._events: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = None
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask("Page.enable")
        self._ask("Emulation.setScriptExecutionDisabled", value=True)

    def open(self, url: str, *, width: int, height: int) -> None:
        """Load a page in a window of this size."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._events.clear()
        answer = self._ask("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        while "Page.loadEventFired" not in self._events:
            self._take(self._read())

    def in_view(self, selector: str) -> str | None:
        """The text of an element that can be seen whole without scrolling; None if it cannot."""
        text = self._evaluate(_IN_VIEW.replace("SELECTOR", json.dumps(selector)))
        return None if text is None else str(text)

    @property
    def is_wider_than_its_window(self) -> bool:
        return bool(self._evaluate("document.documentElement.scrollWidth > innerWidth"))

    def screenshot(self, path: Path) -> None:
        """What can be seen without scrolling."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))

    def _evaluate(self, expression: str) -> Any:
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _ask(self, method: str, **params: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if getattr(self, "_session", None) is not None:
            message["sessionId"] = self._session
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._take(answer)

    def _take(self, event: dict[str, Any]) -> None:
        self._events.append(event.get("method", ""))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            assert select.select([self._read_from], [], [], HANG_S_MAX)[0], "Chromium says nothing"
            received = os.read(self._read_from, 1 << 20)
            assert received, "Chromium has ended"
            self._received += received
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in `folder`, until the block ends."""
    its_input, write_to = os.pipe()
    read_from, its_output = os.pipe()
    # It reads from 3 and writes to 4; the shell renames whatever numbers the pipes have here.
    command = f'exec "$@" 3<&{its_input} 4>&{its_output}'
    arguments = ["chromium", *ARGUMENTS, f"--user-data-dir={folder / 'chromium'}"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", command, "chromium", *arguments],
            pass_fds=(its_input, its_output),
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
        )
    os.close(its_input)
    os.close(its_output)
    try:
        yield Browser(write_to, read_from)
    finally:
        os.close(write_to)
        os.close(read_from)
        process.terminate()
        process.wait(HANG_S_MAX)
