"""How far a text follows from its source, as a plain language model sees it that reads both.

Two measures, of any decoder:

    support   P(Yes), asked whether every detail of a statement is stated in the source
    gain      log p(word | source, text so far) - log p(word | text so far), of the words that carry meaning

The model is given as it is, without a length signal. The loader decides where it runs, and in which type of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from impatience.errors import OptionError
from impatience.grounding.words import is_function_word
from impatience.user_text import encode_chats, encode_texts

QUESTION = (
    "Text:\n{text}\n\nStatement:\n{statement}\n\nIs every detail of the statement stated in the text? Answer Yes or No."
)
_BATCH_TOKENS = {"cuda": 49_152, "cpu": 4_096}  # tokens that are read in one pass
_BATCH_ROWS = {"cuda": 128, "cpu": 8}  # rows, of which many logits may be kept
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
        model: A decoder, ready to be called.
        tokenizer: Its tokenizer; the question is asked as a chat if it has a chat template.
        context: The most tokens of a source that are read; None reads all of it.
    """

    def __init__(self, model: Any, tokenizer: Any, context: int | None = None) -> None:
        self.model, self.tokenizer, self.context = model, tokenizer, context
        self._device = next(model.parameters()).device
        yes, no = (self._first_ids(word) for word in ("Yes", "No"))
        self._yes, self._no = sorted(yes - no), sorted(no - yes)

    @torch.inference_mode()
    def support(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return, for pairs of a source and a statement, how far the model believes that the source states it: P(Yes).

        Raises:
            OptionError: If the tokenizer begins both answers alike.
        """
        if not (self._yes and self._no):
            raise OptionError("The tokenizer begins Yes and No with the same token. Name another model.")
        cut = self._cut([source for source, _ in pairs])
        rows = self._ask(
            [QUESTION.format(text=text, statement=said) for text, (_, said) in zip(cut, pairs, strict=True)]
        )
        found = [0.0] * len(rows)
        for batch, logits, places in self._read(rows, [[len(row) - 1] for row in rows]):
            chances = logits[range(len(batch)), [place[0] for place in places]].float().softmax(-1)
            of_yes, of_no = chances[:, self._yes].sum(-1), chances[:, self._no].sum(-1)
            for row, value in zip(batch, (of_yes / (of_yes + of_no).clamp(min=1e-9)).tolist(), strict=True):
                found[row] = value
        return found

    def gains(self, pairs: Sequence[tuple[str, str]]) -> list[list[WordGain]]:
        """Return, for pairs of a source and a text, the words of the text that carry meaning, with their gains."""
        texts = self._encode([text for _, text in pairs])
        cut = self._cut([source for source, _ in pairs])
        informed = self._log_odds([f"{source}\n\nSummary:" for source in cut], texts)
        blind = self._log_odds(["Summary:"] * len(pairs), texts)
        return [
            [WordGain(word, *odds) for (word, _), odds in zip(_with_meaning(text), zip(a, b, strict=True), strict=True)]
            for text, a, b in zip(texts, informed, blind, strict=True)
        ]

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
        different = list(dict.fromkeys(sources))
        cut = {}
        for source, ids in zip(
            different, encode_texts(self.tokenizer, different, add_special_tokens=False), strict=True
        ):
            long = len(ids) > self.context
            begun = self.tokenizer.decode(ids[: self.context], clean_up_tokenization_spaces=False) if long else source
            cut[source] = begun
        return [cut[source] for source in sources]

    @torch.inference_mode()
    def _log_odds(self, before: Sequence[str], texts: Sequence[list[tuple[str, list[int]]]]) -> list[list[float]]:
        """Return the log-probability of each word that carries meaning, after what stands before the text."""
        bos = [token for token in self.tokenizer("").input_ids if token == self.tokenizer.bos_token_id]
        rows, sizes, wanted = [], [], []
        for head, text in zip(encode_texts(self.tokenizer, before, add_special_tokens=False), texts, strict=True):
            row, places = bos + head, list[int]()
            for word, ids in text:
                places += range(len(row) - 1, len(row) - 1 + len(ids)) if word else ()
                row = row + ids
            rows.append(row)
            sizes.append([len(ids) for _, ids in _with_meaning(text)])
            wanted.append(places)
        found: list[list[float]] = [[] for _ in rows]
        for batch, logits, kept in self._read(rows, wanted):
            for at, (number, of_row) in enumerate(zip(batch, kept, strict=True)):
                told = torch.tensor([rows[number][place + 1] for place in wanted[number]], device=logits.device).long()
                chosen = logits[at, of_row].float()
                odds = chosen.gather(-1, told[:, None])[:, 0] - chosen.logsumexp(-1)
                found[number] = [part.sum().item() for part in odds.cpu().split(sizes[number])]
        return found

    def _read(
        self, rows: Sequence[list[int]], wanted: Sequence[list[int]]
    ) -> Iterator[tuple[list[int], torch.Tensor, list[list[int]]]]:
        """Yield rows that are read together, their logits (B, kept, V), and where the wanted are in them."""
        for batch in self._batches(rows):
            ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(rows[row]) for row in batch], batch_first=True)
            kept = sorted({place for row in batch for place in wanted[row]})
            if not kept:
                continue
            at = {place: number for number, place in enumerate(kept)}
            keep = torch.tensor(kept, device=self._device)
            # Padding is on the right, where a causal model does not see it.
            logits = self.model(ids.to(self._device), logits_to_keep=keep, use_cache=False).logits
            yield batch, logits, [[at[place] for place in wanted[row]] for row in batch]

    def _batches(self, rows: Sequence[list[int]]) -> Iterator[list[int]]:
        """Yield positions of rows that are read together, rows of similar length."""
        kind, batch = self._device.type, list[int]()
        for row in sorted((row for row in range(len(rows)) if rows[row]), key=lambda row: len(rows[row])):
            full = (len(batch) + 1) * len(rows[row]) > _BATCH_TOKENS[kind] or len(batch) == _BATCH_ROWS[kind]
            if batch and full:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch


def _with_meaning(text: Sequence[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    return [(word, ids) for word, ids in text if word]


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
