"""Counts requests, batches and texts for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from impatience.decoding.results import Result

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus' text format
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ROWS = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """Metrics of one server, in their own registry."""

    def __init__(self, open_requests: Callable[[], int], waiting_texts: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        shared: dict[str, Any] = {"namespace": "impatience", "registry": self._registry}
        self._requests = Counter("requests", "HTTP requests by route and status", ("route", "status"), **shared)
        self._seconds = Histogram("request_seconds", "Duration of a request", ("route",), buckets=_SECONDS, **shared)
        self._rows = Histogram("batch_rows", "Texts in a batch", buckets=_ROWS, **shared)
        self._texts = Counter("texts", "Finished texts by unit and ending", ("unit", "landed"), **shared)
        self._tokens = Counter("written_tokens", "Tokens of finished texts", **shared)
        Gauge("requests_open", "Open requests, running or waiting", **shared).set_function(open_requests)
        Gauge("texts_waiting", "Texts in the queue", **shared).set_function(waiting_texts)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered HTTP request."""
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, rows: int) -> None:
        """Count a batch."""
        self._rows.observe(rows)

    def text(self, result: Result) -> None:
        """Count a finished text."""
        self._texts.labels(str(result.unit), result.landed).inc()
        self._tokens.inc(result.tokens)

    def expose(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
