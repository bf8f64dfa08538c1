"""The step counter counts what ``Vocabulary.progress`` counts."""

from __future__ import annotations

import pytest
import torch

from impatience.lengths import Unit
from impatience.vocabulary import Vocabulary
from impatience.vocabulary.step_counter import StepCounter
from support.toys import CORPUS, TOKENIZERS


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("unit", list(Unit))
def test_counting_step_by_step_equals_counting_all_ids(tokenizer: str, unit: Unit) -> None:
    words = TOKENIZERS[tokenizer]()
    vocabulary = Vocabulary(len(words), [0, 1, 2], words)
    drawn = torch.randint(0, len(words), (24, 40), generator=torch.Generator().manual_seed(5))
    corpus = torch.nn.utils.rnn.pad_sequence([torch.tensor(words(line)["input_ids"]) for line in CORPUS], True)
    for ids in (drawn, corpus):
        expected = vocabulary.progress(ids, torch.ones_like(ids, dtype=torch.bool), unit)
        counter = StepCounter(vocabulary, unit, ids.device)
        numbers = torch.tensor([counter.initial] * len(ids))
        assert torch.equal(counter.progress(numbers), torch.zeros(len(ids)))
        for column in range(ids.shape[1]):
            numbers = counter.advance(numbers, ids[:, column])
            assert torch.equal(counter.progress(numbers), expected[:, column])
