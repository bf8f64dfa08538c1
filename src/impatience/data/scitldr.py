"""SciTLDR: abstract to one sentence; an abstract with several references gives an example for each.

``meta["reference"]`` says which of an abstract's references it is, and so does the end of the id.
"""

from impatience.data._built import BuiltSet

DATASET = BuiltSet(
    name="scitldr",
    summary="Abstract of a computer science paper to one sentence, about 20 words, several references each",
    licence="Apache-2.0",
)
