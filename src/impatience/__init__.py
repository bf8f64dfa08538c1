"""Language models that write to length.

``attach`` gives a Hugging Face model a target length; ``load`` returns a writer that is ready to use.
Importing this package imports no torch: the names below are fetched when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from impatience.version import __version__

if TYPE_CHECKING:
    from impatience.control.attach import attach
    from impatience.control.length_report import LengthReport
    from impatience.control.model import LengthControlled
    from impatience.data import Request
    from impatience.decoding.results import Piece, Result
    from impatience.lengths import Unit
    from impatience.writing.writer import Writer, load


_HOME = {
    "Request": "impatience.data",
    "Piece": "impatience.decoding.results",
    "attach": "impatience.control.attach",
    "LengthControlled": "impatience.control.model",
    "LengthReport": "impatience.control.length_report",
    "Result": "impatience.decoding.results",
    "Unit": "impatience.lengths",
    "Writer": "impatience.writing.writer",
    "load": "impatience.writing.writer",
}
__all__ = [
    "LengthControlled",
    "LengthReport",
    "Piece",
    "Request",
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
