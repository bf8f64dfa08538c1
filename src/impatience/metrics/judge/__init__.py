"""Faithfulness, completeness and conciseness, as a language model judges them.

After FineSurE (Song et al., ACL 2024), with prompts of our own:

    faithfulness  = sentences without an error against the source / sentences
    completeness  = key facts that the text states / key facts; the judge takes them from the reference
    conciseness   = sentences that state a key fact / sentences
    Δ             = faithfulness of the text − faithfulness of the reference

The paper writes |Δ| of each text, but no values from 0 to 1 have a mean of 0.01 and a deviation of 0.28, as its table
13 says. Those can only be |mean| and SD of the signed Δ. Both are here: ``judge_faithfulness_delta`` is signed, and
``judge_faithfulness_distance`` is |Δ| as the paper defines it, each with its SD. The paper's judge is Gemma-3-12B-it,
``google/gemma-3-12b-it``.

A text without a sentence needs no judge: its faithfulness is NaN, its completeness and conciseness are 0. Without a
reference only faithfulness and errors are measured; of several references the first is used. If an answer is
unreadable, the columns that depend on it are NaN and ``judge_unparsable`` is 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from impatience.config import option
from impatience.errors import OptionError
from impatience.lengths import split_sentences
from impatience.metrics.base import Aggregate, Column, Metric, Prediction, standard_deviation
from impatience.metrics.judge.client import KEY, JudgeClient
from impatience.metrics.judge.prompts import ERRORS, NO_ERROR, VERSION, find_errors, find_facts, find_support
from impatience.sources import cache_root

_SHARES = (
    Column("judge_faithfulness", "sentences without an error against the source", "higher", percent=True),
    Column("judge_completeness", "key facts of the reference that the text states", "higher", percent=True),
    Column("judge_conciseness", "sentences that state a key fact of the reference", "higher", percent=True),
    Column("judge_faithfulness_reference", "the reference's own faithfulness", percent=True),
    Column("judge_faithfulness_delta", "faithfulness minus that of the reference", "zero", percent=True),
    Column("judge_faithfulness_distance", "how far faithfulness is from the reference's", "lower", percent=True),
    Column("judge_unparsable", "texts about which an answer of the judge could not be read", "lower", percent=True),
    *(
        Column(f"judge_error_{name}", f"sentences of which the judge said: {meaning}", "lower", percent=True)
        for name, meaning in ERRORS.items()
    ),
)


@dataclass(frozen=True)
class Judge(Metric):
    """FineSurE's three shares, from any endpoint with OpenAI's chat completions.

    The key is read from the environment variable ``IMPATIENCE_JUDGE_KEY``, if the endpoint needs one. It is sent to the
    endpoint and neither stored, logged nor reported.
    """

    needs: ClassVar[tuple[str, ...]] = ("httpx2",)

    summary: ClassVar[str] = "faithfulness, completeness and conciseness, by a language model (FineSurE)"
    columns: ClassVar[tuple[Column, ...]] = (
        *_SHARES,
        Column("judge_faithfulness_delta_squared", "the square of that difference"),
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        *(Aggregate(share.name, share.summary, share.better, (share.name,), percent=True) for share in _SHARES),
        Aggregate(
            "judge_faithfulness_delta_sd",
            "standard deviation of the difference in faithfulness",
            "lower",
            ("judge_faithfulness_delta", "judge_faithfulness_delta_squared"),
            standard_deviation,
            percent=True,
        ),
        Aggregate(
            "judge_faithfulness_distance_sd",
            "standard deviation of that distance",
            "lower",
            ("judge_faithfulness_distance", "judge_faithfulness_delta_squared"),
            standard_deviation,
            percent=True,
        ),
    )

    url: str = option("", "base URL of the endpoint, e.g. http://localhost:8000/v1")
    model: str = option("", "name of the judge at the endpoint; the paper's is google/gemma-3-12b-it")
    timeout_seconds: float = option(120.0, "time limit of one answer")
    retries: int = option(5, "attempts after the first, on 429, 5xx, a timeout or a broken connection")
    parallel: int = option(4, "texts that are judged at the same time")
    max_tokens: int = option(4096, "maximum length of an answer, which ends a judge in a loop")
    json_mode: bool = option(True, "request JSON by response_format; some endpoints reject it")
    cache: str | Path | None = option(
        None, "folder of cached answers; None is 'judge' in IMPATIENCE_CACHE or else in the user's cache folder"
    )

    def __post_init__(self) -> None:
        if not self.url or not self.model:
            raise OptionError(
                "The judge needs an endpoint and a model: give its url, e.g. http://localhost:8000/v1, and its model "
                f"(--judge-url, --judge-model). Put a key, if it needs one, into {KEY}."
            )
        _check_url(self.url)
        if not 0 < self.timeout_seconds < math.inf:
            raise OptionError(f"timeout_seconds={self.timeout_seconds}: give a number of seconds above 0.")
        for name, least in (("retries", 0), ("parallel", 1), ("max_tokens", 1)):
            if getattr(self, name) < least:
                raise OptionError(f"{name}={getattr(self, name)}: give a whole number of at least {least}.")

    def check(self) -> None:
        """Check the key."""
        super().check()
        _read_key()

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Judge each text."""
        settings: dict[str, Any] = {"temperature": 0, "max_tokens": self.max_tokens}
        if self.json_mode:
            settings["response_format"] = {"type": "json_object"}
        cache = cache_root() / "judge" if self.cache is None else Path(self.cache).expanduser()
        client = JudgeClient(
            self.url.rstrip("/"), self.model, _read_key(), cache, self.timeout_seconds, self.retries, settings
        )
        pool = ThreadPoolExecutor(self.parallel)
        try:
            futures = [pool.submit(_judge, client, prediction) for prediction in predictions]
            for future in as_completed(futures):
                future.result()  # raises the first error in time, whichever text it is about
        finally:
            client.stop()
            pool.shutdown(cancel_futures=True)
            client.close()
        rows = [future.result() for future in futures]
        return {column.name: [row.get(column.name, math.nan) for row in rows] for column in self.columns}

    def facts(self) -> dict[str, Any]:
        """Return the judge and its settings; nothing depends on the state of the cache."""
        return {
            "model": self.model,
            "host": urlsplit(self.url).netloc,
            "questions": VERSION,
            "temperature": 0,
            "max_tokens": self.max_tokens,
            "json_mode": self.json_mode,
            "sentencex": version("sentencex"),
        }


