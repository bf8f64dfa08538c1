"""A language model as the judge: is it true, is it complete, is it to the point?

After FineSurE (Song et al., ACL 2024), with questions in our own words:

    faithfulness  = sentences without an error against the source / sentences
    completeness  = key facts that the text states / key facts; the judge takes them from the reference
    conciseness   = sentences that state a key fact / sentences
    Δ             = faithfulness of the text − faithfulness of the reference

The paper writes |Δ|, but no values from 0 to 1 have a mean of 0.01 and a deviation of 0.28, as its table says. Those
can only be |mean| and SD of the signed Δ, so the aggregates here are that mean, with its sign, and that SD.

A text without a sentence asks nothing: it is neither true nor false (NaN), states no key fact (0) and makes no point
(0). Without a reference only faithfulness and errors are measured; of several references the first counts. Where an
answer cannot be read, what depends on it is NaN and ``judge_unparsable`` is 1.
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
from impatience.metrics._judge_client import KEY, Client
from impatience.metrics._judge_questions import ERRORS, NO_ERROR, VERSION, find_errors, find_facts, find_support
from impatience.metrics.base import Aggregate, Column, Metric, Prediction, deviation
from impatience.sources import cache_root

_SHARES = (
    Column("judge_faithfulness", "sentences without an error against the source", "higher", percent=True),
    Column("judge_completeness", "key facts of the reference that the text states", "higher", percent=True),
    Column("judge_conciseness", "sentences that state a key fact of the reference", "higher", percent=True),
    Column("judge_faithfulness_reference", "the reference's own faithfulness", percent=True),
    Column("judge_faithfulness_delta", "faithfulness less that of the reference", "zero", percent=True),
    Column("judge_unparsable", "texts about which an answer of the judge could not be read", "lower", percent=True),
    *(
        Column(f"judge_error_{name}", f"sentences of which the judge said: {meaning}", "lower", percent=True)
        for name, meaning in ERRORS.items()
    ),
)


@dataclass(frozen=True)
class Judge(Metric):
    """FineSurE's three shares, asked of any endpoint that speaks OpenAI's chat completions.

    The key, where the endpoint wants one, is read from the environment variable ``IMPATIENCE_JUDGE_KEY``; it is sent
    and nothing else: not kept, not logged, not reported.
    """

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
            deviation,
            percent=True,
        ),
    )

    url: str = option("", "base of the endpoint, e.g. http://localhost:8000/v1")
    model: str = option("", "what the endpoint calls the judge")
    timeout_seconds: float = option(120.0, "how long one answer may take")
    retries: int = option(5, "how often a request is sent again after 429, 5xx, a timeout or a broken connection")
    parallel: int = option(4, "texts that are judged at once")
    max_tokens: int = option(4096, "how long an answer may be, so that a judge in a loop comes to an end")
    json_mode: bool = option(True, "ask the endpoint to force JSON (response_format); some refuse that")
    cache: str | Path | None = option(
        None,
        "where answers are kept; None is 'judge' in IMPATIENCE_CACHE or else in the user's cache folder",
    )

    def __post_init__(self) -> None:
        """Check the options, before hours of writing rather than after."""
        if not self.url or not self.model:
            raise OptionError(
                "The judge needs an endpoint and a model: give its url, e.g. http://localhost:8000/v1, and its model "
                f"(--judge-url, --judge-model). A key, if it wants one, goes into {KEY}."
            )
        _check_url(self.url)
        if not 0 < self.timeout_seconds < math.inf:
            raise OptionError(f"timeout_seconds={self.timeout_seconds}: give a number of seconds above 0.")
        for name, least in (("retries", 0), ("parallel", 1), ("max_tokens", 1)):
            if getattr(self, name) < least:
                raise OptionError(f"{name}={getattr(self, name)}: give a whole number of at least {least}.")

    def check(self) -> None:
        """Refuse a key that cannot be sent.

        Raises:
            OptionError: If it has a character that no key has.
        """
        super().check()
        _key()

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Ask the judge about each text.

        Raises:
            JudgeError: If it refuses, or does not answer after all tries; answers that came are kept.
        """
        settings: dict[str, Any] = {"temperature": 0, "max_tokens": self.max_tokens}
        if self.json_mode:
            settings["response_format"] = {"type": "json_object"}
        client = Client(
            self.url.rstrip("/"), self.model, _key(), self._cache(), self.timeout_seconds, self.retries, settings
        )
        pool = ThreadPoolExecutor(self.parallel)
        try:
            futures = [pool.submit(_judge, client, prediction) for prediction in predictions]
            for future in as_completed(futures):
                future.result()  # raises the first error there is, whichever text it is about
        finally:
            client.stop()
            pool.shutdown(cancel_futures=True)
        rows = [future.result() for future in futures]
        return {column.name: [row.get(column.name, math.nan) for row in rows] for column in self.columns}

    def facts(self) -> dict[str, Any]:
        """Return who judged and how it was asked; nothing that depends on what was kept already."""
        return {
            "model": self.model,
            "host": urlsplit(self.url).netloc,
            "questions": VERSION,
            "temperature": 0,
            "max_tokens": self.max_tokens,
            "json_mode": self.json_mode,
            "sentencex": version("sentencex"),
        }

    def _cache(self) -> Path:
        return cache_root() / "judge" if self.cache is None else Path(self.cache).expanduser()


