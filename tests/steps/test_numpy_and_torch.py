"""What a step does after the model's pass is the same with NumPy as with torch, and takes the same token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impatience.errors import OptionError
from impatience.lengths import Landing, Unit
from impatience.steps.landing import LandingRules
from impatience.steps.repetition import bar_repeats, check_no_loops
from impatience.steps.sampling import check_draws, noisy_scores
from impatience.vocabulary import Vocabulary
from support.toys import EOS, TOKENIZERS

CPU = torch.device("cpu")


def vocabulary(kind: str) -> Vocabulary:
    tokenizer = TOKENIZERS[kind]()
    return Vocabulary(len(tokenizer) + 5, [0, 1, 2], tokenizer)


VOCABULARIES = {kind: vocabulary(kind) for kind in TOKENIZERS}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("landing", [Landing.EXACT, Landing.AT_MOST])
@given(st.integers(0, 2**31), st.integers(1, 24), st.integers(-3, 4))
def test_texts_land_alike(kind: str, unit: Unit, landing: Landing, seed: int, steps: int, left: int) -> None:
    own, random = VOCABULARIES[kind], np.random.default_rng(seed)
    ids = random.integers(0, own.size, (3, steps))
    start = random.integers(0, steps + 1, 3)
    scores = (4 * random.normal(size=(3, own.size))).astype(np.float32)
    scores[1, random.integers(0, own.size, 40)] = -np.inf
    scores[2] = np.where(np.arange(own.size) == random.integers(own.size), 0.0, -np.inf)  # one possible token
    written = np.arange(steps) >= start[:, None]
    target = np.maximum(1, own.counts(ids, written, unit)[:, -1] + left)
    last = steps + random.integers(0, 30, 3)
    eos = [EOS, 7] if seed % 2 else [EOS]
    rows = ids, scores, target, start, last
    held = LandingRules(landing, unit, own, eos).hold(*rows)
    tensors = LandingRules(landing, unit, own, eos, CPU).hold(*map(torch.tensor, rows))
    assert held.dtype == np.float32
    assert np.isneginf(held).tolist() == tensors.isneginf().tolist()
    assert held.argmax(-1).tolist() == tensors.argmax(-1).tolist()
    np.testing.assert_allclose(held, tensors.numpy(), atol=1e-5, rtol=1e-5)
    for row in range(3):
        alone = LandingRules(landing, unit, own, eos).hold(*(values[row : row + 1] for values in rows))
        assert alone[0].tolist() == held[row].tolist()


@given(st.integers(0, 2**31), st.integers(0, 40), st.integers(2, 5))
def test_the_same_repeats_are_barred(seed: int, steps: int, size: int) -> None:
    random = np.random.default_rng(seed)
    ids, scores = random.integers(0, 4, (3, steps)), random.normal(size=(3, 6)).astype(np.float32)
    start = random.integers(0, steps + 1, (3, 1))
    for begin in (None, start):
        barred = bar_repeats(ids, scores, size, begin)
        tensor = bar_repeats(*map(torch.tensor, (ids, scores)), size, None if begin is None else torch.tensor(begin))
        assert barred.tolist() == tensor.tolist()
        for row in range(3):
            text = ids[row, 0 if begin is None else begin[row, 0] :].tolist()
            seen = [text[place : place + size] for place in range(len(text) - size + 1)]
            expected = {one[-1] for one in seen if one[:-1] == text[1 - size :]}
            assert set(np.flatnonzero(np.isneginf(barred[row])).tolist()) == expected


@given(st.integers(0, 2**31), st.integers(2, 900))
def test_the_same_token_is_drawn(seed: int, tokens: int) -> None:
    random = np.random.default_rng(seed)
    scores = (random.normal(size=(4, tokens)) * random.choice([0.1, 1, 5])).astype(np.float32)
    draws, steps = random.integers(0, 2**40, 4) * [0, 1, 1, 1], random.integers(0, 10_000, 4)
    noisy = noisy_scores(scores, draws, steps)
    tensor = noisy_scores(*map(torch.tensor, (scores, draws, steps)))
    assert noisy.dtype == np.float32
    assert noisy[0].tolist() == scores[0].tolist()
    assert noisy.argmax(-1).tolist() == tensor.argmax(-1).tolist()
    np.testing.assert_allclose(noisy, tensor.numpy(), atol=1e-5, rtol=1e-6)


def test_options_are_checked_without_torch() -> None:
    check_no_loops(2)
    with pytest.raises(OptionError, match="no_loops=1"):
        check_no_loops(1)
    assert check_draws(None, 2) == [0, 0]
    with pytest.raises(OptionError, match="draws"):
        check_draws([1, -1], 2)
