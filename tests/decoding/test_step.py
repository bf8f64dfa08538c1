"""A step holds nothing that a GPU cannot record."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from impatience.decoding.step import DecodingStep
from impatience.families import FAMILIES
from impatience.lengths import Unit
from support.generators import new_generator, requests

LOOPED = [kind for family in FAMILIES.values() if family.fast_loop for kind in family.model_types]
WAITING = {"_local_scalar_dense", "is_nonzero", "nonzero", "_unique2", "lift_fresh"}
"""Operators that read a value of a tensor, or make a tensor of numbers in Python: both wait for a GPU."""


class Operators(TorchDispatchMode):
    """Notes the names of all operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function._schema.name.removeprefix("aten::"))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", LOOPED)
def test_no_step_waits_for_a_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, operators = DecodingStep._forward_and_choose, Operators()

    def watched(self: DecodingStep) -> None:
        with operators:
            step(self)

    monkeypatch.setattr(DecodingStep, "_forward_and_choose", watched)
    sizes = {"sliding_window": None} if kind == "mistral" else {}
    new_generator(kind, tokenizer="byte_level", sizes=sizes).generate_with_signal(requests(Unit.TOKENS, (5, 9, 7)))
    assert "index_copy_" in operators.names, "the loop ran"
    assert not operators.names & WAITING
