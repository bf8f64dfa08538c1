"""Rows that hold several texts: packed examples and the turns of a chat."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from impatience import attach
from impatience.control.segments import find_segments
from impatience.errors import OptionError, TargetError
from impatience.families import FAMILIES
from support.toys import EOS, tiny_model

METHODS = ["glide", "pre", "rpe", "lrpe"]


def model_for(method: str) -> Any:
    model = attach(tiny_model("llama", attn_implementation="eager"), method)
    for weight in model.signal_parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def row(prompt: list[int], text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([[*prompt, *text, EOS]])
    return ids, ids.masked_fill(torch.arange(ids.shape[1]) < len(prompt), -100)


def test_progress_and_target_of_each_text_are_counted_by_hand() -> None:
    labels = torch.tensor([[-100, 7, 8, EOS, -100, -100, 9, EOS]])
    special = torch.zeros(10, dtype=torch.bool)
    special[EOS] = True
    found = find_segments(labels, special)
    assert found.signalled.tolist() == [[True, True, True, True, False, True, True, True]]
    assert found.progress[found.signalled].tolist() == [0, 1, 2, 2, 0, 1, 1]
    assert found.target[found.signalled].tolist() == [2, 2, 2, 2, 1, 1, 1]


def test_texts_that_touch_are_told_apart_by_their_positions() -> None:
    labels = torch.tensor([[4, 5, 6, 7, 8]])  # no prompts, so no column carries progress 0
    found = find_segments(labels, torch.zeros(10, dtype=torch.bool), torch.tensor([[0, 1, 0, 1, 2]]))
    assert found.progress.tolist() == [[1, 2, 1, 2, 3]]
    assert found.target.tolist() == [[2, 2, 3, 3, 3]]


@pytest.mark.parametrize("method", METHODS)
def test_packed_rows_get_the_signals_of_their_own_texts(method: str) -> None:
    model = model_for(method)
    (first, first_labels), (second, second_labels) = row([5, 6, 7], [8, 9, 10, 11, 12]), row([20], [21, 22])
    alone = [model(ids, labels=labels).logits for ids, labels in ((first, first_labels), (second, second_labels))]
    ids, labels = torch.cat([first, second], 1), torch.cat([first_labels, second_labels], 1)
    positions = torch.cat([torch.arange(first.shape[1]), torch.arange(second.shape[1])])[None]
    packed = model(ids, labels=labels, position_ids=positions).logits
    torch.testing.assert_close(packed, torch.cat(alone, 1))
    for option in ({"use_cache": True}, {"attention_mask": torch.ones_like(ids)}):
        with pytest.raises(OptionError, match="each packed example would read the one before"):
            model(ids, labels=labels, position_ids=positions, **option)
    padded = (torch.arange(ids.shape[1]) < first.shape[1])[None].long()
    assert model(ids, padded, labels=labels, position_ids=positions * padded).loss.isfinite()


@pytest.mark.parametrize("method", METHODS)
def test_one_text_in_a_row_has_the_signal_that_its_target_gives(method: str) -> None:
    model = model_for(method)
    ids, labels = row([5, 6, 7], [8, 9, 10, 11, 12])
    expected = model(ids, target_tokens=5, prompt_lengths=3).logits
    torch.testing.assert_close(model(ids, labels=labels).logits, expected)


def test_a_target_for_a_row_of_several_texts_is_refused() -> None:
    model = model_for("glide")
    ids = torch.arange(5, 15)[None]
    turns = ids.masked_fill(torch.tensor([[1, 1, 0, 0, 1, 1, 0, 0, 0, 0]]).bool(), -100)
    with pytest.raises(TargetError, match="several texts"):
        model(ids, labels=turns, target_tokens=6)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4]])
    with pytest.raises(TargetError, match="several texts"):
        model(ids, target_tokens=6, prompt_lengths=2, position_ids=positions)
    assert model(ids, labels=turns).loss.isfinite()


MIXING = [kind for name in FAMILIES for kind in FAMILIES[name].mixes_packed]


@pytest.mark.parametrize("kind", MIXING)
def test_packed_rows_are_refused_where_the_model_itself_mixes_them(kind: str) -> None:
    base = tiny_model(kind)
    first, second = torch.arange(5, 15)[None], torch.arange(30, 38)[None]
    both, positions = torch.cat([first, second], 1), torch.cat([torch.arange(10), torch.arange(8)])[None]
    with torch.no_grad():
        packed, alone = (
            base(ids, position_ids=positions, use_cache=False).logits
            for ids, positions in ((both, positions), (second, None))
        )
    assert not torch.allclose(packed[:, 10:], alone, atol=1e-2)  # else it can be taken off the list
    model = attach(base, "glide")
    with pytest.raises(OptionError, match=f"{kind} does not keep packed examples apart"):
        model(both, labels=both, position_ids=positions)
    model(both, labels=both, position_ids=torch.arange(18)[None])
