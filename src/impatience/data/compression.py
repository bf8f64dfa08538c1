"""Sentence compression: a sentence of a news article to a shorter one, made of its words."""

from impatience.data._built import Benchmark

DATASET = Benchmark(
    name="compression",
    summary="Sentence to a shorter one, about 10 words; for measuring only",
    licence="none stated",
)
