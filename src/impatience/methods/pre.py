"""Progress Ratio Embeddings: the share of the text that is written.

The signal is the ratio r = progress / target, as a vector whose frequency rises with r, like the impatience of someone
who waits for the end:

    ξ(r)_i = cos or sin of (r · M · x_i),  x_i = 2⌊i/2⌋ / D    (paper, eq. 3; paired as in its code)

    progress (B, T), target (B, 1)  →  ξ (B, T, D)

The signal knows only the ratio, never the target itself: (t, l) and (kt, kl) give the same vector. RPE
counts what remains and LRPE keeps the target in its frequencies, so both meet values at long targets
that training never showed them. The price: at long targets neighbouring steps look alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from impatience.arrays import Array
from impatience.config import option
from impatience.errors import OptionError
from impatience.methods.base import EmbeddingMethod
from impatience.signals import progress_ratio


@dataclass(frozen=True)
class Pre(EmbeddingMethod):
    """Progress Ratio Embeddings (Botcazou et al.)."""

    pulsation: float | None = option(
        None, "M, the pulsation at the end; None is D/2; more than the Nyquist bound D·π/2 is refused"
    )

    def check(self, width: int) -> None:
        """Check that D samples can carry the pulsation."""
        bound = width * math.pi / 2
        if self.pulsation is not None and not 0 < self.pulsation <= bound:
            raise OptionError(
                f"pulsation={self.pulsation}: a model of width {width} carries at most {bound:.1f} "
                f"(the Nyquist bound D·π/2). Give a number above 0 and up to that, or None for {width / 2:.1f}."
            )

    def embedding(self, progress: Array, target: Array, width: int) -> Array:
        """Return ξ(progress / target)."""
        return progress_ratio(progress / target, width, self.pulsation or width / 2)


METHOD = Pre
