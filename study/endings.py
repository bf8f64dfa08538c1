"""Compare constants of sampled endings: where they begin, and how unlikely their tokens may be.

    python study/endings.py MODEL OUT.json [--texts 32] [--data-dir DIR] [--backs 14,24,40] [--leasts 0.05,0.1,0.2]

Texts of 20 to 300 words are written from validation data. For those that did not land, endings are drawn with each pair
of constants (``BACK`` of ``decoding.retries``, ``LEAST`` of ``control.sampling``). The report gives the share of
endings that landed, and of these the share that closes its sentence (the metric ``closing``); and of the texts that are
kept the shares on target, closed, with unsupported words, and with such words that the first text did not have.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from impatience.control import sampling
from impatience.data import Request, load
from impatience.decoding import retries
from impatience.decoding.generator import TextGenerator
from impatience.decoding.ranking import added_words
from impatience.decoding.results import Result
from impatience.decoding.retries import best_result, ending_requests, is_good, is_met
from impatience.evaluation.run import load_evaluated_model
from impatience.lengths import ends_sentence
from impatience.metrics.closing import Closing

LENGTHS = (20, 40, 80, 150, 300)


def main() -> None:
    """Write the texts once, and end them with each pair of constants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--backs", default="14,24,40")
    parser.add_argument("--leasts", default="0.05,0.1,0.2")
    wanted = parser.parse_args()
    generator, judge = load_evaluated_model(wanted.model, quiet=True).generator, Closing(batch_size=64)
    examples = list(load("elife:digest", "validation", data_dir=wanted.data_dir))[: wanted.texts]
    requests = [
        Request(f"{length}-{example.id}", example.source, length, example=example.id)
        for length in LENGTHS[::-1]
        for example in examples
    ]
    sources = generator.encode_sources(requests)
    first = generator.generate_with_signal(requests, sources=sources)
    report = [{"what": "first texts", **_told(requests, [[result] for result in first], judge)}]
    print(report[0], flush=True)
    missed = [row for row, request in enumerate(requests) if not is_good(request, first[row])]
    for back, least in product(map(int, wanted.backs.split(",")), map(float, wanted.leasts.split(","))):
        retries.BACK, sampling.LEAST = back, least
        generator._loop = None  # a recorded step knows the constants it was recorded with
        found = _endings(generator, [(requests[row], sources[row], first[row]) for row in missed])
        texts = {row: [first[row], *some] for row, some in zip(missed, found, strict=True)}
        all_texts = [texts.get(row, [result]) for row, result in enumerate(first)]
        report.append({"back": back, "least": least, **_told(requests, all_texts, judge)})
        print(report[-1], flush=True)
        wanted.out.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _endings(generator: TextGenerator, missed: list[tuple[Request, list[int], Result]]) -> list[list[Result]]:
    attempts = [ending_requests(request, first, 9, generator.vocabulary) for request, _, first in missed]
    sources = [source for (_, source, _), endings in zip(missed, attempts, strict=True) for _ in endings]
    flat = [attempt for endings in attempts for attempt in endings]
    results = iter(generator.generate_with_signal(flat, sources=sources))
    return [[next(results) for _ in endings] for endings in attempts]


def _told(requests: list[Request], texts: list[list[Result]], judge: Closing) -> dict[str, Any]:
    """Return shares in percent: of endings, and of texts by which one is kept."""
    flat = [result for results in texts for result in results]
    likely = judge.end_probabilities([result.text for result in flat])
    closed = {id(r): ends_sentence(r.text) and chance >= judge.bound for r, chance in zip(flat, likely, strict=True)}
    pairs = list(zip(requests, texts, strict=True))
    endings = [(is_met(request, result), closed[id(result)]) for request, results in pairs for result in results[1:]]
    kept = [best_result(request, results) or results[0] for request, results in pairs]
    landed = [over for met, over in endings if met]
    off = [abs(result.length / request.target - 1) for request, result in zip(requests, kept, strict=True)]
    return {
        "endings": len(endings),
        "landed": _share([met for met, _ in endings]),
        "closed of these": _share(landed),
        "met": _share([is_met(request, result) for request, result in zip(requests, kept, strict=True)]),
        "closed": _share([closed[id(result)] for result in kept]),
        "unsupported": _share([bool(result.unsupported) for result in kept]),
        "added": _share([bool(added_words(results[0], best)) for (_, results), best in zip(pairs, kept, strict=True)]),
        "error": _share(off),
        "spent": round(sum(result.tokens_spent for result in flat) / len(texts), 1),
    }


def _share(values: Sequence[float]) -> float:
    return round(100 * sum(values) / max(1, len(values)), 2)


if __name__ == "__main__":
    main()
