"""Metrics of written texts: one module each, whose name is the name of the metric."""

from impatience.metrics.base import METRICS, Aggregate, Column, Metric, Prediction

__all__ = ["METRICS", "Aggregate", "Column", "Metric", "Prediction"]
