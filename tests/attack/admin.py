"""The admin plane: callers without the token, web pages in an operator's browser, and operators who try too much."""

import json
import time

from lab import attack, digest, tenants
from wire import Engine, ask, connect, post_head, read_answer

PATHS = [
    ("GET", "/pods"),
    ("POST", "/pods"),
    ("GET", "/pods/a"),
    ("DELETE", "/pods/a"),
    ("POST", "/pods/a/drain"),
    ("GET", "/live"),
    ("GET", "/index"),
    ("GET", "/index/prefixes"),
    ("GET", "/decisions"),
    ("GET", "/traffic"),
    ("POST", "/explain"),
    ("GET", "/profiles"),
    ("POST", "/profiles/check"),
    ("GET", "/config"),
    ("POST", "/config/check"),
    ("POST", "/config/reload"),
    ("PUT", "/log-level"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
]


def start(lab, token=None):
    """A router whose admin plane has a token, or is open to this machine."""
    engine = lab.own(Engine())
    listen = {"address": "127.0.0.1:0", **({"token_digest": digest(token)} if token else {})}
    config = {
        "pods": [engine.pod(name="a")],
        "listen": {"admin": listen},
        "models": [{"name": "m", "tokenizer": "bytes"}],
    }
    if token is None:
        return lab.serve(config)
    router = lab.serve(config, admin=False)
    router.admin = router.process.line().split("://")[1].strip()
    return router


@attack("every call without the token, and with wrong ones")
def token(lab):
    router = start(lab, "secret")
    wrong = [
        {},
        *(
            {"authorization": value}
            for value in ["Bearer", "Bearer ", "Bearer Secret", "Bearer secrets", "Basic secret", "secret"]
        ),
    ]
    wrong += [{"authorization": f"Bearer {digest('secret')}"}, {"x-api-key": "secret"}, {"cookie": "token=secret"}]
    for method, path in PATHS:
        for headers in wrong:
            status = ask(router.admin, method, path, headers).status
            lab.check(status == 401, f"{method} {path} with {headers} gave {status}")
    for path in (
        "//pods",
        "/PODS",
        "/pods?token=secret",
        "/dashboard/../pods",
        "/dashboard/%2e%2e/pods",
        "/%70ods",
        "http://h/pods",
    ):
        answer = ask(router.admin, "GET", path)
        lab.check(answer.status in (400, 401, 404) and b'"pods"' not in answer.body, f"{path} gave {answer.status}")
    for name in (
        "../../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/main.js",
        "main.js%00",
        "....//main.js",
        "/etc/passwd",
        "main.js/../x",
    ):
        answer = ask(router.admin, "GET", f"/dashboard/{name}")
        lab.check(
            answer.status in (400, 401, 404) and b"root:" not in answer.body, f"/dashboard/{name} gave {answer.status}"
        )
    lab.check(
        ask(router.admin, "GET", "/pods", {"authorization": "Bearer secret"}).status == 200, "the token is refused"
    )
    lab.check(
        router.operate("GET", "/pods/a", headers={"authorization": "Bearer secret"}).json()["health"] == "up",
        "the pod is not up",
    )


# What a page of another origin can make a browser send.
PAGES = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1"},
    {"origin": "https://localhost"},
    {"origin": "file://"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
]
# Names by which a page reaches this machine after DNS rebinding.
HOSTS = [
    "evil.example",
    "evil.example:80",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example#127.0.0.1",
    "0x7f.1",
    "[::1].evil.example",
    "",
    "127.0.0.1@evil.example",
]


@attack("web pages: other origins, borrowed names, forms")
def pages(lab):
    for secret in (None, "secret"):
        router = start(lab, secret)
        key = {"authorization": f"Bearer {secret}"} if secret else {}
        for page in PAGES:
            for method, path, body in [
                ("POST", "/pods/a/drain", b""),
                ("POST", "/pods", b"{}"),
                ("GET", "/pods", b""),
                ("GET", "/live", b""),
                ("DELETE", "/pods/a", b""),
            ]:
                answer = ask(router.admin, method, path, {**key, **page, "content-type": "application/json"}, body)
                lab.check(answer.status in (401, 403), f"{method} {path} with {page} gave {answer.status}")
                allowed = [name for name, _ in answer.headers if name.startswith("access-control")]
                lab.check(not allowed, f"{method} {path} allows pages: {allowed}")
        for host in HOSTS if secret is None else []:
            for method, path in [("POST", "/pods/a/drain"), ("GET", "/pods"), ("GET", "/")]:
                answer = ask(router.admin, method, path, {"host": host})
                lab.check(
                    answer.status in (400, 401, 403), f"{method} {path} with the host {host!r} gave {answer.status}"
                )
        for kind in (
            None,
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/jsonx",
            "text/plain; application/json",
        ):
            answer = ask(router.admin, "PUT", "/log-level", {**key, "content-type": kind}, b'{"level": "debug"}')
            lab.check(answer.status == 415, f"a form of the type {kind} gave {answer.status}")
        preflight = ask(
            router.admin,
            "OPTIONS",
            "/pods",
            {**key, "origin": "http://evil.example", "access-control-request-method": "POST"},
        )
        lab.check(
            preflight.status in (401, 403, 405) and not preflight.header("access-control-allow-origin"),
            f"a preflight gave {preflight.status}",
        )
        pod = ask(router.admin, "GET", "/pods/a", key)
        lab.check(pod.status == 200 and pod.json()["health"] == "up", f"a page has changed the pod: {pod.text[:100]}")
        with connect(router.admin) as stream:
            stream.sendall(post_head("/pods", 1000, {"host": router.admin, "origin": "http://evil.example"}))
            status = read_answer(stream).status
            lab.check(status in (401, 403), f"a page was refused with {status} only after its body")


@attack("keeping operators out with connections that send nothing, half a head or no token")
def lockout(lab):
    router = start(lab, "secret")
    kinds = [
        b"",
        b"GET /pods HTTP/1.1\r\nx-slow: ",
        b"\x16\x03\x01",
        post_head("/pods", 100_000),
    ]
    for kind in kinds:
        streams = [connect(router.admin) for _ in range(200)]
        for stream in streams:
            try:
                stream.sendall(kind)
            except OSError:
                pass  # Closed to make room.
        started = time.monotonic()
        status = router.operate("GET", "/pods", headers={"authorization": "Bearer secret"}).status
        took = time.monotonic() - started
        lab.check(
            status == 200 and took < 3,
            f"beside 200 connections with {kind[:20]!r} an operator got {status} after {took:.1f} s",
        )
        for stream in streams:
            stream.close()
    lab.check(router.is_serving(), "clients are not served")


@attack("operators who name files of the machine or break the configuration")
def operators(lab):
    router = start(lab)
    secret = router.folder / "secret"
    secret.write_text("the-secret-of-the-machine")
    collector = lab.own(Engine())
    for extra in [
        {"key_file": str(secret)},
        {"key_file": "/etc/passwd"},
        {"metrics": "file:///etc/passwd"},
        {"events": ["file:///etc/passwd"]},
    ]:
        answer = router.operate("POST", "/pods", {**collector.pod(name="evil"), **extra})
        lab.check(answer.status in (400, 422), f"a pod with {extra} gave {answer.status}")
        router.operate("DELETE", "/pods/evil")
    lab.check(
        not any("the-secret" in str(request.headers) for request in collector.requests), "a file was sent to the pod"
    )
    texts = {
        "deep": "[" * 100_000,
        "deep maps": "{a: " * 50_000,
        "deep indents": "".join(" " * depth + "a:\n" for depth in range(2000)),
        "many anchors": "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)),
        "tags": "!!python/object/apply:os.system ['touch /tmp/x']",
        "a long line": "a: " + "x" * 900_000,
        "NUL": "pods: [\0]",
        "binary": "\xff\xfe",
        "a file": "models: [{name: m, tokenizer: /etc/passwd}]",
        "a device": "models: [{name: m, tokenizer: /dev/zero}]",
    }
    for name, text in texts.items():
        for path in ("/config/check", "/profiles/check"):
            started = time.monotonic()
            answer = ask(router.admin, "POST", path, {"content-type": "application/yaml"}, text.encode("latin-1"))
            took = time.monotonic() - started
            lab.check(
                answer.status in (200, 400, 413, 422) and took < 5,
                f"{path} with {name} gave {answer.status} after {took:.1f} s",
            )
            lab.check("root:" not in answer.text, f"{path} with {name} shows a file")
    for body in [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"body": ' * 10_000,
        json.dumps({"body": {"prompt": "x" * 500_000}}).encode(),
        b"\xff" * 1000,
    ]:
        answer = ask(router.admin, "POST", "/explain", {"content-type": "application/json"}, body)
        lab.check(answer.status in (200, 400, 413, 422), f"/explain with {body[:20]!r} gave {answer.status}")
    with connect(router.admin) as stream:
        stream.sendall(post_head("/config/check", 10**10, {"host": router.admin, "content-type": "application/yaml"}))
        try:
            for _ in range(40):
                stream.sendall(b" " * 1_000_000)
        except OSError:
            pass  # It has refused already.
        status = read_answer(stream).status
        lab.check(status in (0, 413), f"a body of 40 MB gave {status}")
    for target in (
        "/decisions?last=99999999999999999999",
        "/decisions?last=-1",
        "/traffic?after=x",
        "/decisions/%ff",
        "/pods/%00",
        "/pods/" + "x" * 10_000,
    ):
        answer = ask(router.admin, "GET", target)
        lab.check(answer.status in (200, 400, 404, 422), f"{target[:40]} gave {answer.status}")
    lab.check(router.is_serving() and router.memory("VmHWM") < 400, f"{router.memory('VmHWM'):.0f} MiB")


@attack("secrets of the configuration in logs, metrics, errors and what operators see")
def secrets(lab):
    engine = lab.own(Engine())
    words = ["key-a", "the-secret-of-the-cell", "key-of-the-pod", "a-prompt-that-nobody-may-read"]
    cell = "7" * 32 + "a5" * 16
    config = {
        "pods": [engine.pod(engine="vllm", key_file="pod.key")],
        "models": [{"name": "m", "tokenizer": "bytes"}],
        "tenants": tenants("a"),
        "isolation": {"secret_file": "cell.secret"},
    }
    router = lab.serve(
        config, files={"cell.secret": cell, "pod.key": "key-of-the-pod"}, arguments=["--log-level", "debug"]
    )
    prompt = "a-prompt-that-nobody-may-read"
    for body in (
        {"model": "m", "prompt": prompt},
        {"model": "m", "prompt": prompt, "nvext": prompt},
        {"model": "nothing", "prompt": prompt},
    ):
        for key in ("key-a", "key-that-is-wrong-but-close-to-one"):
            router.post(body=body, headers={"authorization": f"Bearer {key}"})
            router.post(body=json.dumps(body)[:-1].encode(), headers={"authorization": f"Bearer {key}"})
    shown = {
        path: router.operate("GET", path).text
        for path in ("/pods", "/config", "/profiles", "/decisions", "/traffic", "/index", "/metrics", "/index/prefixes")
    }
    shown.update((path, router.get(path).text) for path in ("/metrics", "/health", "/ready", "/v1/models"))
    shown["log"] = router.log()
    for where, text in shown.items():
        for word in [*words, cell, "key-that-is-wrong"]:
            lab.check(word not in text, f"{where} shows {word}")
    lab.check(
        engine.requests and engine.last().values("authorization") == ["Bearer key-of-the-pod"],
        "the pod does not get its own key",
    )
