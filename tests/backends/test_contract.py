"""Both backends write the same: scores at every step, texts of every unit and landing, reports, endings, streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from impatience import Request, Unit
from impatience.backends import new_generator
from impatience.decoding.base import TokenRequest
from impatience.decoding.results import Piece, Result
from impatience.errors import ModelFilesError, OptionError
from impatience.lengths import Landing
from impatience.strategies import STRATEGIES
from support.gguf_models import Pair, new_pair
from support.toys import CORPUS

TARGETS = {Unit.TOKENS: (3, 9, 40), Unit.WORDS: (2, 9, 30), Unit.CHARACTERS: (8, 40, 90), Unit.SENTENCES: (1, 2)}


def all_requests() -> list[Request]:
    return [
        Request(f"{unit}-{landing}-{target}", CORPUS[target % 20], target, unit, landing)
        for unit, targets in TARGETS.items()
        for landing in Landing
        for target in targets
    ]


def facts(result: Result) -> tuple[Any, ...]:
    """What both backends must agree on; their probabilities differ in the last bits."""
    fields = (result.id, result.text, result.ids, result.length, result.landed, result.finished, result.looping)
    return (
        *fields,
        result.own_end,
        result.ended,
        result.tokens_spent,
        result.drawn,
        round(result.eos_probability or 0, 3),
    )


@pytest.mark.parametrize("unit", [Unit.TOKENS, Unit.WORDS])
def test_the_scores_of_every_step_are_those_of_torch(pair: Pair, unit: Unit) -> None:
    generator, model = pair.writer.generator, pair.torch_model
    prompt = generator.encode(CORPUS[0])
    text, target = generator.encode(CORPUS[1])[:24], 20
    ids = torch.tensor([[*prompt, *text]])
    with torch.no_grad():
        output = model(ids, **{f"target_{unit}": target}, prompt_lengths=[len(prompt)]).logits[0].numpy()
        silent = model.base(ids).logits[0].numpy()
    effect = np.abs(output - silent)[len(prompt) - 1 :].max()
    assert effect > 0.5, "the signal changes what the model writes"
    for written in range(len(text) + 1):
        request = TokenRequest(list(prompt), target, 40, tuple(text[:written]))
        found = generator._begin(request, unit, generator._counter(unit), steered=True)
        expected = output[len(prompt) - 1 + written]
        assert np.abs(found - expected).max() < 1e-4


def test_texts_and_reports_are_those_of_torch(pair: Pair) -> None:
    requests = all_requests()
    ours, theirs = (writer.write_many(requests) for writer in (pair.writer, pair.torch_writer))
    assert [facts(result) for result in ours] == [facts(result) for result in theirs]
    assert {result.backend for result in ours} == {"llama.cpp"}
    assert {result.backend for result in theirs} == {"transformers"}
    assert len({result.landed for result in ours}) > 1


def test_endings_that_are_drawn_are_those_of_torch(llama: Pair) -> None:
    requests = [Request(f"{n}", CORPUS[n], 12, Unit.WORDS, landing) for n, landing in enumerate(Landing)]
    ours, theirs = (writer.write_many(requests, tries=4) for writer in (llama.writer, llama.torch_writer))
    assert [facts(result) for result in ours] == [facts(result) for result in theirs]
    first = llama.writer.write_many(requests[:1])[0]
    drawn = [replace(requests[0], prefix=first.ids[:5], draw=draw) for draw in range(1, 6)]
    ours, theirs = (writer.write_many(drawn) for writer in (llama.writer, llama.torch_writer))
    assert [facts(result) for result in ours] == [facts(result) for result in theirs]
    assert len({result.text for result in ours}) > 1


def test_loops_are_barred_as_by_torch(llama: Pair) -> None:
    requests = [Request(f"{n}", CORPUS[n], 60, Unit.TOKENS, Landing.EXACT) for n in range(3)]
    free, barred = (llama.writer.write_many(requests, **options) for options in ({}, {"no_loops": 3}))
    assert [facts(result) for result in barred] == [
        facts(result) for result in llama.torch_writer.write_many(requests, no_loops=3)
    ]
    assert [result.text for result in free] != [result.text for result in barred]


def test_exact_landings_are_exact(llama: Pair) -> None:
    units = (Unit.TOKENS, Unit.WORDS, Unit.CHARACTERS)
    requests = [
        Request(
            f"{n}", CORPUS[n % 20], 2 + n % 23 if units[n % 3] is not Unit.CHARACTERS else 10 + n % 60, units[n % 3]
        )
        for n in range(500)
    ]
    results = llama.writer.write_many([replace(request, landing=Landing.EXACT) for request in requests])
    assert [result.length for result in results] == [request.target for request in requests]


def test_a_text_does_not_depend_on_what_was_written_before(llama: Pair) -> None:
    requests = all_requests()[::5]
    in_order, backwards = llama.writer.write_many(requests), llama.writer.write_many(requests[::-1])
    assert in_order == backwards[::-1]
    llama.writer.generator._context = None  # as in a new process
    assert [llama.writer.write_many([request])[0] for request in requests] == in_order


def test_a_long_prompt_is_read_in_several_passes(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request("long", " ".join(CORPUS[:4]), 9, Unit.TOKENS)
    whole = llama.writer.write_many([request])
    monkeypatch.setattr("impatience.backends.llama_cpp.model.AT_ONCE", 16)
    llama.writer.generator._context = None
    assert [facts(result) for result in llama.writer.write_many([request])] == [facts(result) for result in whole]
    llama.writer.generator._context = None


def test_vectors_are_the_same_where_they_are_set_anew(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = all_requests()[:6]
    quick = llama.writer.write_many(requests)
    assert llama.writer.generator._context.vectors._checked, "the tensors were found"
    monkeypatch.setattr("impatience.backends.llama_cpp.vectors.ControlVectors._found", lambda _: False)
    llama.writer.generator._context = None
    assert llama.writer.write_many(requests) == quick


def test_streams_hold_the_text_and_can_be_left(llama: Pair) -> None:
    request = Request("one", CORPUS[2], 30, Unit.WORDS)
    *pieces, result = llama.writer.stream(request)
    assert len(pieces) > 2
    assert "".join(piece.text for piece in pieces if isinstance(piece, Piece)) == result.text
    assert facts(result) == facts(llama.writer.write_many([request])[0])
    stream = llama.writer.stream(replace(request, target=200))
    next(stream)
    stream.close()  # the model stops at its next step, and the writer is free again
    assert facts(llama.writer.write_many([request])[0]) == facts(result)


def test_a_failed_step_leaves_no_half_read_prompt(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request("one", CORPUS[4], 12, Unit.TOKENS)
    whole = llama.writer.write_many([request])
    context = llama.writer.generator._context
    steps = iter([0, 0, 0, -3])
    decode = context._decode
    monkeypatch.setattr(context, "_decode", lambda *given: next(steps, 0) or decode(*given))
    with pytest.raises(ModelFilesError, match="code -3"):
        llama.writer.write_many([replace(request, text=CORPUS[5])])
    assert llama.writer.write_many([request]) == whole
    assert llama.writer.write_many([request]) == whole


def test_memory_that_cannot_be_cut_is_read_again(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of recurrent models, which hold one state and not one for each token."""
    request = Request("one", CORPUS[4], 12, Unit.TOKENS)
    (whole,) = llama.writer.write_many([request])
    ahead = replace(request, prefix=whole.ids[:5])
    asked = [request, replace(request, target=20), ahead, replace(ahead, draw=1), replace(request, text=CORPUS[5])]
    expected = [facts(result) for one in asked for result in llama.writer.generator.generate_with_signal([one])]
    context, refused, prompts = llama.writer.generator._context, [], []
    read = context.read
    monkeypatch.setattr(context, "read", lambda ids, *places: prompts.append(len(ids)) or read(ids, *places))

    def write() -> list[Any]:
        refused.clear()
        prompts.clear()
        return [facts(result) for one in asked for result in llama.writer.generator.generate_with_signal([one])]

    assert write() == expected
    assert len(prompts) == 2, "a prompt that was just read is kept"
    functions = context._library._functions
    monkeypatch.setitem(functions, "llama_memory_seq_rm", lambda *given: bool(refused.append(given)))
    assert write() == expected
    assert len(refused) == 3, "the memory was to be cut after the prompt"
    assert len(prompts) == len(asked)
    assert context.keep(context.read_tokens)
    assert not context.keep(context.read_tokens - 1)
    assert context.read_tokens == 0


