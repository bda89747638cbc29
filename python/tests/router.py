"""The real program for tests: `WORNPATH_BINARY`, or the debug build of this repository."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("WORNPATH_BINARY", str(ROOT / "target/debug/wornpath"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(holds, what: str, seconds: float = 30) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


class Process:
    """A `wornpath` command in a folder of its own, until it printed what says that it is ready."""

    def __init__(self, *arguments: str, ready: str, folder: str | None = None):
        self._scratch = tempfile.TemporaryDirectory(prefix="wornpath-test-")
        command = [os.environ["WORNPATH_BINARY"], *arguments]
        self._process = subprocess.Popen(
            command, cwd=folder or self._scratch.name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(re.compile(ready),), daemon=True)
        self._reader.start()
        if not self._ready.wait(60) or self._process.poll() is not None:
            self.stop()
            raise AssertionError(f"{' '.join(command)} is not ready; it printed:\n{''.join(self.lines)}")

    def _read(self, ready) -> None:
        for line in self._process.stdout:
            self.lines.append(line)
            if ready.search(line):
                self._ready.set()
        self._ready.set()

    def stop(self) -> int:
        self._process.terminate()
        try:
            status = self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._scratch.cleanup()
        return status
