"""Stops texts at their target: the rules of the landings ``exact`` and ``at_most``.

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
Shape letters: B rows, T steps, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from impatience.arrays import Array, arange, library_of, to_device
from impatience.lengths import Landing, Unit, decode, ends_sentence, measure
from impatience.vocabulary import Vocabulary, open_character

_SHORTEST_SENTENCE = 3
"""Fewest words of a sentence: with fewer left, an exact text ends no sentence before its last word."""


class LandingRules:
    """Holds texts of one unit to their targets; the arrays are on a device of torch, or None for NumPy."""

    def __init__(
        self, landing: Landing, unit: Unit, vocabulary: Vocabulary, eos: Sequence[int], device: Any = None
    ) -> None:
        self.exact, self.unit, self.vocabulary, self.device = landing is Landing.EXACT, unit, vocabulary, device
        self._special, self._first_eos = vocabulary.special(device), eos[0]
        ends = np.isin(np.arange(vocabulary.size), list(eos))
        self._eos, self._other = to_device(list(eos), device), to_device(~ends, device)  # (E,) ids, (V,) all but these
        self._never = to_device(vocabulary.special() & ~ends, device)  # (V,) special ids that end no text
        if unit is not Unit.TOKENS:
            self._table = vocabulary.tables(device)
            self._has_fragments = bool(vocabulary.tables().fragment.any())

    def hold(self, ids: Array, scores: Array, target: Array, start: Array, last: Array) -> Array:
        """Return (B, V) scores with the probability of tokens that may not follow moved to EOS.

        Args:
            ids: (B, T) all ids so far; T is at least 1.
            scores: (B, V) of the next token.
            target: (B,) lengths asked for.
            start: (B,) columns of the first written ids.
            last: (B,) columns that texts do not go beyond.
        """
        written = arange(ids, ids.shape[1]) >= start[:, None]
        if self.unit is Unit.WORDS:
            fits, may_end = self._words(ids, written, target, last)
        else:
            rules = {Unit.TOKENS: self._tokens, Unit.CHARACTERS: self._characters, Unit.SENTENCES: self._sentences}
            fits, may_end = rules[self.unit](ids, written, target)
        started = (written & ~self._special[ids]).any(1)
        may_end = may_end & started
        if self.unit is not Unit.TOKENS:
            fits &= (started[:, None] | self._table.opens) & ~self._table.control
            self._keep_characters_whole(ids, start, fits, may_end)
        return self._move_probability(scores, fits, may_end, self._ending(ids, scores, fits, may_end))

    def _tokens(self, ids: Array, written: Array, target: Array) -> tuple[Array, Array]:
        """Return the (B, V) tokens that fit, and the (B,) rows that may end; so do the rules of other units."""
        done = self.vocabulary.counts(ids, written, Unit.TOKENS)[:, -1] >= target
        return ~done[:, None] & ~self._special, self._may_end(done)

    def _may_end(self, done: Array) -> Array:
        return done if self.exact else done | True

    def _words(self, ids: Array, written: Array, target: Array, last: Array) -> tuple[Array, Array]:
        table = self._table
        left = target - self.vocabulary.counts(ids, written, Unit.WORDS)[:, -1]
        inside = table.tail[ids[:, -1]] & written[:, -1]
        added = table.words - (table.head & inside[:, None]) * 1  # (B, V)
        done = left <= 0
        fits = (added <= left[:, None]) & ~table.special & ~(done[:, None] & table.spaced)
        if not self.exact:
            return fits, self._may_end(done)
        steps = last - ids.shape[1] - 4  # the others are for EOS, and to finish a character
        hurry = (left * (1 + self.vocabulary.spells) >= steps)[:, None]
        advances = (table.fragment | (added >= 1)) & ~table.unfinished
        if self.vocabulary.spells:  # a word ends in a step of its own
            advances = advances | (inside[:, None] & table.spaced & ~table.tail)
        too_short = ((left > 0) & (left < _SHORTEST_SENTENCE))[:, None] & table.sentence_end
        closed = (done & table.sentence_end[ids[:, -1]])[:, None] & table.carries_on
        return fits & (advances | ~hurry) & ~too_short & ~closed, done

    def _characters(self, ids: Array, written: Array, target: Array) -> tuple[Array, Array]:
        table = self._table
        stripped, whole = (counts[:, -1] for counts in self.vocabulary.span(ids, written))
        started = (stripped > 0)[:, None]
        after = whole[:, None] + table.characters - ~started * table.lead  # (B, V)
        # White space at the end is stripped, so it fits only if a character can still follow it.
        fits = (after + ~table.tail <= target[:, None]) & ~table.special & (started | ~table.blank)
        return fits, self._may_end(stripped == target)

    def _sentences(self, ids: Array, written: Array, target: Array) -> tuple[Array, Array]:
        table, tokenizer = self._table, self.vocabulary.tokenizer
        done = target < 0  # no row
        closed = table.sentence_end[ids[:, -1]] & written[:, -1]
        for row in (row for row, ends in enumerate(closed.tolist()) if ends):
            text = decode(tokenizer, ids[row][written[row]].tolist())
            done[row] = measure(text, Unit.SENTENCES) >= int(target[row]) and ends_sentence(text)
        return ~table.special & ~(done[:, None] & table.spaced), self._may_end(done)

    def _keep_characters_whole(self, ids: Array, start: Array, fits: Array, may_end: Array) -> None:
        """Strike out tokens that break a character, and the end of an exact text inside one."""
        if not self._has_fragments:
            return
        tails = ids[:, -4:].tolist()
        unfinished = {}
        for row, begin in enumerate(start.tolist()):
            tail = tails[row][max(0, begin - (ids.shape[1] - len(tails[row]))) :]
            if opened := open_character(b"".join(self.vocabulary.pieces[i] for i in tail)):
                unfinished[row] = self.vocabulary.continuations(opened, self.device) & fits[row]
        fits &= self.vocabulary.continuations(b"", self.device)
        for row, allowed in unfinished.items():
            fits[row] = allowed
            may_end[row] &= not self.exact

    def _ending(self, ids: Array, scores: Array, fits: Array, may_end: Array) -> Array:
        """Return (B,) tokens that end the texts: EOS, or the full stop that an open sentence needs first."""
        library = library_of(scores)
        eos = library.full_like(ids[:, -1], self._first_eos)
        if not (self.exact and self.unit is Unit.WORDS):
            return eos
        table = self._table
        closing = library.where(fits & table.sentence_end, scores, -library.inf)
        full_stop = closing.argmax(-1)
        better = library.amax(closing, -1) > library.amax(scores[:, self._eos], -1)
        return library.where(may_end & ~table.sentence_end[ids[:, -1]] & better, full_stop, eos)

    def _move_probability(self, scores: Array, fits: Array, may_end: Array, ending: Array) -> Array:
        """Strike out tokens that do not fit, and give their probability to the ending where the text may end.

        A step with only one possible token, such as a forced language token, is left as it is.
        """
        library = library_of(scores)
        fits &= self._other
        # On a GPU nothing may wait for the answer whether a text may end; on NumPy most steps are spared the sum.
        if self.device is None and not may_end.any():
            moved = np.full(len(scores), -np.inf, scores.dtype)
        else:
            moved = _logsumexp(library.where(fits | self._never, -library.inf, scores))
        result = library.where(fits, scores, -library.inf)
        rows = arange(ending, len(result))
        result[rows, ending] = library.logaddexp(result[rows, ending], library.where(may_end, moved, -library.inf))
        stuck = (result == -library.inf).all(-1)
        result[:, self._first_eos] = library.where(stuck, 0.0, result[:, self._first_eos])
        decided = library.isfinite(scores).sum(-1)[:, None] == 1
        return library.where(decided, scores, result)


def _logsumexp(scores: Array) -> Array:
    """Return (B,) logarithms of the summed exponentials of (B, V) scores; minus infinity for a row of nothing else."""
    if not isinstance(scores, np.ndarray):
        return scores.logsumexp(-1)
    most = scores.max(-1)
    most = np.where(np.isfinite(most), most, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(scores - most[:, None]).sum(-1)) + most
