"""Paths that operate an engine, in every spelling that an engine might read as the same path."""

from urllib.parse import unquote

from lab import attack, digest, in_parallel, tenants
from wire import Engine, ask, exchange

# What engines do there: sleep, drop caches, load adapters, profile, stop, run code.
MANAGEMENT = [
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/flush_cache",
    "/collective_rpc",
    "/start_profile",
    "/stop_profile",
    "/update_weights_from_disk",
    "/release_memory_occupation",
    "/load_lora_adapter",
    "/abort_request",
    "/set_internal_state",
    "/shutdown",
    "/server_info",
    "/docs",
    "/openapi.json",
    "/",
]


def escaped(path, letter, upper=False):
    """One character as an escape."""
    code = f"%{ord(path[letter]):02x}"
    return path[:letter] + (code.upper() if upper else code) + path[letter + 1 :]


# Spellings of a path that begins with a slash.
SPELLINGS = [
    ("plain", lambda path: path),
    ("query", lambda path: path + "?a=b"),
    ("empty query", lambda path: path + "?"),
    ("fragment", lambda path: path + "#x"),
    ("escaped letter", lambda path: escaped(path, len(path) // 2)),
    ("escaped first letter", lambda path: escaped(path, min(1, len(path) - 1))),
    ("escaped in capitals", lambda path: escaped(path, len(path) // 2, upper=True)),
    ("escaped slash", lambda path: "/%2f" + path[1:]),
    ("escaped slash inside", lambda path: "/v1%2f.." + path),
    ("double slash", lambda path: "/" + path),
    ("double slash inside", lambda path: "/v1//" + path.rsplit("/", 1)[-1]),
    ("dots", lambda path: "/v1/.." + path),
    ("escaped dots", lambda path: "/v1/%2e%2e" + path),
    ("half escaped dots", lambda path: "/v1/.%2e" + path),
    ("one dot", lambda path: "/." + path),
    ("trailing dot", lambda path: path.rstrip("/") + "/."),
    ("trailing dots", lambda path: path.rstrip("/") + "/x/.."),
    ("backslash", lambda path: "/v1\\.." + path.replace("/", "\\")),
    ("capitals", lambda path: path.upper()),
    ("absolute form", lambda path: "http://h" + path),
    ("absolute form of another host", lambda path: "http://engine:8000" + path),
    ("absolute form with a user", lambda path: "http://h@engine" + path),
    ("absolute form in capitals", lambda path: "HTTP://h" + path),
    ("no slash", lambda path: path[1:] or "x"),
]

METHODS = ["POST", "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]


# Spellings that some servers read as dots: not vLLM and SGLang, but a Tomcat or IIS between router and engine.
ODD_DOTS = [
    ("dots with a parameter", lambda path: "/v1/..;/" + path[1:]),
    ("dots with a long parameter", lambda path: "/v1/..;a=b/" + path[1:]),
    ("escaped backslash", lambda path: "/v1/..%5c" + path[1:]),
    ("escaped backslash in capitals", lambda path: "/v1/..%5C..%5C" + path[1:]),
]


@attack("management paths of engines in other spellings and with other methods")
def management(lab):
    spelled = [(path, name, spell(path)) for path in MANAGEMENT for name, spell in SPELLINGS]
    requests = [("POST", path, name, target) for path, name, target in spelled]
    requests += [(method, path, "plain", path) for path in MANAGEMENT for method in METHODS]
    requests += [
        ("CONNECT", "", "authority", "engine:8000"),
        ("OPTIONS", "", "asterisk", "*"),
        ("TRACE", "", "plain", "/v1/completions"),
    ]
    refuse_all(lab, requests)


@attack("management paths behind dots that only some servers read as dots")
def odd_dots(lab):
    refuse_all(lab, [("POST", path, name, spell(path)) for path in MANAGEMENT for name, spell in ODD_DOTS])


def refuse_all(lab, requests):
    """Sends requests `(method, path, name of the spelling, target)`, of which none may reach an engine."""
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})

    def send(request):
        method, _, _, target = request
        head = f"{method} {target} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
        return exchange(router.address, head.encode("latin-1"), silence=5)

    answers = in_parallel(send, requests)
    for (method, path, name, target), answer in zip(requests, answers):
        lab.check(
            answer[:10] == b"HTTP/1.1 4" or method in ("GET", "HEAD") and path == "/",
            f"{method} {target} ({name}) gave {answer[:60]!r}",
        )
    lab.check(not engine.requests, f"reached the engine: {[request.line for request in engine.requests[:3]]}")
    lab.check(router.is_serving(), "the router does not answer any more")


# Below `/v1/` only what is named is refused. Another spelling may be forwarded, but never one that reads as the path.
LENIENT = [
    "/v1/load_lora_adapter/",
    "/v1/load_lora_adapter;a=b",
    "/v1/load_lora_adapter%00",
    "/v1/load_lora_adapter%20",
    "/v1/load_lora_adapter%0a",
    "/v1/load_lora_adapter%3f",
    "/v1/load_lora_adapter%23",
    "/v1/load_lora_adapter%252f",
    "/v1/%256coad_lora_adapter",
    "/v1/Load_Lora_Adapter",
    "/v1/load_lora_adapter%c0%af",
    "/v1/load_lora_adapte%72",
    "/v1/load_lora%5fadapter",
    "/v1/load%2dlora",
    "/v1/%u006coad_lora_adapter",
    "/v1/l%6",
    "/v1/%",
    "/v1/x%2e%2e/load_lora_adapter",
    "/v1/x/%2e./load_lora_adapter",
    "/v1/./load_lora_adapter",
    "/v2/../v1/load_lora_adapter",
    "/v1/x//../load_lora_adapter",
]


@attack("spellings below /v1/ that are read as a management path")
def below_v1(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()]})
    for target in LENIENT:
        head = f"POST {target} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
        answer = exchange(router.address, head.encode(), silence=5)
        lab.check(answer.startswith(b"HTTP/1.1 "), f"{target}: no answer")
    for request in engine.requests:
        # As Starlette reads it.
        read = unquote(request.path)
        lab.check(
            read != "/v1/load_lora_adapter" and "/../" not in read and "//" not in read,
            f"reached the engine: {request.line}",
        )
    lab.check(router.is_serving(), "the router does not answer any more")


@attack("paths of engines and of batches without a key, with wrong keys, and with a key in a wrong place")
def without_a_key(lab):
    engine = lab.own(Engine())
    router = lab.serve({"pods": [engine.pod()], "tenants": tenants("a"), "batch": {"folder": "batches"}})
    keys = [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer key-b"},
        {"authorization": "Bearer key-"},
        {"authorization": "Bearer key-aa"},
        {"authorization": "Bearer KEY-A"},
        {"authorization": "Basic key-a"},
        {"authorization": "key-a"},
        {"authorization": f"Bearer {digest('key-a')}"},
        {"authorization": "Bearer key-a,key-b"},
        {"authorization": "Bearer \xe9"},
        {"x-api-key": "key-b"},
        {"api-key": "key-a"},
        {"cookie": "authorization=Bearer key-a"},
        {"proxy-authorization": "Bearer key-a"},
        {"x-forwarded-authorization": "Bearer key-a"},
    ]
    paths = [
        ("POST", "/v1/completions"),
        ("POST", "/v1/completions?api_key=key-a"),
        ("POST", "/tokenize"),
        ("GET", "/version"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("GET", "/v1/batches"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/files/file-1/content"),
        ("DELETE", "/v1/files/file-1"),
    ]
    tries = [(method, path, key) for method, path in paths for key in keys]
    answers = in_parallel(lambda it: ask(router.address, it[0], it[1], it[2], b"{}").status, tries)
    for (method, path, key), status in zip(tries, answers):
        lab.check(status == 401, f"{method} {path} with {key} gave {status}")
    lab.check(not engine.requests, f"reached the engine: {[request.line for request in engine.requests[:3]]}")
    for key in [{"authorization": "Bearer key-a"}, {"authorization": "bearer key-a"}, {"x-api-key": "key-a"}]:
        lab.check(router.is_serving(key), f"{key} is the key, and is refused")
