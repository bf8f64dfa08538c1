"""How far a text follows from its source, as a plain language model sees it that reads both.

Two measures, of any decoder:

    support   P(Yes), asked whether every detail of a statement is stated in the source
    gain      log p(word | source, text so far) - log p(word | text so far), of the words that carry meaning

The model is given as it is, without a length signal. Both begin with the source in the same words, so that a model that
keeps what it has read reads the source once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from impatience.errors import OptionError
from impatience.grounding.reading import LanguageModel, Row
from impatience.grounding.words import is_function_word
from impatience.user_text import encode_chats, encode_texts

QUESTION = (
    "Text:\n{text}\n\nStatement:\n{statement}\n\nIs every detail of the statement stated in the text? Answer Yes or No."
)
Pairs = Sequence[tuple[str, str]]
_WORD = re.compile(r"\w+(?:[-'’.,]\w+)*")


@dataclass(frozen=True)
class WordGain:
    """A word that carries meaning, and how likely it is; log-probabilities of all its tokens together."""

    word: str
    informed: float  # with the source before the text
    blind: float  # without it

    @property
    def gain(self) -> float:
        """How much likelier the source makes it."""
        return self.informed - self.blind


class SupportReader:
    """A language model that reads a source and a statement about it.

    Args:
        model: The model; the question is asked as a chat if its tokenizer has a chat template.
        context: The most tokens of a source that are read; None reads all of it.
    """

    def __init__(self, model: LanguageModel, context: int | None = None) -> None:
        self.model, self.tokenizer, self.context = model, model.tokenizer, context
        yes, no = (self._first_ids(word) for word in ("Yes", "No"))
        self._yes, self._no = sorted(yes - no), sorted(no - yes)

    def support(self, pairs: Pairs) -> list[float]:
        """Return, for pairs of a source and a statement, how far the model believes that the source states it: P(Yes).

        Raises:
            OptionError: If the tokenizer begins both answers alike.
        """
        return self.measure(pairs, [])[0]

    def gains(self, pairs: Pairs) -> list[list[WordGain]]:
        """Return, for pairs of a source and a text, the words of the text that carry meaning, with their gains."""
        return self.measure([], pairs)[1]

    def measure(self, statements: Pairs, texts: Pairs) -> tuple[list[float], list[list[WordGain]]]:
        """Return the support of statements and the gains of texts; a model may read a source of both once."""
        heads = self._heads([source for source, _ in (*statements, *texts)])
        pieces = self._encode([text for _, text in texts])
        questions = self._questions(statements, heads)
        informed = [_row(heads[source], text) for (source, _), text in zip(texts, pieces, strict=True)]
        blind = [_row(self._blind_head, text) for text in pieces] if texts else []
        found = self.model.log_chances([*questions, *informed, *blind])
        answers, odds = found[: len(questions)], found[len(questions) :]
        words = [
            _gains(text, [one for (one,) in odds[at]], [one for (one,) in odds[len(texts) + at]])
            for at, text in enumerate(pieces)
        ]
        return [self._chance_of_yes(chances) for (chances,) in answers], words

    def _chance_of_yes(self, log_chances: Sequence[float]) -> float:
        chances = [math.exp(one) for one in log_chances]
        return sum(chances[: len(self._yes)]) / max(sum(chances), 1e-9)

    def _questions(self, pairs: Pairs, heads: dict[str, _Head]) -> list[Row]:
        if pairs and not (self._yes and self._no):
            raise OptionError("The tokenizer begins Yes and No with the same token. Name another model.")
        asked = self._ask([QUESTION.format(text=heads[source].text, statement=said) for source, said in pairs])
        told = [[*self._yes, *self._no]]
        return [
            Row(ids, [len(ids) - 1], told, heads[source].shared_with(ids))
            for ids, (source, _) in zip(asked, pairs, strict=True)
        ]

    def _heads(self, sources: Sequence[str]) -> dict[str, _Head]:
        """Return what stands before a text, by source."""
        different = list(dict.fromkeys(sources))
        texts = self._cut(different)
        before = self._before([f"Text:\n{text}\n\nSummary:" for text in texts])
        asked = self._ask([QUESTION.format(text=text, statement="x") for text in texts])
        return {
            source: _Head(text, ids, _shared(ids, question))
            for source, text, ids, question in zip(different, texts, before, asked, strict=True)
        }

    @cached_property
    def _blind_head(self) -> _Head:
        (ids,) = self._before(["Summary:"])
        return _Head("", ids, max(len(ids) - 1, 0))

    def _before(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of unfinished messages: what they have in common with longer ones."""
        shorter, longer = self._ask(texts), self._ask([f"{text} x" for text in texts])
        return [a[: _shared(a, b)] for a, b in zip(shorter, longer, strict=True)]

    def _encode(self, texts: Sequence[str]) -> list[list[tuple[str, list[int]]]]:
        """Return the pieces of texts, encoded; all at once, because a tokenizer is slow to start."""
        pieces = [split(text) for text in texts]
        flat = encode_texts(self.tokenizer, [piece for of in pieces for _, piece in of], add_special_tokens=False)
        ids = iter(flat)
        return [[(word, next(ids)) for word, _ in of] for of in pieces]

    def _ask(self, questions: Sequence[str]) -> list[list[int]]:
        if self.tokenizer.chat_template is not None:
            chats = [[{"role": "user", "content": question}] for question in questions]
            return encode_chats(self.tokenizer, chats)
        return encode_texts(self.tokenizer, [f"{question}\nAnswer:" for question in questions])

    def _first_ids(self, word: str) -> set[int]:
        forms = (word, word.lower(), f" {word}", f" {word.lower()}")
        return {self.tokenizer(form, add_special_tokens=False)["input_ids"][0] for form in forms}

    def _cut(self, sources: Sequence[str]) -> list[str]:
        """Return the beginnings of sources that are read."""
        if self.context is None:
            return list(sources)
        rows = encode_texts(self.tokenizer, sources, add_special_tokens=False)
        return [
            source
            if len(ids) <= self.context
            else self.tokenizer.decode(ids[: self.context], clean_up_tokenization_spaces=False)
            for source, ids in zip(sources, rows, strict=True)
        ]


