"""Budgets of steps: the most tokens that a text may take, from its target."""

from __future__ import annotations

from impatience.errors import TargetError
from impatience.lengths import Landing, Target, Unit
from impatience.vocabulary import Vocabulary

_STEPS = {Unit.TOKENS: (2, 32), Unit.WORDS: (4, 32), Unit.CHARACTERS: (1, 32), Unit.SENTENCES: (96, 64)}
"""Tokens to allow for a target of n when the caller sets no limit: factor · n + margin."""
_HELD_STEPS = {Unit.TOKENS: (1, 1), Unit.CHARACTERS: (4, 8)}
"""The same where the landing holds the text to its target: a character has at most four bytes."""
_SPELLED = 3
"""So many times more tokens where words are spelled letter by letter."""


def step_budget(
    target: Target, landing: Landing, room: int | None, extra: int = 0, *, vocabulary: Vocabulary | None = None
) -> int:
    """Return ``max_new_tokens`` for a target, or raise TargetError if it cannot fit in the decoder.

    ``room`` are the positions left, None without a limit; ``extra`` tokens are written but not counted, besides EOS.
    """
    longest = max(target.values)
    fewest = extra + (longest + 1 if target.unit in (Unit.TOKENS, Unit.WORDS) else 2)
    if room is not None and fewest > room:
        raise TargetError(
            f"target_{target.unit}={longest} needs at least {fewest} more tokens with EOS, but the model has room for "
            f"{room}. Ask for less, shorten the prompt, or use a model with a longer context."
        )
    factor, margin = _STEPS[target.unit]
    if landing is not Landing.NATURAL:
        factor, margin = _HELD_STEPS.get(target.unit, (factor, margin))
    if vocabulary is not None and target.unit in (Unit.WORDS, Unit.SENTENCES) and vocabulary.spells:
        factor *= _SPELLED
    steps = factor * longest + margin + extra
    return steps if room is None else min(steps, room)
