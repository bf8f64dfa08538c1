"""The contract of every method on every model type; both are read from the registries."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from impatience import LengthControlled, attach
from impatience.families import FAMILIES, Family
from impatience.methods import METHODS, AttentionMethod, EmbeddingMethod
from support.toys import BOS, DEVICE, tiny_model

EVERY_TYPE = [kind for family in FAMILIES.values() for kind in family.model_types]
ONE_A_FAMILY = [family.model_types[0] for family in FAMILIES.values()]
TARGETS = [6, 11]
WIDTH = 9  # columns of the source or prompt


def family_of(kind: str) -> Family:
    return next(family for family in FAMILIES.values() if kind in family.model_types)


def works(method: str, kind: str) -> bool:
    family = family_of(kind)
    biased = family.encoder_decoder and family.reader.mask_of_heads
    return biased or not issubclass(METHODS[method], AttentionMethod)


BRIEF = ("glide", "laam", "pre")  # for the other types of a family: in layers, in attention, at the input
EVERY_PAIR = [
    (method, kind)
    for kind in EVERY_TYPE
    for method in METHODS
    if works(method, kind) and (method in BRIEF or kind in ONE_A_FAMILY)
]
ONE_PAIR_A_FAMILY = [(method, kind) for kind in ONE_A_FAMILY for method in METHODS if works(method, kind)]
STEERING = [(method, kind) for method, kind in EVERY_PAIR if method != "none"]
every_pair = pytest.mark.parametrize(("method", "kind"), EVERY_PAIR)
one_pair_a_family = pytest.mark.parametrize(("method", "kind"), ONE_PAIR_A_FAMILY)


def model_of(kind: str, **sizes: int) -> Any:
    """Return a tiny model where tests run."""
    return tiny_model(kind, **sizes).to(DEVICE)


@cache
def shared_model(kind: str) -> Any:
    """One model of each type for all tests that leave its weights alone."""
    return model_of(kind)


def randomize_projections(model: LengthControlled) -> LengthControlled:
    """Give a signal that enters through projections something to say, as if they had been trained."""
    chance = torch.Generator().manual_seed(0)
    for parameter in model.signal_parameters():
        parameter.data.copy_(torch.empty(parameter.shape).normal_(std=0.3, generator=chance))
    return model


@pytest.fixture
def controlled(method: str, kind: str) -> Any:
    model = randomize_projections(attach(shared_model(kind), method, noise="step"))
    yield model
    model.detach()


def batch(rows: int = 2) -> dict[str, torch.Tensor]:
    ids = torch.randint(4, 96, (rows, WIDTH), generator=torch.Generator().manual_seed(7))
    return {"input_ids": ids.to(DEVICE), "attention_mask": torch.ones_like(ids, device=DEVICE)}


def teacher_forced(model: Any, family: Family, source: dict[str, Any], sequences: torch.Tensor, targets: Any) -> Any:
    """Return the logits for each generated id, from one forward pass over the finished sequences."""
    if family.encoder_decoder:
        return model(**source, decoder_input_ids=sequences[:, :-1], target_tokens=targets).logits
    ids = sequences[:, :-1]
    mask = torch.cat([source["attention_mask"], torch.ones_like(ids[:, WIDTH:])], 1)
    lengths = source["attention_mask"].sum(1)
    out = model(input_ids=ids, attention_mask=mask, target_tokens=targets, prompt_lengths=lengths)
    return out.logits[:, WIDTH - 1 :]


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    """Agree to 1e-5, or to 1e-5 of the largest value where values are large."""
    one, other = one.detach(), other.detach()
    assert (one - other).abs().max() <= 1e-5 * max(1.0, float(other.abs().max()))


def stepwise(model: Any, source: dict[str, Any], **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Write to the targets and return the sequences and the model's own logits at each step."""
    out = model.generate(
        **source,
        landing="exact",
        output_logits=True,
        return_dict_in_generate=True,
        **{"target_tokens": TARGETS, **kwargs},
    )
    return out.sequences, torch.stack(out.logits, 1)


def assert_steps_agree(model: Any, family: Family, source: dict[str, Any], **kwargs: Any) -> None:
    sequences, steps = stepwise(model, source, **kwargs)
    copies = len(sequences) // len(TARGETS)
    targets = [target for target in TARGETS for _ in range(copies)]
    source = {name: tensor.repeat_interleave(copies, 0) for name, tensor in source.items()}
    forced = teacher_forced(model, family, source, sequences, targets)
    for row, target in enumerate(targets):
        assert_close(steps[row, : target + 1], forced[row, : target + 1])


