"""SciTLDR: abstract to one sentence; an abstract with several references gives one example for each.

``meta["reference"]`` and the end of the id hold the number of the reference.
"""

from impatience.data._built import BuiltSet

DATASET = BuiltSet(
    name="scitldr",
    summary="Abstract of a computer science paper to one sentence, about 20 words, several references each",
    licence="Apache-2.0",
)
