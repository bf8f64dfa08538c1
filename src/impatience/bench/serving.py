"""What batching brings a server: the same requests to one that batches, and to one that writes one text at a time.

Both are real servers on loopback with the same model, and the same clients ask both for the same texts. Runs come in
pairs, the order changing from pair to pair, so that a machine that slows down slows both. Processor time is measured
as well, because on a shared machine the clock also measures the neighbours.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from operator import truediv
from threading import Thread
from typing import Any

from rich.table import Table

from impatience.bench.base import place
from impatience.environment import environment
from impatience.server import Limits, Server, create_app, listen
from impatience.writing.writer import Writer

_SOURCE = (
    "The harbour office counted {n} boats on Monday and fewer on Tuesday, when a wind from the north kept most of the "
    "fleet at its moorings. The mayor said that the new wall had held, that number {n} on the list of repairs was the "
    "lamp at its end, and that the ferry would leave as usual."
)


@dataclass(frozen=True)
class ServingReport:
    """How fast two servers answered the same requests.

    Attributes:
        model: Its name.
        requests: Of each run.
        clients: That asked at the same time.
        targets: Lengths in tokens, asked for in turn.
        tokens: Tokens that were written in each run.
        alone_seconds: Time of each run, one text at a time.
        batched_seconds: Time of the batched run of the same pair.
        alone_cpu_seconds: Processor time of each run, one text at a time; servers and clients together.
        batched_cpu_seconds: Processor time of the batched run of the same pair.
        environment: Where it was measured.
    """

    model: str
    requests: int
    clients: int
    targets: tuple[int, ...]
    tokens: int
    alone_seconds: tuple[float, ...]
    batched_seconds: tuple[float, ...]
    alone_cpu_seconds: tuple[float, ...]
    batched_cpu_seconds: tuple[float, ...]
    environment: dict[str, Any]

    @property
    def speed_up(self) -> float:
        """How many times as fast the batched server is; the median of the pairs."""
        return float(statistics.median(map(truediv, self.alone_seconds, self.batched_seconds)))

    @property
    def cpu_speed_up(self) -> float:
        """The same in processor time."""
        return float(statistics.median(map(truediv, self.alone_cpu_seconds, self.batched_cpu_seconds)))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        return asdict(self) | {"speed_up": self.speed_up, "cpu_speed_up": self.cpu_speed_up}


def serving(
    writer: Writer, model: str, targets: Sequence[int], requests: int = 32, clients: int = 32, repeats: int = 1
) -> ServingReport:
    """Time a server that batches against one that does not.

    Args:
        writer: What writes.
        model: What it is called.
        targets: Lengths in tokens, asked for in turn; texts are held to them, so that both servers write as much.
        requests: Of each run.
        clients: That ask at the same time.
        repeats: Pairs of runs, after one request to each to warm up.
    """
    bodies = [_body(n, targets[n % len(targets)]) for n in range(requests)]
    times: dict[int, list[tuple[float, float]]] = {1: [], Limits.budget: []}
    with _running(writer, 1) as alone, _running(writer, Limits.budget) as batched:
        ports = {1: alone, Limits.budget: batched}
        for port in ports.values():
            _ask(port, bodies[0])
        for pair in range(repeats):
            for budget in sorted(ports, reverse=pair % 2 == 1):
                begin, cpu_begin = time.perf_counter(), time.process_time()
                tokens = _ask_all(ports[budget], bodies, clients)
                times[budget].append((time.perf_counter() - begin, time.process_time() - cpu_begin))
    (alone_wall, alone_cpu), (wall, cpu) = (zip(*runs, strict=True) for runs in times.values())
    return ServingReport(
        model, requests, clients, tuple(targets), tokens, alone_wall, wall, alone_cpu, cpu, environment()
    )


def render(report: ServingReport) -> Table:
    """Return the report as a table for the terminal."""
    table = Table(
        title=f"{report.model}: {report.requests} requests, {report.clients} at once, "
        f"{', '.join(map(str, report.targets))} tokens",
        caption=f"median of {len(report.alone_seconds)} pairs; {place(report.environment)}",
    )
    for heading in ("", "seconds", "CPU seconds", "requests/s", "tokens/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, runs, cpu in (
        ("one at a time", report.alone_seconds, report.alone_cpu_seconds),
        ("batched", report.batched_seconds, report.batched_cpu_seconds),
    ):
        seconds = statistics.median(runs)
        rates = (f"{report.requests / seconds:.2f}", f"{report.tokens / seconds:.1f}")
        table.add_row(name, f"{seconds:.2f}", f"{statistics.median(cpu):.2f}", *rates)
    gain = f"{report.speed_up:.2f} ×"
    table.add_row("batched is faster", gain, f"{report.cpu_speed_up:.2f} ×", gain, gain)
    return table


def _body(number: int, tokens: int) -> bytes:
    text = _SOURCE.format(n=number + 2)
    return json.dumps({"text": text, "target": {"tokens": tokens}, "landing": "exact"}).encode()


def _ask_all(port: int, bodies: Sequence[bytes], clients: int) -> int:
    """Send requests, so many at a time, and return how many tokens came back."""
    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(lambda body: _ask(port, body), bodies))


def _ask(port: int, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", "/v1/write", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        content = json.loads(reply.read())
        if reply.status != 200:
            raise RuntimeError(f"The server answered {reply.status}: {content['error']['message']}")
        return int(content["report"]["length"])
    finally:
        connection.close()


@contextmanager
def _running(writer: Writer, budget: int) -> Iterator[int]:
    """Run a server in a thread, and yield its port."""
    limits = Limits(requests=1000, budget=budget, seconds=600)
    sock = listen("127.0.0.1", 0)
    server = Server(create_app(writer, "model", limits))
    thread = Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.stop()
        thread.join()
        sock.close()
