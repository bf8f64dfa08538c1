"""Strategies to get a text of a given length from a model, one file each; the file name is the strategy's name."""

from impatience.decoding.base import Generator
from impatience.strategies.base import STRATEGIES, Strategy

__all__ = ["STRATEGIES", "Generator", "Strategy"]
