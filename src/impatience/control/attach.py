"""``attach``: joins a method to a Hugging Face model."""

from __future__ import annotations

from typing import Any

from impatience.control.model import LengthControlled
from impatience.control.targets import Conventions
from impatience.errors import OptionError
from impatience.families import unwrap
from impatience.methods import METHODS, Method


def attach(
    base_model: Any,
    method: str | Method = "glide",
    *,
    tokenizer: Any = None,
    conventions: Conventions = "paper",
    **options: Any,
) -> LengthControlled:
    """Give a Hugging Face model length control.

    Args:
        base_model: An encoder-decoder or decoder-only model, also one that PEFT has wrapped.
        method: A name from ``impatience methods``, or a ``Method`` of your own.
        tokenizer: Needed to count words, characters and sentences.
        conventions: ``"authors"`` follows the paper's code instead of its text in five things: the signal is raw,
            special tokens are counted, the ratio is t / (l - 1), absolute positions are added twice, and the first
            generated step gets no signal. It leaves out four: their noise while texts are written, too, so that texts
            are the same every time; their RPE's table, which their model's own initialisation overwrites; the noise
            of their RPE (``noise=1``) and LRPE (``noise=0``), which are options; and their LRPE's exponent 2j/D in
            both halves, where the paper has 2j/D and (2j + 1)/D.
        **options: The method's options, e.g. ``strength=1.5`` or ``noise="step"``.

    Returns:
        The wrapped model. The base model is not copied; ``detach`` gives it back as it was.
    """
    if any(isinstance(model, LengthControlled) for model in (base_model, unwrap(base_model))):
        raise OptionError("This model is attached already. Detach it first: model = model.detach().")
    if isinstance(method, str):
        if conventions == "authors":
            options.setdefault("strength", "raw")
        method = METHODS[method].from_options(**options)
    elif options or not isinstance(method, Method):
        raise OptionError(f"method={method!r}: give a name with options, or a Method that has its options already.")
    return LengthControlled(base_model, method, tokenizer=tokenizer, conventions=conventions)
