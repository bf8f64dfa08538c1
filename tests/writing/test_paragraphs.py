"""Lines of pages become paragraphs; hyphenation is undone where that is safe."""

from __future__ import annotations

import pytest

from impatience.writing.paragraphs import join_lines

TWO = """The ferry to the island leaves at seven in the
morning and comes back before the shops shut.
It carries cars.
In winter it stays in the harbour, and its crew
paints the hull."""


def test_lines_are_joined_and_paragraphs_kept() -> None:
    assert join_lines([TWO]).split("\n\n") == [
        "The ferry to the island leaves at seven in the morning and comes back before the shops shut. It carries cars.",
        "In winter it stays in the harbour, and its crew paints the hull.",
    ]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("", ""),
        ("One line", "One line"),
        ("Timetable\nThe ferry leaves at seven in the morning\nand comes back.", "Timetable\n\n{} and comes back."),
        ("{}\n\nand comes back.", "{} and comes back."),
        ("{}.\n\nand so on", "{}.\n\nand so on"),
        ("{}:\n• a car\n• a bus and\na van", "{}:\n\n• a car\n\n• a bus and a van"),
        ("{}:\n1. A car\n2. A bus", "{}:\n\n1. A car\n\n2. A bus"),
        (
            "It stands on the last page, on page\n12. The end.",
            "It stands on the last page, on page 12. The end.",
        ),
        (
            "渡船七点离开港口，商店关门前回来。\n冬天它留在港口。",
            "渡船七点离开港口，商店关门前回来。冬天它留在港口。",
        ),
    ],
)
def test_breaks_stay_where_the_author_made_them(page: str, text: str) -> None:
    line = "The ferry leaves at seven in the morning"
    assert join_lines([page.replace("{}", line)]) == text.replace("{}", line)


@pytest.mark.parametrize(
    ("page", "word"),
    [
        ("The ferry has a re-\ngistered crew.", "registered"),
        ("The information is new. All infor-\nmation is here.", "All information"),
        ("A well-known ferry, and a well-\nknown crew.", "a well-known crew"),
        ("It is known to work well. A well-\nknown ferry.", "well-known"),
        ("The years 2019-\n2020 were long.", "2019-2020"),
        ("The Anglo-\nSaxon crew.", "Anglo-Saxon"),
        ("Nord- und Süd-\nund Westseite", "Süd- und Westseite"),
        ("The pre-\nand post-war years", "pre- and post-war"),
        ("It is up-\nto-date", "up-to-date"),
        ("The o\ufb03ce is old.", "office"),
        ("The fer\u00ad\nry is old.", "The ferry is old."),
        ("The fer\u00adry is -\nas you know - old.", "The ferry is - as you know"),
    ],
)
def test_hyphens_at_the_end_of_a_line_go_where_that_is_safe(page: str, word: str) -> None:
    assert word in join_lines([page])
    assert "\n" not in join_lines([page])


def test_sentences_go_on_over_pages_and_their_numbers() -> None:
    pages = ["1\nThe ferry leaves at seven in the morning and it", "comes back.\n- 2 -", "", "3\nThe end."]
    assert join_lines(pages).startswith("The ferry leaves at seven in the morning and it comes back.")
    assert join_lines(pages).endswith("The end.")
    assert join_lines(["2024\nwas dry."]) == "2024 was dry."


def test_a_book_is_joined_line_by_line() -> None:
    """To look at the whole text before each line would take hours."""
    page = "The ferry leaves at seven in the morning and has a re-\ngistered crew, and it goes on to Holm."
    assert join_lines([page] * 20_000).count(" a registered crew, ") == 20_000
