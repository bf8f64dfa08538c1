"""Small things to test with, built in memory and without a network: three tokenizers and any tiny model.

The ids of the special tokens are the same everywhere (pad 0, eos 1, bos 2; unk 3 in the tokenizers), so any
tokenizer here goes with any model here: ``tiny_model("llama", vocab_size=len(tokenizer))``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

PAD, EOS, BOS, UNK = range(4)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where tests run that hold on any device: the GPU if there is one."""

CORPUS = (
    "The ferry leaves at seven in the morning and comes back before the shops have closed.",
    "Nobody in the village could remember a winter in which the lake had not been frozen.",
    "She wrote the whole report in one evening, and then she cut it down to half of its length.",
    "A good summary says what happened, where it happened, and why anyone should care.",
    "When the baker opened the door, the smell of warm bread filled the narrow street.",
    "The engineers measured the bridge again, because the first numbers were too good to be true.",
    "Please write no more than forty words, and end with a full stop.",
    "The children counted the steps of the tower: there were two hundred and twelve of them.",
    "It rained for nine days; on the tenth, the river was over the wall.",
    "Researchers found that the small fish return to the same stream every spring.",
    "The museum has three rooms, one window, and a very patient guide.",
    "“We did not expect so many visitors,” said the director, “but we are glad they came.”",
    "If the train is late, we'll take the bus; if the bus doesn't come, we'll walk.",
    "Prices rose by 3.5% in March, 2.1% in April and 0.4% in May.",
    "The cat slept on the printer, which is why nothing was printed.",
    "An old map shows a road here, although there is only grass now.",
    "He repaired clocks for sixty years and was late for everything.",
    "The study followed 1,204 people over 15 years and asked them all the same question.",
    "Water, salt, flour and time: that is all the recipe asks for.",
    "The lighthouse keeper's daughter learned to read by the light of the lamp.",
    "Most of the stone came from the quarry behind the hill.",
    "The council will meet again on Thursday to vote on the new plan.",
    "Send the letter today, and the answer will be here before the end of the week.",
    "There was a long silence, and then somebody began to laugh.",
    "Le café était fermé, mais la boulangère nous a donné des croissants tout de même.",
    "À la fin de l'été, les élèves rentrent à l'école et la forêt se tait.",
    "Où est passée la clé ? Elle était sur la table, près de la fenêtre.",
    "Über den Dächern von Köln kreisen früh am Morgen die Möwen.",
    "Die Brücke wurde gesperrt, weil große Risse im Beton gefunden wurden.",
    "Der Zug nach München hält heute nicht in jedem Ort, sagte die Schaffnerin.",
    "El niño soñó con una montaña de azúcar y una cigüeña que hablaba.",
    "今天早上港口下了大雪,渡船没有开。",
    "我们在港口等渡船,等了一个早上。",
    "港の船は朝早く出て、夜おそく帰る。",
    "この町の人は、港のことをよく話す。",
    "وصلت السفينة إلى الميناء في الصباح الباكر.",
    "كتب الولد رسالة قصيرة إلى أمه.",
    "The launch went well 🚀 and the crew sent their thanks 👩‍🚀.",
    "Happy birthday to the whole family 👨‍👩‍👧! There is cake 🎂 for all.",
    "Thumbs up 👍🏽 from the French team 🇫🇷, with love ❤️.",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@cache
def _byte_level() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=["<|pad|>", "<|end|>", "<|begin|>", "<|unknown|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


@cache
def _sentencepiece() -> str:
    # Rare characters (every emoji among them) get no token of their own: they are left to the byte tokens.
    count = Counter("".join(CORPUS))
    covered = ["".join(char for char in line if count[char] > 2) for line in CORPUS]
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="first")
    learned, merges = _learn(covered, 500, pre_tokenizer=metaspace)
    # Byte tokens must be ordinary entries of the vocabulary, which no trainer can make: hence a second model.
    specials = ["<pad>", "</s>", "<s>", "<unk>"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(specials)
    tokenizer.pre_tokenizer = metaspace
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer.to_str()


@cache
def _wordpiece() -> str:
    normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    splitter = pre_tokenizers.BertPreTokenizer()
    # The WordPiece trainer numbers its "##" letters in another order in every process, so that its vocabulary
    # is never the same twice. The pieces of a BPE are, and each may begin a word or go on with one.
    learned, _ = _learn(CORPUS, 450, normalizer=normalizer, pre_tokenizer=splitter)
    specials = ["[PAD]", "[SEP]", "[CLS]", "[UNK]"]
    pieces = [*specials, *learned, *(f"##{piece}" for piece in learned)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.add_special_tokens(specials)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", BOS), ("[SEP]", EOS)],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer.to_str()


def _learn(lines: Iterable[str], size: int, **parts: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Train a BPE and return its pieces, in the order of their ids, and its merges."""
    tokenizer = Tokenizer(models.BPE())
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    vocab = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return sorted(vocab, key=vocab.__getitem__), [(left, right) for left, right in merges]


def _wrap(serialized: str, **extra: Any) -> PreTrainedTokenizerFast:
    """Give each caller a tokenizer of its own, so that a changed padding side stays with who changed it."""
    backend = Tokenizer.from_str(serialized)
    ids = {"pad_token": PAD, "eos_token": EOS, "bos_token": BOS, "unk_token": UNK}
    names = {role: backend.id_to_token(index) for role, index in ids.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=256, clean_up_tokenization_spaces=False, **names, **extra
    )


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Like GPT-2's and Qwen's: bytes and merges of bytes. Adds no special tokens."""
    return _wrap(_byte_level(), chat_template=CHAT_TEMPLATE)


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Like Llama's and Gemma's: "▁" for a space, bytes for rare characters. Puts bos in front."""
    return _wrap(_sentencepiece())


def wordpiece_tokenizer() -> PreTrainedTokenizerFast:
    """Like BERT's: "##" goes on with a word, unknown words become unk. Puts bos in front and eos behind."""
    return _wrap(_wordpiece())


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level_tokenizer,
    "sentencepiece": sentencepiece_tokenizer,
    "wordpiece": wordpiece_tokenizer,
}

# What a size is called in one config or another (the whole name must match), and what it becomes here.
SMALL: dict[str, int] = {
    r"hidden_size|d_model|n_embd|word_embed_proj_dim": 32,
    r"(num_)?((hidden|encoder|decoder)_)?layers?|n_layers?": 2,
    r"(num_)?((encoder|decoder)_)?(attention_)?heads|n_heads?": 4,
    r"num_(key_value|kv)_heads": 2,
    r"(\w+_)?head_dim|d_kv|query_pre_attn_scalar": 8,
    r"(\w+_)?intermediate_size|((encoder|decoder)_)?ffn_dim|d_ff|(\w+_)?ffn_hidden_size": 64,
    r"(original_)?max_position_embeddings|n_positions|n_ctx|max_seq(uence)?_len(gth)?": 256,
    r"max_decoder_position_embeddings": 256,
    r"max_encoder_position_embeddings": 512,
    r"rotary_dim": 4,
    r"sliding_window": 64,
    r"num_(local_)?experts": 4,
    r"num_experts_per_tok": 2,
    r"attention_window|local_radius": 4,
    r"depth": 2,
    r"embed_dim|out_hidden_size": 32,
    r"patch_size": 4,
    r"image_size": 8,
    r"image_token_(id|index)": 7,
}

# What makes a type differ from others, in small: a layer of each kind, windows shorter than a text, factors.
OWN: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {"sliding_window": 8},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.7},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen2_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1]}},
    "qwen2_5_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1]}},
    "m2m_100": {"scale_embedding": False},
    "opt": {"word_embed_proj_dim": 16},
}


