"""The card of a trained model: base, method, measurements, data, environment and recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from impatience.training.recipe import Recipe

_SHOWN = {
    "step": "step",
    "loss": "training loss",
    "eval_loss": "validation loss",
    "eval_length_mae": "length MAE (tokens)",
    "eval_length_exact": "exact",
    "tokens_per_second": "tokens/s",
    "share_of_peak": "share of peak",
}


def model_card(folder: Path, recipe: Recipe, metrics: list[dict[str, Any]]) -> str:
    """Return the card in Markdown."""
    facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    env = facts["environment"]
    data = "\n".join(
        f"- {split}: {part['examples']} examples of {', '.join(part['sha256'])}"
        for split, part in facts["data"].items()
    )
    return f"""# {recipe.name}

{recipe.model.base} with the length control method `{recipe.model.method}`, trained by impatience {env["impatience"]}.

```python
from impatience import LengthControlled

model = LengthControlled.from_pretrained("{folder / "model"}")
```

## Measured

Up to {recipe.train.sample} validation texts for each line, generated greedily with natural landing.

{_table([line for line in metrics if {"eval_loss", "eval_length_mae"} & line.keys() and not _repeated(line, metrics)])}

## Training data

{data}

## Environment

{env["gpu"] or env["cpu"]}, seed {facts["seed"]}, torch {env["torch"]}, transformers
{env["transformers"]}, commit {env["commit"]}.

## Recipe

```yaml
{yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True).rstrip()}
```
"""


def _repeated(line: dict[str, Any], metrics: list[dict[str, Any]]) -> bool:
    """Check whether the final measurement repeats a validation at the same step."""
    return bool(line.get("final")) and any("eval_loss" in other and other["step"] == line["step"] for other in metrics)


def _table(lines: list[dict[str, Any]]) -> str:
    names = [name for name in _SHOWN if any(name in line for line in lines)]
    rows = [[f"{line[name]:.4g}" if name in line else "" for name in names] for line in lines]
    head = [[_SHOWN[name] for name in names], ["---"] * len(names)]
    return "\n".join(f"| {' | '.join(row)} |" for row in head + rows)
