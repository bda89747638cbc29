"""Traffic from a seed: conversations that grow turn by turn, and questions about long documents.

The same seed gives the same arrivals, texts and lengths under every policy. A conversation's next turn comes a pause after the
answer to the last one and contains that answer, so a faster fleet is asked a little earlier.
"""

import dataclasses
import functools
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Generator, Sequence

WORDS = (
    "the of and to in is that for it was on are as with his they at be this have from or one had by word but not what all "
    "were we when your can said there use an each which she do how their if will up other about out many then them these so "
    "some her would make like him into time has look two more write go see number no way could people my than first water "
    "been call who oil its now find long down day did get come made may part over new sound take only little work know place "
    "year live me back give most very after thing our just name good sentence man think say great where help through much"
).split()


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes of the traffic. A word is about a token."""

    documents: int = 20
    document_words: tuple[int, int] = (5000, 9000)
    question_words: tuple[int, int] = (10, 40)
    question_answer: int = 16
    systems: int = 4
    system_words: tuple[int, int] = (200, 400)
    turns: tuple[int, int] = (2, 6)
    turn_words: tuple[int, int] = (100, 900)
    turn_answer: int = 32
    pause_seconds: float = 2.0

    def words_per_request(self) -> float:
        """The mean length of a prompt, if half of the requests are about documents."""
        turns = range(self.turns[0], self.turns[1] + 1)
        heard = sum(sum(range(1, count + 1)) for count in turns) / sum(turns)  # turns in the prompt of a turn
        talk = mean(self.system_words) + heard * mean(self.turn_words) + (heard - 1) * self.turn_answer
        return (talk + mean(self.document_words) + mean(self.question_words)) / 2


SMALL = Scale(
    documents=6, document_words=(300, 600), question_answer=4, system_words=(30, 60), turn_words=(10, 60), turn_answer=8,
    pause_seconds=0.2,
)  # fmt: skip


def mean(ends: tuple[int, int]) -> float:
    return sum(ends) / 2


@dataclasses.dataclass
class Answer:
    """What one request got."""

    id: str
    kind: str
    started: float  # seconds since the traffic began
    failure: str | None = None
    ttft: float = 0.0
    total: float = 0.0  # seconds to the end of the answer
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Ask:
    """A request: a kind, for the tables, and the path and the fields of its body."""

    kind: str
    path: str
    fields: dict


def chat(kind: str, messages: list[dict], most: int) -> Ask:
    return Ask(kind, "/v1/chat/completions", {"messages": messages, "max_tokens": most})


class Source:
    """Prompts of one seed."""

    def __init__(self, seed: int, scale: Scale):
        self.seed, self.scale = seed, scale
        random_of = random.Random(f"{seed} texts")
        self.documents = [words(random_of, scale.document_words) for _ in range(scale.documents)]
        self.systems = [words(random_of, scale.system_words) for _ in range(scale.systems)]
        # Some documents are asked about more often than others.
        self._weights = [1 / (1 + rank) ** 0.6 for rank in range(scale.documents)]

    def question(self, random_of: random.Random, document: int | None = None) -> Ask:
        """A question about one of the documents."""
        if document is None:
            document = random_of.choices(range(len(self.documents)), self._weights)[0]
        asked = {"role": "user", "content": words(random_of, self.scale.question_words)}
        return chat("document", [{"role": "system", "content": self.documents[document]}, asked], self.scale.question_answer)

    def every_document(self, number: int) -> list[Ask]:
        """A question about each document, in an order of its own."""
        random_of = random.Random(f"{self.seed} pass {number}")
        order = random_of.sample(range(len(self.documents)), len(self.documents))
        asked = [self.question(random_of, document) for document in order]
        return [Ask(one.kind, one.path, one.fields | {"max_tokens": 1}) for one in asked]

    def conversation(self, number: int) -> Generator[tuple[Ask, float], str, None]:
        """The turns of a conversation and the pause before each next one; takes the answers by `send`."""
        random_of = random.Random(f"{self.seed} conversation {number}")
        messages: list[dict] = [{"role": "system", "content": random_of.choice(self.systems)}]
        for _ in range(random_of.randint(*self.scale.turns)):
            messages.append({"role": "user", "content": words(random_of, self.scale.turn_words)})
            pause = random_of.expovariate(1 / self.scale.pause_seconds)
            said = yield chat("conversation", list(messages), self.scale.turn_answer), pause
            messages.append({"role": "assistant", "content": said})


def words(random_of: random.Random, ends: tuple[int, int]) -> str:
    return " ".join(random_of.choices(WORDS, k=random_of.randint(*ends)))


class Client:
    """Sends requests to one address as streams, and keeps what came of them."""

    def __init__(self, port: int, name: str, model: str):
        self.answers: list[Answer] = []
        self._port, self._name, self._model = port, name, model
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._count = 0

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def ask(self, ask: Ask) -> Answer:
        with self._lock:
            self._count += 1
            answer = Answer(f"{self._name}-{self._count}", ask.kind, self.seconds())
        try:
            self._stream(ask, answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            answer.failure = f"{type(error).__name__}: {error}"
        with self._lock:
            self.answers.append(answer)
        return answer

    def _stream(self, ask: Ask, answer: Answer) -> None:
        asked = {"model": self._model, "ignore_eos": True, "temperature": 0}
        body = asked | {"stream": True, "stream_options": {"include_usage": True}} | ask.fields
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            headers = {"content-type": "application/json", "x-request-id": answer.id}
            begin = time.monotonic()
            connection.request("POST", ask.path, json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"status {response.status}: {response.read(300)!r}")
            has_ended = False
            for line in response:
                if line.startswith(b"data: {"):
                    if not answer.ttft:
                        answer.ttft = time.monotonic() - begin
                    self._read(json.loads(line[6:]), answer)
                has_ended |= line.startswith(b"data: [DONE]")
            if not has_ended or not answer.prompt_tokens:
                raise ValueError("the stream broke")
            answer.total = time.monotonic() - begin
        finally:
            connection.close()

    def _read(self, chunk: dict, answer: Answer) -> None:
        if "error" in chunk:
            raise ValueError(f"an error in the stream: {chunk['error']}")
        for choice in chunk["choices"]:
            answer.text += choice["delta"]["content"] if "delta" in choice else choice["text"]
        usage = chunk.get("usage")
        if usage:
            answer.prompt_tokens = usage["prompt_tokens"]
            answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]


def arrivals(random_of: random.Random, rate: float, until: float) -> list[float]:
    """Times of a Poisson process."""
    times, at = [], random_of.expovariate(rate)
    while at < until:
        times.append(at)
        at += random_of.expovariate(rate)
    return times


def drive(source: Source, client: Client, rate: float, seconds: float) -> None:
    """Sends so many requests per second, half of them about documents, for some time; returns when all are answered."""
    turns = mean(source.scale.turns)
    random_of = random.Random(f"{source.seed} arrivals")
    questions = [(at, source.question(random_of)) for at in arrivals(random_of, rate / 2, seconds)]
    starts = arrivals(random_of, rate / 2 / turns, seconds)
    begin, end = time.monotonic(), time.monotonic() + seconds

    def ask_at(at: float, ask: Ask) -> None:
        time.sleep(max(0.0, begin + at - time.monotonic()))
        client.ask(ask)

    def talk_at(at: float, number: int) -> None:
        time.sleep(max(0.0, begin + at - time.monotonic()))
        turns = source.conversation(number)
        ask, pause = next(turns)
        while time.monotonic() < end:
            said = client.ask(ask).text
            time.sleep(pause)
            try:
                ask, pause = turns.send(said)
            except StopIteration:
                return

    jobs: list[Callable[[], object]] = [functools.partial(ask_at, at, ask) for at, ask in questions]
    jobs += [functools.partial(talk_at, at, number) for number, at in enumerate(starts)]
    in_threads(jobs, len(jobs))


def in_threads(jobs: Sequence[Callable[[], object]], width: int) -> None:
    """Runs all jobs, so many at a time."""
    left = iter(jobs)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                job = next(left, None)
            if job is None:
                return
            job()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
