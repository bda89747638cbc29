"""The lab: starts engines and routers on free ports of 127.0.0.1, and ends what it started.

An attack is a function with the decorator `attack`. It gets a `Lab`, starts what it needs, and calls
`lab.check` once for each variant that it tried. It does not stop at the first variant that breaks.
"""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from wire import Answer, ask

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY_TOKENIZER = ROOT / "crates/blocks/tests/models/tiny-llama"

ATTACKS = {}


class Attack:
    """A function that attacks, what it tries in words, and whether it needs the machine for itself."""

    def __init__(self, function, what, alone):
        self.name = f"{function.__module__}.{function.__name__}"
        self.function, self.what, self.alone = function, what, alone


def attack(what, alone=False):
    """Registers an attack. `alone`: it compares times or memory, so nothing else may run beside it."""

    def register(function):
        found = Attack(function, what, alone)
        ATTACKS[found.name] = found
        return function

    return register


def digest(secret):
    """A secret as the configuration has it."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def tenants(*names, **more):
    """Tenants whose keys are `key-NAME`."""
    return [{"name": name, "key_digest": digest(f"key-{name}"), **more} for name in names]


def bearer(name):
    return {"authorization": f"Bearer key-{name}"}


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what, condition, seconds=15):
    """Polls a condition; its first true value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def in_parallel(function, items, threads=24):
    """Calls a function for each item, many at a time; the results in order. Raises the first error."""
    items, results, errors = list(items), {}, []
    pending, lock = iter(range(len(items))), threading.Lock()

    def work():
        while True:
            with lock:
                number = next(pending, None)
            if number is None:
                return
            try:
                results[number] = function(items[number])
            except Exception as error:  # noqa: BLE001 (raised below, in the thread of the attack)
                errors.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, len(items)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]


class Lab:
    """What one attack has at hand. Everything that it starts ends with it."""

    def __init__(self, binary, name):
        self.binary = binary
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"attack-{name}-"))
        self.variants, self.broken = 0, []
        self._lock, self._things = threading.Lock(), []

    def check(self, holds, text):
        """Counts a variant, and notes if a promise does not hold for it."""
        with self._lock:
            self.variants += 1
            if not holds:
                self.broken.append(text)

    def own(self, thing):
        """Ends the thing (its method `end`) after the attack."""
        with self._lock:
            self._things.append(thing)
        return thing

    def end(self):
        for thing in reversed(self._things):
            if isinstance(thing, Router):
                self._read_log(thing.log())
            thing.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read_log(self, log):
        """Whatever an attack tries, no thread may panic or get stuck."""
        for line in log.splitlines():
            if "panicked" in line or "thread stuck" in line:
                self.broken.append(f"the log of the router says: {line[:300]}")

    def engines(self, *arguments, speed=100):
        """Simulated engines."""
        return self.own(SimulatedEngines(self.binary, [*arguments, "--speed", str(speed)]))

    def serve(self, config, pods=1, **more):
        """A router with a configuration (a map), once so many pods are up."""
        with self._lock:
            number = len(self._things)
        folder = self.folder / f"router-{number}"
        folder.mkdir()
        router = self.own(Router(self.binary, folder, config, **more))
        router.start(pods)
        return router

    def bystander(self, router, headers=None, **more):
        """A client that means no harm, and notes what it gets while the attack runs."""
        return self.own(Bystander(router, headers or {}, **more))


class Process:
    """A process of the binary that is tested; it is killed at the end."""

    def __init__(self, command, log, **more):
        with open(log, "ab") as errors:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, **more
            )

    @property
    def pid(self):
        return self.child.pid

    def is_alive(self):
        return self.child.poll() is None

    def line(self):
        """The next line of its standard output."""
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError("it ended before it said where it listens")
        return line

    def signal(self, number):
        self.child.send_signal(number)

    def end(self):
        if self.is_alive():
            self.child.kill()
        self.child.wait()
        self.child.stdout.close()


class SimulatedEngines:
    """`wornpath engine`."""

    def __init__(self, binary, arguments):
        self.process = Process([binary, "engine", "--port", "0", *arguments], os.devnull)
        self.http, self.events, self.control = [], [], None
        while self.control is None:
            addresses = [rest.split()[0] for rest in self.process.line().split("//")[1:]]
            if len(addresses) == 1:
                self.control = addresses[0]
            else:
                http, events, replay = addresses
                self.http.append(http)
                self.events.append(f"zmq://{events}?replay={replay.rsplit(':')[-1]}")

    def pods(self):
        """They as pods that publish their events."""
        return [
            {"url": f"http://{http}", "model": "m", "events": [events]} for http, events in zip(self.http, self.events)
        ]

    def end(self):
        self.process.end()


