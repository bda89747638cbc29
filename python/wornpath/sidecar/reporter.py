"""Posts the changes of an engine's cache, from a thread of its own.

The engine puts changes into a bounded queue and never blocks: when the queue is full, changes are dropped and the router
gets a snapshot instead. The mirror has missed the dropped changes too, so it is filled from the engine (`snapshot`), or
cleared where the engine has no such function.
"""

import collections
import json
import logging
import threading
import time
import urllib.error
import urllib.request

from .mirror import Mirror, Run

log = logging.getLogger("wornpath")


class Reporter:
    """Reports one engine's cache.

    `snapshot`, if given, returns the engine's whole cache as a list of `Run`; the reporter's thread calls it.
    """

    def __init__(self, router, pod, token=None, snapshot=None, *, flush=0.1, digest=1.0, sync=5.0, most=1 << 16):
        self._router, self._pod, self._token, self._snapshot = router.rstrip("/"), pod, token, snapshot
        self._every = {"flush": flush, "digest": digest, "sync": sync}
        self._queue: collections.deque[tuple] = collections.deque()
        self._most = most
        self._overflowed = False
        self._mirror, self._sequence = Mirror(), 0
        # The epoch: a later process has a larger one.
        self._epoch = time.time_ns() // 1_000_000
        self._wants_sync = True
        # Backoff while the router is unreachable.
        self._failures, self._quiet_until = 0, 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wornpath-sidecar", daemon=True)
        self._thread.start()

    # --- called by the engine; none of these blocks ---

    def stored(self, blocks, parent=None, tokens=(), block_size=0, tier="GPU", lora=None, salt=None) -> None:
        """Consecutive blocks were cached. Hashes are integers or bytes."""
        self._put(("stored", Run(tuple(blocks), parent, tuple(tokens), block_size, tier, lora, salt)))

    def evicted(self, blocks, tier="GPU") -> None:
        """One copy of each block was evicted."""
        self._put(("evicted", (tier, tuple(blocks))))

    def cleared(self) -> None:
        """The whole cache was cleared."""
        self._put(("cleared", None))

    def close(self) -> None:
        """Reports the shutdown, and waits for the thread to end."""
        self._ending.set()
        self._thread.join(timeout=5)

    def _put(self, event) -> None:
        # Appending to a deque takes no lock that the other thread could hold for long.
        if len(self._queue) < self._most:
            self._queue.append(event)
        else:
            self._overflowed = True

    # --- the reporter's own thread ---

    def _run(self) -> None:
        due = {what: 0.0 for what in self._every}
        self._post("register", {})
        while not self._ending.wait(self._every["flush"]):
            try:
                self._step(due, time.monotonic())
            except Exception:  # the sidecar must not crash the engine
                log.exception("wornpath sidecar: reporting failed")
                self._wants_sync = True
        self._flush()
        self._post("bye", {})

    def _step(self, due, now) -> None:
        self._flush()
        if now < self._quiet_until:
            return
        if self._wants_sync or self._overflowed or now >= due["sync"]:
            self._sync()
            due["sync"], due["digest"] = now + self._every["sync"], now + self._every["digest"]
        elif now >= due["digest"]:
            body = {"tiers": self._mirror.digest()}
            self._post("digest", self._numbered(body, self._sequence - 1))
            due["digest"] = now + self._every["digest"]

    def _flush(self) -> None:
        """Posts the queued events in order; consecutive ones of one kind share a post."""
        stored: list[Run] = []
        evicted: dict[str, list] = {}

        def send() -> None:
            if stored:
                self._post_numbered("stored", {"stored": [run.json() for run in stored]})
                stored.clear()
            for tier, blocks in evicted.items():
                self._post_numbered("evicted", {"evicted": [Run((block,)).json()["hashes"][0] for block in blocks], "tier": tier})
            evicted.clear()

        for _ in range(len(self._queue)):
            what, about = self._queue.popleft()
            if what == "stored":
                if evicted:
                    send()
                self._mirror.store(about)
                stored.append(about)
            elif what == "evicted":
                if stored:
                    send()
                self._mirror.evict(*about)
                evicted.setdefault(about[0], []).extend(about[1])
            else:
                stored.clear()
                evicted.clear()
                self._mirror.clear()
                self._wants_sync = True
        send()

    def _post_numbered(self, path, body) -> None:
        """Posts a numbered batch; if that fails, a snapshot follows."""
        is_quiet = time.monotonic() < self._quiet_until
        if is_quiet or not self._post(path, self._numbered(body, self._sequence)):
            self._wants_sync = True
        self._sequence += 1

    def _sync(self) -> None:
        if self._overflowed:
            self._overflowed = False
            # The queue is older than the engine's snapshot; without one, its parents are unknown.
            self._queue.clear()
            self._mirror.clear()
            for run in self._snapshot() if self._snapshot else ():
                self._mirror.store(run)
        # A snapshot has a number too, so that the router knows which batches it includes.
        body = self._numbered({"stored": self._mirror.snapshot()}, self._sequence)
        self._sequence += 1
        self._wants_sync = False
        if not self._post("sync", body):
            self._wants_sync = True

    def _numbered(self, body, sequence) -> dict:
        return body | {"sequence": sequence} if sequence >= 0 else body

    def _post(self, path, body) -> bool:
        """Posts, and handles the router's requests in the response. Returns whether the router accepted it."""
        body = json.dumps({"pod": self._pod, "epoch": self._epoch} | body).encode()
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self._router}/events/{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=2) as response:
                reply = json.loads(response.read() or b"{}")
                self._wants_sync |= reply.get("sync", False)
                self._failures = 0
                if reply.get("outdated", -1) >= self._epoch:
                    # The clock was set back since an earlier process: choose a later epoch than that one's.
                    self._epoch, self._sequence, self._wants_sync = reply["outdated"] + 1, 0, True
                    return False
                return True
        except urllib.error.HTTPError as error:
            problem = f"status {error.code}: {error.read()[:500].decode(errors='replace')}"
        except (OSError, ValueError) as error:
            problem = str(error)
        if self._failures == 0:
            log.warning("wornpath sidecar: post of %s to %s failed: %s", path, self._router, problem)
        self._failures += 1
        self._quiet_until = time.monotonic() + min(self._every["flush"] * 2**self._failures, 5.0)
        return False
