"""One quick experiment in one process: train a little, then ask for lengths in the band and far beyond it.

    python study/probe.py NAME OUT '{"model": "smollm2", "method": "glide", "options": {}, "decoys": 0.3, …}'

A plain loop, for looking around; what is reported is trained by ``impatience train``. Validation data only.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

from impatience.data import IGNORED, collate, pad_labels
from impatience.decoys import Decoys
from impatience.lengths import Unit, decode, ends_sentence
from impatience.recipes import load_recipe
from impatience.shipped import find
from impatience.trainer import prompts, token_loss
from impatience.training import build_model, encode

DEFAULTS: dict[str, Any] = {
    "model": "smollm2",
    "method": "glide",
    "options": {},
    "data": "elife:impact",
    "limit": 15000,
    "source": 320,
    "decoys": 0.3,
    "reach": 1.0,
    "units": ["tokens"],
    "eos_weight": 1.0,
    "steps": 400,
    "batch": 32,
    "lr": 3e-4,
    "signal_lr": 1e-3,
    "seed": 0,
    "lengths": [10, 25, 50, 100, 200, 400, 1000],
    "rows": 32,
    "no_loops": 6,
    "data_dir": "../shared/data",
}


def main() -> None:
    """Train, ask, write down."""
    name, out, wanted = sys.argv[1], Path(sys.argv[2]), {**DEFAULTS, **json.loads(sys.argv[3])}
    recipe = load_recipe(
        find(f"small/impact-{wanted['model']}"),
        {
            "model.method": wanted["method"],
            "model.options": json.dumps(wanted["options"]),
            "data.train": json.dumps(wanted["data"]),
            "data.limit": str(wanted["limit"]),
            "data.max_source_tokens": str(wanted["source"]),
            "data.long_targets": "leave_out",
        },
    )
    torch.manual_seed(wanted["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, _ = build_model(recipe)
    rows, held_out = (
        encode(recipe, split, model, model.tokenizer, Path(wanted["data_dir"])) for split in ("train", "validation")
    )
    both, pad = model.family.encoder_decoder, int(model.generation_config.pad_token_id or 0)
    eos = model.tokenizer.eos_token_id
    units = [Unit(unit) for unit in wanted["units"]]
    decoys = Decoys(wanted["decoys"], wanted["reach"], units, wanted["seed"], model.vocabulary, [eos], both)
    model.to(device)
    own = {id(weight) for weight in model.steering.parameters()}
    groups = [{"params": [w for w in model.parameters() if w.requires_grad and id(w) not in own], "lr": wanted["lr"]}]
    if own:
        groups.append({"params": list(model.steering.parameters()), "lr": wanted["signal_lr"]})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), weight_decay=0.0, fused=device == "cuda")

    def loss_of(part: list[Any], decoyed: bool, words_only: bool = False) -> torch.Tensor:
        unit, part = decoys(part) if decoyed else honest(part)
        batch = {key: tensor.to(device) for key, tensor in collate(part, pad, both).items()}
        learnt = pad_labels([row["learnt"] for row in part]).to(device)
        asked, is_open = (torch.tensor([row[key] for row in part], device=device) for key in ("asked", "open"))
        goals: Any = {f"target_{unit}": asked}
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            if both:
                logits = model(**batch, **goals).logits
            else:
                first = max(
                    1, min(next(c for c, label in enumerate(row["labels"]) if label != IGNORED) for row in part)
                )
                kept = torch.arange(first - 1, learnt.shape[1] - 1, device=device)
                logits = model(**batch, **goals, compute_loss=False, logits_to_keep=kept, use_cache=False).logits
                learnt = learnt[:, first:]
        if words_only:
            learnt = learnt.masked_fill(learnt == eos, IGNORED)
        total, count = token_loss(logits, learnt, [eos], 1.0 if words_only else wanted["eos_weight"], is_open)
        return total / count

    began, steps, size = time.time(), wanted["steps"], wanted["batch"]
    chance, queue = random.Random(wanted["seed"]), []
    model.train()
    for step in range(steps):
        for group, base in zip(optimizer.param_groups, (wanted["lr"], wanted["signal_lr"]), strict=False):
            group["lr"] = base * min(1, (step + 1) / 40) * (1 - step / steps)
        if not queue:
            order = sorted(chance.sample(rows, min(len(rows), 50 * size)), key=lambda row: len(row["input_ids"]))
            queue = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
            chance.shuffle(queue)
        loss_of(queue.pop(), True).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    result: dict[str, Any] = {
        "name": name,
        "config": wanted,
        "train_seconds": round(time.time() - began),
        "asked": {},
        "texts": [],
    }
    with torch.no_grad():
        parts = [held_out[i : i + size] for i in range(0, 128, size)]
        result["words_loss"] = round(sum(loss_of(part, False, True).item() for part in parts) / len(parts), 4)
    report(model, wanted, held_out, result, pad, both, device)
    result["seconds"] = round(time.time() - began)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    table = "  ".join(
        f"{key}: {v['mae']:.2f}/{v['exact']:.0%}/{v['finished']:.0%}/{v['looping']:.0%}"
        for key, v in result["asked"].items()
    )
    print(f"{name}  loss {result['words_loss']}  {result['seconds']} s  {table}", flush=True)


def honest(rows: list[Any]) -> tuple[Unit, list[Any]]:
    """Return rows that are asked for their own length, in tokens."""
    return Unit.TOKENS, [{**row, "asked": row["target_tokens"], "learnt": row["labels"], "open": False} for row in rows]


def report(
    model: Any, wanted: dict[str, Any], held_out: list[Any], result: dict[str, Any], pad: int, both: bool, device: str
) -> None:
    """Write texts of every length, and note how they ended."""
    asks: dict[str, Any] = {"band": [row["target_tokens"] for row in held_out[:128]]}
    asks |= {str(length): [length] * wanted["rows"] for length in wanted["lengths"]}
    for key, targets in asks.items():
        part = held_out[: len(targets)]
        batch = {name: tensor.to(device) for name, tensor in prompts(part, pad, both).items()}
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            ids, reports = model.generate(
                **batch,
                target_tokens=targets,
                return_report=True,
                no_loops=wanted["no_loops"],
                do_sample=False,
                max_new_tokens=max(targets) + max(30, max(targets) // 5),
            )
        texts = [decode(model.tokenizer, row) for row in ids[:, 1 if both else batch["input_ids"].shape[1] :].tolist()]
        errors = [one.length - one.target for one in reports]
        count = len(errors)
        result["asked"][key] = {
            "mae": sum(map(abs, errors)) / count,
            "exact": sum(error == 0 for error in errors) / count,
            "bias": sum(errors) / count,
            "outliers": sum(abs(error) > 20 for error in errors) / count,
            "finished": sum(map(ends_sentence, texts)) / count,
            "looping": sum(map(loops, texts)) / count,
        }
        result["texts"].append({"asked": key, "length": reports[0].length, "text": texts[0]})


def loops(text: str) -> bool:
    """Tell whether over 30 % of a text's four-word stretches are repeats."""
    words = text.split()
    stretches = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return bool(stretches) and 1 - len(set(stretches)) / len(stretches) > 0.3


if __name__ == "__main__":
    main()
