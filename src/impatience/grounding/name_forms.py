"""Forms of a name: Norway, Norwegian, Norwegians; but neither Maria and Mario nor Niger and Nigeria.

Names that begin alike are mostly names of different people, so only listed endings tell forms of one apart. Irregular
pairs, such as Danes and Denmark, are among the words that name the same.
"""

from __future__ import annotations

from functools import lru_cache

from impatience.grounding.words import table

_ADDED = table("name_endings")["added"]
_SWAPPED = [pair.split("-") for pair in table("name_endings")["swapped"]]
_SHORTEST = 3  # letters of a name before its ending


@lru_cache(65_536)
def are_name_forms(one: str, other: str) -> bool:
    """Check whether two folded words are forms of the same name."""
    return not _singulars(one).isdisjoint(_singulars(other)) or _derives(one, other) or _derives(other, one)


def _singulars(name: str) -> set[str]:
    """Return a name, and what it may be the plural or the genitive of."""
    found = {name}
    if name.endswith("s") and len(name) > _SHORTEST:
        found.add(name[:-1])
    if name.endswith("ies") and len(name) > _SHORTEST + 2:
        found.add(name[:-3] + "y")
    if name.endswith(("ches", "shes", "sses", "xes")):
        found.add(name[:-2])
    return found


def _derives(name: str, derived: str) -> bool:
    """Check whether one name, or its plural, is made of the other with a listed ending."""
    return any(form in _derived(base) for form in _singulars(derived) for base in _singulars(name))


@lru_cache(65_536)
def _derived(name: str) -> frozenset[str]:
    found = {name + ending for ending in _ADDED}
    for old, new in _SWAPPED:
        if name.endswith(old) and len(name) >= len(old) + _SHORTEST:
            found.add(name[: len(name) - len(old)] + new)
    return frozenset(found)
