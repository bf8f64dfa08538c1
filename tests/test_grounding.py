"""Foreign words: names and numbers that a source does not have."""

from impatience.grounding import foreign_words

SOURCE = "Anna Bergström runs a bakery in Voss. It sells 1,200 loaves a week."


def test_names_and_numbers_of_the_source_are_known() -> None:
    assert foreign_words("The bakery of Bergström in Voss sells 1200 loaves.", SOURCE) == ()


def test_names_and_numbers_that_the_source_lacks_are_foreign() -> None:
    assert foreign_words("The bakery in Oslo sells 900 loaves.", SOURCE) == ("Oslo", "900")
