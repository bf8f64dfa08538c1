"""A made-up task, and models that learn it on a laptop in seconds.

The source is four words, and the target repeats them up to a random length. Nothing in the text says when to stop, so
a model that stops at the target has learnt it from the signal.
"""

from __future__ import annotations

import random
from typing import Any

_WORDS = """
amber birch cedar delta ember fable grain hazel inlet jolly kayak lemon maple noble olive pearl quill river stone tulip
umber valor wheat yield zebra acorn bloom cliff dune elm fern glade heron iris jade kelp larch moss nest oak pine
quartz reed sage thorn upland vine willow yarrow zinc
"""
WORDS = tuple(_WORDS.split())
NAMES = ("toy-bart", "toy-llama")


def sentence(seed: int) -> tuple[str, str]:
    """Return one source and its target, of 5 to 30 words."""
    chance = random.Random(seed)
    words = chance.sample(WORDS, 4)
    length = chance.randint(5, 30)
    return " ".join(words), " ".join(words[i % 4] for i in range(length))


def build(name: str) -> tuple[Any, Any]:
    """Return an untrained toy model and its tokenizer."""
    import torch

    tokenizer = _tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _model(name, len(tokenizer)), tokenizer


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = ["<pad>", "</s>", "<s>", "<unk>", *(f"▁{word}" for word in WORDS)]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>", unk_token="<unk>"
    )


def _model(name: str, vocabulary: int) -> Any:
    from transformers import BartConfig, BartForConditionalGeneration, LlamaConfig, LlamaForCausalLM

    common = {"vocab_size": vocabulary, "max_position_embeddings": 256, "pad_token_id": 0, "eos_token_id": 1}
    if name == "toy-llama":
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        return LlamaForCausalLM(LlamaConfig(**common, **sizes, bos_token_id=2, tie_word_embeddings=True))
    sizes = {f"{part}_{size}": count for part in ("encoder", "decoder")
             for size, count in (("layers", 2), ("ffn_dim", 128), ("attention_heads", 4))}  # fmt: skip
    return BartForConditionalGeneration(
        BartConfig(**common, **sizes, d_model=64, bos_token_id=2, decoder_start_token_id=1, dropout=0.0,
                   forced_eos_token_id=None)
    )  # fmt: skip
