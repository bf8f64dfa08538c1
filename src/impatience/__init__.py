"""Language models that write to length.

``attach`` gives a Hugging Face model a target length; ``load`` returns a writer that is ready to use.
Importing this package imports no torch: the names below are fetched when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from impatience.version import __version__

if TYPE_CHECKING:
    from impatience.asks import Ask, Piece, Result
    from impatience.endings import LengthReport
    from impatience.lengths import Unit
    from impatience.model import LengthControlled, attach
    from impatience.writer import Writer, load


_HOME = {
    "Ask": "impatience.asks",
    "Piece": "impatience.asks",
    "attach": "impatience.model",
    "LengthControlled": "impatience.model",
    "LengthReport": "impatience.endings",
    "Result": "impatience.asks",
    "Unit": "impatience.lengths",
    "Writer": "impatience.writer",
    "load": "impatience.writer",
}
__all__ = [
    "Ask",
    "LengthControlled",
    "LengthReport",
    "Piece",
    "Result",
    "Unit",
    "Writer",
    "__version__",
    "attach",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'impatience' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
