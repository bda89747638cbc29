"""Isolation: how a tenant could reach what an engine keeps of another one, by fields, paths, headers and bodies.

The tables are those of `crates/gateway/src/proxy/isolation/`, and of the transfer protocols in
`crates/execution/src/transfer`; `tables` fails if one of those has a name that is not tried here.
"""

import json
import re

from lab import ROOT, attack, bearer, tenants
from wire import Engine, ask, exchange

# Fields that name cached blocks: refused everywhere, also inside `vllm_xargs` and where all other fields are allowed.
BLOCKS = [
    "bootstrap_host",
    "bootstrap_pair_key",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
    "ec_transfer_params",
    "encoder_urls",
    "kv_transfer_params",
    "mm_content_hashes",
    "mm_hashes",
    "multi_modal_uuids",
]
# Refused unless the configuration allows them.
REFUSED = [
    "previous_response_id",
    "conversation",
    "previous_input_messages",
    "prompt_embeds",
    "input_embeds",
    "session_params",
    "extra_key",
    "custom_logit_processor",
    "logits_processors",
    "nvext",
    "kv_hints",
    "routed_dp_rank",
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    # Known to no table.
    "extra_body",
    "extra_args",
    "cache_salt2",
    "Cache_Salt",
    "CACHE_SALT",
    "cache_salt ",
    "cache\\u005fsalt\\u0000",
    "lora_request",
    "__proto__",
    "",
]
# Replaced by an id that only the tenant can produce.
SCOPED = ["session_id", "request_id", "rid", "conversation_id"]
REMOVED = ["kv_cache_report_mode"]

