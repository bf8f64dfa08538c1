"""The pupil: what is known of the model to teach before its weights are read, so that no work begins in vain."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from impatience.data import Encoder
from impatience.errors import OptionError
from impatience.families import family_of
from impatience.sources import resolve
from impatience.sources.pretrained import build_model, load_settings, loading_errors

FIRST_LAYER = 2
"""The signal enters decoders here and later: llama.cpp's control vectors reach no layer before."""
SOURCE_TOKENS = 1400  # the most tokens of a message that a row has; a text that is cut teaches to invent the rest
INSTRUCTION_TOKENS = 120  # of these for the instruction and the chat template


class Pupil:
    """A model to teach; one that cannot be taught is refused.

    Raises:
        ModelFilesError: If its settings or its tokenizer cannot be read.
        UnsupportedModelError: If no family declares its type.
        TokenizerError: If its texts cannot end.
        OptionError: If it has too few layers.
    """

    def __init__(self, name: str) -> None:
        config, self._tokenizer = _settings(name)
        with torch.device("meta"):  # no weights
            model = build_model(config)
        family = family_of(model)
        self.encoder_decoder, self.layers = family.encoder_decoder, len(family.layers_of(model))
        if not self.encoder_decoder and self.layers <= FIRST_LAYER:
            raise OptionError(
                f"{name} has {self.layers} layers. The signal enters at layer {FIRST_LAYER}, counted from 0, and "
                f"later: teach a model with at least {FIRST_LAYER + 1} layers."
            )
        Encoder(self._tokenizer, self.encoder_decoder, "instruct", SOURCE_TOKENS)  # refuses what it cannot encode for
        rooms = family.source_room(model), family.room(model)
        # A decoder has the text and its answer in one row.
        room = (rooms[0] if self.encoder_decoder else rooms[1] and rooms[1] // 2) or SOURCE_TOKENS
        self.source_tokens = min(SOURCE_TOKENS, room) - INSTRUCTION_TOKENS

    def reads(self, text: str) -> bool:
        """Check whether the pupil reads a text whole."""
        return len(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) <= self.source_tokens


def check_chats(name: str) -> None:
    """Raise an OptionError if a model cannot be the author, because it takes no chats."""
    config, tokenizer = _settings(name)
    if tokenizer.chat_template is None or config.is_encoder_decoder:
        raise OptionError(
            f"{name} takes no chats, so it cannot write the rows. Name an instruct model that can with --teacher."
        )


def _settings(name: str) -> tuple[Any, Any]:
    """Return the configuration and the tokenizer of a model."""
    place = resolve(name)
    with loading_errors(name):
        return load_settings(AutoConfig, place), load_settings(AutoTokenizer, place)
