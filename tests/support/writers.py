"""Writers with tiny models, and texts for them."""

from __future__ import annotations

from typing import Any

from impatience import Writer, attach
from support.toys import CORPUS, byte_level_tokenizer, tiny_model, wordpiece_tokenizer

NOTE = CORPUS[0]
LONG = "\n\n".join(" ".join(CORPUS[n : n + 4]) for n in range(0, 24, 4))
TRAINED = {"template": "summarize", "prefix": "", "max_source_tokens": 96}
TAUGHT = {**TRAINED, "template": "instruct", "tasks": ["instruct"], "languages": ["en", "de"]}


def new_writer(kind: str = "llama", prompt: dict[str, Any] | None = None, **sizes: Any) -> Writer:
    tokenizer = byte_level_tokenizer() if kind == "llama" else wordpiece_tokenizer()
    if "max_position_embeddings" in sizes:
        tokenizer.model_max_length = sizes["max_position_embeddings"]
    return Writer(attach(tiny_model(kind, vocab_size=len(tokenizer), **sizes), "none", tokenizer=tokenizer), prompt)
