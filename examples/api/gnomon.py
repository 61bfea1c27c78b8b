#!/usr/bin/env python3
"""A client of `gnomon api` (docs/api.md), and an example: the life of a VM.

    examples/api/gnomon.py target/debug/gnomon examples/linux.toml

Needs Python 3.9 and its standard library only.
"""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import sys
import threading
from typing import Any, Iterator

VERSION = 1


class Failure(Exception):
    """A request that failed. `code` is for programs, the text for people."""

    def __init__(self, code: str, message: str, remedy: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message} ({remedy})")
        self.code = code


class Request:
    """A request that was sent. Other requests go on meanwhile."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._end: dict[str, Any] | None = None

    def _next(self, timeout: float | None) -> dict[str, Any]:
        if self._end is None:
            try:
                line = self._lines.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"no line within {timeout} s") from None
            if "notification" in line:
                return line
            self._end = line
        return self._end

    def notifications(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Yields notifications until the request has ended. The timeout is for each."""
        while "notification" in (line := self._next(timeout)):
            yield line["notification"]

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits for the end of the request. Skips notifications that were not read."""
        for _ in self.notifications(timeout):
            pass
        assert self._end is not None
        if error := self._end.get("error"):
            raise Failure(error["code"], error["message"], error["remedy"])
        return self._end["result"]


class Gnomon:
    """A connection to a `gnomon api` process of its own."""

    def __init__(self, program: str = "gnomon") -> None:
        self._process = subprocess.Popen([program, "api"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._requests: dict[int, Request] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        assert self._process.stdout is not None
        greeting = json.loads(self._process.stdout.readline() or "{}")
        if greeting.get("version") != VERSION:
            raise Failure("version", f"{program} does not speak version {VERSION} of the API: {greeting}")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            with self._lock:
                is_end = "notification" not in line
                request = self._requests.pop(line["id"], None) if is_end else self._requests.get(line["id"])
            if request is not None:
                request._lines.put(line)
        gone = {"error": {"code": "gone", "message": "gnomon api has ended", "remedy": None}}
        with self._lock:
            requests, self._requests = self._requests, {}
        for request in requests.values():
            request._lines.put(gone)

    def send(self, method: str, **params: Any) -> Request:
        """Sends a request, and does not wait."""
        assert self._process.stdin is not None
        with self._lock:
            request = Request(next(self._numbers))
            self._requests[request.number] = request
            line = json.dumps({"id": request.number, "method": method, "params": params})
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return request

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a request, and waits for its result."""
        return self.send(method, **params).result()

    def __enter__(self) -> Gnomon:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(program: str, args: list[str]) -> None:
    """Starts a run in the background, and follows its VM from its start to its end."""
    with Gnomon(program) as gnomon:
        run = gnomon.call("run", args=args)["run"]
        print(f"run {run} has started", flush=True)
        events = gnomon.send("subscribe", run=run).notifications(timeout=60)
        # Events come from the start of the run on, so none is missed.
        vm = next(event["vm"] for event in events if event["event"] == "vm-running")
        gnomon.call("pause", run=run, vm=vm)
        print(next(event["event"] for event in events if event["event"] == "vm-paused"))
        try:
            gnomon.call("shutdown", run=run, vm=vm)
        except Failure as failure:
            print(f"{failure.code}: a paused VM cannot be asked")
        gnomon.call("resume", run=run, vm=vm)
        print(next(event["event"] for event in events if event["event"] == "vm-resumed"))
        gnomon.call("shutdown", run=run, vm=vm)
        ended = next(event for event in events if event["event"] == "run-ended")
        print(f"run {run} has ended with status {ended['status']}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
