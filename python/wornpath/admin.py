"""A client for the admin plane of a router: pods, decisions, explanations, configuration.

The router describes its admin plane at `/openapi.json`; the types of the answers are made from the same source. Not every
path has a method: `call` reaches the others.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from .rows import Rows
from .schemas import (
    Checked,
    Decision,
    Explained,
    History,
    Index,
    Pod,
    Prefixes,
    Profile,
    Reloaded,
    Traffic,
)


class Candidate(TypedDict):
    """A pod in a decision."""

    step: str
    pod: str
    blocks: int
    """Blocks of the prompt that it holds, from the start."""
    dropped: str | None
    """Why a filter dropped it."""
    scores: dict[str, float]
    """By scorer, before weights."""
    total: float | None
    picked: bool


def candidates(explained: Explained | Decision) -> Rows[Candidate]:
    """The pods of an explanation, or of a decision whose explanation was recorded, one row per step and pod."""
    rows: Rows[Candidate] = Rows()
    explanation = explained.get("explanation") or {}
    for step in explanation.get("steps", []):
        names = [scorer["name"] for scorer in step["scorers"]]
        picked = (step.get("pick") or {}).get("pod")
        for pod in step["candidates"]:
            rows.append(
                {
                    "step": step["step"],
                    "pod": pod["pod"],
                    "blocks": pod["blocks"],
                    "dropped": pod["dropped"],
                    "scores": dict(zip(names, pod["scores"] or [])),
                    "total": pod["total"],
                    "picked": pod["pod"] == picked,
                }
            )
    return rows


class AdminError(Exception):
    """The router refused a call, or could not be reached (`status` is 0 then)."""

    def __init__(self, call: str, status: int, message: str, problems: list[dict[str, Any]] | None = None):
        super().__init__(f"{call}: {f'status {status}: ' if status else ''}{message}")
        self.status, self.message, self.problems = status, message, problems or []


class Admin:
    """One router's admin plane, such as `Admin("http://127.0.0.1:8081")`.

    `token` is the admin token, if the listener asks for one. `tls` is for `https` addresses with a private CA or client
    certificates: an `ssl.SSLContext`.
    """

    def __init__(self, url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None, timeout: float = 10.0):
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls, self._timeout = tls, timeout

    def call(self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None) -> Any:
        """Any call, with the answer parsed if it is JSON. A `body` that is a string is sent as it is."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        url = self.url + path + (f"?{urllib.parse.urlencode(given)}" if given else "")
        headers = dict(self._headers)
        data = None
        if body is not None:
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            headers["content-type"] = "application/yaml" if isinstance(body, str) else "application/json"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout, context=self._tls) as response:
                text = response.read().decode()
                is_json = response.headers.get_content_type() == "application/json"
                return json.loads(text) if is_json else text
        except urllib.error.HTTPError as error:
            raise _refused(f"{method} {path}", error) from error
        except OSError as error:
            raise AdminError(f"{method} {url}", 0, str(error)) from error

    # --- pods ---

    def pods(self) -> Rows[Pod]:
        """All pods with their load, health, breaker and events."""
        return Rows(self.call("GET", "/pods")["pods"])

    def pod(self, name: str) -> Pod:
        """One pod."""
        return cast(Pod, self.call("GET", f"/pods/{_quoted(name)}"))

    def add_pod(self, pod: Mapping[str, object]) -> list[str]:
        """Adds a pod as in `pods` of the configuration, until it is removed or the router exits. Returns its names."""
        return cast(list[str], self.call("POST", "/pods", dict(pod))["added"])

    def remove_pod(self, name: str) -> None:
        """Removes a pod; its requests in flight may finish."""
        self.call("DELETE", f"/pods/{_quoted(name)}")

    def drain(self, name: str) -> None:
        """Drains a pod: it gets no new requests."""
        self.call("POST", f"/pods/{_quoted(name)}/drain")

    def resume(self, name: str) -> None:
        """Resumes a drained pod, once it passes a probe."""
        self.call("POST", f"/pods/{_quoted(name)}/resume")

    # --- decisions ---

    def decisions(
        self,
        last: int = 20,
        *,
        model: str | None = None,
        tenant: str | None = None,
        pod: str | None = None,
        status: int | str | None = None,
        cause: str | None = None,
        since: float | None = None,
        until: float | None = None,
        explained: bool = False,
    ) -> Rows[Decision]:
        """The last requests and the failures of a day, the latest first.

        `status` is a status, a class such as `5xx`, or `failed`. `since` and `until` are in seconds since 1970. `explained`
        adds explanations and calls, where they were recorded.
        """
        query: dict[str, object] = {"last": last, "view": "whole" if explained else "rows", "from": since, "to": until}
        query |= {"model": model, "tenant": tenant, "pod": pod, "status": status, "cause": cause}
        return Rows(self.call("GET", "/decisions", query=query)["decisions"])

    def decision(self, request_id: str) -> Decision:
        """One request by its `x-request-id`, with its explanation if that was recorded."""
        return cast(Decision, self.call("GET", f"/decisions/{_quoted(request_id)}"))

    def explain(
        self,
        body: Mapping[str, object],
        *,
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        tenant: str | None = None,
    ) -> Explained:
        """How a request would be routed now. Nothing is sent to an engine."""
        question = {"path": path, "headers": dict(headers or {}), "tenant": tenant, "body": dict(body)}
        return cast(Explained, self.call("POST", "/explain", question))

    def history(self, seconds: int = 3600) -> History:
        """Rates and times of the last `seconds`, and what changed meanwhile."""
        return cast(History, self.call("GET", "/history", query={"seconds": seconds}))

    def traffic(self, after: int | None = None) -> Traffic:
        """Requests that finished since the sequence number `after`; each call enables recording for 10 s."""
        return cast(Traffic, self.call("GET", "/traffic", query={"after": after}))

    # --- caches ---

    def index(self) -> Index:
        """The size of the index, in total and per pod."""
        return cast(Index, self.call("GET", "/index"))

    def prefixes(self) -> Prefixes:
        """The largest cached prefixes, and the pods that hold them."""
        return cast(Prefixes, self.call("GET", "/index/prefixes"))

    # --- configuration ---

    def profiles(self) -> Rows[Profile]:
        """The profiles in use, with every default."""
        return Rows(self.call("GET", "/profiles")["profiles"])

    def check_profile(self, text: str) -> Checked:
        """Checks a profile; changes nothing."""
        return cast(Checked, self.call("POST", "/profiles/check", text))

    def check_config(self, text: str) -> Checked:
        """Checks a configuration; changes nothing."""
        return cast(Checked, self.call("POST", "/config/check", text))

    def reload(self) -> Reloaded:
        """Reloads the configuration; an invalid one changes nothing and raises an error with all problems."""
        return cast(Reloaded, self.call("POST", "/config/reload"))

    def metrics(self) -> str:
        """The metrics, in the text format of Prometheus."""
        return cast(str, self.call("GET", "/metrics"))


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _refused(call: str, error: urllib.error.HTTPError) -> AdminError:
    text = error.read().decode(errors="replace")
    try:
        problem = json.loads(text)["error"]
        return AdminError(call, error.code, problem["message"], problem.get("problems"))
    except (ValueError, KeyError, TypeError):
        return AdminError(call, error.code, text.strip() or error.reason)
