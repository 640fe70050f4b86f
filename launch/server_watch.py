"""Watches a vLLM server while a run uses it: whether it is alive, and when it was busy (phases.server.jsonl)."""

import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from record import LineWriter

PERIOD_SECONDS = 0.5
DEAF_SECONDS = 30  # packing the answers to a large batch keeps others waiting for seconds, not for half a minute
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy stands between us and our own server

# Which requests are which work: TRL's client makes these and no others while it trains (trl/generation/vllm_client.py).
_PHASES = {
    "/v1/completions": "generate",
    "/start_weight_update": "sync",
    "/update_weights": "sync",
    "/finish_weight_update": "sync",
    "/reset_prefix_cache": "sync",
}


class Watch:
    """A thread that asks /health and /metrics every half second.

    Busy time is exact: vLLM's front end counts the seconds that it took over the requests of each route
    (http_request_duration_seconds, from prometheus-fastapi-instrumentator), and TRL has one request out at a time. *When* a
    request ended is known to within a period: it is put in the middle of the one in which its seconds were counted.
    """

    def __init__(self, url: str, phases_path: Path):
        self.complaint: str | None = None
        self._url, self._phases_path = url, phases_path
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def answers(self) -> bool:
        """Whether /health says that the engine is ready."""
        try:
            return self._get("/health", 2) is not None
        except OSError:
            return False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread:
            self._thread.join(2)

    def _get(self, route: str, timeout_seconds: float) -> str:
        with _DIRECT.open(self._url + route, timeout=timeout_seconds) as answer:
            return answer.read().decode()

    def _run(self) -> None:
        writer = LineWriter(self._phases_path)
        counted = busy_seconds("")
        heard = looked = busy_until = time.time()
        while not self._stopping.wait(PERIOD_SECONDS):
            try:
                self._get("/health", 10)
                now_counted = busy_seconds(self._get("/metrics", 10))
            except urllib.error.HTTPError as error:
                self.complaint = f"says that its engine is dead (HTTP {error.code} from {error.url})"
                return
            except OSError as error:
                if time.time() - heard > DEAF_SECONDS:
                    self.complaint = f"has not answered for {DEAF_SECONDS} s ({error})"
                    return
                continue
            before, heard = looked, time.time()
            looked = heard
            new = {
                phase: now_counted[phase] - counted[phase] for phase in ("sync", "generate")
            }  # in the order of a step
            start = max((before + looked) / 2 - sum(new.values()), busy_until)
            for phase, seconds in new.items():
                if seconds > 0:
                    writer.write({"phase": phase, "start_unix_seconds": round(start, 6), "seconds": round(seconds, 6)})
                    start += seconds
                    busy_until = start
            counted = now_counted


def busy_seconds(metrics: str) -> dict[str, float]:
    """Seconds that the front end has taken over requests so far, by phase, from the text of /metrics (Prometheus format)."""
    totals = dict.fromkeys(_PHASES.values(), 0.0)
    for line in metrics.splitlines():
        if line.startswith("http_request_duration_seconds_sum{"):
            labels, _, value = line.rpartition(" ")
            for route, phase in _PHASES.items():
                if f'handler="{route}"' in labels:
                    totals[phase] += float(value)
    return totals
