"""Ways to get a text of some length from a model, one file each; the file name is the strategy's name."""

from impatience.strategies.base import STRATEGIES, Draft, Pen, Strategy

__all__ = ["STRATEGIES", "Draft", "Pen", "Strategy"]
