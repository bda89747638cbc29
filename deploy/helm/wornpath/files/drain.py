"""Waits until the engine in this container has no more requests, so that its streams end whole.

Runs before the engine is told to stop. Routers stop sending within a second of the pod being marked for deletion; the wait begins
after SETTLE seconds and ends when the engine reports no running and no waiting request twice in a row. Kubernetes limits it by
terminationGracePeriodSeconds.
"""
import os
import time
import urllib.request

METRICS = os.environ.get("ENGINE_METRICS", "http://127.0.0.1:8000/metrics")
SETTLE = float(os.environ.get("SETTLE", "3"))
NAMES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def requests():
    """The number of requests of the engine; None if it does not answer any more."""
    try:
        page = urllib.request.urlopen(METRICS, timeout=5).read().decode()
    except OSError:
        return None
    lines = [line.rsplit(" ", 1) for line in page.splitlines()]
    return sum(float(line[1]) for line in lines if line[0].split("{")[0] in NAMES)


time.sleep(SETTLE)
idle = 0
while idle < 2:
    count = requests()
    if count is None:
        break
    idle = idle + 1 if count == 0 else 0
    time.sleep(0.5)
