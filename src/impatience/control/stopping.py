"""Where a text may end: the three landings, and the logits processor that holds a text to its target.

``landing`` says who decides where a text ends:

    natural   the model does; it is steered, never forced
    exact     EOS is barred before the target and due at it. Words: no new word starts once the last has, its
              remaining pieces may finish, a sentence that is still open is closed, and none is begun in the last
              words. Characters: only pieces that fit.
    at_most   the model may end earlier, once it has begun, but never goes over. A text that the limit cuts goes back
              to its last sentence end, if that keeps half of it or more, else to its last whole word.

What may not follow is not simply struck out: its probability goes to EOS, so that a model which would rather
start another word than finish this one ends here, in greedy search, in sampling and in beams alike. Where a sentence
has to be closed first, it goes to the full stop (or what else closes it), unless the model would rather end without
one, as titles do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

from impatience.lengths import Landing, Target, Unit, decode, ends_sentence, measure
from impatience.vocabulary import Vocabulary, open_character

_SHORTEST = 3
"""Words that a sentence has at least: with fewer left, an exact text ends none before its last word."""


class LandingProcessor(LogitsProcessor):  # type: ignore[misc]
    """Holds a text to its target.

    Args:
        landing: ``EXACT`` or ``AT_MOST``.
        target: What was asked for, one value a row of the batch.
        start: (B,) column of the first written id.
        last: For each row, the column that the sequence cannot grow beyond.
        vocabulary: Tells what each id adds.
        eos: The ids that end a text.
    """

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
        self.target = torch.tensor(target.values, device=start.device)
        self.last = torch.tensor(last, device=start.device)
        self.start = start
        self._ends = torch.tensor(eos, device=start.device)
        self._completions: dict[bytes, Tensor] = {}

    def follow(self, target: Tensor, start: Tensor, last: Tensor) -> None:
        """Look at other rows from now on; each is a (B,) tensor."""
        self.target, self.start, self.last = target, start, last

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Let through what fits, and give EOS what does not, where the text may end."""
        copies = input_ids.shape[0] // self.target.shape[0]
        target, start = self.target.repeat_interleave(copies), self.start.repeat_interleave(copies)
        written = torch.arange(input_ids.shape[1], device=input_ids.device) >= start[:, None]
        rules = {
            Unit.TOKENS: self._tokens,
            Unit.WORDS: self._words,
            Unit.CHARACTERS: self._characters,
            Unit.SENTENCES: self._sentences,
        }
        fits, may_end = rules[self.unit](input_ids, written, target)
        begun = (written & ~self.vocabulary.special(input_ids.device)[input_ids]).any(1)
        may_end &= begun
        if self.unit is not Unit.TOKENS:
            fits &= begun[:, None] | self.vocabulary.tables(input_ids.device).opens
            self._finish_characters(input_ids, start, fits, may_end)
        return self._divert(scores, fits, may_end, self._closing(input_ids, scores, fits, may_end))

    def _tokens(self, ids: Tensor, written: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
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
        hurry = (left >= steps)[:, None]
        helps = (table.fragment | (added >= 1)) & ~table.unfinished
        stub = ((left > 0) & (left < _SHORTEST))[:, None] & table.sentence_end
        closed = (done & table.sentence_end[ids[:, -1]])[:, None] & table.carries_on
        return fits & (helps | ~hurry) & ~stub & ~closed, done

    def _characters(self, ids: Tensor, written: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        table = self.vocabulary.tables(ids.device)
        stripped, whole = (counts[:, -1] for counts in self.vocabulary.span(ids, written))
        begun = (stripped > 0)[:, None]
        after = whole[:, None] + table.characters - torch.where(begun, 0, table.lead)  # (B, V)
        # White space at the end is stripped, so it fits only where a character can still follow it.
        fits = (after + (~table.tail).long() <= target[:, None]) & ~table.special & (begun | ~table.blank)
        done = stripped == target
        return fits, done if self.exact else torch.ones_like(done)

    def _sentences(self, ids: Tensor, written: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        table = self.vocabulary.tables(ids.device)
        tokenizer = self.vocabulary.require_tokenizer(Unit.SENTENCES)
        done = torch.zeros_like(target, dtype=torch.bool)
        for row in torch.nonzero(table.sentence_end[ids[:, -1]] & written[:, -1]).flatten().tolist():
            text = decode(tokenizer, ids[row][written[row]].tolist())
            done[row] = measure(text, Unit.SENTENCES) >= int(target[row]) and ends_sentence(text)
        fits = ~table.special & ~(done[:, None] & table.spaced)
        return fits, done if self.exact else torch.ones_like(done)

    def _finish_characters(self, ids: Tensor, start: Tensor, fits: Tensor, may_end: Tensor) -> None:
        """Let no piece break a character, and no exact text end inside one."""
        table = self.vocabulary.tables(ids.device)
        if not table.fragment.any():
            return
        tails = ids[:, -4:].tolist()
        opened = {}
        for row, begin in enumerate(start.tolist()):
            tail = tails[row][max(0, begin - (ids.shape[1] - len(tails[row]))) :]
            if unfinished := open_character(b"".join(self.vocabulary.pieces[i] for i in tail)):
                opened[row] = self._completing(unfinished, ids.device) & fits[row]
        fits &= self._completing(b"", ids.device)
        for row, completing in opened.items():
            fits[row] = completing
            may_end[row] &= not self.exact

    def _completing(self, opened: bytes, device: torch.device) -> Tensor:
        """Return the (V,) ids that may follow an unfinished character; white space is never made of pieces."""
        if opened not in self._completions:
            pieces = self.vocabulary.pieces
            table = self.vocabulary.tables(torch.device("cpu"))
            allowed = table.fragment.clone() if opened else ~table.fragment
            for i in torch.nonzero(allowed).flatten().tolist():
                if opened or not pieces[i].isascii():
                    allowed[i] = _continues(opened, pieces[i])
            self._completions[opened] = allowed.to(device)
        return self._completions[opened]

    def _closing(self, ids: Tensor, scores: Tensor, fits: Tensor, may_end: Tensor) -> Tensor:
        """Return the (B,) pieces that close sentences which have to be closed before their texts end, else EOS."""
        ends = torch.full_like(ids[:, -1], self.eos[0])
        if not (self.exact and self.unit is Unit.WORDS):
            return ends
        table = self.vocabulary.tables(ids.device)
        chance, closer = scores.masked_fill(~(fits & table.sentence_end), -torch.inf).max(-1)
        unfinished = may_end & ~table.sentence_end[ids[:, -1]] & (chance > scores[:, self._ends].amax(-1))
        return torch.where(unfinished, closer, ends)

    def _divert(self, scores: Tensor, fits: Tensor, may_end: Tensor, ending: Tensor) -> Tensor:
        """Strike out what does not fit and, where the text may end, give its probability to what ends it.

        A step that is decided already, such as a forced language token, is left as it is.
        """
        special = self.vocabulary.special(scores.device).clone()
        special.index_fill_(0, self._ends, False)
        fits.index_fill_(1, self._ends, False)
        end = scores.masked_fill(fits | special, -torch.inf).logsumexp(-1)
        landed = scores.masked_fill(~fits, -torch.inf)
        rows = torch.arange(len(landed), device=landed.device)
        landed[rows, ending] = landed[rows, ending].logaddexp(torch.where(may_end, end, -torch.inf))
        stuck = landed.isneginf().all(-1)
        landed[:, self.eos[0]] = landed[:, self.eos[0]].masked_fill(stuck, 0.0)
        decided = scores.isfinite().sum(-1, keepdim=True) == 1
        return torch.where(decided, scores, landed)


def _continues(opened: bytes, piece: bytes) -> bool:
    """Tell whether a piece carries an unfinished character on validly, without completing white space."""
    together = opened + piece
    rest = open_character(together)
    whole, completions = together[: len(together) - len(rest)], (rest + b"\x80" * 3, rest + b"\xbf" * 3)
    if rest and not any(_reads_as_one(completion) for completion in completions):
        return False
    try:
        text = whole.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False
    return not (opened and text[:1].isspace())


def _reads_as_one(character: bytes) -> bool:
    """Tell whether bytes begin with one valid character of more than one byte."""
    size = 2 if character[0] < 0xE0 else 3 if character[0] < 0xF0 else 4
    return "\ufffd" not in character[:size].decode("utf-8", "replace")
