"""A run folder: recipe, facts, metrics, checkpoints and the trained model.

recipe.yaml         the recipe with every default filled in
run.json            versions, hardware, commit, seed, data checksums
metrics.jsonl       one line for each log: step, loss, tokens/s, length error …
checkpoint-N/       used by --resume if all of it is as it was written; complete.json says so
model/              the trained model, as LengthControlled.from_pretrained reads it
README.md           the model card, written last of all
"""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from impatience.config import build
from impatience.control.loading import resume_command
from impatience.errors import OptionError, RunError
from impatience.files import JsonLines, write_whole
from impatience.training.checkpoint import find_damage, is_complete, is_of_earlier_version, mark_complete, step_of
from impatience.training.recipe import Recipe

CHANGEABLE = {"train.cuda_graphs", "train.precision"}
"""Keys of a recipe that may change when a run is continued: they say how to compute, not what."""


_SAME = {"data": "data", "frozen_crc32": "base model", "tokens_crc32": "tokenizer or template"}
"""Facts in run.json that stay the same when a run is continued, in words; earlier versions noted only the data."""


class Run:
    """One run folder."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    @classmethod
    def start(cls, folder: Path, recipe: Recipe, facts: dict[str, Any]) -> Run:
        """Make a new run folder; of several processes only one may call this."""
        cls.refuse_existing(folder)
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder, recipe.train.keep_checkpoints)
        with run.needing_room("the recipe"):
            run.save_recipe(recipe)
            write_whole(folder / "run.json", json.dumps(facts, indent=2) + "\n")
        return run

    def save_recipe(self, recipe: Recipe) -> None:
        """Write the recipe with every default filled in."""
        text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
        write_whole(self.folder / "recipe.yaml", text)

    @staticmethod
    def refuse_existing(folder: Path) -> None:
        """Raise a RunError if the folder holds a run."""
        if (folder / "run.json").exists():
            raise RunError(
                f"{folder} holds a run already. Continue it: {resume_command(folder)}, or name another folder with "
                f"--out."
            )

    def refuse_changed(self, now: dict[str, Any]) -> None:
        """Raise a RunError if the data, the tokenizer or the base model is not what the run was started with.

        A checkpoint holds only trained weights, so on another base it would go on as another model.
        """
        before = self.facts()
        for name, words in _SAME.items():
            if before[name] not in (now[name], None):
                raise RunError(
                    f"The {words} of {self.folder} has changed since the run was started (see run.json). Restore it, "
                    f"or start a new run with --out."
                )

    def facts(self) -> dict[str, Any]:
        """Return the content of run.json."""
        file = self.folder / "run.json"
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
            needed = {name: facts[name] for name in ("environment", "seed", "data", "data_dir")}
            if not facts["environment"].keys() >= {"impatience", "cpu", "gpu", "torch", "transformers", "commit"}:
                raise _damaged(file)
            return needed | {name: facts.get(name) for name in _SAME}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(file) from error

    @classmethod
    def reopen(cls, folder: Path, recipe: Recipe) -> Run:
        """Open a run folder to continue the run."""
        if not (folder / "run.json").exists():
            raise RunError(f"{folder} holds no run to resume. Leave out --resume to start one.")
        file = folder / "recipe.yaml"
        try:
            saved = build(Recipe, yaml.safe_load(file.read_text(encoding="utf-8")), str(folder))
        except (OSError, ValueError, yaml.YAMLError, OptionError) as error:
            raise _damaged(file) from error
        values = set(_flat(saved.to_dict()).items()) ^ set(_flat(recipe.to_dict()).items())
        if changed := {name for name, _ in values} - CHANGEABLE:
            raise RunError(
                f"{folder} was started with another recipe; different: {', '.join(sorted(changed))}. Resume it with "
                f"its own: {resume_command(folder)}, or start a new run with --out."
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
        return sorted(filter(is_complete, self._checkpoint_folders()), key=step_of)

    def _checkpoint_folders(self) -> list[Path]:
        """Return the folders of checkpoints, also of incomplete ones."""
        return [path for path in self.folder.glob("checkpoint-*") if path.name[11:].isdecimal() and path.is_dir()]

    def remove_unusable_checkpoints(self, report: Callable[[str], None]) -> None:
        """Remove the checkpoints after the newest one that is complete and as it was written.

        Raises:
            RunError: If some are complete, but each of them is damaged or of an earlier version; then they stay.
        """
        damaged: dict[Path, str] = {}
        for path in reversed(self.checkpoints()):
            if is_of_earlier_version(path):
                raise RunError(
                    f"{self.folder} cannot be continued: {path.name} was written by an earlier version, without "
                    f"checksums. Start a new run with --out."
                )
            if not (damage := find_damage(path)):
                break
            damaged[path] = f"{path.name} is damaged: {damage}"
        else:
            if damaged:
                raise RunError(
                    f"{self.folder} cannot be continued: it has no undamaged checkpoint. {'; '.join(damaged.values())}."
                    f" Restore one from a copy, or start a new run with --out."
                )
        for path in self._checkpoint_folders():
            if not is_complete(path):
                damaged[path] = f"{path.name} was not finished when the run stopped"
        for path, reason in damaged.items():
            report(f"{reason}; it is removed.")
            shutil.rmtree(path)

    def last_checkpoint(self, report: Callable[[str], None]) -> Path | None:
        """Return the newest complete checkpoint."""
        last = next(reversed(self.checkpoints()), None)
        missing = "There is no complete checkpoint; starting from the beginning."
        report(f"Continuing from {last.name}." if last else missing)
        return last

    @contextmanager
    def writing_checkpoint(
        self, step: int, *, writes: bool, wait: Callable[[], None], best: int | None = None
    ) -> Iterator[None]:
        """Mark a checkpoint as complete once all of it is written, and only then remove older ones, but not the best.

        ``writes`` is True in the one process that marks it; ``wait`` returns when every process has written its part.
        If the disk is full, the incomplete checkpoint is removed and the older ones stay.
        """
        folder = self.folder / f"checkpoint-{step}"
        try:
            with self.needing_room(folder.name):
                yield
                wait()
                if writes:
                    mark_complete(folder, step)
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if writes:
            for path in [path for path in self.checkpoints()[: -self.keep] if step_of(path) != best]:
                shutil.rmtree(path)

    @contextmanager
    def needing_room(self, what: str) -> Iterator[None]:
        """Raise a RunError if the disk is full when a part of the folder is written, whatever error reports it."""
        try:
            yield
        except Exception as error:
            if not _disk_is_full(error, self.folder):
                raise
            complete = self.checkpoints()
            rest = f"{complete[-1].name} is complete" if complete else "there is no complete checkpoint"
            raise RunError(
                f"No space left for {what} in {self.folder}; {rest}. "
                f"Free some space and continue: {resume_command(self.folder)}"
            ) from error

    def stop_at(self, step: int, remedies: dict[str, str]) -> None:
        """Raise the RunError of a step that was not finite; ``remedies`` are changes that may help, by key."""
        good = self.checkpoints()
        kept = f"{good[-1].name} is the last good checkpoint" if good else "There is no checkpoint from before"
        advice = "Start a new run with a lower train.learning_rate and another --out."
        if remedies:
            changes = " ".join(f"--set {name}={value}" for name, value in remedies.items())
            advice += f" Or continue with slower but safer steps: {resume_command(self.folder)} {changes}"
        raise RunError(
            f"The loss, a gradient or a weight was not a finite number at step {step} of {self.folder}. The run has "
            f"stopped, and nothing was saved from that step on. {kept}. {advice}"
        )

    # Metrics

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to the metrics; JSON has no NaN and no infinity, so these are left out."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        with self.needing_room("metrics"), (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return all metrics, without a last line that a kill cut short."""
        lines = JsonLines(self.folder / "metrics.jsonl")
        found = []
        for number, (line, _) in enumerate(lines.read(), 1):
            if line is None or not isinstance(line.get("step"), int):
                raise RunError(f"{lines.file}, line {number} is damaged. Remove that line, and run the command again.")
            found.append(line)
        return found

    def drop_metrics_after(self, step: int) -> None:
        """Remove the metrics after a step, and the final ones, because they will be logged again."""
        lines = [line for line in self.metrics() if line["step"] <= step and not line.get("final")]
        write_whole(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def _damaged(file: Path) -> RunError:
    return RunError(
        f"{file} is damaged, so the run cannot be continued. Restore it from a copy, or start a new run with --out."
    )


def _disk_is_full(error: BaseException, folder: Path) -> bool:
    reported = getattr(error, "errno", None) == errno.ENOSPC or "no space left" in str(error).lower()
    return reported or shutil.disk_usage(folder).free < 2**20  # torch does not name a full disk in its error


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Return the values of nested mappings by dotted name."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{name}.{key}".lstrip(".")).items()}
    return {name: repr(value)}