def _judge(client: JudgeClient, prediction: Prediction) -> dict[str, float]:
    """Return the known columns of one text."""
    row = {"judge_unparsable": 0.0}
    sentences = split_sentences(prediction.text)
    reference = next((text for text in prediction.references if text.strip()), "")
    if not sentences:
        return {**row, "judge_completeness": 0.0, "judge_conciseness": 0.0} if reference else row
    if categories := find_errors(client.complete, prediction.source, sentences):
        row["judge_faithfulness"] = _share(NO_ERROR, categories)
        row |= {f"judge_error_{name}": _share(name, categories) for name in ERRORS}
    else:
        row["judge_unparsable"] = 1.0
    if not reference:
        return row
    if categories := find_errors(client.complete, prediction.source, split_sentences(reference)):
        row["judge_faithfulness_reference"] = _share(NO_ERROR, categories)
    else:
        row["judge_unparsable"] = 1.0
    delta = row.get("judge_faithfulness", math.nan) - row.get("judge_faithfulness_reference", math.nan)
    row |= {"judge_faithfulness_delta": delta, "judge_faithfulness_delta_squared": delta**2}
    row["judge_faithfulness_distance"] = abs(delta)
    facts = find_facts(client.complete, reference)
    if facts and (support := find_support(client.complete, facts, sentences)):
        row["judge_completeness"] = sum(map(bool, support)) / len(facts)
        row["judge_conciseness"] = len(set().union(*support)) / len(sentences)
    else:
        row["judge_unparsable"] = 1.0
    return row


def _share(category: str, categories: list[str]) -> float:
    return categories.count(category) / len(categories)


def _check_url(url: str) -> None:
    """Check that a URL is a base URL; the error does not repeat one that may hold a secret."""
    try:
        parts = urlsplit(url)
        invalid = parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1
    except ValueError:  # a bad port or IPv6 address
        invalid = True
    if not invalid and ("@" in parts.netloc or parts.query or parts.fragment):
        raise OptionError(
            "The judge's url contains a user, a password or a query. Give the bare address, e.g. "
            f"https://example.org/v1, and the key in the environment variable {KEY}."
        )
    if invalid or not url.isascii() or any(character.isspace() for character in url):
        raise OptionError(f"The judge's url {url!r} is not a web address. Give one like http://localhost:8000/v1.")


def _read_key() -> str:
    key = os.environ.get(KEY, "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise OptionError(f"{KEY} contains a space, a line break or a character that no key has. Set it again.")
    return key


METRIC = Judge