# Paths where the salt works, with a body that each accepts.
PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/chat/completions/batch": {"messages": [[{"role": "user", "content": "a"}]]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/embeddings": {"input": "a"},
    "/v1/classify": {"input": "a"},
    "/classify": {"input": "a"},
    "/pooling": {"input": "a"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v2/rerank": {"query": "a", "documents": ["b"]},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/invocations": {"prompt": "a"},
    "/tokenize": {"prompt": "a"},
    "/v1/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/v1/detokenize": {"tokens": [1]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
}
# Refused unless the configuration allows them. `*` in the table of the router stands for every path below.
REFUSED_PATHS = {
    "/v1/responses/*": [
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/cancel",
        "/v1/responses/",
        "/v1/responses/resp_1/input_items",
    ],
    "/v1/messages": ["/v1/messages"],
    "/v2/embed": ["/v2/embed"],
    "/encode": ["/encode"],
    "/generate": ["/generate"],
    "/v1/audio/*": ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/audio/x"],
    "/v1/realtime": ["/v1/realtime"],
    "unknown": [
        "/v1/new",
        "/v1/chat/completions/",
        "/v1/chat/completions/render",
        "/v1/completions/x",
        "/v1/CHAT/completions",
        "/v1/chat/completions;x",
        "/v1/chat/completions%00",
        "/v1/completions%20",
        "/v1/messages/count_tokens/",
        "/v2/completions",
        "/v1/fine_tuning/jobs",
        "/v1/images/generations",
        "/v1/vector_stores",
        "/v1/assistants",
        "/v1/conversations/conv_1",
        "/v1/chat/completions/chatcmpl-1",
    ],
}
# Answered without a body.
WITHOUT_BODY = ["/version", "/get_model_info"]

JSON = {"content-type": "application/json"}


class Isolated:
    """A router with two isolated tenants in front of a recording engine."""

    def __init__(self, lab, **more):
        self.lab, self.engine = lab, lab.own(Engine())
        config = {
            "pods": [self.engine.pod(engine="vllm")],
            "models": [{"name": "m", "tokenizer": "bytes"}],
            "tenants": tenants("a", "b"),
            "isolation": {"secret_file": "cell.secret", **more},
        }
        self.router = lab.serve(config, files={"cell.secret": "7" * 64})

    def send(self, path, body, headers=None, tenant="a", method="POST"):
        """The answer, and the request that reached the engine, if one did."""
        before = len(self.engine.requests)
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        answer = ask(
            self.router.address, method, path, {**bearer(tenant), **(JSON if headers is None else headers)}, body
        )
        arrived = self.engine.requests[before:]
        self.lab.check(len(arrived) <= 1, f"{path}: {len(arrived)} requests reached the engine")
        return answer, arrived[0] if arrived else None

    def refused(self, what, path, body, headers=None, method="POST"):
        """Nothing reaches the engine, and the client is told so."""
        answer, arrived = self.send(path, body, headers, method=method)
        self.lab.check(answer.status in (400, 404, 415) and arrived is None, f"{what} gave {answer.status}")

    def salted(self, what, path, body, headers=None):
        """The request arrives with the salt of the tenant as the only one, or is refused."""
        answer, arrived = self.send(path, body, headers)
        if arrived is None:
            self.lab.check(answer.status == 400, f"{what} gave {answer.status}")
            return None
        pairs = json.loads(arrived.body.decode(), object_pairs_hook=list)
        salts = [value for name, value in pairs if name == "cache_salt"]
        self.lab.check(len(salts) == 1 and "theirs" not in salts[0] and len(salts[0]) >= 32, f"{what}: salts {salts}")
        return arrived


def escapes(name):
    """The name as JSON strings: plain, one letter escaped, all letters escaped, in capitals."""
    code = [f"\\u{ord(letter):04x}" for letter in name]
    return [f'"{name}"', f'"{code[0]}{name[1:]}"', f'"{"".join(code)}"', f'"{name[:-1]}\\u{ord(name[-1]):04X}"']


def body_of(path, field, value):
    """A body of the path with one more member, as bytes; `field` is a JSON string."""
    plain = json.dumps({"model": "m", **PATHS[path]})
    return f"{plain[:-1]}, {field}: {value}}}".encode()


@attack("fields that name blocks, sessions, stored responses or placement, in every spelling")
def fields(lab):
    served = Isolated(lab)
    for path in PATHS:
        for field in BLOCKS:
            for spelled in escapes(field)[: 4 if path == "/v1/completions" else 2]:
                for value in ['{"a": 1}', '"x"', "[]", "0", "false"][: 5 if path == "/v1/completions" else 1]:
                    served.refused(f"{path} {spelled}: {value}", path, body_of(path, spelled, value))
    for path in (
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/pooling",
        "/score",
        "/invocations",
    ):
        for field in REFUSED:
            spelled = escapes(field) if field and "\\" not in field else [f'"{field}"']
            for one in spelled:
                served.refused(f"{path} {one}", path, body_of(path, one, '{"a": 1}'))
    lab.check(served.router.is_serving(bearer("a")), "an ordinary request is refused: the check is blind")


@attack("the same fields inside vllm_xargs, and what hides them there")
def arguments(lab):
    served = Isolated(lab)
    path = "/v1/completions"
    for field in BLOCKS + [field for field in REFUSED if "\\" not in field]:
        for spelled in escapes(field) if field else ['""']:
            for outer in ('"vllm_xargs"', '"vllm_\\u0078args"'):
                served.refused(f"{outer}.{spelled}", path, body_of(path, outer, f'{{{spelled}: "x"}}'))
    for value in ['"{\\"kv_transfer_params\\": 1}"', "[]", "1", '[{"kv_transfer_params": 1}]', "true"]:
        served.refused(f"vllm_xargs: {value}", path, body_of(path, '"vllm_xargs"', value))
    for value in [
        '{"ngram_size": 1, "ngram_size": 2}',
        '{"session_id": "a", "session_\\u0069d": "b"}',
        '{"unknown": 1}',
        '{"cache_salt": "theirs"}',
    ]:
        served.refused(f"vllm_xargs: {value}", path, body_of(path, '"vllm_xargs"', value))
    twice = '{"model": "m", "prompt": "a", "vllm_xargs": {}, "vllm_xargs": {"kv_transfer_params": 1}}'
    served.refused(twice, path, twice.encode())
    value = '{"kv_cache_report_mode": "full", "rid": "theirs", "ngram_size": 3}'
    _, arrived = served.send(path, body_of(path, '"vllm_xargs"', value))
    sent = arrived.json()["vllm_xargs"] if arrived else None
    lab.check(
        sent and "kv_cache_report_mode" not in sent and sent["rid"] != "theirs" and sent["ngram_size"] == 3,
        f"arrived as {sent}",
    )


@attack("a salt of the client's own, in every spelling, at every path")
def salts(lab):
    served = Isolated(lab)
    for path in PATHS:
        for spelled in escapes("cache_salt"):
            for value in ('"theirs"', "null", '["theirs"]', '{"theirs": 1}', "7"):
                served.salted(f"{path} {spelled}: {value}", path, body_of(path, spelled, value))
        for twice in [
            '"cache_salt": "theirs", "cache_salt": "theirs"',
            '"cache_salt": null, "cache\\u005fsalt": "theirs"',
        ]:
            served.salted(f"{path} {twice}", path, body_of(path, *twice.split(": ", 1)))
        served.salted(f"{path} without a salt", path, {"model": "m", **PATHS[path]})
    found = {}
    for tenant in ("a", "b"):
        for _ in range(2):
            _, arrived = served.send("/v1/completions", {"model": "m", "prompt": "a", "cache_salt": "x"}, tenant=tenant)
            found.setdefault(tenant, set()).add(arrived.json()["cache_salt"])
    lab.check(
        all(len(salts) == 1 for salts in found.values()) and found["a"] != found["b"], f"salts by tenant: {found}"
    )


@attack("ids of sessions, requests and media that another tenant chose")
def ids(lab):
    served = Isolated(lab)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}, "uuid": "theirs"}
    content = {"content": [image]}
    media = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [image]}]}),
        ("/v1/chat/completions/batch", {"messages": [[{"content": [image]}]]}),
        ("/v1/embeddings", {"messages": [content]}),
        ("/v1/embeddings", {"input": [[content]]}),
        ("/pooling", {"data": content}),
        ("/v1/classify", {"input": [content]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [image]}]}),
        ("/v1/responses", {"input": [{"type": "function_call_output", "output": [image]}]}),
        ("/score", {"data_1": content, "data_2": [content]}),
        ("/v1/score", {"queries": content, "items": [content]}),
        ("/rerank", {"query": content, "documents": [content]}),
        ("/invocations", {"query": "q", "documents": [content]}),
        ("/tokenize", {"messages": [content]}),
        ("/v1/chat/completions", {"messages": [], "mm_processor_kwargs": {"uuid": "theirs"}}),
        ("/v1/chat/completions", {"messages": [{"content": [{"deep": [[[image]]]}]}]}),
    ]
    for path, body in media:
        served.salted(path, path, {"model": "m", **body})
        arrived = served.engine.last().body
        lab.check(b"theirs" not in arrived, f"{path}: the id reached the engine: {arrived[:200]!r}")
        spelled = json.dumps({"model": "m", **body}).replace('"uuid"', '"\\u0075uid"').encode()
        served.salted(path, path, spelled)
        lab.check(b"theirs" not in served.engine.last().body, f"{path}: an escaped uuid reached the engine")
    twice = b'{"model":"m","messages":[{"content":[{"uuid":"theirs","\\u0075uid":"theirs"}]}]}'
    served.salted("a uuid twice", "/v1/chat/completions", twice)
    lab.check(b"theirs" not in served.engine.last().body, "one of two uuids reached the engine")
    for value in (7, ["theirs"], {"theirs": 1}, True):
        body = {"model": "m", "messages": [{"content": [{**image, "uuid": value}]}]}
        served.refused(f"uuid {value}", "/v1/chat/completions", body)
    seen = {}
    for tenant in ("a", "b"):
        for field in SCOPED:
            for spelled in escapes(field):
                _, arrived = served.send(
                    "/v1/completions", body_of("/v1/completions", spelled, '"theirs"'), tenant=tenant
                )
                sent = arrived.json()[field] if arrived else None
                lab.check(sent and sent != "theirs", f"{spelled}: arrived as {sent}")
                seen.setdefault(field, {}).setdefault(tenant, set()).add(sent)
            for value in ("7", '["theirs"]', '{"a": "theirs"}', "true"):
                served.refused(f"{field}: {value}", "/v1/completions", body_of("/v1/completions", f'"{field}"', value))
    for field, by_tenant in seen.items():
        held = all(len(ids) == 1 for ids in by_tenant.values()) and by_tenant["a"] != by_tenant["b"]
        lab.check(held, f"{field} by tenant: {by_tenant}")
    for field in REMOVED:
        for spelled in escapes(field):
            arrived = served.salted(spelled, "/v1/completions", body_of("/v1/completions", spelled, '"full"'))
            lab.check(field not in arrived.json(), f"{spelled} reached the engine")