@dataclass(frozen=True)
class _Head:
    """Text that stands before another one."""

    text: str  # the part of the source that is read
    ids: list[int]
    shared: int  # how many of them a question about the same source begins with

    def shared_with(self, row: Sequence[int]) -> int:
        return self.shared if list(row[: self.shared]) == self.ids[: self.shared] else 0


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids two rows begin with alike."""
    differ = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _row(head: _Head, text: Sequence[tuple[str, list[int]]]) -> Row:
    """Return a row that asks for each token of each word that carries meaning."""
    ids, places = list(head.ids), list[int]()
    for word, piece in text:
        places += range(len(ids) - 1, len(ids) - 1 + len(piece)) if word else ()
        ids += piece
    return Row(ids, places, [[ids[place + 1]] for place in places], head.shared)


def _gains(text: Sequence[tuple[str, list[int]]], informed: Sequence[float], blind: Sequence[float]) -> list[WordGain]:
    """Add up the log-probabilities of the tokens of each word."""
    words, begin = [], 0
    for word, ids in text:
        if word:
            end = begin + len(ids)
            words.append(WordGain(word, sum(informed[begin:end]), sum(blind[begin:end])))
            begin = end
    return words


def split(text: str) -> list[tuple[str, str]]:
    """Split a text into pieces to encode one by one: a word that carries meaning, or "", and the piece itself."""
    pieces, end = [], 0
    for match in _WORD.finditer(text):
        begin = match.start() - (text[match.start() - 1 : match.start()] == " ")
        word = match.group()
        if _means(word):
            if begin > end:
                pieces.append(("", text[end:begin]))
            pieces.append((word, text[max(begin, end) : match.end()]))
            end = match.end()
    return [*pieces, ("", text[end:])] if end < len(text) else pieces


def _means(word: str) -> bool:
    """Check whether a word carries meaning: a name, a number, or another longer word than "and"."""
    if any(map(str.isdigit, word)) or (len(word) > 1 and word.isupper()):
        return True
    return (word[0].isupper() or len(word) > 3) and not is_function_word(word)
