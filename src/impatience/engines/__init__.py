"""Where texts are written, one file each; the file name is the engine's name."""

from impatience.engines.base import ENGINES, Engine, Job, choose, in_order

__all__ = ["ENGINES", "Engine", "Job", "choose", "in_order"]
