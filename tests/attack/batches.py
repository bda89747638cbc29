"""Files and batches: those of other tenants, odd ids and forms, and lines that try what online requests may not."""

import json
import time

import isolation
from lab import attack, bearer, in_parallel, tenants, until
from wire import COMPLETION, Engine, ask, connect, post_head, read_answer, respond

CHAT = {
    **COMPLETION,
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word"}, "finish_reason": "stop"}],
}


def line(number, **body):
    content = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": f"Question {number}?"}], **body}
    return {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions", "body": content}


def form(lines, purpose="batch", name="in.jsonl"):
    text = lines if isinstance(lines, bytes) else "\n".join(json.dumps(one) for one in lines).encode()
    part = "--b\r\ncontent-disposition: form-data; name="
    head = f'{part}"purpose"\r\n\r\n{purpose}\r\n{part}"file"; filename="{name}"\r\n\r\n'
    return head.encode() + text + b"\r\n--b--\r\n"


FORM = {"content-type": "multipart/form-data; boundary=b"}


class Service:
    """A router with batches and two tenants."""

    def __init__(self, lab, answer=None, **more):
        self.lab = lab
        self.engine = lab.own(Engine(answer or (lambda received: respond(CHAT))))
        batch = more.pop("batch", {})
        files = more.pop("files", None)
        config = {
            "pods": [self.engine.pod(engine="vllm")],
            "models": [{"name": "m", "tokenizer": "bytes"}],
            "tenants": tenants("a", "b"),
            "batch": {"folder": "batches", **batch},
            **more,
        }
        self.router = lab.serve(config, files=files)

    def call(self, tenant, method, path, body=b"", headers=None):
        return ask(self.router.address, method, path, {**bearer(tenant), **(headers or {})}, body)

    def upload(self, tenant, lines):
        answer = self.call(tenant, "POST", "/v1/files", form(lines), FORM)
        if answer.status != 200:
            raise RuntimeError(f"upload gave {answer.status} {answer.text}")
        return answer.json()["id"]

    def create(self, tenant, file, **more):
        new = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
        return self.call(tenant, "POST", "/v1/batches", new)

    def ended(self, tenant, batch):
        def state():
            found = self.call(tenant, "GET", f"/v1/batches/{batch}").json()
            return found if found["status"] in ("completed", "failed", "expired", "cancelled") else None

        return until("the batch has ended", state, 20)

    def finished(self, tenant, lines):
        """Runs lines; the batch as it ended."""
        made = self.create(tenant, self.upload(tenant, lines))
        return self.ended(tenant, made.json()["id"])


@attack("files and batches of another tenant")
def other_tenants(lab):
    service = Service(lab)
    file = service.upload("a", [line(0), line(1)])
    batch = service.create("a", file).json()["id"]
    output = service.ended("a", batch)["output_file_id"]
    theirs = [
        ("GET", f"/v1/files/{file}"),
        ("GET", f"/v1/files/{file}/content"),
        ("GET", f"/v1/files/{output}"),
        ("GET", f"/v1/files/{output}/content"),
        ("GET", f"/v1/batches/{batch}"),
        ("GET", f"/v1/batches/{batch}/results"),
        ("GET", f"/v1/batches/{batch}/results?after=0"),
        ("GET", f"/v1/batches/{batch}/plan"),
        ("POST", f"/v1/batches/{batch}/cancel"),
        ("POST", f"/v1/batches/{batch}/retry"),
        ("DELETE", f"/v1/files/{output}"),
        ("DELETE", f"/v1/files/{file}"),
        ("GET", f"/v1/files/{file}/"),
        ("GET", f"/v1/files//{file}"),
        ("GET", f"/v1/files/./{file}/content"),
        ("GET", f"/v1/files/x/../{file}/content"),
        ("GET", f"/v1/files/%66{file[1:]}/content"),
        ("GET", f"/v1/files?after={file}"),
        ("GET", f"/v1/batches?after={batch}"),
    ]
    for method, path in theirs:
        answer = service.call("b", method, path)
        reveals = any(
            word in answer.body for word in (b"Question", b"in.jsonl", b"word", b'"status"', b"input_file_id")
        )
        lab.check(
            not reveals and answer.status in (200, 400, 404) and (answer.status != 200 or "?" in path),
            f"{method} {path} gave {answer.status} {answer.text[:80]}",
        )
        lab.check(service.call("c", method, path).status == 401, f"{method} {path} without a key")
    lab.check(service.create("b", file).status in (400, 404), "a batch of another tenant's file was made")
    lab.check(service.create("b", output).status in (400, 404), "a batch of another tenant's results was made")
    for path in ("/v1/files", "/v1/batches", "/v1/files?limit=100", "/v1/batches?limit=100"):
        lab.check(service.call("b", "GET", path).json()["data"] == [], f"{path} shows another tenant's")
    content = service.call("a", "GET", f"/v1/files/{output}/content")
    lab.check(content.status == 200 and len(content.text.splitlines()) == 2, "the tenant does not get its own results")


IDS = [
    "..",
    ".",
    "../journal",
    "..%2fjournal",
    "%2e%2e%2fjournal",
    "..%5cjournal",
    "/etc/passwd",
    "%00",
    "file-%00",
    "journal",
    "x" * 5000,
    "%ff",
    "*",
    "file-1;rm",
    "\xe9",
    "file-..",
    "a%20b",
]


@attack("ids that are paths")
def ids(lab):
    service = Service(lab)
    file = service.upload("a", [line(0)])
    stored = sorted(path.name for path in (service.router.folder / "batches").rglob("*"))
    for one in IDS:
        for method, path in [
            ("GET", f"/v1/files/{one}"),
            ("GET", f"/v1/files/{one}/content"),
            ("DELETE", f"/v1/files/{one}"),
            ("GET", f"/v1/batches/{one}"),
            ("GET", f"/v1/batches/{one}/results"),
            ("POST", f"/v1/batches/{one}/cancel"),
        ]:
            answer = service.call("a", method, path)
            lab.check(
                answer.status in (400, 404) and b"root:" not in answer.body,
                f"{method} {path[:60]} gave {answer.status} {answer.text[:60]}",
            )
            lab.check(
                str(service.router.folder) not in answer.text, f"{method} {path[:60]} names a folder of the machine"
            )
        answer = service.create("a", one)
        lab.check(answer.status in (400, 404), f"a batch of {one[:20]!r} gave {answer.status}")
    now = sorted(path.name for path in (service.router.folder / "batches").rglob("*"))
    lab.check(now == stored, f"files changed: {set(now) ^ set(stored)}")
    lab.check(service.call("a", "GET", f"/v1/files/{file}").status == 200, "the file is lost")


def odd_forms():
    part = b'--b\r\ncontent-disposition: form-data; name="'
    batch = part + b'purpose"\r\n\r\nbatch\r\n'
    yield "no end", batch + part + b'file"\r\n\r\nx'
    yield "no file", batch + b"--b--\r\n"
    yield "no purpose", part + b'file"; filename="f"\r\n\r\nx\r\n--b--\r\n'
    yield "nothing", b""
    yield "no boundary in it", b"x" * 100_000
    yield "a long header", part + b"x" * 1_000_000
    yield "many headers", b"--b\r\n" + b"x: y\r\n" * 100_000
    yield "many parts", (part + b'x"\r\n\r\ny\r\n') * 50_000 + b"--b--\r\n"
    yield "a long field", part + b'purpose"\r\n\r\n' + b"x" * 1_000_000 + b"\r\n--b--\r\n"
    yield "two files", batch + (part + b'file"; filename="f"\r\n\r\n{}\r\n') * 2 + b"--b--\r\n"
    yield "boundaries in boundaries", b"--b\r\n" * 50_000
    yield (
        "another purpose",
        part + b'purpose"\r\n\r\nassistants\r\n' + part + b'file"; filename="f"\r\n\r\nx\r\n--b--\r\n',
    )
    yield "NUL", batch + part + b'file\0"; filename="f"\r\n\r\nx\r\n--b--\r\n'


@attack("broken forms, and names of files that are paths")
def forms(lab):
    service = Service(lab, batch={"file": "4MiB"})
    for name, body in odd_forms():
        answer = service.call("a", "POST", "/v1/files", body, FORM)
        lab.check(answer.status in (200, 400, 413), f"{name} gave {answer.status}")
    for kind in [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "x" * 10_000,
        "application/json",
        "multipart/mixed; boundary=b",
        "",
    ]:
        answer = service.call("a", "POST", "/v1/files", form([line(0)]), {"content-type": kind})
        lab.check(answer.status == 400, f"the type {kind[:40]!r} gave {answer.status}")
    for name in ["../../evil", "/tmp/evil", "..\\evil", "a\x01b", "x" * 5000, "%2e%2e%2fevil", "\u202egpj.exe"]:
        answer = service.call("a", "POST", "/v1/files", form([line(0)], name=name), FORM)
        lab.check(answer.status in (200, 400), f"a file called {name[:20]!r} gave {answer.status}")
    outside = [path for path in service.router.folder.rglob("*evil*")]
    lab.check(not outside, f"an upload has chosen its place: {outside}")
    answer = service.call("a", "POST", "/v1/files", form(b"x" * (5 << 20)), FORM)
    lab.check(answer.status == 413, f"5 MiB of at most 4 gave {answer.status}")
    partial = [
        path.name
        for path in (service.router.folder / "batches").rglob("*")
        if "tmp" in path.name or "part" in path.name
    ]
    lab.check(not partial, f"refused uploads left {partial}")
    lab.check(service.router.is_serving(bearer("b")) and service.router.memory("VmHWM") < 400, "the router is not well")


def odd_lines():
    """Inputs that must fail as a whole, or whose lines must not reach an engine."""
    for url in (
        "/sleep",
        "/v1/load_lora_adapter",
        "http://evil.example/v1/chat/completions",
        "/v1/../sleep",
        "/v1/files",
        "//x",
        "",
        "/v1/chat/completions?x=1",
    ):
        yield f"the url {url}", [{**line(0), "url": url}]
    yield "the method DELETE", [{**line(0), "method": "DELETE"}]
    yield "an id twice", [line(0), line(0)]
    yield "no body", [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}]
    yield "a list as body", [{**line(0), "body": []}]
    yield "no JSON", b"{]"
    yield "deep JSON", b"[" * 100_000
    yield "deep body", json.dumps(line(0)).encode()[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield "no line", b""
    yield "empty lines", b"\n" * 10_000
    yield "NUL", b"\0" * 1000
    yield "a mark", b"\xef\xbb\xbf" + json.dumps({**line(0), "url": "/sleep"}).encode()
    yield "UTF-16", json.dumps(line(0)).encode("utf-16")


@attack("lines that name other paths, methods and hosts, or are no lines")
def lines(lab):
    service = Service(lab)
    for name, odd in odd_lines():
        before = len(service.engine.requests)
        try:
            ended = service.finished("a", odd)
        except (RuntimeError, KeyError) as error:
            lab.check("400" in str(error) or "id" in str(error), f"{name}: {error}")
            continue
        lab.check(
            ended["status"] == "failed" and len(service.engine.requests) == before,
            f"{name}: {ended['status']}, {len(service.engine.requests) - before} requests",
        )
    ids = ["a\nb", "a\r\nb", "\u2028", "\x00", "x" * 100_000, '"}', "../x", "", " ", "\ud83d\ude00", "<script>"]
    ended = service.finished("a", [{**line(number), "custom_id": one} for number, one in enumerate(ids)])
    if ended["status"] == "completed":
        output = service.call("a", "GET", f"/v1/files/{ended['output_file_id']}/content").body
        found = [json.loads(row)["custom_id"] for row in output.split(b"\n") if row]
        lab.check(sorted(found) == sorted(ids), f"odd ids became {len(found)} records: {found}")
    else:
        lab.check(ended["status"] == "failed", f"odd ids: {ended['status']}")
    ended = service.finished("a", [line(0)])
    lab.check(ended["status"] == "completed", f"a plain line: {ended['status']}: the check is blind")


@attack("lines with fields that isolated tenants may not send, and with a priority")
def isolated_lines(lab):
    secret = {"isolation": {"secret_file": "cell.secret"}, "files": {"cell.secret": "7" * 64}}
    service = Service(lab, **secret)
    refused = [*isolation.BLOCKS, *(field for field in isolation.REFUSED if field.isidentifier())]
    bad = [line(number, **{field: {"a": 1}}) for number, field in enumerate(refused)]
    bad += [line(1000 + number, vllm_xargs={field: "x"}) for number, field in enumerate(refused)]
    ended = service.finished("a", bad)
    lab.check(
        not service.engine.requests,
        f"lines reached the engine: {[request.body[:200] for request in service.engine.requests[:2]]}",
    )
    lab.check(ended["request_counts"]["completed"] == 0, f"{ended['request_counts']}")
    for _ in bad:
        lab.check(True, "")
    image = {"type": "image_url", "image_url": {"url": "data:,"}, "uuid": "theirs"}
    good = [line(0, cache_salt="theirs", priority=-100, session_id="theirs", rid="theirs", kv_cache_report_mode="full")]
    good += [line(1, messages=[{"role": "user", "content": [image]}], request_id="theirs")]
    for tenant in ("a", "b"):
        service.finished(tenant, good)
    salts = set()
    for request in service.engine.requests:
        body = request.json()
        salts.add(body.get("cache_salt"))
        lab.check(
            b"theirs" not in request.body and "kv_cache_report_mode" not in body,
            f"reached the engine: {request.body[:300]!r}",
        )
        lab.check(body.get("priority") in (None, 0), f"priority {body.get('priority')} reached the engine")
    lab.check(len(salts) == 2 and None not in salts, f"salts of two tenants: {salts}")


METADATA = [
    {"a": "x" * 513},
    {"k" * 65: ""},
    {str(number): "" for number in range(17)},
    {"a": 1},
    {"a": {"b": "c"}},
    "text",
    ["a"],
    {"a": "x" * 900_000},
]
WINDOWS = ["", "h", "0h", "-1h", "1w", "99999999999999999999d", "24", "1h" * 5000, "\u0661h"]


@attack("metadata, windows and expiries beyond the limits, and more than the quotas")
def quotas(lab):
    service = Service(
        lab,
        batch={"quota_bytes": "1MiB", "quota_batches": 3, "quota_entries": "32KiB"},
        answer=lambda received: lambda stream: time.sleep(8),
    )
    file = service.upload("a", [line(0)])
    for metadata in METADATA:
        answer = service.create("a", file, metadata=metadata)
        lab.check(answer.status == 400, f"metadata {str(metadata)[:40]} gave {answer.status}")
    for window in WINDOWS:
        answer = service.create("a", file, completion_window=window)
        lab.check(answer.status == 400, f"the window {window[:20]!r} gave {answer.status}")
    for expiry in (
        {"anchor": "x", "seconds": 1},
        {"anchor": "created_at", "seconds": -1},
        {"anchor": "created_at", "seconds": 1e300},
        "1",
        5,
    ):
        answer = service.create("a", file, output_expires_after=expiry)
        lab.check(answer.status == 400, f"the expiry {expiry} gave {answer.status}")
    big = form(b"x" * (700 << 10))
    statuses = [service.call("a", "POST", "/v1/files", big, FORM).status for _ in range(3)]
    lab.check(statuses == [200, 403, 403], f"uploads beyond the quota gave {statuses}")
    statuses = [service.create("a", file).status for _ in range(5)]
    lab.check(statuses == [200, 200, 200, 429, 429], f"batches beyond the quota gave {statuses}")
    statuses = [service.call("b", "POST", "/v1/files", form([line(0)]), FORM).status for _ in range(200)]
    lab.check(statuses[0] == 200 and statuses[-1] == 403, f"entries without end gave {statuses[0]} to {statuses[-1]}")
    lab.check(
        (service.router.folder / "batches/journal").stat().st_size < 300_000,
        "the journal grew beyond the quota of entries",
    )


QUERIES = [
    "limit=-1",
    "limit=0",
    "limit=99999999999999999999",
    "limit=x",
    "after=" + "x" * 5000,
    "after=%00",
    "order=x",
    "purpose=%ff",
]
QUERIES += ["limit=1&limit=2", "=", "&&&", "after", "after=-1", "after=18446744073709551616", "after=1e3"]


@attack("queries of lists and results that are no numbers, or too large ones")
def queries(lab):
    service = Service(lab)
    batch = service.finished("a", [line(0)])["id"]
    for query in QUERIES:
        for path in ("/v1/files", "/v1/batches", f"/v1/batches/{batch}/results"):
            status = service.call("a", "GET", f"{path}?{query}").status
            lab.check(status in (200, 400, 404, 416), f"{path}?{query[:40]} gave {status}")
    lab.check(service.router.is_serving(bearer("a")), "the router does not answer any more")


@attack("answers to lines that are longer than the memory for answers")
def long_answers(lab):
    piece = b"x" * (1 << 20)

    def send(stream):
        stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(64):
            stream.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")

    service = Service(
        lab, lambda received: send if b"messages" in received.body else respond(CHAT), batch={"answers": "4MiB"}
    )
    bystander = lab.bystander(service.router, bearer("b"))
    made = service.create("a", service.upload("a", [line(number) for number in range(40)])).json()["id"]
    until("the engine has lines", lambda: sum(b"messages" in request.body for request in service.engine.requests) > 4)
    until("lines are tried again", lambda: len(service.engine.requests) > 20, 15)
    lab.check(service.router.memory("VmHWM") < 300, f"{service.router.memory('VmHWM'):.0f} MiB")
    state = service.call("a", "GET", f"/v1/batches/{made}").json()
    lab.check(
        state["request_counts"]["completed"] == 0, f"an answer without end is a result: {state['request_counts']}"
    )
    bystander.report(lab, slowest=3)


@attack("uploads that stall or trickle, and many at once")
def stalled_uploads(lab):
    service = Service(lab, limits={"body_time": "1s"})
    start = form([])[:-9]

    def begin(tenant):
        stream = connect(service.router.address)
        stream.sendall(post_head("/v1/files", 1_000_000, {**bearer(tenant), **FORM}) + start)
        return stream

    streams = in_parallel(lambda _: begin("a"), range(200))
    answer = service.call("b", "POST", "/v1/files", form([line(0)]), FORM)
    lab.check(answer.status == 200, f"an upload of another tenant gave {answer.status} beside 200 stalled ones")
    lab.check(service.router.is_serving(bearer("a")), "requests of the tenant itself are not served meanwhile")
    for stream in streams:
        stream.settimeout(4)
    # Those that were refused at once linger for ten seconds before they are told.
    statuses = set(in_parallel(lambda stream: read_answer(stream).status, streams, threads=200))
    lab.check(408 in statuses and statuses <= {408, 503, 429, 0}, f"stalled uploads ended with {statuses}")
    slow, started = begin("a"), time.monotonic()
    slow.settimeout(0.1)
    status = None
    while status is None and time.monotonic() - started < 12:
        try:
            slow.sendall(b"x")
            found = slow.recv(100)
            status = int(found.split()[1]) if found else 0
        except TimeoutError:
            continue
        except OSError:
            status = 0
    lab.check(status == 408, f"an upload that trickles ended with {status} after {time.monotonic() - started:.0f} s")
