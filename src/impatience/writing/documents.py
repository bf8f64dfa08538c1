"""Documents: read texts from plain text, Markdown, HTML and PDF files, and from standard input."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from impatience.errors import SourceError
from impatience.registry import is_installed, require
from impatience.writing.paragraphs import join_lines

_HIDDEN = ("script", "style", "noscript", "template", "svg", "nav", "header", "footer", "aside", "form", "head")
"""Elements of a page that are not part of its text."""
_INLINE = ("a", "abbr", "b", "cite", "code", "em", "i", "mark", "q", "s", "small", "span", "strong", "sub", "sup", "u")
"""Elements inside a line; any other starts a paragraph."""


def read(name: str) -> str:
    """Return the text of a file.

    Args:
        name: A path. Its suffix is its format: .html, .htm, .pdf, or anything else for plain text.
            ``"-"`` is standard input.

    Raises:
        SourceError: If the file does not exist, or has no text.
        OptionError: If reading it needs a package that is not installed.
    """
    what = "standard input" if name == "-" else repr(name)
    if not name:
        raise SourceError("The name of a file is empty. Name a text file, or - for standard input.")
    try:
        content = _stdin() if name == "-" else Path(name).expanduser().read_bytes()
    except FileNotFoundError:
        raise SourceError(f"There is no file {name!r}. Name a text file, or - for standard input.") from None
    except IsADirectoryError:
        raise SourceError(f"{name!r} is a folder. Name the files in it, e.g. {name.rstrip('/')}/*.txt.") from None
    except OSError as error:
        raise SourceError(f"{what} cannot be read: {error.strerror}.") from None
    except (RuntimeError, ValueError) as error:  # ~name of an unknown user; a byte that no name may have
        raise SourceError(f"{what} is no name of a file: {error}. Name a text file.") from None
    return read_content(content, name)


def read_content(content: bytes, name: str) -> str:
    """Return the text of a file's content; the errors are those of ``read``."""
    what = "standard input" if name == "-" else repr(name)
    text = {"pdf": _pdf, "html": _html, "text": _plain}[format_of(content, name)](content, what)
    if not text.strip():
        advice = " Name a file, or pipe a text into the command." if name == "-" else ""
        raise SourceError(f"{what} is empty: there is no text in it.{advice}")
    return text


def format_of(content: bytes, name: str) -> str:
    """Return the format of a file: "pdf", "html" or "text"."""
    if content.startswith(b"%PDF-") or name.lower().endswith(".pdf"):
        return "pdf"
    return "html" if name.lower().endswith((".html", ".htm")) else "text"


def readable_formats() -> list[str]:
    """Return the formats that can be read besides plain text, with the packages that are installed."""
    return [name for name, package in (("html", "bs4"), ("pdf", "pypdf")) if is_installed(package)]


def read_piped() -> str:
    """Return the text that is piped into standard input; empty if it is a terminal, or nothing comes."""
    if sys.stdin is None or sys.stdin.isatty() or not (content := _stdin()).strip():
        return ""
    return read_content(content, "-")


def _stdin() -> bytes:
    """Read standard input; a replacement of ``sys.stdin`` may have text only, and it may be closed."""
    if sys.stdin is None:
        return b""
    if isinstance(sys.stdin, io.TextIOWrapper):
        return bytes(sys.stdin.buffer.read())
    return sys.stdin.read().encode(errors="surrogatepass")


def _plain(content: bytes, what: str) -> str:
    """Decode a text in UTF-8, or in UTF-16 if it has a byte order mark."""
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{what} is not a text file in {'UTF-16' if wide else 'UTF-8'} (byte {error.start + 1:,} cannot be read). "
            f"Save it as UTF-8, e.g. iconv -f latin1 -t utf-8; of a document, save the text first."
        ) from None
    if "\0" in text:
        raise SourceError(f"{what} is not a text file: it has bytes of value 0. Save its text first.")
    return text


def _html(content: bytes, what: str) -> str:
    require("bs4", f"Reading {what}")
    from bs4 import BeautifulSoup

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the markup, which a reader cannot change
        page = BeautifulSoup(_utf8(content), "html.parser")
    inside = set[int]()  # tags inside an article
    for tag in page.find_all(True):
        if (parent := tag.parent) and (parent.name == "article" or id(parent) in inside):
            inside.add(id(tag))
    articles = [article for article in page.find_all("article") if id(article) not in inside]
    body = articles[0] if len(articles) == 1 else page.find("main") or page.body or page
    for tag in body.find_all(_HIDDEN):
        tag.decompose()
    return "\n\n".join(filter(None, (" ".join("".join(parts).split()) for parts in _paragraphs(body))))


def _utf8(content: bytes) -> str | bytes:
    """Decode a page that is UTF-8 and names no encoding; what is left is guessed, which fails for short pages."""
    from bs4.dammit import EncodingDetector

    with suppress(UnicodeDecodeError):
        if b"\0" not in content and not EncodingDetector.find_declared_encoding(content, is_html=True):
            return content.decode("utf-8-sig")
    return content


def _paragraphs(body: Any) -> Iterator[list[str]]:
    """Yield the strings of each paragraph, which ends where a block begins or ends, in one pass over all of them."""
    from bs4.element import CData, NavigableString, Tag

    block = {id(body): body}  # of each tag the nearest one that is a block, itself included
    parts: list[str] = []
    last = body
    for node in body.descendants:
        within = block[id(node.parent)]
        if isinstance(node, Tag):
            block[id(node)] = within if node.name in _INLINE else node
            within = block[id(node)]
        elif type(node) not in (NavigableString, CData):
            continue
        if within is not last:
            yield parts
            parts, last = [], within
        if not isinstance(node, Tag):
            parts.append(str(node))
    yield parts


def _pdf(content: bytes, what: str) -> str:
    require("pypdf", f"Reading {what}")
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns about every mistake in a file
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise SourceError(f"{what} is locked with a password. Save a copy without one.")
        pages = [page.extract_text() for page in reader.pages]
    except SourceError:
        raise
    except DependencyError as error:
        raise SourceError(f"{what} is encrypted in a way that needs another package ({error}).") from error
    except Exception as error:  # a damaged file can raise anything
        raise SourceError(f"{what} cannot be read as a PDF ({error}). Save its text first.") from error
    text = join_lines(pages)
    if not text:
        count = "1 page" if len(pages) == 1 else f"{len(pages)} pages"
        raise SourceError(
            f"{what} has {count} and no text: a scan, perhaps. Run it through text recognition first, e.g. ocrmypdf."
        )
    return text
