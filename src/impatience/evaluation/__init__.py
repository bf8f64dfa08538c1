"""Evaluation: requests, predictions, report, comparison."""

from impatience.evaluation.run import evaluate, load_subject

__all__ = ["evaluate", "load_subject"]
