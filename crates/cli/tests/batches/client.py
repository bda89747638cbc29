"""The official client against a gateway: upload, create, poll, download, cancel, expire."""

import json
import sys
import time

from openai import BadRequestError, ConflictError, NotFoundError, OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)


def upload(name, lines):
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=(name, content), purpose="batch")
    assert file.object == "file" and file.purpose == "batch" and file.filename == name, file
    assert file.bytes == len(content), file
    assert client.files.content(file.id).read() == content
    return file


def line(number, **body):
    prompt = {"role": "user", "content": f"Document {number % 3}. " * 40 + f"Question {number}?"}
    body = {"messages": [prompt], "max_tokens": 8, **body}
    return {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def create(file, window="24h", endpoint="/v1/chat/completions", **more):
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window, **more)


def wait(batch, *statuses):
    deadline = time.monotonic() + 30
    while batch.status not in statuses:
        counts = batch.request_counts
        assert counts.completed + counts.failed <= counts.total, batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def results(file_id):
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def completes():
    file = upload("in.jsonl", [line(number) for number in range(30)] + [line(30, model="none")])
    batch = create(file, metadata={"who": "me"})
    assert batch.object == "batch" and batch.endpoint == "/v1/chat/completions", batch
    assert batch.metadata == {"who": "me"} and batch.expires_at == batch.created_at + 86400, batch
    batch = wait(batch, "completed")
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (31, 30, 1), batch
    assert batch.in_progress_at and batch.finalizing_at and batch.completed_at, batch
    assert batch.usage.output_tokens == 240 and batch.usage.input_tokens_details.cached_tokens > 0, batch
    answers = results(batch.output_file_id)
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"id-{n}" for n in range(30))
    for answer in answers:
        assert answer["error"] is None and answer["response"]["status_code"] == 200, answer
        assert answer["response"]["body"]["choices"][0]["message"]["content"], answer
    errors = results(batch.error_file_id)
    assert [error["custom_id"] for error in errors] == ["id-30"], errors
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    try:
        client.batches.cancel(batch.id)
        raise AssertionError("a completed batch was cancelled")
    except ConflictError:
        pass


def wrong_lines():
    wrong = line(1)
    wrong["url"] = "/v1/embeddings"
    batch = wait(create(upload("wrong.jsonl", [line(0), wrong, line(0)])), "failed")
    found = [(error.line, error.code) for error in batch.errors.data]
    assert found == [(2, "mismatched_url"), (3, "duplicate_custom_id")], batch


def cancels():
    batch = create(upload("slow.jsonl", [line(number, max_tokens=2000, ignore_eos=True) for number in range(200)]))
    batch = wait(batch, "in_progress")
    batch = client.batches.cancel(batch.id)
    assert batch.status == "cancelling" and batch.cancelling_at, batch
    batch = wait(batch, "cancelled")
    ends = results(batch.error_file_id)
    assert {end["error"]["code"] for end in ends} == {"batch_cancelled"}, ends[:1]
    done = results(batch.output_file_id) if batch.output_file_id else []
    assert len(done) + len(ends) == 200


def expires():
    batch = create(upload("late.jsonl", [line(number, max_tokens=9000, ignore_eos=True) for number in range(300)]), "1s")
    batch = wait(batch, "expired")
    assert batch.expired_at >= batch.expires_at, batch
    ends = results(batch.error_file_id)
    assert ends and all(end["error"]["code"] == "batch_expired" for end in ends), ends[:1]
    done = results(batch.output_file_id) if batch.output_file_id else []
    assert sorted(end["custom_id"] for end in ends + done) == sorted(f"id-{n}" for n in range(300))


def lists_and_errors():
    batches = list(client.batches.list(limit=2))
    assert len(batches) == 4 and len({batch.id for batch in batches}) == 4, batches
    files = list(client.files.list())
    assert len([file for file in files if file.purpose == "batch"]) == 4, files
    file = upload("gone.jsonl", [line(0)])
    assert client.files.delete(file.id).deleted
    for call in (
        lambda: client.files.retrieve(file.id),
        lambda: client.batches.retrieve("batch_none"),
        lambda: create(file),
    ):
        try:
            call()
            raise AssertionError("something that is not there was found")
        except NotFoundError as error:
            assert error.body["type"] == "invalid_request_error", error.body
    forever = {"anchor": "created_at", "seconds": 2**64 - 1}
    kept = client.files.create(file=("kept.jsonl", b"{}"), purpose="batch", expires_after=forever)
    assert client.files.retrieve(kept.id).expires_at > kept.created_at, kept
    file = upload("odd.jsonl", [line(0)])
    try:
        create(file, "soon")
        raise AssertionError("no time was taken for one")
    except BadRequestError as error:
        assert error.body["param"] == "completion_window", error.body


def every_interface():
    for path, body, answered in (
        ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 4}, lambda body: body["choices"][0]["text"]),
        ("/v1/embeddings", {"input": "Once upon a time"}, lambda body: body["data"][0]["embedding"]),
        ("/v1/responses", {"input": "Once upon a time", "max_output_tokens": 16}, lambda body: body["output"]),
    ):
        lines = [{"custom_id": f"id-{n}", "method": "POST", "url": path, "body": body} for n in range(3)]
        batch = create(upload("any.jsonl", lines), endpoint=path, extra_body={"identical_once": True})
        assert batch.endpoint == path and batch.identical_once, batch
        batch = wait(batch, "completed")
        answers = results(batch.output_file_id)
        assert sorted(answer["custom_id"] for answer in answers) == ["id-0", "id-1", "id-2"], answers
        assert all(answered(answer["response"]["body"]) for answer in answers), answers[0]
        # Only embeddings are deterministic here.
        names = {answer["response"]["request_id"] for answer in answers}
        assert len(names) == (1 if path == "/v1/embeddings" else 3), answers


for part in (completes, wrong_lines, cancels, expires, lists_and_errors, every_interface):
    part()
    print(part.__name__, flush=True)