def _judge(client: Client, prediction: Prediction) -> dict[str, float]:
    """Return what is known of one text, by column."""
    row = {"judge_unparsable": 0.0}
    sentences = split_sentences(prediction.text)
    reference = next((text for text in prediction.references if text.strip()), "")
    if not sentences:
        return {**row, "judge_completeness": 0.0, "judge_conciseness": 0.0} if reference else row
    if categories := find_errors(client.ask, prediction.source, sentences):
        row["judge_faithfulness"] = _share(NO_ERROR, categories)
        row |= {f"judge_error_{name}": _share(name, categories) for name in ERRORS}
    else:
        row["judge_unparsable"] = 1.0
    if not reference:
        return row
    if categories := find_errors(client.ask, prediction.source, split_sentences(reference)):
        row["judge_faithfulness_reference"] = _share(NO_ERROR, categories)
    else:
        row["judge_unparsable"] = 1.0
    delta = row.get("judge_faithfulness", math.nan) - row.get("judge_faithfulness_reference", math.nan)
    row |= {"judge_faithfulness_delta": delta, "judge_faithfulness_delta_squared": delta**2}
    facts = find_facts(client.ask, reference)
    if facts and (support := find_support(client.ask, facts, sentences)):
        row["judge_completeness"] = sum(map(bool, support)) / len(facts)
        row["judge_conciseness"] = len(set().union(*support)) / len(sentences)
    else:
        row["judge_unparsable"] = 1.0
    return row


def _share(category: str, categories: list[str]) -> float:
    return categories.count(category) / len(categories)


def _check_url(url: str) -> None:
    """Refuse what is no base URL; one that may hold a secret is not repeated in the message."""
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1
    except ValueError:  # a bad port or IPv6 address
        wrong = True
    if not wrong and ("@" in parts.netloc or parts.query or parts.fragment):
        raise OptionError(
            "The judge's url holds a user, a password or a query. Give the bare address, e.g. "
            f"https://example.org/v1, and the key in the environment variable {KEY}."
        )
    if wrong or not url.isascii() or any(character.isspace() for character in url):
        raise OptionError(f"The judge's url {url!r} is no web address. Give one like http://localhost:8000/v1.")


def _key() -> str:
    key = os.environ.get(KEY, "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise OptionError(f"{KEY} holds a space, a line break or a character that no key has. Set it again.")
    return key


METRIC = Judge
