"""Encoding: examples to ids, and rows of ids to a batch.

An encoder-decoder reads the source and learns the target. A decoder-only model reads prompt and target in one row and
learns the target alone. In both the target ends in EOS and is never cut: a cut text would teach the model to stop in
the middle.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from impatience.data._templates import TEMPLATES, Template
from impatience.data.base import Example
from impatience.errors import DataError, LongTargetError, OptionError, TokenizerError
from impatience.registry import nearest
from impatience.user_text import ControlTokens, encode_chats, encode_text, encode_texts

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # label of positions that are not learnt
_CHUNK = 1000  # examples that are tokenized together


class Encoder:
    """Turns examples into rows of ids.

    Text that looks like a special token (``</s>`` in old HTML) is encoded as text.

    Args:
        tokenizer: Tokenizer of the model.
        encoder_decoder: Whether the model has an encoder.
        template: Name in ``TEMPLATES``.
        max_source_tokens: The most tokens of a prompt, special tokens and instruction included. A longer source loses
            its end, or its beginning where it ends with an instruction; the instruction and what follows stay.
        max_target_tokens: The most tokens of a target, special tokens not counted; None for any number.
        prefix: Text in front of a plain prompt, e.g. ``"summarize: "`` for T5.
        names_length: Whether the prompt of a steered text names its length too, because the model was taught so.
    """

    def __init__(
        self,
        tokenizer: Any,
        encoder_decoder: bool,
        template: str,
        max_source_tokens: int,
        max_target_tokens: int | None = None,
        prefix: str = "",
        names_length: bool = False,
    ) -> None:
        from impatience.vocabulary import Vocabulary

        if template not in TEMPLATES:
            known = ", ".join(TEMPLATES)
            raise OptionError(f"There is no template {template!r}.{nearest(template, TEMPLATES)} There are: {known}.")
        if tokenizer.eos_token_id is None:
            raise TokenizerError(
                "The tokenizer has no end-of-sequence token, so a text could never end. Set tokenizer.eos_token."
            )
        self.tokenizer, self.encoder_decoder, self.prefix = tokenizer, encoder_decoder, prefix
        self.template = TEMPLATES[template]
        self.max_source_tokens, self.max_target_tokens = max_source_tokens, max_target_tokens
        self.names_length = names_length
        self.chat = not encoder_decoder and tokenizer.chat_template is not None
        if self.chat and prefix:
            raise OptionError(f"prefix={prefix!r}: the template instructs a chat model; leave the prefix empty.")
        self._special = Vocabulary(len(tokenizer), (), tokenizer).special_ids

    def __call__(self, example: Example) -> dict[str, Any]:
        """Return ``input_ids``, ``labels``, ``id`` and ``target_tokens`` (without special tokens) of an example."""
        (row,) = self.rows([example])
        if isinstance(row, LongTargetError):
            raise row
        return row

    def rows(self, examples: Sequence[Example]) -> Iterator[dict[str, Any] | LongTargetError]:
        """Encode many examples, on all processors; one whose target is too long yields an error in its place."""
        for begin in range(0, len(examples), _CHUNK):
            chunk = examples[begin : begin + _CHUNK]
            targets = self._targets(chunk)
            errors = [self._length_error(example, target) for example, target in zip(chunk, targets, strict=True)]
            fitting = [example for example, error in zip(chunk, errors, strict=True) if error is None]
            inputs = iter(self.prompts(fitting))
            for example, target, error in zip(chunk, targets, errors, strict=True):
                yield error or self._row(example, next(inputs), target)

    def _row(self, example: Example, inputs: list[int], target: list[int]) -> dict[str, Any]:
        labels = target
        if not self.encoder_decoder:
            inputs, labels = inputs + target, [IGNORED] * len(inputs) + target
        return {"input_ids": inputs, "labels": labels, "id": example.id, "target_tokens": self._count(target)}

    def _count(self, target: list[int]) -> int:
        return sum(i not in self._special for i in target)

    def _length_error(self, example: Example, target: list[int]) -> LongTargetError | None:
        count = self._count(target)
        if count == 0:
            raise DataError(f"{example.id}: the tokenizer finds no token in the target {example.target[:40]!r}.")
        if self.max_target_tokens is None or count <= self.max_target_tokens:
            return None
        return LongTargetError(
            f"{example.id}: the target has {count} tokens, and max_target_tokens is {self.max_target_tokens}. "
            f"Targets are never cut: raise max_target_tokens as far as the model has room, or leave the example "
            f"out (in a recipe: data.long_targets: leave_out)."
        )

    def prompt(self, example: Example) -> list[int]:
        """Return the prompt of an example; its target is not used."""
        return self.prompts([example])[0]

    def prompts(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return the prompts of examples."""
        if not self.encoder_decoder or self.template.text_first or self._asks:
            return self._cut_prompts(examples)
        texts = [self.template.prompt(example, self.prefix) for example in examples]
        return encode_texts(self.tokenizer, texts, max_length=self.max_source_tokens)

    @property
    def _asks(self) -> bool:
        """True if a source ends with its instruction, which must not be cut off."""
        return self.template is TEMPLATES["instruct"]

    def prompts_with_lengths(self, examples: Sequence[Example], lengths: Sequence[str]) -> list[list[int]]:
        """Return the prompts of examples whose template has an instruction, with a length named at its end."""
        asked = zip(examples, map(self.template.asking, lengths), strict=True)
        return [self._with(template).prompt(example) for example, template in asked]

    def for_task(self, task: str | None) -> Encoder:
        """Return the encoder of a request's task; it differs in the template alone, and is this one for None."""
        return self if task is None else self._with(TEMPLATES[task])

    def _with(self, template: Template) -> Encoder:
        """Return this encoder with another template."""
        other = copy.copy(self)
        other.template = template
        return other

    def _targets(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return the ids of targets with EOS; for an encoder-decoder with all its special tokens."""
        eos, texts = self.tokenizer.eos_token_id, [example.target for example in examples]
        if not self.encoder_decoder:
            return [[*ids, eos] for ids in encode_texts(self.tokenizer, texts, add_special_tokens=False)]
        return [ids if eos in ids else [*ids, eos] for ids in encode_texts(self.tokenizer, texts, target=True)]

    def _cut_prompts(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return the ids of prompts, with sources shortened until they fit."""
        prompts = self._render(examples)
        long = [row for row, ids in enumerate(prompts) if len(ids) > self.max_source_tokens]
        ends = dict(zip(long, self._token_ends([examples[row].source for row in long]), strict=True))
        keep = {row: len(ends[row]) for row in long}
        while long:
            shorter = []
            for row in long:
                keep[row] -= len(prompts[row]) - self.max_source_tokens
                whole = examples[row].source
                if keep[row] <= 0:
                    source = ""
                elif self._asks:
                    source = whole[ends[row][len(ends[row]) - keep[row] - 1] :].lstrip()
                else:
                    source = whole[: ends[row][keep[row] - 1]].rstrip()
                if not source:
                    raise DataError(
                        f"{examples[row].id}: max_source_tokens={self.max_source_tokens} leaves no room for the "
                        f"source: the instruction and special tokens alone take about "
                        f"{self.max_source_tokens - keep[row]} tokens."
                    )
                shorter.append(replace(examples[row], source=source))
            for row, ids in zip(long, self._render(shorter), strict=True):
                prompts[row] = ids
            long = [row for row in long if len(prompts[row]) > self.max_source_tokens]
        return prompts

    def _render(self, examples: Sequence[Example]) -> list[list[int]]:
        if self.chat:
            return encode_chats(self.tokenizer, [self.template.messages(example) for example in examples])
        texts = [self.template.prompt(example, self.prefix) for example in examples]
        if self.encoder_decoder:
            return encode_texts(self.tokenizer, texts)
        rows = encode_texts(self.tokenizer, [text + "\n\n" for text in texts])
        return [ids[:-1] if ids[-1] == self.tokenizer.eos_token_id else ids for ids in rows]

    def _token_ends(self, sources: list[str]) -> list[list[int]]:
        """Return the character positions where tokens end, for each source; estimated if the tokenizer does not say."""
        if not sources:
            return []
        if not self.tokenizer.is_fast:
            return [_estimate_ends(source, len(self._encode(source))) for source in sources]
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        batch = self.tokenizer(sources, return_offsets_mapping=True, **options)
        control, rows = ControlTokens.of(self.tokenizer), []
        for source, ids, offsets in zip(sources, batch["input_ids"], batch["offset_mapping"], strict=True):
            # A control token has more ids in a prompt, where it is spelled.
            count = len(self._encode(source)) if control.among(ids) else len(ids)
            rows.append([end for _, end in offsets] if count == len(ids) else _estimate_ends(source, count))
        return rows

    def _encode(self, source: str) -> list[int]:
        return encode_text(self.tokenizer, source, add_special_tokens=False)


def _estimate_ends(source: str, count: int) -> list[int]:
    """Return positions where the tokens of a source would end if all had the same number of characters."""
    return [len(source) * (token + 1) // count for token in range(count)]


def collate(rows: Sequence[dict[str, Any]], pad_id: int, encoder_decoder: bool) -> dict[str, Tensor]:
    """Make a batch of encoded examples, padded on the right.

    Returns:
        ``input_ids`` and ``attention_mask`` (B, T), and ``labels`` (B, L), which is (B, T) for a decoder-only model.
    """
    if not encoder_decoder and any(len(row["input_ids"]) != len(row["labels"]) for row in rows):
        raise ValueError("inputs and labels of a decoder-only model have the same length")

    inputs = pad_prompts([row["input_ids"] for row in rows], pad_id, left=False)
    return {**inputs, "labels": pad_labels([row["labels"] for row in rows])}


def pad_labels(rows: Sequence[list[int]]) -> Tensor:
    """Return rows of labels as (B, L), with ``IGNORED`` on the right of shorter ones."""
    return _pad(rows, IGNORED, "right")


def pad_prompts(rows: Sequence[list[int]], pad_id: int, *, left: bool) -> dict[str, Tensor]:
    """Make ``input_ids`` and ``attention_mask``, (B, T); a decoder-only model continues prompts padded on the left."""
    side = "left" if left else "right"
    return {"input_ids": _pad(rows, pad_id, side), "attention_mask": _pad([[1] * len(row) for row in rows], 0, side)}


def _pad(rows: Sequence[list[int]], filler: int, side: str) -> Tensor:
    import torch

    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=filler, padding_side=side)
