"""Compare recorded training steps (CUDA graphs) with plain ones, gradient by gradient, on shapes of real models.

    python study/recorded_steps.py [--models qwen2,llama,gpt2] [--compared 30] [--steps 200] [--full] [--out FILE]

Every model has random weights, with large biases of queries and keys, and trains on made-up rows as by ``impatience
train`` with ``glide``, mixed units and decoys. First, each of ``--compared`` steps is computed twice from the same
weights, recorded and plain, and the largest difference of a gradient, as a share of its norm, is kept. Then two runs of
``--steps`` steps, one of each kind, are trained from the same weights; noise of the arithmetic lets their losses drift
apart a little. ``--full`` trains all weights instead of adapters. Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import Tensor

from impatience.config import build
from impatience.control.attach import attach
from impatience.control.model import LengthControlled
from impatience.environment import environment
from impatience.sources import toy
from impatience.sources.pretrained import build_model
from impatience.training.recipe import Recipe
from impatience.training.run import training_arguments
from impatience.training.run_folder import Run
from impatience.training.trainer import LengthTrainer, Row

_IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}


def _sizes(vocabulary: int, width: int, inner: int, layers: int, heads: int, key_heads: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": key_heads, "max_position_embeddings": 4096, **_IDS,
    }  # fmt: skip


MODELS = {  # shapes of Qwen2.5-0.5B, SmolLM2-135M, GPT-2 and others at a small size
    "qwen2": lambda: transformers.Qwen2Config(**_sizes(151936, 896, 4864, 24, 14, 2), tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**_sizes(49152, 576, 1536, 30, 9, 3), tie_word_embeddings=True),
    "gpt2": lambda: transformers.GPT2Config(n_positions=4096, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **_IDS),
    "mistral": lambda: transformers.MistralConfig(**_sizes(32000, 512, 1024, 8, 8, 2)),
    "qwen3": lambda: transformers.Qwen3Config(**_sizes(151936, 512, 1024, 8, 8, 2), head_dim=64),
    "gemma": lambda: transformers.GemmaConfig(**_sizes(256000, 512, 1024, 8, 8, 1), head_dim=64),
    "phi": lambda: transformers.PhiConfig(**_sizes(51200, 512, 1024, 8, 8, 8)),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8, vocab_size=50432,
        max_position_embeddings=4096, **_IDS,
    ),
}  # fmt: skip


class ComparingTrainer(LengthTrainer):
    """Computes each step recorded, then plain, and keeps the differences."""

    differences: list[tuple[float, str, float, float]]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Train with the recorded gradients."""
        weights = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        loss = super().training_step(model, dict(inputs), num_items_in_batch)
        recorded = {name: weight.grad for name, weight in weights.items()}
        copies = {name: gradient.clone() for name, gradient in recorded.items() if gradient is not None}
        graphs, self.graphs = self.graphs, None
        for weight in weights.values():
            weight.grad = None
        plain = super().training_step(model, dict(inputs), num_items_in_batch)
        self.graphs = graphs
        worst = max(
            (float((copies[name] - weight.grad).norm() / (weight.grad.norm() + 1e-12)), name)
            if bool(torch.isfinite(copies[name]).all()) else (math.inf, name)
            for name, weight in weights.items()
            if weight.grad is not None
        )  # fmt: skip
        self.differences.append((*worst, float(loss), float(plain)))
        for name, weight in weights.items():
            weight.grad = recorded[name]
        return loss


def main() -> None:
    """Compare each model, and print a line for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="qwen2,llama,gpt2")
    parser.add_argument("--compared", type=int, default=30)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    report: dict[str, Any] = {"environment": environment() | {"seed": 0}, "models": {}}
    for name in wanted.models.split(","):
        measured: dict[str, Any] = {}
        if wanted.compared:
            trainer = run(name, wanted.compared, wanted.batch, wanted.full, ComparingTrainer)
            measured["largest_difference"] = max(trainer.differences)
            for step, difference in enumerate(trainer.differences, 1):
                if not difference[0] < 0.2:
                    print(f"{name} step {step}: {difference}", flush=True)
        if wanted.steps:
            losses = [
                run(name, wanted.steps, wanted.batch, wanted.full, LengthTrainer, graphs=graphs).run.metrics()
                for graphs in (True, False)
            ]
            pairs = [(a["loss"], b["loss"]) for a, b in zip(*losses, strict=True) if "loss" in a]
            measured["losses_recorded_and_plain"] = pairs
        report["models"][name] = measured
        print(name, json.dumps(measured), flush=True)
        if wanted.out:
            wanted.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def run(name: str, steps: int, batch: int, full: bool, kind: type[LengthTrainer], *, graphs: bool = True) -> Any:
    """Train a model, and return its trainer."""
    every = max(1, steps // 20)
    content = {
        "name": "recorded-steps",
        "model": {"base": "random weights", "options": {"noise": 0, "rank": 64}},
        "data": {"train": "made up"},
        "train": {
            "steps": steps, "batch_size": batch, "learning_rate": 2e-4, "schedule": "constant", "log_steps": every,
            "eval_steps": 10 * steps, "save_steps": 10 * steps, "report_to": [], "cuda_graphs": graphs,
            "units": ["words", "tokens", "characters"], "decoys": 0.2, "ending_weight": 2, "sample": 0,
        },
    }  # fmt: skip
    recipe = build(Recipe, content, "recorded steps")
    model = controlled(name, full)
    rows = made_up_rows(40 * batch, len(model.tokenizer))
    folder = Path(tempfile.mkdtemp())
    run = Run.start(folder, recipe, {})
    trainer = kind(model, recipe, run, rows, rows[:batch], training_arguments(recipe, folder))
    trainer.differences = []
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.log = lambda logs, *_, **__: run.log({"step": trainer.state.global_step, **logs})
    trainer.train()
    return trainer


def controlled(name: str, full: bool) -> LengthControlled:
    """Return a model with random weights and ``glide``, and with adapters unless all weights are trained."""
    torch.manual_seed(0)
    base: Any = build_model(MODELS[name]())
    base.to("cuda" if torch.cuda.is_available() else "cpu")
    with torch.no_grad():
        for weight_name, weight in base.named_parameters():
            if weight_name.endswith(("q_proj.bias", "k_proj.bias")):
                weight.normal_(std=20)  # as large as in Qwen2.5
    if not full:
        base = get_peft_model(base.bfloat16(), LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    _, tokenizer = toy.build("toy-llama")
    return attach(base, "glide", tokenizer=tokenizer, noise=0.0, rank=64)


def made_up_rows(count: int, vocabulary: int) -> list[Row]:
    """Return rows of random ids, with prompts of 40 to 400 tokens and texts of 8 to 300."""
    chance = random.Random(0)
    rows: list[Row] = []
    for number in range(count):
        prompt, text = round(2 ** chance.uniform(5.3, 8.6)), round(2 ** chance.uniform(3, 8.2))
        ids = [*(chance.randrange(4, vocabulary) for _ in range(prompt + text)), 1]
        labels = [-100] * prompt + ids[prompt:]
        rows.append({"id": str(number), "input_ids": ids, "labels": labels, "target_tokens": text})
    return rows


if __name__ == "__main__":
    main()
