"""The example that shows the whole idea in one file says what the library says."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from impatience import attach

FILE = Path(__file__).parents[1] / "examples" / "pre_in_100_lines.py"
ROWS, PROMPT, WRITTEN = 3, 5, 12


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(example: ModuleType) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=example.SYMBOLS + 1,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=example.END,
        initializer_range=0.2,  # at Llama's own 0.02 the head is so weak that any two logits are alike
    )
    return LlamaForCausalLM(config).eval()


def ids_of(example: ModuleType, columns: int) -> torch.Tensor:
    return torch.randint(1, example.SYMBOLS + 1, (ROWS, columns))


@pytest.mark.parametrize("targets", [(1, 2, 3), (7, 11, 12), (12, 13, 40), (500, 90, 12)])
@torch.no_grad()
def test_its_logits_are_those_of_the_library(
    example: ModuleType, model: LlamaForCausalLM, targets: tuple[int, ...]
) -> None:
    ids = ids_of(example, PROMPT + WRITTEN)
    found = example.controlled_logits(model, ids, PROMPT, torch.tensor(targets))
    others = example.controlled_logits(model, ids, PROMPT, torch.tensor(targets) + 1)
    plain = model(ids).logits

    controlled = attach(model, "pre", noise=0, strength="raw").eval()
    expected = controlled(ids, target_tokens=list(targets), prompt_lengths=[PROMPT] * ROWS).logits

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found[:, : PROMPT - 1], plain[:, : PROMPT - 1], atol=1e-5, rtol=0)
    assert (found[:, PROMPT - 1 :] - plain[:, PROMPT - 1 :]).abs().amax() > 0.1
    assert (found - others).abs().amax() > 1e-3


def test_it_writes_what_the_library_writes(example: ModuleType, model: LlamaForCausalLM) -> None:
    prompt = ids_of(example, PROMPT)
    # A model with random weights may end where it likes or never; the library is asked for as many steps.
    texts = example.write(model, prompt, target=8)
    assert any(texts)
    controlled = attach(model, "pre", noise=0, strength="raw").eval()
    for row, text in zip(prompt, texts, strict=True):
        ids = controlled.generate(
            row[None], target_tokens=8, max_new_tokens=16, do_sample=False, pad_token_id=example.END
        )
        assert [token for token in ids[0, PROMPT:].tolist() if token != example.END] == text


def test_a_text_ends_at_its_target_in_what_it_learns_from(example: ModuleType) -> None:
    ids, targets, labels = example.examples(50)
    for row, target, due in zip(ids, targets.tolist(), labels, strict=True):
        learned = due[due != -100].tolist()
        assert len(learned) == target + 1
        assert learned == [*row[example.SOURCE :][:target].tolist(), example.END]
        assert torch.equal(row[example.SOURCE :], row[: -example.SOURCE])


def test_training_lowers_the_loss(example: ModuleType, model: LlamaForCausalLM) -> None:
    losses = example.train(model, steps=40, rows=8)
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_it_needs_torch_and_transformers_only_and_stays_short() -> None:
    text = FILE.read_text(encoding="utf-8")
    imported: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch", "transformers"}
    assert len(text.splitlines()) <= 110
