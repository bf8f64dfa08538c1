"""One ``generate`` call with a target: its budget of steps, what the model would have done, how each text ended."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from impatience.control.repetition import NoLoops
from impatience.control.report import LengthReport, Settlement
from impatience.control.sampling import Draws
from impatience.control.stopping import LandingProcessor
from impatience.errors import OptionError, TargetError, TokenizerError
from impatience.lengths import Landing, Target, Unit
from impatience.vocabulary import Vocabulary

_STEPS = {Unit.TOKENS: (2, 32), Unit.WORDS: (4, 32), Unit.CHARACTERS: (1, 32), Unit.SENTENCES: (96, 64)}
"""Tokens to allow for a target of n when the caller sets no limit: factor · n + margin."""
_HELD_STEPS = {Unit.TOKENS: (1, 1), Unit.CHARACTERS: (4, 8)}
"""The same where the landing holds the text to its target: a character has at most four bytes."""


def step_budget(target: Target, landing: Landing, room: int | None, extra: int = 0) -> int:
    """Return ``max_new_tokens`` for a target.

    Args:
        target: What was asked for.
        landing: Who decides where it ends.
        room: Positions left in the decoder, or None if there is no limit.
        extra: Tokens that are written but not counted, EOS apart.

    Raises:
        TargetError: If the target cannot fit in the decoder.
    """
    longest = max(target.values)
    fewest = extra + (longest + 1 if target.unit in (Unit.TOKENS, Unit.WORDS) else 2)
    if room is not None and fewest > room:
        raise TargetError(
            f"target_{target.unit}={longest} needs at least {fewest} more tokens with EOS, but the model has room for "
            f"{room}. Ask for less, shorten the prompt, or use a model with a longer context."
        )
    factor, margin = _STEPS[target.unit]
    if landing is not Landing.NATURAL:
        factor, margin = _HELD_STEPS.get(target.unit, (factor, margin))
    steps = factor * longest + margin + extra
    return steps if room is None else min(steps, room)


def eos_ids(generation_config: Any) -> list[int]:
    """Return the ids that end a text.

    Raises:
        TokenizerError: If there is none.
    """
    value = generation_config.eos_token_id
    ids = [value] if isinstance(value, int) else list(value or [])
    if not ids:
        raise TokenizerError(
            "This model has no end-of-sequence token, so no text of it can end. Set "
            "model.generation_config.eos_token_id, or pass eos_token_id= to generate."
        )
    return ids


class EosTrace(LogitsProcessor):  # type: ignore[misc]
    """Remembers, at each step, what the model itself would do: P(EOS) and its first choice."""

    def __init__(self, eos: list[int]) -> None:
        self.eos = eos
        self._eos_probability: list[Tensor] = []
        self._choice: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Look at the scores and leave them as they are."""
        del input_ids
        self._eos_probability.append(scores.float().softmax(-1)[:, self.eos].sum(-1))
        self._choice.append(scores.argmax(-1))
        return scores

    def follow(self, rows: int, steps: int, beam_indices: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return P(EOS) and first choices along each finished text, both (rows, steps) on the CPU."""
        probability, choice = torch.stack(self._eos_probability, 1).cpu(), torch.stack(self._choice, 1).cpu()
        path = torch.arange(rows)[:, None].expand(rows, steps)
        if beam_indices is not None:
            path = beam_indices.cpu()[:, :steps].clamp(min=0)
        columns = torch.arange(path.shape[1]).clamp(max=probability.shape[1] - 1).expand_as(path)
        return probability[path, columns], choice[path, columns]


@contextmanager
def unforced(model: Any) -> Iterator[None]:
    """Let no EOS be forced by the budget of steps: a text that was cut would look ended.

    The model's own settings fill in for whatever ``generate`` is given as None, so it is they that must change.
    """
    config = model.generation_config
    forced, config.forced_eos_token_id = config.forced_eos_token_id, None
    try:
        yield
    finally:
        config.forced_eos_token_id = forced


class GenerateCall:
    """One ``generate`` call with a target: what it is given, and what becomes of what it returns.

    Args:
        target: What was asked for, one value a row.
        landing: Who decides where the texts end.
        start: (B,) column of the first written id; earlier than ``first`` where a text is resumed.
        first: Column of the first id to be generated.
        room: Positions left in the decoder, or None if there is no limit.
        vocabulary: Counts.
    """

    def __init__(
        self,
        target: Target,
        landing: Landing,
        start: Tensor,
        first: int,
        room: int | None,
        vocabulary: Vocabulary,
    ) -> None:
        self.target, self.landing, self.start, self.first = target, landing, start, first
        self.room, self.vocabulary = room, vocabulary

    def prepare(self, defaults: Any, kwargs: dict[str, Any], *, report: bool) -> dict[str, Any]:
        """Return the arguments for ``generate``: the caller's, a budget of steps, and the landing's processors."""
        own = kwargs.pop("generation_config", None)
        config = copy.copy(own or defaults)
        limits = (own.max_new_tokens, own.max_length) if own is not None else ()
        bounded = bool({"max_new_tokens", "max_length"} & kwargs.keys()) or any(limits)
        processors = LogitsProcessorList(kwargs.pop("logits_processor", None) or [])
        if (stretch := kwargs.pop("no_loops", None)) is not None:
            processors.append(NoLoops(stretch, self.start))
        draws = kwargs.pop("draws", None)
        # The model's own wishes are set aside; what the caller passes stays. (None would be filled from them again.)
        config.min_length, config.min_new_tokens = 0, None if defaults.min_new_tokens is None else 0
        kwargs = config.update(**kwargs)
        if config.prefill_chunk_size is not None:
            raise OptionError(
                f"prefill_chunk_size={config.prefill_chunk_size}: a prompt is read at once here, since progress is "
                f"counted from its end. Leave it out."
            )
        if not bounded:
            forced = int(config.forced_bos_token_id is not None)
            # Each row is held to its own budget: what it says does not depend on what it is written with.
            own = [Target(self.target.unit, (value,)) for value in self.target.values]
            budgets = [step_budget(one, self.landing, self.room, forced) for one in own]
            config.max_new_tokens = max(budgets)
            last = [self.first + budget for budget in budgets]
        else:
            most = config.max_length if config.max_new_tokens is None else self.first + config.max_new_tokens
            last = [most] * len(self.target.values)
        self.report, self.as_dict = report, bool(config.return_dict_in_generate)
        self.settles = report or self.landing is not Landing.NATURAL
        self.trace = EosTrace(eos_ids(config))
        if self.settles:
            config.return_dict_in_generate = True
            processors.append(self.trace)
        if self.landing is not Landing.NATURAL:
            lander = LandingProcessor(self.landing, self.target, self.start, last, self.vocabulary, self.trace.eos)
            processors.append(lander)
        if draws is not None and any(draws):
            processors.append(Draws(draws, self.start))
        return {**kwargs, "generation_config": config, "logits_processor": processors}

    def finish(self, output: Any) -> Any:
        """Settle how the texts ended and return them, with reports if they were asked for."""
        if not self.settles:
            return output
        output.sequences, reports = self._settle(output.sequences, output.get("beam_indices"))
        result = output if self.as_dict else output.sequences
        return (result, reports) if self.report else result

    def _settle(self, sequences: Tensor, beam_indices: Tensor | None) -> tuple[Tensor, list[LengthReport]]:
        """Report on each text, and replace what the landing leaves out by EOS."""
        copies = sequences.shape[0] // len(self.target.values)
        probabilities, choices = self.trace.follow(sequences.shape[0], sequences.shape[1] - self.first, beam_indices)
        settlement, reports = Settlement(self.target.unit, self.landing, self.trace.eos, self.vocabulary), []
        for row, ids in enumerate(sequences.tolist()):
            goal, begin = self.target.values[row // copies], int(self.start[row // copies])
            told = probabilities[row].tolist(), choices[row].tolist()
            kept, report = settlement.settle(ids, goal, *told, begin, self.first)
            written = ids[begin : settlement.stop(ids, self.first)]
            sequences[row, begin + kept : begin + len(written)] = self.trace.eos[0]
            reports.append(report)
        return sequences, reports
