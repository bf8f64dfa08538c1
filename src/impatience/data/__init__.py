"""Data sets, one file each; the file name is the set's name."""

from impatience.data.base import DATASETS, Dataset, Example, Spec, checksum, load

__all__ = ["DATASETS", "Dataset", "Example", "Spec", "checksum", "load"]
