"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from impatience.decoding.results import Result

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ROWS = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """The counts of one server, in a registry of its own.

    Args:
        taken: Tells how many requests are being answered or wait.
        waiting: Tells how many texts have not been begun.
    """

    def __init__(self, taken: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "impatience", "registry": self._registry}
        self._requests = Counter("requests", "Requests by route and status", ("route", "status"), **own)
        self._seconds = Histogram("request_seconds", "Time of a request", ("route",), buckets=_SECONDS, **own)
        self._rows = Histogram("batch_rows", "Texts that are written together", buckets=_ROWS, **own)
        self._texts = Counter("texts", "Texts by how they landed", ("unit", "landed"), **own)
        self._tokens = Counter("written_tokens", "Tokens of the texts that were written", **own)
        Gauge("requests_open", "Requests that are being answered or wait", **own).set_function(taken)
        Gauge("texts_waiting", "Texts that have not been begun", **own).set_function(waiting)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, rows: int) -> None:
        """Count a batch that is begun."""
        self._rows.observe(rows)

    def text(self, result: Result) -> None:
        """Count a text that was written."""
        self._texts.labels(str(result.unit), result.landed).inc()
        self._tokens.inc(result.tokens)

    def expose(self) -> bytes:
        """Return all counts as Prometheus reads them."""
        return generate_latest(self._registry)
