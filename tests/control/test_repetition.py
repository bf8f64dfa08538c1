"""No sequence of tokens is repeated in the written part; the prompt may be quoted."""

from __future__ import annotations

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from impatience import attach
from impatience.control.repetition import NoLoops
from impatience.errors import OptionError
from support.toys import tiny_model


@pytest.mark.parametrize("size", [2, 3, 5])
def test_it_bars_the_same_tokens_as_transformers(size: int) -> None:
    torch.manual_seed(3)
    ids, scores = torch.randint(0, 3, (6, 40)), torch.randn(6, 7)
    processor = NoLoops(size)
    processor(ids[:, :0], scores)  # the first call shows where writing begins
    for length in range(1, 41):
        expected = NoRepeatNGramLogitsProcessor(size)(ids[:, :length], scores.clone())
        assert torch.equal(processor(ids[:, :length], scores), expected)


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_text_repeats_nothing_but_may_quote_its_prompt(kind: str, beams: int) -> None:
    model = attach(tiny_model(kind), "none")
    ids = torch.tensor([[5, 6, 7, 5, 6, 7], [8, 9, 8, 9, 8, 9]])
    out = model.generate(ids, target_tokens=40, landing="exact", no_loops=3, num_beams=beams)
    written = out[:, 1 if model.family.encoder_decoder else ids.shape[1] :][:, :40]
    for row in written.tolist():
        sequences = [tuple(row[i : i + 3]) for i in range(len(row) - 2)]
        assert len(set(sequences)) == len(sequences) == 38
    processor = NoLoops(2)
    assert torch.equal(processor(ids, torch.zeros(2, 12)), torch.zeros(2, 12))


@pytest.mark.parametrize("bad", [0, 1, True, 2.5])
def test_a_sequence_has_at_least_two_tokens(bad: object) -> None:
    with pytest.raises(OptionError, match="no_loops"):
        attach(tiny_model("llama"), "none").generate(torch.tensor([[5, 6]]), target_tokens=4, no_loops=bad)
