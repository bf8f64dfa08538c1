"""Length control methods, one file each; the file name is the method's name."""

from impatience.config import option
from impatience.methods.base import AttentionMethod, EmbeddingMethod, Method
from impatience.registry import Registry

METHODS: Registry[type[Method]] = Registry("impatience.methods", "METHOD", "method")

__all__ = ["METHODS", "AttentionMethod", "EmbeddingMethod", "Method", "option"]
