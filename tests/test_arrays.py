"""NumPy arrays and torch tensors give the same signals and sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impatience.arrays import device_of, library_of, running_maximum, to_device
from impatience.methods import METHODS, EmbeddingMethod

EPSILON = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("name", [name for name in METHODS if issubclass(METHODS[name], EmbeddingMethod)])
@given(st.lists(st.integers(0, 2000), min_size=1, max_size=8), st.integers(1, 2000), st.sampled_from([7, 64, 576]))
def test_numpy_and_torch_give_the_same_signal(name: str, steps: list[int], target: int, width: int) -> None:
    progress = np.minimum(np.array([steps], dtype=np.float32), target)
    targets, method = np.array([[target]], dtype=np.float32), METHODS[name].from_options()
    ours = method.embedding(progress, targets, width)
    theirs = method.embedding(torch.tensor(progress), torch.tensor(targets), width).numpy()
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape == (1, len(steps), width)
    # The libraries round the frequencies of RPE and LRPE differently, so an angle may differ by a rounding.
    angles = target if name in ("rpe", "lrpe") else 0
    np.testing.assert_allclose(ours, theirs, atol=1e-6 + EPSILON * angles, rtol=0)


def test_a_library_and_a_device_are_those_of_the_array() -> None:
    assert library_of(np.zeros(2)) is np
    assert library_of(torch.zeros(2)) is torch
    assert device_of(np.zeros(2)) is None
    assert device_of(torch.zeros(2)) == torch.device("cpu")
    assert to_device(np.array([1, 2]), torch.device("cpu")).tolist() == to_device([1, 2], None).tolist() == [1, 2]


@given(st.integers(0, 2**31), st.integers(1, 40))
def test_the_running_maximum_is_the_same(seed: int, steps: int) -> None:
    rows = np.random.default_rng(seed).integers(-9, 9, (3, steps))
    assert running_maximum(rows).tolist() == running_maximum(torch.tensor(rows)).tolist()
