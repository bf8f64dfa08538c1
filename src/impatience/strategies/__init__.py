"""Ways to get a text of some length from a model, one file each; the file name is the strategy's name."""

from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.strategies.base import STRATEGIES, Strategy

__all__ = ["STRATEGIES", "Draft", "Strategy", "TextGenerator"]
