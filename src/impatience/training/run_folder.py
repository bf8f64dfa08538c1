"""A run folder: what was trained, on what, how it went, and checkpoints that are either whole or not used.

recipe.yaml         the recipe as resolved, every default filled in
run.json            versions, hardware, commit, seed, data checksums
metrics.jsonl       one line a log: step, loss, tokens/s, length error …
checkpoint-N/       what --resume continues from; complete.json is written last
model/              the trained model, as LengthControlled.from_pretrained reads it
README.md           the model card
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

MARK = "complete.json"


class Run:
    """One run folder.

    Args:
        folder: Where it is.
        keep: How many checkpoints stay.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    @classmethod
    def start(cls, folder: Path, recipe: Recipe, facts: dict[str, Any]) -> Run:
        """Make a new run folder; where several processes train, one of them does.

        Raises:
            RunError: If there is one already.
        """
        cls.refuse_existing(folder)
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder, recipe.train.keep_checkpoints)
        write_whole(folder / "recipe.yaml", yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True))
        write_whole(folder / "run.json", json.dumps(facts, indent=2) + "\n")
        return run

    @staticmethod
    def refuse_existing(folder: Path) -> None:
        """Refuse a folder that holds a run."""
        if (folder / "run.json").exists():
            raise RunError(
                f"{folder} holds a run already. Continue it with --resume, or name another folder with --out."
            )

    def refuse_changed_data(self, data: dict[str, Any]) -> None:
        """Refuse to continue on other data than the run was started on."""
        if json.loads((self.folder / "run.json").read_text(encoding="utf-8"))["data"] != data:
            raise RunError(
                f"The data of {self.folder} has changed since it was started (see run.json). Restore it, or start anew "
                f"with --out."
            )

    @classmethod
    def reopen(cls, folder: Path, recipe: Recipe) -> Run:
        """Open a run folder to continue it.

        Raises:
            RunError: If there is none, or it was started with another recipe.
        """
        if not (folder / "run.json").exists():
            raise RunError(f"{folder} holds no run to resume. Leave out --resume to start one.")
        before = build(Recipe, yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8")), str(folder))
        if before.to_dict() != recipe.to_dict():
            changed = sorted(set(_flat(before.to_dict()).items()) ^ set(_flat(recipe.to_dict()).items()))
            raise RunError(
                f"{folder} was started with another recipe; different: {', '.join(sorted({k for k, _ in changed}))}. "
                f"Resume it with the recipe it was started with ({folder / 'recipe.yaml'}), or start anew with --out."
            )
        return cls(folder, recipe.train.keep_checkpoints)

    @property
    def finished(self) -> bool:
        """Whether the trained model is there; its card is written last."""
        return (self.folder / "README.md").exists()

    # Checkpoints

    @staticmethod
    def trained_to_the_end(checkpoint: Path) -> bool:
        """Tell whether a checkpoint was written after the last step."""
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        control = state.get("stateful_callbacks", {}).get("TrainerControl", {}).get("args", {})
        return int(state["global_step"]) >= int(state["max_steps"]) or bool(control.get("should_training_stop"))

    def checkpoints(self) -> list[Path]:
        """Return the whole checkpoints, oldest first."""
        whole = [path for path in self.folder.glob("checkpoint-*") if (path / MARK).exists()]
        return sorted(whole, key=lambda path: int(path.name.split("-")[1]))

    def last_checkpoint(self, say: Callable[[str], None]) -> Path | None:
        """Return the newest whole checkpoint and remove what is left of those that were being written."""
        for path in self.folder.glob("checkpoint-*"):
            if not (path / MARK).exists():
                say(f"{path.name} was not finished when the run stopped; it is removed.")
                shutil.rmtree(path)
        found = self.checkpoints()
        say(
            f"Going on from {found[-1].name}."
            if found
            else "There is no whole checkpoint; starting from the beginning."
        )
        return found[-1] if found else None

    @contextmanager
    def writing_checkpoint(self, step: int, *, writes: bool, wait: Callable[[], None]) -> Iterator[None]:
        """Mark a checkpoint whole once all of it is there, and only then remove older ones.

        Args:
            step: Of the checkpoint.
            writes: Whether this process is the one that marks it.
            wait: Returns when every process has written its part.

        Raises:
            RunError: If the disk is full; the unfinished checkpoint is removed and the older ones stay.
        """
        folder = self.folder / f"checkpoint-{step}"
        try:
            yield
            wait()
            if writes:
                write_whole(folder / MARK, json.dumps({"step": step}) + "\n")
        except Exception as error:
            shutil.rmtree(folder, ignore_errors=True)
            if _disk_is_full(error, self.folder):
                older = self.checkpoints()
                rest = f"{older[-1].name} is whole" if older else "there is no older checkpoint"
                raise RunError(
                    f"No space left for checkpoint-{step} in {self.folder}; {rest}. "
                    f"Free some space and go on with --resume."
                ) from error
            raise
        if writes:
            for path in self.checkpoints()[: -self.keep]:
                shutil.rmtree(path)

    # Metrics

    def log(self, metrics: dict[str, Any]) -> None:
        """Add one line to the metrics."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return all metrics; a line that a kill cut short is left out."""
        file = self.folder / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def forget_after(self, step: int) -> None:
        """Take back what was logged after a step, and at the very end, because it will be done again."""
        kept = [line for line in self.metrics() if line["step"] <= step and not line.get("final")]
        write_whole(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))


def _disk_is_full(error: BaseException, folder: Path) -> bool:
    said = getattr(error, "errno", None) == errno.ENOSPC or "no space left" in str(error).lower()
    return said or shutil.disk_usage(folder).free < 2**20  # torch reports a full disk without saying so


def _flat(value: Any, name: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{name}.{key}".lstrip(".")).items()}
    return {name: repr(value)}
