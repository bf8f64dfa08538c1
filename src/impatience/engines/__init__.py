"""Engines that run work here or on other machines, one file each; the file name is the engine's name."""

from impatience.engines.base import ENGINES, Engine, Task, choose, in_order

__all__ = ["ENGINES", "Engine", "Task", "choose", "in_order"]
