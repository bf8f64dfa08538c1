from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from impatience import families
from support.toys import BOS, EOS, PAD, TOKENIZERS, UNK, byte_level_tokenizer, tiny_model, wordpiece_tokenizer

FAMILIES = list(families.FAMILIES.values())
SEQ2SEQ = [kind for family in FAMILIES if family.encoder_decoder for kind in family.model_types]
CAUSAL = [kind for family in FAMILIES if not family.encoder_decoder for kind in family.model_types]
TEXTS = {
    "english": "The ferry leaves at seven, and nobody in the village is late for it.",
    "accents": "À l'école, la fenêtre du café gèle; über den Dächern fällt früh der Schnee.",
    "cjk": "今天港口下雪了。明日の朝、船は出ない。",
    "arabic": "وصلت السفينة قبل الفجر.",
    "emoji": "Well done 🎉🎉 to the pilots 👩🏾‍✈️ and the family 👨‍👩‍👧‍👦 from 🇯🇵 1️⃣!",
    "lines": "First line.\n\nSecond line,\twith a tab  and two spaces.",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_text_comes_back_exactly(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer(text).input_ids
    assert UNK not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_wordpiece_gives_back_all_but_unknown_words_and_spacing() -> None:
    tokenizer = wordpiece_tokenizer()
    for name in ("english", "accents"):
        ids = tokenizer(TEXTS[name]).input_ids
        assert UNK not in ids
        assert "".join(tokenizer.decode(ids, skip_special_tokens=True).split()) == "".join(TEXTS[name].split())
    ids = tokenizer("The whale 🐳 returns to 港口 in the 鯨 spring.").input_ids
    assert ids.count(UNK) == 2
    assert tokenizer.decode(ids, skip_special_tokens=True) == "The whale returns to 港 口 in the spring."


@pytest.mark.parametrize("emoji", ["🚀", "🐙", "❤️", "👍🏽", "👨‍👩‍👧", "🇫🇷"])
@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_an_emoji_takes_several_tokens(name: str, emoji: str) -> None:
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer(emoji, add_special_tokens=False).input_ids
    assert len(ids) > 1
    assert tokenizer.decode(ids) == emoji
    assert "�" in tokenizer.decode(ids[:-1])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id)
    assert ids == (PAD, EOS, BOS, UNK)
    assert sorted(tokenizer.all_special_ids) == sorted(ids)
    assert 600 <= len(tokenizer) <= 1000
    assert tokenizer.decode(list(ids), skip_special_tokens=True) == ""


def test_each_caller_has_a_tokenizer_of_its_own() -> None:
    byte_level_tokenizer().padding_side = "left"
    assert byte_level_tokenizer().padding_side == "right"


def test_chat_template() -> None:
    chat = [{"role": "user", "content": "Forty words, please."}]
    written = byte_level_tokenizer().apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert written == "user: Forty words, please.\nassistant: "


@pytest.mark.slow
def test_every_process_trains_the_same_tokenizers() -> None:
    code = "from support import toys; print([build().backend_tokenizer.to_str() for build in toys.TOKENIZERS.values()])"
    here = [build().backend_tokenizer.to_str() for build in TOKENIZERS.values()]
    there = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    assert there.stdout.strip() == str(here)


@pytest.mark.parametrize("model_type", SEQ2SEQ + CAUSAL)
def test_tiny_model_builds_and_generates(model_type: str) -> None:
    model = tiny_model(model_type)
    assert model.config.model_type == model_type
    assert model.config.is_encoder_decoder == (model_type in SEQ2SEQ)
    assert model.num_parameters() < 100_000
    assert not model.training
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}

    ids = torch.tensor([[5, 6, 7, 8, 9], [20, 41, 7, 33, 60]])
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    logits = model(input_ids=ids, **decoder).logits
    assert logits.shape == (2, 5, 96)
    assert logits.std() > 0.4

    start = 1 if model.config.is_encoder_decoder else ids.shape[1]
    # Without an end token the two rows are ten tokens long for certain.
    written = model.generate(ids, do_sample=False, max_new_tokens=10, eos_token_id=None)[:, start:]
    assert written.shape == (2, 10)
    assert not torch.equal(written[0], written[1])
    assert model.generation_config.eos_token_id == EOS
    assert model.generation_config.forced_eos_token_id is None


def test_a_seed_decides_the_weights_and_nothing_else() -> None:
    state = torch.get_rng_state()
    one, same, other = tiny_model("llama"), tiny_model("llama"), tiny_model("llama", seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_overrides_win_under_either_name() -> None:
    assert tiny_model("bart", d_model=48).config.d_model == 48
    assert tiny_model("bart", hidden_size=48).config.d_model == 48
    assert tiny_model("qwen3", tie_word_embeddings=True, vocab_size=200).get_output_embeddings().weight.shape == (
        200,
        32,
    )
