"""Examples to ids, and rows of ids to a batch.

An encoder-decoder reads the source and learns the target. A decoder-only model reads prompt and target in one row and
learns the target alone. In both the target ends in EOS and is never cut, for a text that stops in the middle teaches
exactly what this package is against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from impatience.data._templates import TEMPLATES
from impatience.data.base import Example
from impatience.errors import DataError, LongTargetError, OptionError, TokenizerError
from impatience.registry import nearest

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a position that is not learnt."""
_AT_ONCE = 1000
"""Examples that are tokenized together."""


class Encoder:
    """Turns examples into what a model is trained on.

    Text is text: what looks like a special token in a source or target (``</s>`` in old HTML) is not taken for one,
    but for the source under a chat template, where it cannot be told from the template's own.

    Args:
        tokenizer: The model's.
        encoder_decoder: Whether the model has an encoder.
        template: A name in ``TEMPLATES``.
        max_source_tokens: The most tokens that are read, special tokens and instruction included. A longer source
            loses its end; the instruction and what follows the source stay.
        max_target_tokens: The most tokens a target may have, special tokens not counted; None for any number.
        prefix: What to put in front of a plain prompt, e.g. ``"summarize: "`` for T5.

    Raises:
        TokenizerError: If the tokenizer has no end-of-sequence token.
        OptionError: If there is no such template, or a prefix is given to a chat model.
    """

    def __init__(
        self,
        tokenizer: Any,
        encoder_decoder: bool,
        template: str,
        max_source_tokens: int,
        max_target_tokens: int | None = None,
        prefix: str = "",
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
        self.chat = not encoder_decoder and tokenizer.chat_template is not None
        if self.chat and prefix:
            raise OptionError(f"prefix={prefix!r}: a chat model is told what to do by the template; leave it empty.")
        self._special = Vocabulary(len(tokenizer), (), tokenizer).special_ids

    def __call__(self, example: Example) -> dict[str, Any]:
        """Encode an example.

        Returns:
            ``input_ids`` and ``labels`` (lists of ids), ``id``, and ``target_tokens``: the length of the target,
            special tokens not counted.

        Raises:
            LongTargetError: If the target is too long.
            DataError: If it holds no token, or there is no room for the source.
        """
        (row,) = self.rows([example])
        if isinstance(row, LongTargetError):
            raise row
        return row

    def rows(self, examples: Sequence[Example]) -> Iterator[dict[str, Any] | LongTargetError]:
        """Encode many examples, on all processors, and give those whose target is too long as errors in their place.

        Raises:
            DataError: If one has a target without any token, or there is no room for its source.
        """
        for begin in range(0, len(examples), _AT_ONCE):
            some = examples[begin : begin + _AT_ONCE]
            targets = self._targets(some)
            errors = [self._long(example, target) for example, target in zip(some, targets, strict=True)]
            fitting = [example for example, error in zip(some, errors, strict=True) if error is None]
            inputs = iter(self.read(fitting))
            for example, target, error in zip(some, targets, errors, strict=True):
                yield error or self._row(example, next(inputs), target)

    def _row(self, example: Example, inputs: list[int], target: list[int]) -> dict[str, Any]:
        labels = target
        if not self.encoder_decoder:
            inputs, labels = inputs + target, [IGNORED] * len(inputs) + target
        return {"input_ids": inputs, "labels": labels, "id": example.id, "target_tokens": self._count(target)}

    def _count(self, target: list[int]) -> int:
        return sum(i not in self._special for i in target)

    def _long(self, example: Example, target: list[int]) -> LongTargetError | None:
        count = self._count(target)
        if count == 0:
            raise DataError(f"{example.id}: the tokenizer knows nothing of the target {example.target[:40]!r}.")
        if self.max_target_tokens is None or count <= self.max_target_tokens:
            return None
        return LongTargetError(
            f"{example.id}: the target has {count} tokens, and max_target_tokens is {self.max_target_tokens}. "
            f"Targets are never cut: raise max_target_tokens as far as the model has room, or leave the example "
            f"out (in a recipe: data.long_targets: leave_out)."
        )

    def reads(self, example: Example) -> list[int]:
        """Return what the model reads before it writes; the example's target is not looked at."""
        return self.read([example])[0]

    def read(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return what the model reads of each example before it writes."""
        if not self.encoder_decoder:
            return self._prompts(examples)
        texts = [self.template.prompt(example, self.prefix) for example in examples]
        return self._ids(texts, truncation=True, max_length=self.max_source_tokens)

    def _targets(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return the ids of targets, EOS among them; those of an encoder-decoder with all its special tokens."""
        eos, texts = self.tokenizer.eos_token_id, [example.target for example in examples]
        if not self.encoder_decoder:
            return [[*ids, eos] for ids in self._ids(texts, add_special_tokens=False)]
        return [ids if eos in ids else [*ids, eos] for ids in self._ids(None, text_target=texts)]

    def _prompts(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return the ids of prompts, the sources shortened until they are few enough."""
        prompts = self._render(examples)
        long = [place for place, ids in enumerate(prompts) if len(ids) > self.max_source_tokens]
        ends = dict(zip(long, self._token_ends([examples[place].source for place in long]), strict=True))
        keep = {place: len(ends[place]) for place in long}
        while long:
            shorter = []
            for place in long:
                keep[place] -= len(prompts[place]) - self.max_source_tokens
                source = examples[place].source[: ends[place][keep[place] - 1]].rstrip() if keep[place] > 0 else ""
                if not source:
                    raise DataError(
                        f"{examples[place].id}: max_source_tokens={self.max_source_tokens} leaves no room for the "
                        f"source: the instruction and special tokens alone take about "
                        f"{self.max_source_tokens - keep[place]} tokens."
                    )
                shorter.append(replace(examples[place], source=source))
            for place, ids in zip(long, self._render(shorter), strict=True):
                prompts[place] = ids
            long = [place for place in long if len(prompts[place]) > self.max_source_tokens]
        return prompts

    def _render(self, examples: Sequence[Example]) -> list[list[int]]:
        if not examples:
            return []
        if self.chat:
            texts = self.tokenizer.apply_chat_template(
                [self.template.messages(example) for example in examples], tokenize=False, add_generation_prompt=True
            )
            return [list(ids) for ids in self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]]
        rows = self._ids([self.template.prompt(example, self.prefix) + "\n\n" for example in examples])
        return [ids[:-1] if ids[-1] == self.tokenizer.eos_token_id else ids for ids in rows]

    def _token_ends(self, sources: list[str]) -> list[list[int]]:
        """Return where in each source its tokens end, in characters; a guess where it cannot be asked."""
        if not sources:
            return []
        if self.tokenizer.is_fast:
            encoded = self.tokenizer(sources, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
            return [[end for _, end in offsets] for offsets in encoded["offset_mapping"]]
        counts = map(len, self._ids(sources, add_special_tokens=False))
        return [
            [len(source) * (token + 1) // count for token in range(count)]
            for source, count in zip(sources, counts, strict=True)
        ]

    def _ids(self, texts: list[str] | None, **options: Any) -> list[list[int]]:
        if texts == [] or options.get("text_target") == []:
            return []
        found = self.tokenizer(texts, split_special_tokens=True, verbose=False, **options)["input_ids"]
        return [list(ids) for ids in found]


def collate(rows: Sequence[dict[str, Any]], pad_id: int, encoder_decoder: bool) -> dict[str, Tensor]:
    """Make a batch of encoded examples, padded on the right.

    Args:
        rows: What ``Encoder`` returned, B of them.
        pad_id: The id to pad inputs with.
        encoder_decoder: Whether inputs and labels are two texts of their own lengths.

    Returns:
        ``input_ids`` and ``attention_mask`` (B, T), and ``labels`` (B, L), which is (B, T) for a decoder-only model.
    """
    if not encoder_decoder and any(len(row["input_ids"]) != len(row["labels"]) for row in rows):
        raise ValueError("inputs and labels of a decoder-only model have the same length")

    inputs = pad_prompts([row["input_ids"] for row in rows], pad_id, left=False)
    return {**inputs, "labels": pad_labels([row["labels"] for row in rows])}


def pad_labels(rows: Sequence[list[int]]) -> Tensor:
    """Return rows of labels as (B, L), with ``IGNORED`` on the right of shorter ones."""
    import torch

    longest = max(map(len, rows))
    return torch.tensor([row + [IGNORED] * (longest - len(row)) for row in rows])


def pad_prompts(rows: Sequence[list[int]], pad_id: int, *, left: bool) -> dict[str, Tensor]:
    """Make a batch of what models read before they write.

    Args:
        rows: Ids, B rows of them.
        pad_id: The id to pad with.
        left: Whether to pad on the left, as a decoder-only model needs it to write on from the last column.

    Returns:
        ``input_ids`` and ``attention_mask``, (B, T).
    """
    import torch

    longest = max(map(len, rows))
    pads = [longest - len(row) for row in rows]
    ids = [[pad_id] * n + row if left else row + [pad_id] * n for row, n in zip(rows, pads, strict=True)]
    mask = [[0] * n + [1] * len(row) if left else [1] * len(row) + [0] * n for row, n in zip(rows, pads, strict=True)]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
