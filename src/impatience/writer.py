"""Text in, text of the length asked for out: what the command line and other programs use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from impatience.data import Encoder, Example
from impatience.errors import ImpatienceError, ModelFilesError, SourceError
from impatience.generation import Landed
from impatience.lengths import Unit, decode
from impatience.model import LengthControlled, attach
from impatience.sources import DEFAULT_MODEL, resolve
from impatience.storage import PROMPT, is_length_controlled, load_base, load_prompt


@dataclass(frozen=True)
class Result:
    """A text and how it ended.

    Attributes:
        text: What was written.
        length: How long it is, in the unit asked for.
        target: How long it was asked to be.
        unit: What is counted.
        landed: "natural", "forced" or "missed"; see ``LengthReport``.
        eos_probability: What the model itself gave EOS where the text stops.
    """

    text: str
    length: int
    target: int
    unit: Unit
    landed: Landed
    eos_probability: float


class Writer:
    """Writes summaries of the lengths asked for with one model.

    Args:
        model: A model that writes to length, with its tokenizer.
        prompt: How sources were put to it in training: template, prefix and max_source_tokens; None for a model that
            was not trained by a recipe, which is asked for a summary in words.
    """

    def __init__(self, model: LengthControlled, prompt: dict[str, Any] | None = None) -> None:
        model.vocabulary.require_tokenizer(Unit.WORDS)
        self.model, self.tokenizer = model, model.tokenizer
        known = {name: value for name, value in (prompt or {}).items() if name != "tasks"}
        self.encoder = Encoder(self.tokenizer, model.family.encoder_decoder, **known) if known else None

    def write(
        self,
        text: str,
        *,
        words: int | None = None,
        characters: int | None = None,
        sentences: int | None = None,
        tokens: int | None = None,
        landing: str = "natural",
        **kwargs: Any,
    ) -> Result:
        """Write a summary of a text.

        Args:
            text: The source.
            words: How long the summary must be, in words. One unit must be given.
            characters: The same in characters.
            sentences: The same in sentences.
            tokens: The same in the model's tokens.
            landing: ``"natural"``, ``"exact"`` or ``"at_most"``.
            **kwargs: What else ``generate`` takes, e.g. ``do_sample=True``.
        """
        if not text.strip():
            raise SourceError("The text to summarise is empty.")
        inputs = self._inputs(text, {"words": words, "characters": characters, "sentences": sentences})
        with torch.inference_mode():
            output, (report,) = self.model.generate(
                **inputs,
                target_tokens=tokens,
                target_words=words,
                target_characters=characters,
                target_sentences=sentences,
                landing=landing,
                return_report=True,
                **kwargs,
            )
        written = output[0, 0 if self.model.family.encoder_decoder else inputs["input_ids"].shape[1] :]
        return Result(decode(self.tokenizer, written.tolist()), **vars(report))

    def _inputs(self, text: str, asked: dict[str, int | None]) -> Any:
        """Tokenize the source: as in training, else as it is, or in a request for a model that takes chats."""
        if self.encoder is not None:
            ids = torch.tensor([self.encoder.reads(Example("text", text, ""))], device=self.model.device)
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.model.family.encoder_decoder or not self.tokenizer.chat_template:
            inputs = self.tokenizer(text, return_tensors="pt")
        else:
            length = "".join(f" in {value} {unit}" for unit, value in asked.items() if value)
            message = {"role": "user", "content": f"Summarize the following text{length}.\n\n{text.strip()}"}
            inputs = self.tokenizer.apply_chat_template(
                [message], add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        return inputs.to(self.model.device)


def load(name: str | Path | None = None, *, quiet: bool = False) -> Writer:
    """Load a model to write with.

    Args:
        name: A folder or hub name; None is the default model, which is fetched on first use. A model that was saved
            without length control is given none: it can be forced to a length, not steered to it.
        quiet: Show no progress.
    """
    return Writer(*open_model(name or DEFAULT_MODEL, quiet=quiet))


def open_model(name: str | Path, *, quiet: bool = False) -> tuple[LengthControlled, dict[str, Any]]:
    """Load a model, on the GPU if there is one.

    Args:
        name: A model folder, the folder of a training run, or a packaged or hub name.
        quiet: Show no progress.

    Returns:
        The model, and how sources were put to it in training; nothing if nobody wrote that down.

    Raises:
        ModelFilesError: If there is no such model, or the run has not been trained to its end.
    """
    source = resolve(name, quiet=quiet)
    if (Path(source) / "run.json").is_file():
        if not (Path(source) / "model" / PROMPT).is_file():
            raise ModelFilesError(
                f"The run in {source} has no model yet. Train it to its end: impatience train --resume."
            )
        source = str(Path(source) / "model")
    options: dict[str, Any] = {} if torch.cuda.is_available() else {"dtype": torch.float32}
    prompt: dict[str, Any] = {}
    try:
        if is_length_controlled(source):
            prompt = load_prompt(source)
            model = LengthControlled.from_pretrained(source, **options)
        else:
            base, tokenizer = load_base(source, **options)
            model = attach(base, "none", tokenizer=tokenizer)
    except ImpatienceError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelFilesError(
            f"The model {str(name)!r} could not be loaded ({reason}). Name a folder, a model that `impatience models` "
            f"lists, or one on the hub, which must be within reach."
        ) from error
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), prompt