@every_pair
def test_teacher_forced_cached_and_uncached_agree(method: str, kind: str, controlled: Any) -> None:
    for use_cache in (True, False):
        assert_steps_agree(controlled, family_of(kind), batch(), use_cache=use_cache)


@one_pair_a_family
def test_static_cache_sampling_and_several_samples_agree(method: str, kind: str, controlled: Any) -> None:
    family = family_of(kind)
    if kind != "led":  # which computes something else with such a cache, also without control
        assert_steps_agree(controlled, family, batch(), cache_implementation="static", disable_compile=True)
    assert_steps_agree(controlled, family, batch(), do_sample=True, num_return_sequences=3)


@every_pair
def test_beams_are_scored_as_a_forward_pass_scores_them(method: str, kind: str, controlled: Any) -> None:
    source, family = batch(), family_of(kind)
    out = controlled.generate(
        **source, target_tokens=TARGETS, num_beams=3, num_return_sequences=2, length_penalty=0.0,
        max_new_tokens=14, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    source = {name: tensor.repeat_interleave(2, 0) for name, tensor in source.items()}
    logits = teacher_forced(controlled, family, source, out.sequences, [t for t in TARGETS for _ in range(2)])
    start = 1 if family.encoder_decoder else WIDTH
    for row, sequence in enumerate(out.sequences[:, start:]):
        stop = (sequence == 1).nonzero()
        written = sequence[: int(stop[0]) + 1 if len(stop) else len(sequence)]
        chosen = logits[row, : len(written)].log_softmax(-1).gather(1, written[:, None]).sum()
        assert float(out.sequences_scores[row]) == pytest.approx(chosen.item(), rel=1e-4, abs=1e-3)


@every_pair
def test_strength_zero_is_the_base_model_to_the_bit(method: str, kind: str) -> None:
    base, source = shared_model(kind), batch()
    labels = {"labels": source["input_ids"]}
    plain, written = base(**source, **labels).logits, base.generate(**source, max_new_tokens=6)
    model = attach(base, method, strength=0)
    assert torch.equal(model(**source, **labels, target_tokens=5).logits, plain)
    followed = []

    def look(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        followed.append("prepare_inputs_for_generation" in vars(base))
        return scores

    again = model.generate(**source, target_tokens=6, max_new_tokens=6, logits_processor=[look])
    assert torch.equal(again, written)
    assert not any(followed)
    model.detach()


@every_pair
def test_detach_restores_the_base_model(method: str, kind: str) -> None:
    base, source = shared_model(kind), batch()
    plain = base(**source, labels=source["input_ids"]).logits
    before = dict(base.__dict__)
    model = attach(base, method)
    model.generate(**source, target_tokens=4)
    assert model.detach() is base
    assert base.__dict__ == before
    assert torch.equal(base(**source, labels=source["input_ids"]).logits, plain)


@pytest.mark.parametrize(("method", "kind"), STEERING)
def test_the_target_changes_the_logits(method: str, kind: str, controlled: Any) -> None:
    source = batch()
    short, long = (controlled(**source, labels=source["input_ids"], target_tokens=t).logits for t in (9, 900))
    assert (short - long).abs().max() > 1e-3


@every_pair
def test_rows_of_a_batch_get_the_logits_they_get_alone(method: str, kind: str, controlled: Any) -> None:
    source = batch()
    _, together = stepwise(controlled, source)
    for row, target in enumerate(TARGETS):
        alone = {name: tensor[row : row + 1] for name, tensor in source.items()}
        _, steps = stepwise(controlled, alone, target_tokens=target)
        assert_close(together[row, : target + 1], steps[0, : target + 1])


@every_pair
def test_padding_does_not_matter_to_generate(method: str, kind: str, controlled: Any) -> None:
    source = batch()
    _, plain = stepwise(controlled, source)
    pads = torch.zeros(2, 3, dtype=torch.long, device=DEVICE)
    on_the_left = not family_of(kind).encoder_decoder  # an encoder's source is padded on the right
    padded = {name: torch.cat([pads, tensor] if on_the_left else [tensor, pads], 1) for name, tensor in source.items()}
    _, steps = stepwise(controlled, padded)
    for row, target in enumerate(TARGETS):
        assert_close(steps[row, : target + 1], plain[row, : target + 1])


@every_pair
def test_right_padding_does_not_matter_to_training(method: str, kind: str, controlled: Any) -> None:
    source = batch()
    labels = source["input_ids"].clone()
    labels[:, :4] = -100
    plain = controlled(**source, labels=labels).logits
    pads = torch.zeros(2, 3, dtype=torch.long, device=DEVICE)
    padded = {name: torch.cat([tensor, pads], 1) for name, tensor in source.items()}
    padded["labels"] = torch.cat([labels, pads - 100], 1)
    assert_close(controlled(**padded).logits[:, :WIDTH], plain)
    if not family_of(kind).encoder_decoder:  # whose training passes no mask
        del padded["attention_mask"]
        assert_close(controlled(**padded).logits[:, :WIDTH], plain)


@every_pair
def test_labels_give_the_target_and_the_end_of_the_prompt(method: str, kind: str, controlled: Any) -> None:
    source = batch()
    labels = source["input_ids"].clone()
    if family_of(kind).encoder_decoder:
        first = labels[:, :1]
        labels = torch.cat([torch.full_like(first, BOS), labels, torch.ones_like(first)], 1)
        expected = controlled(**source, labels=labels, target_tokens=WIDTH).logits
    else:
        labels[:, :4] = -100
        expected = controlled(**source, target_tokens=WIDTH - 4, prompt_lengths=4).logits
    assert torch.equal(controlled(**source, labels=labels).logits, expected)


@every_pair
def test_a_resumed_text_continues_with_the_same_logits(method: str, kind: str, controlled: Any) -> None:
    source, family = batch(), family_of(kind)
    sequences, steps = stepwise(controlled, source, target_tokens=[10, 10])
    if family.encoder_decoder:
        _, rest = stepwise(controlled, {**source, "decoder_input_ids": sequences[:, :5]}, target_tokens=[10, 10])
    else:
        ids = sequences[:, : WIDTH + 4]
        _, rest = stepwise(
            controlled, {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            target_tokens=[10, 10], prompt_lengths=WIDTH,
        )  # fmt: skip
    assert_close(rest, steps[:, 4:])


@one_pair_a_family
def test_a_saved_and_loaded_model_gives_the_same_logits(
    method: str, kind: str, controlled: Any, tmp_path: Path
) -> None:
    source = batch()
    controlled.save_pretrained(tmp_path)
    again = LengthControlled.from_pretrained(tmp_path).to(DEVICE)
    labels = source["input_ids"]
    assert torch.equal(again(**source, labels=labels).logits, controlled(**source, labels=labels).logits)
    assert not [file for file in tmp_path.iterdir() if file.suffix in (".bin", ".pt", ".pkl", ".py")]


@one_pair_a_family
def test_gradients_flow_and_checkpointing_does_not_change_them(method: str, kind: str) -> None:
    source = batch()
    grads = []
    for checkpointing in (False, True):
        model = attach(model_of(kind), method, noise=0)
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
        loss = model(**source, labels=source["input_ids"], use_cache=False).loss
        loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        assert all(grad.isfinite().all() for grad in grads[-1].values())
    assert grads[0].keys() == grads[1].keys()
    assert len(grads[0]) > 5
    for name, grad in grads[0].items():
        assert_close(grads[1][name], grad)


@one_pair_a_family
def test_noise_is_for_training_only(method: str, kind: str) -> None:
    source = batch()
    model = randomize_projections(attach(model_of(kind), method, noise=5.0))
    labels = {"labels": source["input_ids"]}
    assert torch.equal(model(**source, **labels).logits, model(**source, **labels).logits)
    model.train()
    differ = not torch.equal(model(**source, **labels).logits, model(**source, **labels).logits)
    assert differ is (method != "none")


LAYERED = [(m, k) for m, k in ONE_PAIR_A_FAMILY if issubclass(METHODS[m], EmbeddingMethod)]


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize(("method", "kind"), LAYERED)
def test_layer_projections_start_silent_then_steer_and_are_saved(
    method: str, kind: str, rank: int | None, tmp_path: Path
) -> None:
    base, source, family = shared_model(kind), batch(), family_of(kind)
    labels = {"labels": source["input_ids"]}
    plain = base(**source, **labels).logits
    model = attach(base, method, layers="all", rank=rank)
    assert torch.equal(model(**source, **labels).logits, plain)
    randomize_projections(model)
    assert not torch.allclose(model(**source, **labels).logits, plain, atol=1e-3)
    assert_steps_agree(model, family, source)
    model.save_pretrained(tmp_path)
    again = LengthControlled.from_pretrained(tmp_path).to(DEVICE)
    assert torch.equal(again(**source, **labels).logits, model(**source, **labels).logits)
    model.detach()


@pytest.mark.parametrize(("method", "kind"), LAYERED)
def test_layer_projections_learn_also_under_checkpointing(method: str, kind: str) -> None:
    source, grads = batch(), []
    for checkpointing in (False, True):
        model = attach(model_of(kind), method, layers=[0, 1], noise=0)
        for index, parameter in enumerate(model.signal_parameters()):
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator(DEVICE).manual_seed(index))
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
        model(**source, labels=source["input_ids"], use_cache=False).loss.backward()
        grads.append([parameter.grad for parameter in model.signal_parameters()])
    for one, other in zip(*grads, strict=True):
        assert one.abs().max() > 0
        assert_close(other, one)


@one_pair_a_family
def test_bfloat16_runs_and_keeps_its_dtype(method: str, kind: str) -> None:
    source = batch()
    model = randomize_projections(attach(model_of(kind).to(torch.bfloat16), method))
    logits = model(**source, labels=source["input_ids"]).logits
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
    _, reports = model.generate(**source, target_tokens=TARGETS, landing="exact", return_report=True)
    assert [report.length for report in reports] == TARGETS


COMPILED = [(method, kind) for method, kind in ONE_PAIR_A_FAMILY if method == "pre" or kind == ONE_A_FAMILY[0]]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch resets itself by it on a GPU
@pytest.mark.parametrize(("method", "kind"), COMPILED)
def test_a_compiled_decoder_gives_the_same_logits(method: str, kind: str) -> None:
    source = batch()
    base = model_of(kind)
    model = randomize_projections(attach(base, method))
    plain = model(**source, labels=source["input_ids"]).logits
    sequences, steps = stepwise(model, source)
    family_of(kind).decoder_of(base).compile(backend="eager")
    assert_close(model(**source, labels=source["input_ids"]).logits, plain)
    again, compiled = stepwise(model, source)
    assert torch.equal(again, sequences)
    assert_close(compiled, steps)
    torch.compiler.reset()


@pytest.mark.parametrize("kind", EVERY_TYPE)
def test_auto_strength_has_the_rms_of_the_embeddings(kind: str) -> None:
    """The signal, as the decoder's first layer or norm sees it, has the RMS of the token embeddings seen there."""
    base, source = shared_model(kind), batch()
    family = family_of(kind)
    table = family.decoder_of(base).get_input_embeddings()(torch.arange(96, device=DEVICE)[None]).detach()
    scaled = float(table.square().mean().sqrt())
    assert family.embedding_rms(base) == pytest.approx(scaled * family.scale(base.config), rel=1e-4)
    handed = {}

    def remember(module: Any, args: Any, kwargs: Any) -> None:
        handed["embeds"] = kwargs["inputs_embeds"]

    model = attach(base, "pre")
    hook = family.decoder_of(base).register_forward_pre_hook(remember, with_kwargs=True)
    ids = source["input_ids"]
    model(**source, labels=ids, **({"decoder_input_ids": ids} if family.encoder_decoder else {}))
    signal = (handed["embeds"].detach() - table[0, ids]) * family.scale(base.config)
    assert float(signal.square().mean().sqrt()) == pytest.approx(family.embedding_rms(base), rel=1e-3)
    hook.remove()
    model.detach()


@pytest.mark.parametrize("kind", [k for k in EVERY_TYPE if not family_of(k).encoder_decoder])
def test_the_prompt_before_its_last_token_gets_no_signal(kind: str) -> None:
    base, source = shared_model(kind), batch()
    labels = source["input_ids"].clone()
    labels[:, :5] = -100
    plain = base(**source).logits
    model = attach(base, "pre")
    steered = model(**source, labels=labels).logits
    assert_close(steered[:, :4], plain[:, :4])
    assert not torch.allclose(steered[:, 4], plain[:, 4], atol=1e-3)
    model.detach()
