"""Posts what happens to an engine's cache, from a thread of its own.

The engine's side is a bounded queue that nobody waits for: when it is full, what happens is not put into it, and the
router gets everything instead. The mirror that everything is taken from would then be wrong too, so it is asked of the
engine (`snapshot`), or, where the engine cannot tell, begun anew.
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
    """One engine's voice.

    `snapshot`, if given, returns all that the engine holds as a list of `Run`, and is called from the reporter's thread.
    """

    def __init__(self, router, pod, token=None, snapshot=None, *, flush=0.1, digest=1.0, sync=5.0, most=1 << 16):
        self._router, self._pod, self._token, self._snapshot = router.rstrip("/"), pod, token, snapshot
        self._every = {"flush": flush, "digest": digest, "sync": sync}
        self._queue, self._most = collections.deque(), most
        self._overflowed = False
        self._mirror, self._sequence = Mirror(), 0
        # A later life of the engine has a larger number, whatever the clock's unit.
        self._epoch = time.time_ns() // 1_000_000
        self._wants_sync = True
        # A router that does not answer is left alone for longer and longer.
        self._failures, self._quiet_until = 0, 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wornpath-sidecar", daemon=True)
        self._thread.start()

    # --- called by the engine; none of these waits ---

    def stored(self, blocks, parent=None, tokens=(), block_size=0, tier="GPU", lora=None, salt=None) -> None:
        """Blocks that follow each other are cached now. Names are numbers or bytes."""
        self._put(("stored", Run(tuple(blocks), parent, tuple(tokens), block_size, tier, lora, salt)))

    def evicted(self, blocks, tier="GPU") -> None:
        """One copy of each block is gone."""
        self._put(("evicted", (tier, tuple(blocks))))

    def cleared(self) -> None:
        """Everything is gone."""
        self._put(("cleared", None))

    def close(self) -> None:
        """Says good-bye. Waits for the thread to end."""
        self._ending.set()
        self._thread.join(timeout=5)

    def _put(self, happened) -> None:
        # Appending to a deque takes no lock that the other thread could hold for long.
        if len(self._queue) < self._most:
            self._queue.append(happened)
        else:
            self._overflowed = True

    # --- the reporter's own thread ---

    def _run(self) -> None:
        due = {what: 0.0 for what in self._every}
        self._post("register", {})
        while not self._ending.wait(self._every["flush"]):
            try:
                self._turn(due, time.monotonic())
            except Exception:  # an engine must not die of its sidecar
                log.exception("wornpath sidecar: a turn failed")
                self._wants_sync = True
        self._flush()
        self._post("bye", {})

    def _turn(self, due, now) -> None:
        self._flush()
        if now < self._quiet_until:
            return
        if self._wants_sync or self._overflowed or now >= due["sync"]:
            self._sync()
            due["sync"], due["digest"] = now + self._every["sync"], now + self._every["digest"]
        elif now >= due["digest"]:
            said = {"tiers": self._mirror.digest()}
            self._post("digest", self._numbered(said, self._sequence - 1))
            due["digest"] = now + self._every["digest"]

    def _flush(self) -> None:
        """Posts what happened since, in order: neighbours of one kind together."""
        stored, evicted = [], {}

        def send() -> None:
            if stored:
                self._say("stored", {"stored": [run.json() for run in stored]})
                stored.clear()
            for tier, blocks in evicted.items():
                self._say("evicted", {"evicted": [Run((block,)).json()["hashes"][0] for block in blocks], "tier": tier})
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
                stored.clear(), evicted.clear()
                self._mirror.clear()
                self._wants_sync = True
        send()

    def _say(self, what, said) -> None:
        """Posts a numbered batch; one that does not arrive is made up for by everything."""
        is_quiet = time.monotonic() < self._quiet_until
        if is_quiet or not self._post(what, self._numbered(said, self._sequence)):
            self._wants_sync = True
        self._sequence += 1

    def _sync(self) -> None:
        if self._overflowed:
            self._overflowed = False
            # What is in the queue is older than what the engine tells now, or nobody knows what it belongs to.
            self._queue.clear()
            self._mirror.clear()
            for run in self._snapshot() if self._snapshot else ():
                self._mirror.store(run)
        # Everything has a number too, so that batches before it are known to be in it.
        said = self._numbered({"stored": self._mirror.everything()}, self._sequence)
        self._sequence += 1
        self._wants_sync = False
        if not self._post("sync", said):
            self._wants_sync = True

    def _numbered(self, said, sequence) -> dict:
        return said | {"sequence": sequence} if sequence >= 0 else said

    def _post(self, path, said) -> bool:
        """Whether the router has it. Takes note of what the router wants."""
        body = json.dumps({"pod": self._pod, "epoch": self._epoch} | said).encode()
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self._router}/events/{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                wish = json.loads(answer.read() or b"{}")
                self._wants_sync |= wish.get("sync", False)
                self._failures = 0
                if wish.get("outdated", -1) >= self._epoch:
                    # The clock was set back since another process spoke for this pod: this one begins after it.
                    self._epoch, self._sequence, self._wants_sync = wish["outdated"] + 1, 0, True
                    return False
                return True
        except urllib.error.HTTPError as error:
            problem = f"status {error.code}: {error.read()[:500].decode(errors='replace')}"
        except (OSError, ValueError) as error:
            problem = str(error)
        if self._failures == 0:
            log.warning("wornpath sidecar: the router at %s did not take %s: %s", self._router, path, problem)
        self._failures += 1
        self._quiet_until = time.monotonic() + min(self._every["flush"] * 2**self._failures, 5.0)
        return False
