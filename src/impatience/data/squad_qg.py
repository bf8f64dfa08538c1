"""The development set of SQuAD 1.1, split again by article: answer and passage to the question."""

from impatience.data._built import BuiltSet

DATASET = BuiltSet(
    name="squad_qg",
    summary="Answer and passage to the question, about 10 words; not comparable with published SQuAD figures",
    licence="CC-BY-SA-4.0",
)