@attack("headers that name a session, replace fields or ask for the load of an engine")
def headers(lab):
    served = Isolated(lab)
    body = {"model": "m", "prompt": "a"}
    for name in [
        "x-override-priority",
        "x-override-rid",
        "x-override-bootstrap-host",
        "X-Override-Session-Params",
        "x-override-",
        "endpoint-load-metrics-format",
        "Endpoint-Load-Metrics-Format",
        "x-data-parallel-rank",
        "x-vllm-priority",
    ]:
        _, arrived = served.send("/v1/completions", body, {**JSON, name: "theirs"})
        lab.check(arrived and not arrived.values(name.lower()), f"{name} reached the engine")
    seen = {}
    for tenant in ("a", "b"):
        for name in ("x-session-id", "X-Session-ID"):
            _, arrived = served.send("/v1/completions", body, {**JSON, name: "theirs"}, tenant=tenant)
            [sent] = arrived.values("x-session-id")
            lab.check("theirs" not in sent, f"{name} reached the engine")
            seen.setdefault(tenant, set()).add(sent)
    lab.check(seen["a"] != seen["b"] and len(seen["a"]) == 1, f"sessions by tenant: {seen}")
    _, arrived = served.send("/v1/completions", body, {**JSON, "x-session-id": "\xe9"})
    lab.check(
        not arrived or "\xe9" not in "".join(arrived.values("x-session-id")),
        "a session that is no text reached the engine",
    )


