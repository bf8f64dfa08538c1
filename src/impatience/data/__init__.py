"""Data sets, one file each; the file name is the set's name."""

from impatience.data._encoding import IGNORED, Encoder, collate, pad_labels, pad_prompts
from impatience.data._reading import file_checksum, read_rows
from impatience.data._report import DataStats, length_stats, show_examples
from impatience.data._requests import MOST, Request
from impatience.data._templates import TASKS, TEMPLATES, instruct
from impatience.data.base import DATASETS, Dataset, Example, Spec, checksum, load

__all__ = [
    "DATASETS",
    "IGNORED",
    "MOST",
    "TASKS",
    "TEMPLATES",
    "DataStats",
    "Dataset",
    "Encoder",
    "Example",
    "Request",
    "Spec",
    "checksum",
    "collate",
    "file_checksum",
    "instruct",
    "length_stats",
    "load",
    "pad_labels",
    "pad_prompts",
    "read_rows",
    "show_examples",
]
