"""``attach`` and ``LengthControlled`` in company: bad input, PEFT, Trainer, chat templates, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import (
    BartForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    T5EncoderModel,
    Trainer,
    TrainingArguments,
)
from transformers.pytorch_utils import Conv1D

from impatience import LengthControlled, attach
from impatience.decoding.base import TokenRequest
from impatience.decoding.loop import DecodingLoop
from impatience.decoding.step import DecodingSettings, recorded_facts
from impatience.errors import (
    ModelFilesError,
    OptionError,
    SourceError,
    TargetError,
    TokenizerError,
    UnknownNameError,
    UnsupportedModelError,
)
from impatience.families import FAMILIES
from impatience.lengths import Landing, Unit
from impatience.methods.base import EmbeddingMethod
from support.toys import byte_level_tokenizer, tiny_model

ONE_A_FAMILY = [family.model_types[0] for family in FAMILIES.values()]
IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def lora(kind: str) -> LoraConfig:
    linear = (torch.nn.Linear, Conv1D)
    names = {name.split(".")[-1] for name, module in tiny_model(kind).named_modules() if isinstance(module, linear)}
    return LoraConfig(r=4, target_modules=sorted(names - {"lm_head", "embed_out"}), fan_in_fan_out=kind == "gpt2")


# Bad input


@pytest.mark.parametrize("bad", [0, -5, float("nan"), 2.5, "many", [3, 0]])
def test_a_target_that_is_no_whole_number_is_refused(bad: Any) -> None:
    with pytest.raises(TargetError, match="whole number of at least 1"):
        attach(tiny_model("llama"), "pre").generate(**BATCH, target_tokens=bad)


def test_no_target_two_targets_and_too_many_are_refused() -> None:
    model = attach(tiny_model("llama"), "pre")
    with pytest.raises(TargetError, match="generate needs a target"):
        model.generate(**BATCH)
    with pytest.raises(TargetError, match="one target"):
        model.generate(**BATCH, target_tokens=4, target_words=4)
    with pytest.raises(TargetError, match="3 numbers for 2 rows"):
        model.generate(**BATCH, target_tokens=[1, 2, 3])
    with pytest.raises(TargetError, match="Pass labels"):
        model(**BATCH)
    with pytest.raises(SourceError, match="where the prompt ends"):
        model(**BATCH, target_tokens=4)


@pytest.mark.parametrize("kind", ["llama", "bart", "gpt2"])
def test_a_target_or_source_longer_than_the_model_is_refused(kind: str) -> None:
    model = attach(tiny_model(kind), "pre")
    with pytest.raises(TargetError, match="has room for"):
        model.generate(**BATCH, target_tokens=300)
    long = torch.full((1, 300), 5)
    with pytest.raises(SourceError, match="300 tokens, but this model has 256 positions"):
        model.generate(long, attention_mask=torch.ones_like(long), target_tokens=5)


def test_a_model_without_a_limit_takes_any_target() -> None:
    out = attach(tiny_model("t5"), "pre").generate(**BATCH, target_tokens=400, max_new_tokens=3)
    assert out.shape[1] <= 4


def test_an_empty_source_is_refused() -> None:
    model = attach(tiny_model("llama"), "pre")
    with pytest.raises(SourceError, match="empty"):
        model.generate(torch.empty(1, 0, dtype=torch.long), target_tokens=5)
    with pytest.raises(SourceError, match="Row 1 is all padding"):
        model.generate(IDS, attention_mask=torch.tensor([[1] * 4, [0] * 4]), target_tokens=5)


def test_words_without_a_tokenizer_and_models_without_eos_are_refused() -> None:
    model = attach(tiny_model("llama"), "pre")
    with pytest.raises(TokenizerError, match="tokenizer=tokenizer"):
        model.generate(**BATCH, target_words=5)
    model.generation_config.eos_token_id = None
    with pytest.raises(TokenizerError, match="no end-of-sequence token"):
        model.generate(**BATCH, target_tokens=5)


@pytest.mark.parametrize(
    ("kind", "model", "auto"),
    [
        ("llama", LlamaModel, "AutoModelForCausalLM"),
        ("llama", LlamaForSequenceClassification, "AutoModelForCausalLM"),
        ("bart", BartForCausalLM, "AutoModelForSeq2SeqLM"),  # only the decoder of it
        ("t5", T5EncoderModel, "AutoModelForSeq2SeqLM"),
    ],
)
def test_models_of_a_known_type_that_do_not_write_as_it_does_are_refused(kind: str, model: Any, auto: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{model.__name__} does not write texts .* with {auto}"):
        attach(model(tiny_model(kind).config), "glide")


def test_unknown_names_and_models_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="Linear is not a loaded model"):
        attach(torch.nn.Linear(2, 2), "pre")
    with pytest.raises(UnknownNameError, match="Did you mean 'pre'"):
        attach(tiny_model("llama"), "prre")
    with pytest.raises(UnsupportedModelError, match=r"model_types=\('mpt',\)"):
        attach(tiny_model("mpt"), "pre")
    with pytest.raises(UnsupportedModelError, match="not a loaded model"):
        attach("gpt2", "pre")
    with pytest.raises(OptionError, match="attached already"):
        attach(attach(tiny_model("llama"), "pre"), "rpe")
    with pytest.raises(OptionError, match="give a name with options"):
        attach(tiny_model("llama"), EmbeddingMethod)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="cross-attention"):
        attach(tiny_model("llama"), "laam")
    with pytest.raises(OptionError, match="landing='soft'"):
        attach(tiny_model("llama"), "pre").generate(**BATCH, target_tokens=5, landing="soft")
    with pytest.raises(OptionError, match="layers are 0 to 1"):
        attach(tiny_model("llama"), "pre", layers=[7])


def test_what_the_signal_needs_is_kept_once_and_not_set_from_outside() -> None:
    model = attach(tiny_model("llama"), "pre")
    with pytest.raises(OptionError, match="scale_signal"):
        model.amplitude = 3.0
    for name in ("family", "method", "vocabulary", "conventions", "width"):
        with pytest.raises(AttributeError):
            setattr(model, name, None)
    model.steering.amplitude = 3.0
    assert model.amplitude == 3.0
    facts = recorded_facts(model)
    model.steering.amplitude = 4.0
    assert recorded_facts(model) != facts


def test_a_failed_call_leaves_the_model_unchanged() -> None:
    base = tiny_model("llama")
    model = attach(base, "pre")
    with pytest.raises(Exception, match="nonsense"):
        model.generate(**BATCH, target_tokens=5, nonsense=1)
    assert "prepare_inputs_for_generation" not in vars(base)
    plain = tiny_model("llama")(**BATCH).logits
    assert torch.equal(base(**BATCH).logits, plain)


# What generation defaults must not do


def test_the_models_saved_length_limits_do_not_override_the_target() -> None:
    base = tiny_model("bart")
    base.generation_config.update(min_length=30, max_length=40, forced_bos_token_id=2)
    model = attach(base, "pre")
    for target in (3, 60):
        out, reports = model.generate(**BATCH, target_tokens=target, landing="exact", return_report=True)
        assert [report.length for report in reports] == [target, target]
        assert (out[:, 1] == 2).all()


def test_the_callers_own_limits_and_config_are_kept() -> None:
    base = tiny_model("llama")
    config = base.generation_config.__class__(max_new_tokens=3, eos_token_id=1, pad_token_id=0)
    before = config.to_dict()
    out = attach(base, "pre").generate(**BATCH, target_tokens=20, generation_config=config)
    assert out.shape[1] <= 7
    assert config.to_dict() == before


def test_prefill_in_chunks_is_refused() -> None:
    with pytest.raises(OptionError, match="prefill_chunk_size=2"):
        attach(tiny_model("llama"), "pre").generate(torch.tensor([[5, 6, 7]]), target_tokens=3, prefill_chunk_size=2)


def test_several_eos_ids_end_a_text() -> None:
    base = tiny_model("llama")
    base.generation_config.eos_token_id = [1, 40]
    _, reports = attach(base, "pre").generate(**BATCH, target_tokens=[4, 9], landing="exact", return_report=True)
    assert [report.length for report in reports] == [4, 9]


def test_a_chat_template_prompt_is_not_counted() -> None:
    tokenizer = byte_level_tokenizer()
    model = attach(tiny_model("llama", vocab_size=len(tokenizer)), "pre", tokenizer=tokenizer)
    tokenizer.padding_side = "left"
    chats = [[{"role": "user", "content": text}] for text in ("Summarise the harbour.", "Shorten: the ferry leaves.")]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
    )
    _, reports = model.generate(**inputs, target_words=[5, 12], landing="exact", return_report=True)
    assert [report.length for report in reports] == [5, 12]


# PEFT


# LED rounds in another way wherever its weights lie in memory.
@pytest.mark.parametrize("kind", [kind for kind in ONE_A_FAMILY if kind != "led"])
def test_peft_before_and_after_attach_give_the_same_logits(kind: str, tmp_path: Path) -> None:
    def stirred(model: Any) -> Any:
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(3))
        return model.eval()

    before = attach(stirred(get_peft_model(tiny_model(kind), lora(kind))), "pre")
    after = stirred(get_peft_model(attach(tiny_model(kind), "pre"), lora(kind)))
    plain = attach(tiny_model(kind), "pre")(**BATCH, labels=IDS).logits
    logits = before(**BATCH, labels=IDS).logits
    assert not torch.allclose(logits, plain, atol=1e-3)
    assert torch.equal(after(**BATCH, labels=IDS).logits, logits)
    written = before.generate(**BATCH, target_tokens=[4, 9], landing="exact")
    assert torch.equal(after.generate(**BATCH, target_tokens=[4, 9], landing="exact"), written)

    before.save_pretrained(tmp_path / "before")
    assert not (tmp_path / "before" / "model.safetensors").exists()
    again = LengthControlled.from_pretrained(tmp_path / "before", base_model=tiny_model(kind))
    assert torch.equal(again(**BATCH, labels=IDS).logits, logits)
    after.save_pretrained(tmp_path / "after")
    again = PeftModel.from_pretrained(attach(tiny_model(kind), "pre"), str(tmp_path / "after"))
    assert torch.equal(again(**BATCH, labels=IDS).logits, logits)


# Trainer


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_A_FAMILY)
def test_the_plain_trainer_trains_saves_and_resumes(kind: str, tmp_path: Path) -> None:
    data = [{"input_ids": IDS[row % 2], "labels": IDS[row % 2], "unused": 1} for row in range(8)]

    def train(steps: int, **kwargs: Any) -> LengthControlled:
        model = attach(tiny_model(kind), "pre", layers=[0])
        arguments = TrainingArguments(
            str(tmp_path), max_steps=steps, save_steps=2, per_device_train_batch_size=2, learning_rate=0.01,
            report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=100, dataloader_pin_memory=False,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=data).train(**kwargs)
        return model

    trained = train(4)
    before = attach(tiny_model(kind), "pre", layers=[0]).state_dict()
    moved = [name for name, value in trained.state_dict().items() if not torch.equal(value, before[name])]
    assert any("steering" in name for name in moved)
    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert saved.keys() == trained.state_dict().keys()
    resumed = train(4, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, value in resumed.state_dict().items():
        assert torch.allclose(value, trained.state_dict()[name], atol=1e-6)


@pytest.mark.parametrize("value", ["x", -1, 5000, [1, "a"], 1.5, True, torch.tensor(1)], ids=str)
def test_ends_that_are_no_tokens_are_refused(value: Any) -> None:
    model = attach(tiny_model("llama"), "pre")
    with pytest.raises(OptionError, match=r"eos_token_id=.*give the number of a token"):
        model.generate(torch.tensor([[5, 6]]), target_tokens=4, eos_token_id=value)
    for nothing in ([], None):
        with pytest.raises(TokenizerError, match="no end-of-sequence token"):
            model.generate(torch.tensor([[5, 6]]), target_tokens=4, eos_token_id=nothing)


@pytest.mark.parametrize(
    "draws", [[-1, 2], [1], [1, 2, 3], [], ["a", "b"], [1.5, 2], 3, [True, False], "ab", [2**70, 1]], ids=str
)
def test_draws_that_cannot_be_are_refused(draws: Any) -> None:
    model = attach(tiny_model("llama"), "pre")
    with pytest.raises(OptionError, match=r"draws=.*for each of the 2 rows"):
        model.generate(torch.tensor([[5, 6], [7, 8]]), target_tokens=4, draws=draws)


@pytest.mark.parametrize("mask", [[1, 1, 0, 0, 1, 1], [0, 0, 1, 0, 1, 1]])
def test_a_prompt_may_have_hidden_columns(mask: list[int]) -> None:
    ids = torch.tensor([[10, 20, 30, 40, 50, 12]])
    written, (report,) = attach(tiny_model("llama"), "pre").generate(
        ids, attention_mask=torch.tensor([mask]), target_tokens=9, landing="exact", return_report=True
    )
    assert report.length == 9
    assert written.shape[1] == 6 + 9 + 1


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_accumulated_gradients_are_those_of_one_batch(kind: str, tmp_path: Path) -> None:
    data = [{"input_ids": row, "labels": row} for row in torch.arange(5, 65).view(4, 15)]

    def train(rows: int, steps: int) -> list[torch.Tensor]:
        model = attach(tiny_model(kind), "pre", noise=0)
        arguments = TrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=rows, gradient_accumulation_steps=steps,
            report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", optim="sgd", learning_rate=0.1,
            max_grad_norm=0,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=data).train()
        return [weight.detach() for weight in model.parameters()]

    for whole, parts in zip(train(4, 1), train(1, 4), strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("landing", ["exact", "natural"])
def test_scores_that_are_no_numbers_give_no_text(landing: str, kind: str) -> None:
    model = attach(tiny_model(kind), "pre")
    with torch.no_grad():
        model.get_output_embeddings().weight[7, 0] = torch.nan
    with pytest.raises(ModelFilesError, match="not numbers"):
        model.generate(IDS, target_tokens=5, landing=landing, return_report=True)
    settings = DecodingSettings(Unit.TOKENS, Landing(landing), (1,))
    with pytest.raises(ModelFilesError, match="not numbers"):
        DecodingLoop(model).write([TokenRequest([5, 6, 7], 5, 6)], settings, 1)
