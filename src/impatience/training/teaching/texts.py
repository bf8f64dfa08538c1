"""The user's texts: files as ``impatience write`` reads them, and the column ``text`` or ``source`` of data files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from impatience.data import read_rows
from impatience.data._reading import is_data_file
from impatience.errors import DataError
from impatience.writing import documents

MOST_WORDS = 700  # words of one text; a longer one is divided between paragraphs, a longer paragraph cut
LEAST_WORDS = 40


def read_texts(files: Iterable[str]) -> list[str]:
    """Return the texts of files, in pieces that a model reads while it is taught; short ones are left out."""
    pieces = [piece for file in files for text in _texts(file) for piece in divide(text)]
    return list(dict.fromkeys(pieces))


def _texts(file: str) -> Iterator[str]:
    if not is_data_file(file):
        yield documents.read(file)
        return
    for where, row in read_rows(Path(file), like='{"text": …}'):
        text = row.get("text", row.get("source"))
        if not isinstance(text, str):
            raise DataError(f"{where}: there is no text in the column 'text' or 'source'.")
        yield text


def divide(text: str) -> Iterator[str]:
    """Yield pieces of whole paragraphs with at most ``MOST_WORDS`` words."""
    piece: list[str] = []
    for paragraph in [*filter(str.strip, text.split("\n")), ""]:
        size = sum(len(part.split()) for part in piece)
        if piece and (not paragraph or size + len(paragraph.split()) > MOST_WORDS):
            if size >= LEAST_WORDS:
                yield "\n\n".join(piece)
            piece = []
        piece.append(" ".join(paragraph.split()[:MOST_WORDS]))
