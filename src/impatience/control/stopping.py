"""Stops texts at their target: the logits processor of the landings ``exact`` and ``at_most``.

``landing`` says who decides where a text ends:

    natural   the model; it is steered, never forced
    exact     the target: EOS is barred before it and due at it. Words: no new word starts after the last one, which may
              finish its remaining tokens; an open sentence is closed, and none begins in the last words. Characters:
              only tokens that fit.
    at_most   the model, but never beyond the target. A text that the limit cuts goes back to its last sentence end if
              that keeps half of it or more, else to its last whole word.

A token that may not follow is not only struck out: its probability goes to EOS. So a model that prefers another word to
finishing this one ends here, in greedy search, sampling and beams alike. If a sentence has to be closed first, the
probability goes to the full stop (or another closing token), unless the model prefers to end without one, as in titles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor

from impatience.lengths import Landing, Target, Unit, decode, ends_sentence, measure
from impatience.vocabulary import Vocabulary, open_character

_SHORTEST_SENTENCE = 3
"""Fewest words of a sentence: with fewer left, an exact text ends no sentence before its last word."""


class LandingProcessor(LogitsProcessor):  # type: ignore[misc]
    """Holds texts to their targets: from the (B,) columns ``start`` on, and not beyond the columns ``last``."""

    def __init__(
        self,
        landing: Landing,
        target: Target,
        start: Tensor,
        last: Sequence[int],
        vocabulary: Vocabulary,
        eos: list[int],
    ) -> None:
        self.exact = landing is Landing.EXACT
        self.unit, self.vocabulary, self.eos = target.unit, vocabulary, eos
        device = start.device
        self.set_rows(torch.tensor(target.values, device=device), start, torch.tensor(last, device=device))
        self._eos_index = torch.tensor(eos, device=device)

    def set_rows(self, target: Tensor, start: Tensor, last: Tensor) -> None:
        """Replace the rows: (B,) targets, first columns and last columns."""
        self.target, self.start, self.last = target, start, last

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (B, V) scores with the probability of tokens that may not follow moved to EOS."""
        copies = input_ids.shape[0] // self.target.shape[0]
        target, start = self.target.repeat_interleave(copies), self.start.repeat_interleave(copies)
        if not input_ids.shape[1]:  # a prompt that is given as embeddings has no ids; the rules look at the last one
            input_ids, start = nn.functional.pad(input_ids, (1, 0)), start + 1
        written = torch.arange(input_ids.shape[1], device=input_ids.device) >= start[:, None]
        rules = {
            Unit.TOKENS: self._tokens,
            Unit.WORDS: self._words,
            Unit.CHARACTERS: self._characters,
            Unit.SENTENCES: self._sentences,
        }
        fits, may_end = rules[self.unit](input_ids, written, target)
        started = (written & ~self.vocabulary.special(input_ids.device)[input_ids]).any(1)
        may_end &= started
        if self.unit is not Unit.TOKENS:
            table = self.vocabulary.tables(input_ids.device)
            fits &= (started[:, None] | table.opens) & ~table.control
            self._keep_characters_whole(input_ids, start, fits, may_end)
        return self._move_probability(scores, fits, may_end, self._ending(input_ids, scores, fits, may_end))

    def _tokens(self, ids: Tensor, written: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (B, V) tokens that fit, and the (B,) rows that may end; so do the rules of other units."""
        done = self.vocabulary.progress(ids, written, Unit.TOKENS)[:, -1] >= target
        fits = ~done[:, None] & ~self.vocabulary.special(ids.device)
        return fits, done if self.exact else torch.ones_like(done)

    def _words(self, ids: Tensor, written: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        table = self.vocabulary.tables(ids.device)
        progress = self.vocabulary.progress(ids, written, Unit.WORDS)[:, -1].long()
        inside = table.tail[ids[:, -1]] & written[:, -1]
        added = table.words - (table.head & inside[:, None]).long()  # (B, V)
        left = target - progress
        done = left <= 0
        fits = (added <= left[:, None]) & ~table.special & ~(done[:, None] & table.spaced)
        if not self.exact:
            return fits, torch.ones_like(done)
        last = self.last.repeat_interleave(ids.shape[0] // self.last.shape[0])
        steps = last - ids.shape[1] - 4  # the others are for EOS, and to finish a character
        hurry = (left * (1 + self.vocabulary.spells) >= steps)[:, None]
        advances = (table.fragment | (added >= 1)) & ~table.unfinished
        if self.vocabulary.spells:  # a word ends in a step of its own
            advances |= inside[:, None] & table.spaced & ~table.tail
        too_short = ((left > 0) & (left < _SHORTEST_SENTENCE))[:, None] & table.sentence_end
        closed = (done & table.sentence_end[ids[:, -1]])[:, None] & table.carries_on
        return fits & (advances | ~hurry) & ~too_short & ~closed, done

    def _characters(self, ids: Tensor, written: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        table = self.vocabulary.tables(ids.device)
        stripped, whole = (counts[:, -1] for counts in self.vocabulary.span(ids, written))
        started = (stripped > 0)[:, None]
        after = whole[:, None] + table.characters - torch.where(started, 0, table.lead)  # (B, V)
        # White space at the end is stripped, so it fits only if a character can still follow it.
        fits = (after + (~table.tail).long() <= target[:, None]) & ~table.special & (started | ~table.blank)
        done = stripped == target
        return fits, done if self.exact else torch.ones_like(done)

    def _sentences(self, ids: Tensor, written: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        table, tokenizer = self.vocabulary.tables(ids.device), self.vocabulary.tokenizer
        done = torch.zeros_like(target, dtype=torch.bool)
        for row in torch.nonzero(table.sentence_end[ids[:, -1]] & written[:, -1]).flatten().tolist():
            text = decode(tokenizer, ids[row][written[row]].tolist())
            done[row] = measure(text, Unit.SENTENCES) >= int(target[row]) and ends_sentence(text)
        fits = ~table.special & ~(done[:, None] & table.spaced)
        return fits, done if self.exact else torch.ones_like(done)

    def _keep_characters_whole(self, ids: Tensor, start: Tensor, fits: Tensor, may_end: Tensor) -> None:
        """Strike out tokens that break a character, and the end of an exact text inside one."""
        if not self.vocabulary.tables(ids.device).fragment.any():
            return
        tails = ids[:, -4:].tolist()
        unfinished = {}
        for row, begin in enumerate(start.tolist()):
            tail = tails[row][max(0, begin - (ids.shape[1] - len(tails[row]))) :]
            if opened := open_character(b"".join(self.vocabulary.pieces[i] for i in tail)):
                unfinished[row] = self.vocabulary.continuations(opened, ids.device) & fits[row]
        fits &= self.vocabulary.continuations(b"", ids.device)
        for row, allowed in unfinished.items():
            fits[row] = allowed
            may_end[row] &= not self.exact

    def _ending(self, ids: Tensor, scores: Tensor, fits: Tensor, may_end: Tensor) -> Tensor:
        """Return (B,) tokens that end the texts: EOS, or the full stop that an open sentence needs first."""
        eos = torch.full_like(ids[:, -1], self.eos[0])
        if not (self.exact and self.unit is Unit.WORDS):
            return eos
        table = self.vocabulary.tables(ids.device)
        score, full_stop = scores.masked_fill(~(fits & table.sentence_end), -torch.inf).max(-1)
        unclosed = may_end & ~table.sentence_end[ids[:, -1]] & (score > scores[:, self._eos_index].amax(-1))
        return torch.where(unclosed, full_stop, eos)

    def _move_probability(self, scores: Tensor, fits: Tensor, may_end: Tensor, ending: Tensor) -> Tensor:
        """Strike out tokens that do not fit, and give their probability to the ending where the text may end.

        A step with only one possible token, such as a forced language token, is left as it is.
        """
        special = self.vocabulary.special(scores.device).clone()
        special.index_fill_(0, self._eos_index, False)
        fits.index_fill_(1, self._eos_index, False)
        moved = scores.masked_fill(fits | special, -torch.inf).logsumexp(-1)
        result = scores.masked_fill(~fits, -torch.inf)
        rows = torch.arange(len(result), device=result.device)
        result[rows, ending] = result[rows, ending].logaddexp(torch.where(may_end, moved, -torch.inf))
        stuck = result.isneginf().all(-1)
        result[:, self.eos[0]] = result[:, self.eos[0]].masked_fill(stuck, 0.0)
        decided = scores.isfinite().sum(-1, keepdim=True) == 1
        return torch.where(decided, scores, result)
