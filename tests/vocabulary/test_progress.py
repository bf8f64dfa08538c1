"""Progress is the same number, counted by NumPy or by torch, over all ids or step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impatience.lengths import Unit
from impatience.vocabulary import Vocabulary, in_tokens
from impatience.vocabulary.step_counter import StepCounter
from support.toys import TOKENIZERS

CPU = torch.device("cpu")


def vocabulary(kind: str) -> Vocabulary:
    tokenizer = TOKENIZERS[kind]()
    return Vocabulary(len(tokenizer) + 5, [0, 1, 2], tokenizer)


VOCABULARIES = {kind: vocabulary(kind) for kind in TOKENIZERS}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("unit", list(Unit))
@given(st.integers(0, 2**31), st.integers(1, 30))
def test_numpy_counts_what_torch_counts(kind: str, unit: Unit, seed: int, steps: int) -> None:
    own, random = VOCABULARIES[kind], np.random.default_rng(seed)
    ids = random.integers(0, own.size, (3, steps))
    written = np.arange(steps) >= random.integers(0, steps, (3, 1))
    ours = own.progress(ids, written, unit)
    theirs = own.progress(torch.tensor(ids), torch.tensor(written), unit)
    assert ours.dtype == np.float32
    assert ours.tolist() == theirs.tolist()
    pairs = in_tokens(ours, np.float32([[9]]), unit), in_tokens(theirs, torch.tensor([[9.0]]), unit)
    for one, other in zip(*pairs, strict=True):
        assert one.tolist() == other.tolist()
    for count, tensor in zip(own.span(ids, written), own.span(torch.tensor(ids), torch.tensor(written)), strict=True):
        assert count.tolist() == tensor.tolist()


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("unit", list(Unit))
@given(st.lists(st.integers(0, 800), max_size=30))
def test_numpy_counts_step_by_step_what_torch_counts(kind: str, unit: Unit, ids: list[int]) -> None:
    own = VOCABULARIES[kind]
    ids = [i % own.size for i in ids]
    counter, other = StepCounter(own, unit), StepCounter(own, unit, CPU)
    numbers, tensor = np.array([counter.initial]), torch.tensor([other.initial])
    for i in ids:
        numbers, tensor = counter.advance(numbers, np.array([i])), other.advance(tensor, torch.tensor([i]))
        assert numbers.tolist() == tensor.tolist()
        assert counter.progress(numbers).tolist() == other.progress(tensor).tolist()
    assert counter.after(ids) == other.after(ids) == tuple(numbers[0].tolist())
    if ids:
        whole = own.progress(np.array([ids]), np.ones((1, len(ids)), bool), unit)
        assert counter.progress(numbers).tolist() == whole[:, -1].tolist()