def test_more_tokens_than_the_model_has_room_for_are_not_written(llama: Pair) -> None:
    request = Request("one", " ".join(CORPUS[:3]), 40, Unit.TOKENS)
    result = llama.writer.generator.generate_with_signal(
        [replace(request, target=3000)], max_new_tokens=3000, sources=[llama.writer.prompts.encode(request)]
    )[0]
    assert len(result.ids) <= 512
    assert result.landed == "missed"


def test_the_limit_of_a_request_holds_whatever_the_model_is_set_to(llama: Pair) -> None:
    requests = [Request(f"{n}", CORPUS[n], 60, Unit.TOKENS, limit=5 + n) for n in range(2)]
    for writer in (llama.writer, llama.torch_writer):
        results = writer.write_many(requests, max_new_tokens=30)
        assert [len(result.ids) for result in results] == [5, 6]
        assert {result.landed for result in results} == {"missed"}


def test_a_model_without_a_signal_is_forced_to_lengths(plain: Pair) -> None:
    assert not plain.writer.generator.steers
    requests = all_requests()
    ours, theirs = (writer.write_many(requests) for writer in (plain.writer, plain.torch_writer))
    assert [facts(result) for result in ours] == [facts(result) for result in theirs]


def test_sampling_depends_on_its_seed(plain: Pair) -> None:
    request = Request("one", CORPUS[2], 20, Unit.TOKENS, Landing.EXACT)

    def sample(seed: int) -> str:
        return plain.writer.write_many([request], do_sample=True, temperature=1.5, seed=seed)[0].text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1
    assert sample(1) != plain.writer.write_many([request])[0].text
    greedy = plain.writer.write_many([request])
    assert plain.writer.write_many([request], do_sample=True, temperature=0) == greedy
    assert plain.writer.write_many([request], do_sample=True, top_p=1e-6, seed=3) == greedy
    for wrong in ({"temperature": -1}, {"top_p": 0}, {"top_k": -2}):
        with pytest.raises(OptionError, match="give a temperature"):
            plain.writer.write_many([request], do_sample=True, **wrong)
    with pytest.raises(OptionError, match="takes no option 'num_beams'"):
        plain.writer.write_many([request], num_beams=4)


