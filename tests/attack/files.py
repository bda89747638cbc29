"""Files of the router: who can read them, what stands in their place, and what a crash leaves of them."""

import json
import os
import random
import socket
import stat
import subprocess
import time

from batches import CHAT, FORM, Service, form, line
from lab import attack, bearer, tenants, until
from wire import Engine, ask, respond

SEED = 7


def modes(folder):
    """The modes of everything below a folder."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in folder.rglob("*")
        if not path.is_socket()
    }


@attack("reading files of the router as another user, with a umask that allows it")
def others(lab):
    engine = lab.own(Engine(lambda received: respond(CHAT)))
    place = lab.folder / "place"
    place.mkdir()
    config = {
        "pods": [engine.pod()],
        "models": [{"name": "m", "tokenizer": "bytes"}],
        "batch": {"folder": str(place / "deep/batches")},
        "checkpoint": {"file": str(place / "index.checkpoint"), "every": "1s"},
    }
    router = lab.serve(config, shell="umask 000")
    file = ask(router.address, "POST", "/v1/files", FORM, form([line(0)])).json()["id"]
    new = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = ask(router.address, "POST", "/v1/batches", {}, new).json()["id"]
    until(
        "the batch is done", lambda: ask(router.address, "GET", f"/v1/batches/{batch}").json()["status"] == "completed"
    )
    until("there is a checkpoint", (place / "index.checkpoint").exists)
    recording = place / "traffic.jsonl"
    lab.bystander(router)
    command = [lab.binary, "trace", "record", str(recording), "--admin", f"http://{router.admin}", "--for", "1s"]
    subprocess.run(["sh", "-c", 'umask 000 && exec "$@"', "sh", *command], capture_output=True, timeout=20, check=False)
    for name, mode in modes(place).items():
        lab.check(mode & 0o077 == 0, f"{name} has the mode {mode:o}")
    for name in ("deep/batches/journal", "index.checkpoint", "traffic.jsonl"):
        lab.check((place / name).exists(), f"{name} was not created: the check is blind")


@attack("secret files that other users can read")
def secrets(lab):
    engine = lab.own(Engine())
    config = {
        "pods": [engine.pod(engine="vllm", key_file="pod.key")],
        "tenants": tenants("a"),
        "isolation": {"secret_file": "cell.secret"},
    }
    for mode in (0o644, 0o640, 0o604, 0o666):
        router = lab.serve(config, files={"pod.key": "key", "cell.secret": "7" * 64})
        for name in ("pod.key", "cell.secret"):
            (router.folder / name).chmod(mode)
        checked = subprocess.run(
            [lab.binary, "check", str(router.file)], capture_output=True, text=True, timeout=20, check=False
        )
        for name in ("pod.key", "cell.secret"):
            lab.check(
                name in checked.stdout + checked.stderr,
                f"`wornpath check` does not warn of {name} with the mode {mode:o}",
            )
        router.end()


def odd_checkpoints(folder):
    """Things in the place of a checkpoint."""
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "random").symlink_to("/dev/urandom")
    (folder / "full").symlink_to("/dev/full")
    (folder / "loop").symlink_to("loop")
    (folder / "to-fifo").symlink_to("fifo")
    (folder / "terminal").symlink_to("/dev/tty")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    with open(folder / "sparse", "wb") as sparse:
        sparse.truncate(64 << 30)
    (folder / "garbage").write_bytes(random.Random(SEED).randbytes(100_000))
    (folder / "empty").write_bytes(b"")
    (folder / "zeros").write_bytes(bytes(1_000_000))
    (folder / "unreadable").write_bytes(b"x")
    (folder / "unreadable").chmod(0)
    return [
        "fifo",
        "folder",
        "zero",
        "random",
        "full",
        "loop",
        "to-fifo",
        "terminal",
        "socket",
        "sparse",
        "garbage",
        "empty",
        "zeros",
        "unreadable",
    ]


@attack("a checkpoint at a pipe, a device, a folder, or with other bytes")
def checkpoints(lab):
    engine = lab.own(Engine())
    for name in odd_checkpoints(lab.folder):
        config = {"pods": [engine.pod()], "checkpoint": {"file": str(lab.folder / name), "every": "1s"}}
        started = time.monotonic()
        try:
            router = lab.serve(config)
        except RuntimeError as error:
            # A refusal at the start is as good, if it says why.
            lab.check(name in str(error), f"{name}: {error}")
            continue
        lab.check(
            router.is_serving() and time.monotonic() - started < 10,
            f"{name}: not served after {time.monotonic() - started:.1f} s",
        )
        lab.check(router.memory("VmHWM") < 300, f"{name}: {router.memory('VmHWM'):.0f} MiB")
        kind = (lab.folder / name).lstat().st_mode
        router.process.signal(15)
        until(f"it ends with {name}", lambda router=router: not router.process.is_alive(), 10)
        after = (lab.folder / name).lstat().st_mode
        # A link to itself leads nowhere, so nothing is lost with it.
        lab.check(
            name == "loop" or stat.S_IFMT(kind) == stat.S_IFMT(after), f"{name} was replaced by another kind of file"
        )


@attack("a checkpoint that was cut, changed or extended")
def damaged_checkpoint(lab):
    engines = lab.engines("--model", "m")
    file = lab.folder / "index.checkpoint"
    config = {
        "models": [{"name": "m", "tokenizer": "bytes", "block_size": 16}],
        "pods": engines.pods(),
        "checkpoint": {"file": str(file), "every": "1s"},
    }
    router = lab.serve(config)
    for number in range(20):
        router.post(body={"model": "m", "prompt": f"{number} " * 400, "max_tokens": 1})
    time.sleep(1.5)
    router.process.signal(15)
    until("it ends", lambda: not router.process.is_alive(), 10)
    good, seeded = file.read_bytes(), random.Random(SEED)
    variants = [good[: len(good) // 2], good[:-1], good + b"\0", good + good, b"\0" * len(good)]
    for _ in range(12):
        changed = bytearray(good)
        for _ in range(seeded.randint(1, 4)):
            changed[seeded.randrange(len(changed))] ^= 1 << seeded.randrange(8)
        variants.append(bytes(changed))
    for number, variant in enumerate(variants):
        file.write_bytes(variant)
        again = lab.serve(config)
        lab.check(again.is_serving() and again.memory("VmHWM") < 300, f"variant {number} (seed {SEED})")
        again.end()


TAILS = [b"", b"\0" * 100, b"\xff" * 7, b'{"torn', b"\x10\0\0\0", bytes(4096)]


@attack("kills while batches run, with torn ends of the journal and of results")
def kills(lab):
    def answer(received):
        time.sleep(0.03)
        return respond(CHAT)

    service = Service(lab, answer, batch={"window": 8})
    count = 300
    batch = service.create("a", service.upload("a", [line(number) for number in range(count)])).json()["id"]
    folder = service.router.folder / "batches"

    def state():
        return service.call("a", "GET", f"/v1/batches/{batch}").json()

    for number, tail in enumerate(TAILS):
        done = state()["request_counts"]["completed"]
        until(
            "some more lines are done",
            lambda done=done: state()["request_counts"]["completed"] > done + 8 or state()["status"] == "completed",
            20,
        )
        service.router.kill()
        torn = [folder / "journal", *(folder / "results").glob("*.log"), *(folder / "results").glob("*.jsonl")]
        for path in torn:
            with open(path, "ab") as file:
                file.write(tail)
        try:
            service.router.start()
        except (RuntimeError, TimeoutError) as error:
            lab.check(False, f"after the tail {tail[:10]!r} it does not start: {error}")
            return
        now = state()["request_counts"]["completed"]
        lab.check(now >= done, f"kill {number}: {now} lines are done, and {done} were before")
    ended = service.ended("a", batch)
    lab.check(
        ended["status"] == "completed" and ended["request_counts"] == {"total": count, "completed": count, "failed": 0},
        f"{ended['status']} {ended['request_counts']}",
    )
    output = service.call("a", "GET", f"/v1/files/{ended['output_file_id']}/content")
    ids = sorted(json.loads(row)["custom_id"] for row in output.text.splitlines())
    lab.check(
        ids == sorted(f"id-{number}" for number in range(count)),
        f"{len(ids)} records, {len(set(ids))} different ones, of {count} lines",
    )
    lab.check(service.router.is_serving(bearer("b")), "the router does not answer any more")


@attack("files of the batch store that were cut, changed or removed")
def damaged_store(lab):
    service = Service(lab)
    ended = service.finished("a", [line(number) for number in range(20)])
    output, input_file = ended["output_file_id"], ended["input_file_id"]
    folder = service.router.folder / "batches"
    service.router.process.signal(15)
    until("it ends", lambda: not service.router.process.is_alive(), 10)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    for path in files:
        good = path.read_bytes()
        for name, bad in [
            ("cut", good[: len(good) // 2]),
            ("a bit changed", good[:40] + bytes([good[40] ^ 1]) + good[41:]),
            ("removed", None),
        ]:
            path.unlink() if bad is None else path.write_bytes(bad)
            try:
                service.router.start()
            except RuntimeError as error:
                # A journal that is damaged is refused with the file.
                lab.check(path.name in str(error), f"{path.name} {name}: {str(error)[-200:]}")
            else:
                for file, whole in ((output, 20), (input_file, 20)):
                    answer = service.call("a", "GET", f"/v1/files/{file}/content")
                    is_complete = answer.status == 200 and answer.is_whole
                    rows = answer.text.splitlines()
                    lab.check(
                        not is_complete or len(rows) == whole and all(is_json(row) for row in rows),
                        f"{path.name} {name}: {file} was served with {len(rows)} lines",
                    )
                lab.check(service.router.is_serving(bearer("b")), f"{path.name} {name}: not served")
                service.router.process.signal(15)
                until("it ends", lambda: not service.router.process.is_alive(), 10)
            path.write_bytes(good)


def is_json(row):
    try:
        return bool(json.loads(row))
    except ValueError:
        return False
