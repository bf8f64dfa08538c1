"""A run folder: recipe, facts, metrics, checkpoints and the trained model.

recipe.yaml         the recipe with every default filled in
run.json            versions, hardware, commit, seed, data checksums
metrics.jsonl       one line for each log: step, loss, tokens/s, length error …
checkpoint-N/       used by --resume; complete.json is written last, and a checkpoint without it is removed
model/              the trained model, as LengthControlled.from_pretrained reads it
README.md           the model card, written last of all
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from impatience.config import build
from impatience.errors import RunError
from impatience.files import write_whole
from impatience.training.recipe import Recipe

COMPLETE = "complete.json"


class Run:
    """One run folder."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    @classmethod
    def start(cls, folder: Path, recipe: Recipe, facts: dict[str, Any]) -> Run:
        """Make a new run folder; of several processes only one may call this."""
        cls.refuse_existing(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "recipe.yaml", yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True))
        write_whole(folder / "run.json", json.dumps(facts, indent=2) + "\n")
        return cls(folder, recipe.train.keep_checkpoints)

    @staticmethod
    def refuse_existing(folder: Path) -> None:
        """Raise a RunError if the folder holds a run."""
        if (folder / "run.json").exists():
            raise RunError(
                f"{folder} holds a run already. Continue it with --resume, or name another folder with --out."
            )

    def refuse_changed_data(self, data: dict[str, Any]) -> None:
        """Raise a RunError if the data is not what the run was started on."""
        if json.loads((self.folder / "run.json").read_text(encoding="utf-8"))["data"] != data:
            raise RunError(
                f"The data of {self.folder} has changed since the run was started (see run.json). Restore the data, or "
                f"start a new run with --out."
            )

    @classmethod
    def reopen(cls, folder: Path, recipe: Recipe) -> Run:
        """Open a run folder to continue the run."""
        if not (folder / "run.json").exists():
            raise RunError(f"{folder} holds no run to resume. Leave out --resume to start one.")
        saved = build(Recipe, yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8")), str(folder))
        if saved.to_dict() != recipe.to_dict():
            changed = set(_flat(saved.to_dict()).items()) ^ set(_flat(recipe.to_dict()).items())
            raise RunError(
                f"{folder} was started with another recipe; different: {', '.join(sorted({k for k, _ in changed}))}. "
                f"Resume it with its own recipe ({folder / 'recipe.yaml'}), or start a new run with --out."
            )
        return cls(folder, recipe.train.keep_checkpoints)

    @property
    def finished(self) -> bool:
        """True if the run is complete; its card is written last."""
        return (self.folder / "README.md").exists()

    # Checkpoints

    @staticmethod
    def is_final(checkpoint: Path) -> bool:
        """Check whether a checkpoint was written after the last step."""
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        control = state.get("stateful_callbacks", {}).get("TrainerControl", {}).get("args", {})
        return int(state["global_step"]) >= int(state["max_steps"]) or bool(control.get("should_training_stop"))

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        complete = [path for path in self.folder.glob("checkpoint-*") if (path / COMPLETE).exists()]
        return sorted(complete, key=lambda path: int(path.name.split("-")[1]))

    def last_checkpoint(self, report: Callable[[str], None]) -> Path | None:
        """Return the newest complete checkpoint, and remove the incomplete ones."""
        for path in self.folder.glob("checkpoint-*"):
            if not (path / COMPLETE).exists():
                report(f"{path.name} was not finished when the run stopped; it is removed.")
                shutil.rmtree(path)
        last = next(reversed(self.checkpoints()), None)
        missing = "There is no complete checkpoint; starting from the beginning."
        report(f"Continuing from {last.name}." if last else missing)
        return last

    @contextmanager
    def writing_checkpoint(self, step: int, *, writes: bool, wait: Callable[[], None]) -> Iterator[None]:
        """Mark a checkpoint as complete once all of it is written, and only then remove older ones.

        ``writes`` is True in the one process that marks it; ``wait`` returns when every process has written its part.
        If the disk is full, the incomplete checkpoint is removed and the older ones stay.
        """
        folder = self.folder / f"checkpoint-{step}"
        try:
            yield
            wait()
            if writes:
                write_whole(folder / COMPLETE, json.dumps({"step": step}) + "\n")
        except Exception as error:
            shutil.rmtree(folder, ignore_errors=True)
            if _disk_is_full(error, self.folder):
                older = self.checkpoints()
                rest = f"{older[-1].name} is complete" if older else "there is no older checkpoint"
                raise RunError(
                    f"No space left for checkpoint-{step} in {self.folder}; {rest}. "
                    f"Free some space and continue with --resume."
                ) from error
            raise
        if writes:
            for path in self.checkpoints()[: -self.keep]:
                shutil.rmtree(path)

    # Metrics

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to the metrics."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return all metrics, without a last line that a kill cut short."""
        file = self.folder / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def drop_metrics_after(self, step: int) -> None:
        """Remove the metrics after a step, and the final ones, because they will be logged again."""
        lines = [line for line in self.metrics() if line["step"] <= step and not line.get("final")]
        write_whole(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def _disk_is_full(error: BaseException, folder: Path) -> bool:
    reported = getattr(error, "errno", None) == errno.ENOSPC or "no space left" in str(error).lower()
    return reported or shutil.disk_usage(folder).free < 2**20  # torch does not name a full disk in its error


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return the values of nested mappings by dotted name."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{name}.{key}".lstrip(".")).items()}
    return {name: repr(value)}