@pytest.mark.parametrize("name", ["natural", "endings", "exact", "plain", "forced_eos", "truncate", "prompted"])
def test_strategies_of_an_evaluation_write_the_same(llama: Pair, name: str) -> None:
    requests = [Request(f"{n}", CORPUS[n], 9 + n, Unit.WORDS, example=f"{n}") for n in range(3)]
    encoder = llama.torch_writer.generator.encoder
    ours, theirs = (
        STRATEGIES[name]().write(new_generator(model, encoder, {}), requests)
        for model in (llama.writer.model, llama.torch_model)
    )
    assert [facts(result) for result in ours] == [facts(result) for result in theirs]


def test_a_strategy_that_needs_transformers_says_so(llama: Pair) -> None:
    with pytest.raises(OptionError, match=r"the model runs on llama\.cpp"):
        STRATEGIES["min_max"]().write(llama.writer.generator, [Request("one", CORPUS[0], 9, Unit.TOKENS)])


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_k_m"])
def test_coarser_weights_write_nearly_the_same(kind: str, tmp_path: Any) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    pair = new_pair(tmp_path, **wide)
    from impatience.backends.llama_cpp.export import export_model

    file = tmp_path / f"{kind}.gguf"
    export_model(pair.torch_model, {}, file, kind=kind)
    from impatience import load

    request = TokenRequest(list(pair.writer.generator.encode(CORPUS[0])), 10, 20)
    scores = []
    for generator in (pair.writer.generator, load(file).generator):
        scores.append(generator._begin(request, Unit.TOKENS, generator._counter(Unit.TOKENS), steered=True).copy())
    likeness = np.corrcoef(*scores)[0, 1]
    assert likeness > {"f16": 0.9999, "q8_0": 0.98, "q4_k_m": 0.6}[kind]
    assert file.stat().st_size < pair.file.stat().st_size
