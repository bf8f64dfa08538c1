"""A tiny controlled model for each kind of tokenizer, and texts that such a model is made to want."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from impatience import attach
from impatience.lengths import decode
from support.toys import EOS, TOKENIZERS, tiny_model

TEXT = "The ferry leaves at seven. Nobody could remember."


@cache
def model(kind: str, model_type: str = "llama") -> Any:
    tokenizer = TOKENIZERS[kind]()
    return attach(tiny_model(model_type, vocab_size=len(tokenizer) + 3), "pre", tokenizer=tokenizer)


class Script(LogitsProcessor):
    """A model that wants to write one text and then end; and, less than that, one more token anywhere."""

    def __init__(self, ids: list[int], start: int, liked: int | None = None) -> None:
        self.ids, self.start, self.liked = [*ids, EOS], start, liked

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = min(input_ids.shape[1] - self.start, len(self.ids) - 1)
        wish = torch.full_like(scores, -20.0)
        if self.liked is not None:
            wish[:, self.liked] = -10.0
        wish[:, self.ids[step]] = 0.0
        return wish


def scripted(text: str, kind: str = "byte_level", liked: int | None = None, **kwargs: Any) -> tuple[str, Any]:
    controlled = model(kind)
    script = Script(controlled.tokenizer.encode(text, add_special_tokens=False), start=3, liked=liked)
    prompt = torch.tensor([[5, 6, 7]])
    output, (report,) = controlled.generate(
        prompt, attention_mask=torch.ones_like(prompt), return_report=True,
        logits_processor=LogitsProcessorList([script]), **kwargs,
    )  # fmt: skip
    return decode(controlled.tokenizer, output[0, 3:].tolist()), report
