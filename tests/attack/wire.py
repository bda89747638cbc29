"""Raw HTTP: requests as bytes, answers as they arrive, and an engine that records what reaches it."""

import json
import socket
import threading


def connect(address, timeout=15):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=timeout)


def exchange(address, data, silence=1.0):
    """Everything that comes back for these bytes, until the other side closes or is silent."""
    received = b""
    with connect(address) as stream:
        stream.settimeout(silence)
        try:
            stream.sendall(data)
        except OSError:
            pass  # A server that has refused already may have closed.
        while True:
            try:
                piece = stream.recv(65536)
            except OSError:
                return received
            if not piece:
                return received
            received += piece


def post_head(target, length, headers=None):
    """The head of a POST whose body has this length; for bodies that do not come, or come slowly."""
    headers = {"host": "h", "content-type": "application/json", "content-length": length, **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode()


class Answer:
    """An HTTP response. The status is 0 if none came."""

    def __init__(self, status, headers, body, is_whole=True):
        self.status, self.headers, self.body, self.is_whole = status, headers, body, is_whole

    @property
    def text(self):
        return self.body.decode(errors="replace")

    def json(self):
        return json.loads(self.body)

    def header(self, name):
        return next((value for known, value in self.headers if known == name), None)


def ask(address, method, target, headers=None, body=b"", timeout=15) -> Answer:
    """Sends a request and reads its response."""
    headers = dict(headers or {})
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("content-type", "application/json")
    headers = {"host": address, "connection": "close", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value is not None)
    with connect(address, timeout) as stream:
        try:
            stream.sendall(f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)
        except OSError:
            pass  # It may have refused by the head, and the answer may be there.
        return read_answer(stream)


def read_answer(stream) -> Answer:
    """Reads one response from a socket."""
    reader = stream.makefile("rb")
    try:
        head = read_head(reader)
    except OSError:
        head = None
    if head is None:
        return Answer(0, [], b"", is_whole=False)
    line, headers = head
    status = int(line.split(" ")[1])
    try:
        body, is_whole = read_body(reader, headers, until_close=True)
    except OSError:
        body, is_whole = b"", False
    return Answer(status, headers, body, is_whole)


def read_head(reader):
    """The first line and the headers with lowercase names; none if the connection ended before."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline(1 << 20)
        if not line:
            return None
        head += line
    first, *rest = head[:-4].decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in rest]
    return first, [(name.strip().lower(), value.strip()) for name, _, value in pairs]


def read_body(reader, headers, until_close=False):
    """A body, and whether it is whole."""
    named = dict(headers)
    if "chunked" in named.get("transfer-encoding", "").lower():
        body = b""
        while True:
            size = reader.readline(1 << 16).split(b";")[0].strip()
            if not size:
                return body, False
            piece = reader.read(int(size, 16) + 2)
            if int(size, 16) == 0:
                return body, True
            body += piece[:-2]
    if "content-length" in named:
        length = int(named["content-length"])
        body = reader.read(length)
        return body, len(body) == length
    return (reader.read(), True) if until_close else (b"", True)


class Received:
    """A request as it reached an engine."""

    def __init__(self, line, headers, body):
        self.line, self.headers, self.body = line, headers, body
        self.method, _, rest = line.partition(" ")
        self.target = rest.rsplit(" ", 1)[0]

    @property
    def path(self):
        return self.target.split("?")[0]

    def values(self, name):
        return [value for known, value in self.headers if known == name]

    def json(self):
        return json.loads(self.body)


def respond(body=b"", status="200 OK", headers=""):
    """A response as bytes. `headers` are lines that end with CRLF each."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


COMPLETION = {
    "id": "x",
    "object": "text_completion",
    "choices": [{"index": 0, "text": " word", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}

# What a router asks an engine on its own account.
PROBES = ("/v1/models", "/metrics", "/health", "/kv_event_sources", "/version", "/get_server_info", "/tokenizer_info")
# What is in the texts that it lets the engine tokenize.
PROBE_TEXT = b"It's 12345.678 o'clock"


class Engine:
    """An engine that records every request.

    `answer` gets a request and gives the bytes of the response, a function that gets the socket, or none to close
    the connection. Without it every answer is a short completion.
    """

    def __init__(self, answer=None):
        self.answer = answer or (lambda received: respond(COMPLETION))
        self.requests, self.strays, self.open_connections = [], [], set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def pod(self, **more):
        return {"url": f"http://{self.address}", "model": "m", **more}

    def _accept(self):
        while not self._is_over:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            self.open_connections.add(stream)
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream):
        try:
            reader = stream.makefile("rb")
            while self._answer_one(reader, stream):
                pass
        except (OSError, ValueError) as error:
            self.strays.append(repr(error))
        finally:
            self.open_connections.discard(stream)
            try:
                # Waking whoever reads, which closing alone does not while `reader` is open.
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            stream.close()

    def _answer_one(self, reader, stream):
        head = read_head(reader)
        if head is None:
            return False
        line, headers = head
        body, _ = read_body(reader, headers)
        received = Received(line, headers, body)
        is_probe = received.method == "GET" and received.path in PROBES
        if is_probe or (received.path == "/tokenize" and PROBE_TEXT in received.body):
            models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
            stream.sendall(respond(models if received.path == "/v1/models" else {}))
            return True
        self.requests.append(received)
        answer = self.answer(received)
        if callable(answer):
            answer(stream)
            return False
        if answer is None:
            return False
        stream.sendall(answer)
        return True

    def last(self):
        return self.requests[-1]

    def end(self):
        self._is_over = True
        for stream in [self._listener, *self.open_connections]:
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            stream.close()