@attack("paths where engines ignore the salt, and paths that nobody knows")
def paths(lab):
    served = Isolated(lab)
    form = {"content-type": "multipart/form-data; boundary=b"}
    body = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    for targets in REFUSED_PATHS.values():
        for path in targets:
            served.refused(path, path, {"model": "m", "prompt": "a"})
            served.refused(f"a form at {path}", path, body, form)
            served.refused(f"GET {path}", path, b"", {}, method="GET")
            served.refused(f"DELETE {path}", path, b"", {}, method="DELETE")
            served.refused(f"{path}?a=b", path + "?a=b", {"model": "m"})
    for path in PATHS:
        served.refused(f"a form at {path}", path, body, form)
    for path in WITHOUT_BODY:
        served.refused(f"a body at {path}", path, {"model": "m", "prompt": "a"})
    for path, body in PATHS.items():
        _, arrived = served.send(path, {"model": "m", **body})
        lab.check(arrived is not None, f"{path} is refused: the check is blind")


PLAIN = '{"model":"m","input":"a","cache_salt":"theirs"}'


def odd_bodies():
    """Bodies that an engine may read otherwise than the router."""
    yield "UTF-8 with a mark", b"\xef\xbb\xbf" + PLAIN.encode()
    for coding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-7"):
        yield coding, PLAIN.encode(coding) if coding != "utf-7" else PLAIN.replace('"', "+ACI-").encode()
    for coding in ("utf-16", "utf-32"):
        yield f"{coding} with a mark", PLAIN.encode(coding)
    yield "big-endian mark", b"\xfe\xff" + PLAIN.encode("utf-16-be")
    for name, text in {
        "NaN": '{"model":"m","input":"a","cache_salt":"theirs","dimensions":NaN}',
        "Infinity": '{"model":"m","input":"a","cache_salt":"theirs","dimensions":-Infinity}',
        "half a pair": '{"model":"m","input":"a","user":"\\ud800"}',
        "half a pair in a name": '{"model":"m","input":"a","\\ud800":1}',
        "two objects": PLAIN + PLAIN,
        "a list": f"[{PLAIN}]",
        "a string": json.dumps(PLAIN),
        "a field twice": '{"model":"m","input":"a","user":"1","user":"2"}',
        "a field twice, escaped": '{"model":"m","input":"a","user":"1","\\u0075ser":"2"}',
        "the model twice": '{"model":"m","input":"a","model":"n"}',
        "a comment": '{"model":"m",/* */"input":"a","cache_salt":"theirs"}',
        "a comma at the end": '{"model":"m","input":"a","cache_salt":"theirs",}',
        "single quotes": "{'model':'m','input':'a','cache_salt':'theirs'}",
        "a name without quotes": '{model:"m",input:"a",cache_salt:"theirs"}',
        "a line break in a string": '{"model":"m","input":"a\n","cache_salt":"theirs"}',
        "an unknown escape": '{"model":"m","input":"\\x61","cache_salt":"theirs"}',
        "a leading zero": '{"model":"m","input":"a","dimensions":01}',
        "a plus": '{"model":"m","input":"a","dimensions":+1}',
        "no end": PLAIN[:-1],
        "too deep": '{"model":"m","input":' + "[" * 200 + "]" * 200 + "}",
        "far too deep": '{"model":"m","input":' + "[" * 100_000 + "}",
        "another space": '{"model":"m",\u00a0"input":"a"}',
        "form feed": '{"model":"m",\x0c"input":"a"}',
        "a form": "model=m&input=a&cache_salt=theirs",
    }.items():
        yield name, text.encode()
    yield "broken UTF-8", b'{"model":"m","input":"\xff","cache_salt":"theirs"}'
    yield "overlong UTF-8", b'{"model":"m","input":"a","c\xc1\xa1che_salt":"theirs"}'
    yield "NUL at the end", PLAIN.encode() + b"\0"
    yield "NUL at the start", b"\0" + PLAIN.encode()
    yield "NUL in a name", b'{"model":"m","input":"a","cache_salt\\u0000":"theirs"}'


