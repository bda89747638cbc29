"""The process that reports an engine's cache: reads changes from a pipe, keeps the mirror, and posts to the router.

It ends when the pipe does, however the engine ended, and then reports that the engine is gone.
"""

import json
import logging
import os
import queue
import sys
import threading
import time
import urllib.error
import urllib.request

from . import pipe
from .mirror import Held, Mirror, parts, runs

log = logging.getLogger("wornpath")

# A post of the router's may have 32 MiB. Smaller ones keep the memory of both ends small.
POST_BYTES = 4 << 20
# Frames that wait while a post is on its way.
_MOST_FRAMES = 1024
# How long it waits for a frame, and how long it collects frames for one post.
_IDLE_SECONDS, _SEND_SECONDS = 0.02, 0.02


class Poster:
    """Posts the changes that `take` yields: lists of events, an empty one if there is none now, None at the end."""

    def __init__(self, take, router, pod, token, digest, sync, most_blocks):
        self._take, self._router, self._pod, self._token = take, router, pod, token
        self._digest_every, self._sync_every = digest, sync
        self._mirror, self._sequence = Mirror(most_blocks), 0
        # The epoch: a later process has a larger one.
        self._epoch = time.time_ns() // 1_000_000
        self._wants_sync, self._is_filling = True, False
        self._stored: list[Held] = []
        self._evicted: dict[str, list[int]] = {}
        # A snapshot of a large cache takes seconds, in which changes wait: another one waits for as long as the last one took.
        self._sync_from = 0.0
        # Backoff while the router is unreachable.
        self._failures, self._quiet_until = 0, 0.0
        self._has_refused = False

    def run(self) -> None:
        due = {"digest": 0.0, "sync": 0.0 if self._sync_every else float("inf")}
        self._post("register", {})
        send_at = 0.0
        while (events := self._take()) is not None:
            for event in events:
                self._apply(event)
            now = time.monotonic()
            if not events or now >= send_at:
                self._send()
                send_at = now + _SEND_SECONDS
            self._step(due, now)
        self._send()
        self._post("bye", {})

    def _apply(self, event: tuple) -> None:
        what = event[0]
        if what == "stored":
            if self._evicted:
                self._send()
            stored = self._mirror.store(pipe.run_of(event))
            if not self._is_filling:
                self._stored += stored
            self._note_refused()
        elif what == "evicted":
            if self._stored:
                self._send()
            self._evicted.setdefault(event[1], []).extend(self._mirror.evict(event[1], event[2]))
        elif what == "found":
            self._is_filling, self._wants_sync = False, True
        else:
            self._stored.clear()
            self._evicted.clear()
            self._mirror.clear()
            self._is_filling, self._wants_sync = what == "lost", True

    def _note_refused(self) -> None:
        if self._mirror.refused and not self._has_refused:
            self._has_refused = True
            log.warning("wornpath sidecar: the engine reports more than %s blocks; the rest is not reported", len(self._mirror))

    def _step(self, due, now) -> None:
        if now < self._quiet_until or self._is_filling:
            return
        if now >= self._sync_from and (self._wants_sync or now >= due["sync"]):
            self._send()
            start = time.monotonic()
            self._sync()
            end = time.monotonic()
            self._sync_from = 2 * end - start
            due["sync"] = now + (self._sync_every or float("inf"))
            due["digest"] = now + self._digest_every
        elif now >= due["digest"]:
            self._send()
            self._post("digest", self._numbered({"tiers": self._mirror.digest()}, self._sequence - 1))
            due["digest"] = now + self._digest_every

    def _send(self) -> None:
        """Posts the changes since the last time, in order; consecutive ones of one kind share posts."""
        stored, self._stored = self._stored, []
        for part in parts(stored, POST_BYTES) if stored else ():
            self._post_numbered("stored", {"stored": list(runs(part))})
        evicted, self._evicted = self._evicted, {}
        most = POST_BYTES // 21
        for tier, names in evicted.items():
            for at in range(0, len(names), most):
                self._post_numbered("evicted", {"evicted": names[at : at + most], "tier": tier})

    def _post_numbered(self, path, body) -> None:
        """Posts a numbered batch; if that fails, a snapshot follows."""
        is_quiet = time.monotonic() < self._quiet_until
        if is_quiet or not self._post(path, self._numbered(body, self._sequence)):
            self._wants_sync = True
        self._sequence += 1

    def _sync(self) -> None:
        # A snapshot has a number too, so that the router knows which batches it includes.
        number, self._sequence = self._sequence, self._sequence + 1
        self._wants_sync = False
        posts = self._mirror.snapshot(POST_BYTES)
        for at, part in enumerate(posts):
            body: dict = {"stored": list(runs(part))}
            if len(posts) > 1:
                body |= {"part": at, "parts": len(posts)}
            if not self._post("sync", self._numbered(body, number)):
                self._wants_sync = True
                return

    def _numbered(self, body, sequence) -> dict:
        return body | {"sequence": sequence} if sequence >= 0 else body

    def _post(self, path, body) -> bool:
        """Posts, and handles the router's requests in the response. Returns whether the router accepted it."""
        body = json.dumps({"pod": self._pod, "epoch": self._epoch} | body, separators=(",", ":")).encode()
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self._router}/events/{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                reply = json.loads(response.read() or b"{}")
                self._wants_sync |= reply.get("sync", False)
                self._failures = 0
                if reply.get("outdated", -1) >= self._epoch:
                    # The clock was set back since an earlier process: choose a later epoch than that one's.
                    self._epoch, self._sequence, self._wants_sync = reply["outdated"] + 1, 0, True
                    self._sync_from = 0.0
                    return False
                return True
        except urllib.error.HTTPError as error:
            problem = f"status {error.code}: {error.read()[:500].decode(errors='replace')}"
        except (OSError, ValueError) as error:
            problem = str(error)
        if self._failures == 0:
            log.warning("wornpath sidecar: post of %s to %s failed: %s", path, self._router, problem)
        self._failures += 1
        self._quiet_until = time.monotonic() + min(0.1 * 2**self._failures, 5.0)
        return False


def _frames(stream):
    """What `Poster` takes changes from: frames of a pipe, which a thread reads ahead."""
    frames: queue.Queue = queue.Queue(_MOST_FRAMES)
    parent = os.getppid()

    def read() -> None:
        while (frame := pipe.read(stream)) is not None:
            frames.put(frame)
        frames.put(None)

    threading.Thread(target=read, daemon=True).start()

    def take():
        try:
            return frames.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            # A process that the engine forked may keep the pipe open after the engine's end.
            return [] if os.getppid() == parent else None

    return take


def main() -> None:
    logging.basicConfig(format="%(message)s")
    stream = sys.stdin.buffer
    options = pipe.read(stream)
    if options is not None:
        Poster(_frames(stream), **options).run()


if __name__ == "__main__":
    main()
