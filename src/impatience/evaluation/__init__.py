"""Evaluation: writing and scoring texts, reports, comparisons, figures."""

from impatience.evaluation.run import evaluate, load_evaluated_model

__all__ = ["evaluate", "load_evaluated_model"]
