"""A headless Chromium, driven over pipes by the DevTools protocol: no driver and no library is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page in a browser of its own.

    Args:
        profile: A folder for the browser's files.
        width: Width of the page in pixels.
        dark: Whether the system asks for dark pages.
    """

    def __init__(self, profile: Path, width: int = 1280, *, dark: bool = False) -> None:
        (commands, self._write), (self._read, events) = os.pipe(), os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        quiet = ["--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync"]
        # The protocol is read from descriptor 3 and written to 4.
        script = f"import os, sys; os.dup2({commands}, 30); os.dup2({events}, 31); os.dup2(30, 3); os.dup2(31, 4); "
        script += "os.set_inheritable(3, True); os.set_inheritable(4, True); os.execv(sys.argv[1], sys.argv[1:])"
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-c",
                script,
                CHROMIUM,
                *options,
                *quiet,
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
            ],
            pass_fds=(commands, events),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self._rest, self._count, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.set_width(width)
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result; events that arrive in between are stored."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("The browser has ended.")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def set_width(self, width: int, height: int = 900) -> None:
        """Sets the size of the page."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def open(self, address: str) -> list[str]:
        """Opens a page, waits until it is loaded, and returns what went wrong."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        self.wait_for("document.readyState == 'complete'")
        return self.errors()

    def errors(self) -> list[str]:
        """What the console and the network reported as errors since the page was opened."""
        found = []
        for event in self.events:
            method, given = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(given["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
                found.append(json.dumps(given["args"]))
            elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                found.append(given["entry"]["text"] + " " + given["entry"].get("url", ""))
            elif method == "Network.loadingFailed" and not given.get("canceled"):
                found.append(given["errorText"])
        return found

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        sent = (event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [each["request"]["url"] for each in sent]

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 20.0) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"!!({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.05)
