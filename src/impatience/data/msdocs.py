"""Pages of .NET and SQL documentation to the description in their front matter."""

from impatience.data._built import BuiltSet

DATASET = BuiltSet(
    name="msdocs",
    summary="Page of .NET or SQL documentation to its description, about 18 words; formulaic",
    licence="CC-BY-4.0",
)
