"""Times a server that batches against a server that writes one text at a time.

Both are real servers on loopback with the same model, and the same clients send both the same requests. Processor time
is measured too, because other programs of a shared machine disturb the clock.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import median
from threading import Thread

import torch

from impatience.bench.base import Clock
from impatience.bench.reports import Report, ReportTable, Spread, alternate
from impatience.environment import environment
from impatience.server import Limits, Server, create_app, listen
from impatience.writing.writer import Writer

_SOURCE = (
    "The harbour office counted {n} boats on Monday and fewer on Tuesday, when a wind from the north kept most of the "
    "fleet at its moorings. The mayor said that the new wall had held, that number {n} on the list of repairs was the "
    "lamp at its end, and that the ferry would leave as usual."
)


@dataclass(frozen=True)
class ServingReport(Report):
    """Seconds in which two servers answered the same requests, pair by pair."""

    model: str
    requests: int
    clients: int  # that send requests at the same time
    targets: tuple[int, ...]  # lengths in tokens, used in turn
    tokens: int  # tokens written in each run
    alone_seconds: tuple[float, ...]  # one text at a time
    batched_seconds: tuple[float, ...]
    alone_cpu_seconds: tuple[float, ...]  # processor time of servers and clients together
    batched_cpu_seconds: tuple[float, ...]

    @property
    def speed_up(self) -> float:
        """Speed of the batched server over the other; the median of the pairs."""
        return Spread.of_ratios(self.alone_seconds, self.batched_seconds).median

    @property
    def cpu_speed_up(self) -> float:
        """The same by processor time."""
        return Spread.of_ratios(self.alone_cpu_seconds, self.batched_cpu_seconds).median

    def table(self) -> ReportTable:
        """Return a row for each server, and the speed-up."""
        rows = []
        for name, runs, cpu in (
            ("one at a time", self.alone_seconds, self.alone_cpu_seconds),
            ("batched", self.batched_seconds, self.batched_cpu_seconds),
        ):
            seconds = median(runs)
            rates = (f"{self.requests / seconds:.2f}", f"{self.tokens / seconds:.1f}")
            rows.append((name, f"{seconds:.2f}", f"{median(cpu):.2f}", *rates))
        gain, cpu_gain = f"{self.speed_up:.2f} ×", f"{self.cpu_speed_up:.2f} ×"
        lengths = ", ".join(map(str, self.targets))
        return ReportTable(
            f"{self.model}: {self.requests} requests, {self.clients} at once, {lengths} tokens",
            ("", "seconds", "CPU seconds", "requests/s", "tokens/s"),
            [*rows, ("batched is faster", gain, cpu_gain, gain, gain)],
            f"median of {len(self.alone_seconds)} pairs",
            words=1,
        )


def serving(
    writer: Writer, model: str, targets: Sequence[int], requests: int = 32, clients: int = 32, repeats: int = 1
) -> ServingReport:
    """Time pairs of runs, after one request to each server that warms it up.

    Texts are held to the targets, which are used in turn, so that both servers write as much.
    """
    bodies = [
        json.dumps({"text": _SOURCE.format(n=n + 2), "target": {"tokens": target}, "landing": "exact"}).encode()
        for n, target in zip(range(requests), cycle(targets), strict=False)
    ]

    def run(port: int) -> tuple[float, float, int]:
        """Send all requests; return seconds, processor seconds and tokens."""
        clock = Clock(torch.device("cpu"))
        with ThreadPoolExecutor(clients) as pool:
            clock.start()
            tokens = sum(pool.map(partial(_send, port), bodies))
            clock.stop()
        return clock.turns[0], clock.cpu_seconds, tokens

    with _running(writer, 1) as alone, _running(writer, Limits.budget) as batched:
        for port in (alone, batched):
            _send(port, bodies[0])
        results = alternate({"alone": partial(run, alone), "batched": partial(run, batched)}, repeats)
    (alone_wall, alone_cpu, tokens), (wall, cpu, _) = (zip(*runs, strict=True) for runs in results.values())
    return ServingReport(
        environment(), model, requests, clients, tuple(targets), tokens[-1], alone_wall, wall, alone_cpu, cpu
    )


def _send(port: int, body: bytes) -> int:
    """Send a request, and return the number of tokens that came back."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        connection.request("POST", "/v1/write", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        content = json.loads(reply.read())
        if reply.status != 200:
            raise RuntimeError(f"The server answered {reply.status}: {content['error']['message']}")
        return int(content["report"]["length"])


@contextmanager
def _running(writer: Writer, budget: int) -> Iterator[int]:
    """Run a server in a thread, and yield its port."""
    server = Server(create_app(writer, "model", Limits(requests=1000, budget=budget, seconds=600)))
    with listen("127.0.0.1", 0) as sock:
        thread = Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            yield sock.getsockname()[1]
        finally:
            server.stop()
            thread.join()