class Router:
    """`wornpath serve` with a configuration of its own."""

    def __init__(self, binary, folder, config, admin=True, files=None, arguments=(), shell=""):
        self.binary, self.folder, self.arguments = binary, folder, list(arguments)
        self.file, self.log_file = folder / "wornpath.yaml", folder / "log"
        self.admin, self.has_admin = None, admin
        # Commands that set limits of the process before it starts, such as `ulimit -n 256`.
        self.shell = shell
        for name, text in (files or {}).items():
            path = folder / name
            path.write_text(text)
            path.chmod(0o600)
        self.write(config)

    def write(self, config):
        """Writes the configuration; YAML includes JSON. Replaces the file in one step."""
        self.config = config
        new = self.folder / "new.yaml"
        new.write_text(config if isinstance(config, str) else json.dumps(config))
        new.replace(self.file)

    def start(self, pods=1):
        command = [self.binary, "serve", "-c", str(self.file), "--port", "0", "--lame-duck", "0.1", *self.arguments]
        if self.has_admin:
            command += ["--admin", "127.0.0.1:0"]
        before = self.log().count("pod up")
        if self.shell:
            command = ["sh", "-c", f'{self.shell} && exec "$@"', "sh", *command]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WORNPATH_")}
        self.process = Process(command, self.log_file, env=environment, cwd=self.folder)
        try:
            self.address = self.process.line().split("://")[1].strip()
            if self.has_admin:
                self.admin = self.process.line().split("://")[1].strip()
        except RuntimeError as error:
            raise RuntimeError(f"the router did not start: {self.log()[-2000:]}") from error
        until("its pods are up", lambda: self.log().count("pod up") - before >= pods, 30)

    def log(self):
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def post(self, path="/v1/completions", body=None, headers=None, **more) -> Answer:
        body = {"model": "m", "prompt": "hello", "max_tokens": 1} if body is None else body
        return ask(self.address, "POST", path, headers, body, **more)

    def get(self, path, headers=None, **more) -> Answer:
        return ask(self.address, "GET", path, headers, **more)

    def operate(self, method, path, body=b"", headers=None) -> Answer:
        """A call of the admin plane."""
        return ask(self.admin, method, path, headers, body)

    def memory(self, figure="VmRSS"):
        """A figure of its memory in MiB, by its name in `/proc`."""
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith(figure + ":"))
        return int(line.split()[1]) / 1024

    def cpu(self):
        """The processor time that it has used, in seconds."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_serving(self, headers=None):
        """Whether it answers a plain request."""
        return self.process.is_alive() and self.post(headers=headers).status == 200

    def kill(self):
        """Ends it as a crash would."""
        self.process.signal(signal.SIGKILL)
        self.process.end()

    def end(self):
        if hasattr(self, "process"):
            self.process.end()


class Bystander:
    """Sends plain requests all the time, each with another prompt."""

    def __init__(self, router, headers, pause=0.04, make=None):
        self.router, self.headers, self.pause = router, headers, pause
        self.make = make or (lambda number: {"model": "m", "prompt": f"question {number}", "max_tokens": 1})
        self.failures, self.times, self._is_over = [], [], threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        number = 0
        while not self._is_over.is_set():
            number += 1
            started = time.monotonic()
            try:
                answer = self.router.post(body=self.make(number), headers=self.headers)
                if answer.status != 200:
                    self.failures.append(f"{answer.status} {answer.text[:120]}")
            except OSError as error:
                self.failures.append(repr(error))
            self.times.append(time.monotonic() - started)
            self._is_over.wait(self.pause)

    def end(self):
        self._is_over.set()
        self._thread.join(20)

    def report(self, lab, slowest=5.0, least=10):
        """Checks that each of its requests was answered, and that there were some; then it ends."""
        deadline = time.monotonic() + 10
        while len(self.times) < least and time.monotonic() < deadline:
            time.sleep(0.02)
        self.end()
        shown = f"{len(self.failures)} of {len(self.times)} requests of another client failed: {self.failures[:2]}"
        lab.check(not self.failures, shown)
        lab.check(len(self.times) >= least, f"only {len(self.times)} requests of another client were answered")
        worst = max(self.times, default=0)
        lab.check(worst < slowest, f"a request of another client took {worst:.1f} s (limit {slowest} s)")
