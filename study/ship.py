"""Copy a trained adapter into the package: its own weights in half precision, and its settings.

    python study/ship.py OUT/c-glide-0/run/model src/impatience/sources/impatience-135m

The base model and its tokenizer are not part of the package: they are downloaded by the name in the adapter. README.md,
the model card, is written by hand and stays.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from safetensors.torch import load_file, save_file

WEIGHTS = ("adapter_model.safetensors", "impatience.safetensors")
SETTINGS = ("adapter_config.json", "impatience.json", "prompt.json")


def main() -> None:
    """Write the files, and print their size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    wanted = parser.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    for name in WEIGHTS:
        tensors = load_file(wanted.model / name)
        save_file({key: tensor.half().contiguous() for key, tensor in tensors.items()}, wanted.folder / name)
    for name in SETTINGS:
        settings = json.loads((wanted.model / name).read_text(encoding="utf-8"))
        (wanted.folder / name).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    size = sum((wanted.folder / name).stat().st_size for name in WEIGHTS + SETTINGS)
    print(f"{wanted.folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