def tiny_model(model_type: str, *, vocab_size: int = 96, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Build a tiny random model of any text-generation type that transformers knows; float32, eval mode.

    What the type's own config calls its sizes is found by name; ``overrides`` are config fields and win.
    """
    config = _tiny_config(AutoConfig.for_model(model_type), vocab_size, overrides)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if config is not config.get_text_config():
        auto = AutoModelForImageTextToText
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config, dtype=torch.float32)
        _spread(model)
    # From nothing, not from the config: some types (Blenderbot) bring n-gram bans and forced tokens along.
    model.generation_config = GenerationConfig(**_ids(config))
    return model.eval()


def _ids(config: PreTrainedConfig) -> dict[str, int]:
    # M2M-100 counts positions on ids that are not padding.
    start = {"decoder_start_token_id": EOS if config.model_type == "m2m_100" else PAD}
    start = start if config.is_encoder_decoder else {}
    return {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS} | start


def _tiny_config(large: PreTrainedConfig, vocab_size: int, overrides: dict[str, Any]) -> PreTrainedConfig:
    fields: dict[str, Any] = {}
    for name, value in large.to_dict().items():
        if name.startswith("forced_"):
            fields[name] = None
        elif isinstance(value, float) and "drop" in name:
            fields[name] = 0.0
        elif type(value) is int and "vocab_size" in name:
            fields[name] = vocab_size
        elif type(value) is int or name == "head_dim":  # some types leave head_dim open but need it
            for pattern, small in SMALL.items():
                if re.fullmatch(pattern, name):
                    fields[name] = small
    fields |= _ids(large)
    fields |= {name: _tiny_config(getattr(large, name), vocab_size, {}) for name in large.sub_configs}
    fields |= OWN.get(large.model_type, {})
    fields |= {large.attribute_map.get(name, name): value for name, value in overrides.items()}
    # Made anew rather than changed, so that what is derived from the sizes (a kind for each layer) fits them.
    return type(large)(**fields)


@torch.no_grad()
def _spread(model: PreTrainedModel) -> None:
    """Widen the weights: at this width their usual spread of 0.02 makes all tokens nearly equally likely.

    Half of the norms' scales change sign as well. Otherwise a model whose output head is its embedding table
    repeats one token for ever, for what comes out of the residual stream is most like what went in.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for name, weight in model.named_parameters():
        if not weight.requires_grad:  # Marian's and Pegasus' sinusoids
            continue
        if weight.ndim > 1 and (spread := weight.std(correction=0)) > 0:
            weight.mul_((0.6 if id(weight) in embeddings else 0.15) / spread)
        elif weight.ndim == 1 and name.endswith("weight"):
            # 1 becomes -1, and so does Gemma's 0, which stands for 1.
            weight.sub_(2.0 * (torch.rand_like(weight) < 0.5))
