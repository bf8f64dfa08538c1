"""FairytaleQA: answer and section of a fairy tale to the question."""

from impatience.data._built import BuiltSet

DATASET = BuiltSet(
    name="fairytale_qg",
    summary="Answer and section of a fairy tale to the question, about 10 words",
    licence="Apache-2.0",
)