@attack("bodies that an engine may read otherwise, under every content type")
def bodies(lab):
    served = Isolated(lab)
    for path in ("/v1/embeddings", "/pooling"):
        for name, body in odd_bodies():
            for kind in (JSON, {}, {"content-type": ""}, {"content-type": "application/json; charset=utf-16"}):
                served.refused(f"{path}: {name} as {kind}", path, body, kind)
        for kind in [
            "text/plain",
            "text/json",
            "multipart/form-data",
            "multipart/form-data; boundary=b",
            "application/x-www-form-urlencoded",
            "application/jsonl",
            "application/json, text/plain",
            "applicati\xf6n/json",
            "x",
            "application/octet-stream",
            "application/msgpack",
            "application/cbor",
        ]:
            served.refused(f"{path} as {kind}", path, PLAIN.encode(), {"content-type": kind})
        for kind in ("application/json", "Application/JSON; charset=utf-8", "application/x+json", ""):
            arrived = served.salted(f"{path} as {kind}", path, PLAIN.encode(), {"content-type": kind})
            lab.check(arrived is not None, f"{path} as {kind!r} is refused: the check is blind")


@attack("the same in bodies that are so long that another thread reads them, and behind two content types")
def long_bodies(lab):
    served = Isolated(lab)
    padding = "x" * 300_000
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings"):
        start = json.dumps({"model": "m", **PATHS[path], "user": padding})[:-1]
        for field in [*BLOCKS, "nvext", "session_params", "extra_body"]:
            for spelled in escapes(field):
                served.refused(f"{path} {spelled} behind 300 KB", path, f'{start}, {spelled}: {{"a": 1}}}}'.encode())
        for spelled in escapes("cache_salt"):
            served.salted(f"{path} {spelled} behind 300 KB", path, f'{start}, {spelled}: "theirs"}}'.encode())
        served.refused(f"{path} with a field twice", path, f'{start}, "user": "2"}}'.encode())
        served.refused(f"{path} with a mark", path, b"\xef\xbb\xbf" + start.encode() + b"}")
    before = len(served.engine.requests)
    for kinds in [
        ("application/json", "text/plain"),
        ("text/plain", "application/json"),
        ("application/json", "application/json"),
    ]:
        lines = "".join(f"content-type: {kind}\r\n" for kind in kinds)
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: h\r\nauthorization: Bearer key-a\r\nconnection: close\r\n{lines}"
        answer = exchange(served.router.address, f"{head}content-length: {len(PLAIN)}\r\n\r\n{PLAIN}".encode())
        lab.check(b" 400 " in answer[:20], f"{kinds} gave {answer[:40]!r}")
    lab.check(len(served.engine.requests) == before, "a body with two content types reached the engine")


