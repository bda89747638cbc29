"""Reports an engine's cache, from a process of its own.

The engine puts changes into a bounded queue and never blocks. A thread hands them to another process, a tenth of a
millisecond's work at a time; that process keeps the mirror, writes the JSON and talks to the router. So the engine's
interpreter lock is never held for long, however large the cache is, and the garbage collector of the engine's process
has nothing of ours to walk through.

When the queue is full, changes are dropped and the router gets a snapshot instead. The mirror has missed the dropped
changes too, so it is filled from the engine (`snapshot`), or cleared where the engine has no such function.
"""

import collections
import logging
import os
import pathlib
import subprocess
import sys
import threading
import time

from . import pipe
from .mirror import Run

log = logging.getLogger("wornpath")

# Between two starts of a process that does not stay.
_RESTART_SECONDS = 5.0


class Reporter:
    """Reports one engine's cache.

    `snapshot`, if given, returns the engine's whole cache as `Run`s, a list or a generator; the reporter's thread calls it.
    `most` changes with `most_tokens` tokens wait at most, and `most_blocks` blocks are reported at most. `sync` is the
    time between snapshots that nobody asked for; by default the router asks when a digest differs from its index.
    """

    def __init__(
        self,
        router,
        pod,
        token=None,
        snapshot=None,
        *,
        flush=0.1,
        digest=1.0,
        sync=None,
        most=1 << 16,
        most_tokens=1 << 22,
        most_blocks=1 << 20,
    ):
        if not sys.executable:
            raise RuntimeError("no Python interpreter to start a process with: `sys.executable` is empty")
        self._options = {
            "router": router.rstrip("/"),
            "pod": pod,
            "token": token,
            "digest": digest,
            "sync": sync,
            "most_blocks": most_blocks,
        }
        self._flush, self._snapshot = flush, snapshot
        self._queue: collections.deque = collections.deque()
        self._most, self._most_tokens = most, most_tokens
        # Tokens that were ever put into the queue and taken from it: each is written by one thread only.
        self._put_tokens, self._taken_tokens = 0, 0
        self._is_lost = False
        self._process: subprocess.Popen | None = None
        self._pipe = -1
        self._start_at = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wornpath-sidecar", daemon=True)
        self._thread.start()

    # --- called by the engine, by one thread at a time; none of these blocks ---

    def stored(self, blocks, parent=None, tokens=(), block_size=0, tier="GPU", lora=None, salt=None) -> None:
        """Consecutive blocks were cached. Hashes are integers or bytes."""
        self._put(Run(tuple(blocks), parent, tuple(tokens), block_size, tier, lora, salt), len(tokens))

    def evicted(self, blocks, tier="GPU") -> None:
        """One copy of each block was evicted."""
        self._put((tier, tuple(blocks)), len(blocks))

    def cleared(self) -> None:
        """The whole cache was cleared."""
        self._put(None, 0)

    def close(self) -> None:
        """Reports the shutdown, and waits for the thread and its process to end."""
        self._ending.set()
        self._thread.join(timeout=10)

    def _put(self, change, tokens: int) -> None:
        # Appending to a deque takes no lock that the other thread could hold for long.
        waiting = self._put_tokens - self._taken_tokens
        if len(self._queue) < self._most and waiting + tokens <= self._most_tokens:
            self._put_tokens += tokens
            self._queue.append(change)
        else:
            self._is_lost = True

    # --- the reporter's own thread ---

    def _run(self) -> None:
        while not self._ending.wait(self._flush):
            self._try(self._hand_over)
        self._try(self._hand_over)
        self._end_process()

    def _try(self, step) -> None:
        try:
            step()
        except Exception as error:  # the sidecar must not crash the engine
            log.warning("wornpath sidecar: reporting failed: %s", error or type(error).__name__)
            self._is_lost = True
            self._end_process()

    def _hand_over(self) -> None:
        if not self._is_running():
            return
        frames = _Frames(self._pipe)
        if self._is_lost:
            # From here on changes count again; what waited is older than the snapshot.
            self._queue.clear()
            self._taken_tokens = self._put_tokens
            self._is_lost = False
            frames.add(("lost",))
            for run in self._snapshot() if self._snapshot else ():
                frames.add_all(pipe.stored(run))
            frames.add(("found",))
        while self._queue and not self._is_lost:
            change = self._queue.popleft()
            if change is None:
                frames.add(("cleared",))
            elif isinstance(change, Run):
                frames.add_all(pipe.stored(change))
                self._taken_tokens += len(change.tokens)
            else:
                frames.add_all(pipe.evicted(*change))
                self._taken_tokens += len(change[1])
        frames.flush()

    def _is_running(self) -> bool:
        """Whether there is a process; starts one, unless it is too early for another."""
        if self._process is not None and self._process.poll() is None:
            return True
        now = time.monotonic()
        if now < self._start_at:
            return False
        if self._process is not None:
            log.warning("wornpath sidecar: its process ended with status %s; starting another", self._process.returncode)
            self._end_process()
            self._is_lost = True
        self._start_at = now + _RESTART_SECONDS
        package = pathlib.Path(__file__).resolve().parents[2]
        paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wornpath.sidecar.poster"],
            stdin=subprocess.PIPE,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            # An interrupt from the terminal is the engine's to handle.
            start_new_session=True,
        )
        self._pipe = self._process.stdin.fileno() if self._process.stdin else -1
        pipe.write(self._pipe, self._options)
        return True

    def _end_process(self) -> None:
        """Closes the pipe: the process reports what it has and that the engine is gone, and ends."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Frames:
    """Collects events up to the weight of a frame, and writes them."""

    def __init__(self, fd: int):
        self._fd, self._weight = fd, 0
        self._events: list[tuple] = []

    def add(self, event: tuple) -> None:
        self._events.append(event)
        self._weight += pipe.weight(event)
        if self._weight >= pipe.FRAME_WEIGHT:
            self.flush()

    def add_all(self, events) -> None:
        for event in events:
            self.add(event)

    def flush(self) -> None:
        if self._events:
            pipe.write(self._fd, self._events)
            self._events, self._weight = [], 0
