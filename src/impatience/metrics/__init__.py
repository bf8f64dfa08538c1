"""What is measured on written texts, one file each; the file name is the metric's name."""

from impatience.metrics.base import METRICS, Aggregate, Column, Metric, Prediction

__all__ = ["METRICS", "Aggregate", "Column", "Metric", "Prediction"]