@attack("what the configuration allows does not allow fields that name blocks")
def allowed(lab):
    served = Isolated(
        lab, allow_paths=["/v1/messages", "/v1/audio/transcriptions"], allow_fields=["mine", "vllm_xargs"]
    )
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "cache_salt": "theirs", "new": 1}
    served.salted("/v1/messages", "/v1/messages", body)
    for field in BLOCKS:
        served.refused(f"/v1/messages {field}", "/v1/messages", {**body, field: {"a": 1}})
        served.refused(
            f"vllm_xargs.{field}", "/v1/completions", {"model": "m", "prompt": "a", "vllm_xargs": {field: "x"}}
        )
    for name, text in odd_bodies():
        # A path that is vouched for may have any other field.
        judge = served.salted if name == "NUL in a name" else served.refused
        judge(f"/v1/audio/transcriptions: {name}", "/v1/audio/transcriptions", text)
    for path in ("/v1/messages/", "/v1/messages/x", "/v1/audio/translations"):
        served.refused(path, path, body)


@attack("names in the tables of the router that are not tried here")
def tables(lab):
    source = ROOT / "crates/gateway/src/proxy/isolation"
    if not source.exists():
        lab.check(True, "only in a checkout")
        return

    def table(name, text):
        block = re.search(rf"const {name}: [^=]*= \[(.*?)\];", text, re.S).group(1)
        return re.findall(r'"((?:\\.|[^"])*)"', block)

    text = (source / "fields.rs").read_text()
    named = re.findall(r'\(\s*"([a-z_]+)",', re.search(r"const REFUSED.*?\];", text, re.S).group(0))
    transfer = (ROOT / "crates/execution/src/transfer.rs").read_text()
    listed = re.findall(
        r'\(?"(/[^"]+)",', (source / "paths.rs").read_text().split("static PATHS")[1].split("#[cfg(test)]")[0]
    )
    known = {*PATHS, *REFUSED_PATHS, *WITHOUT_BODY}
    for what, names, ours in [
        ("REFUSED", named, REFUSED),
        ("SCOPED", table("SCOPED", text), SCOPED),
        ("REMOVED", table("REMOVED", text), REMOVED),
        ("OTHER_FIELDS", table("OTHER_FIELDS", transfer), BLOCKS),
        ("PATHS", listed, known),
    ]:
        lab.check(names, f"found no name in {what}: the check is blind")
        for name in names:
            lab.check(name in ours, f"`{name}` of {what} is not tried; add it to tests/attack/isolation.py")
