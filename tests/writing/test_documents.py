"""Files that texts are read from, and the command that writes from them."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.errors import DependencyError
from rich.console import Console

from impatience import attach
from impatience.cli import commands, live_text
from impatience.errors import OptionError, SourceError
from impatience.writing import documents
from support.toys import CORPUS, byte_level_tokenizer, tiny_model

PAGE = """<!doctype html><html><head><title>Shop</title><style>p {color: red}</style></head><body>
<nav>Home | About</nav><main><h1>The  baker</h1><p>Warm <b>bre</b>ad &amp; salt.<br>Daily.</p>
<script>alert(1)</script><ul><li>One</li><li>Two</li></ul></main><footer>Imprint</footer></body></html>"""


def pdf(*lines: str, pages: int = 1) -> bytes:
    """Make a PDF by hand, with the same lines on each page."""
    shown = " ".join(f"({line}) Tj T*" for line in lines)
    stream = f"BT /F1 12 Tf 14 TL 40 700 Td {shown} ET".encode()
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(pages))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n in range(pages):
        fonts = "<< /Font << /F1 3 0 R >> >>"
        box = f"/MediaBox [0 0 612 792] /Resources {fonts} /Contents {5 + 2 * n} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R {box} >>".encode())
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    out, places = io.BytesIO(), []
    out.write(b"%PDF-1.4\n")
    for number, content in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, content))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % place for place in places))
    out.write(b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))
    return out.getvalue()


def locked(content: bytes, password: str) -> bytes:
    out = io.BytesIO()
    writer = PdfWriter(clone_from=io.BytesIO(content))
    writer.encrypt(password, algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", "Café ☕".encode(), "Café ☕"),
        ("bom.txt", b"\xef\xbb\xbfhello", "hello"),
        ("wide.txt", "Über".encode("utf-16"), "Über"),
        ("a.md", b"# Title\n\nText.", "# Title\n\nText."),
        ("noname", "وصلت السفينة 🚀".encode(), "وصلت السفينة 🚀"),
        ("a.html", PAGE.encode(), "The baker\n\nWarm bread & salt.\n\nDaily.\n\nOne\n\nTwo"),
        ("blog.html", b"<nav>Menu</nav><article>One.</article><article>Two.</article>", "One.\n\nTwo."),
        ("post.html", b"<main>Ad<article>One.<article>A reply.</article></article></main>", "One.\n\nA reply."),
        (
            "nested.html",
            b"<div>One <b>bold<br>two</b><div>three</div>four</div>five<!-- six -->",
            "One bold\n\ntwo\n\nthree\n\nfour\n\nfive",
        ),
        ("deep.html", b"<div>x" * 3000, "\n\n".join("x" * 3000)),
        ("latin.HTM", '<meta charset="latin-1"><p>Caf\xe9</p>'.encode("latin-1"), "Café"),
        ("a.pdf", pdf("The ferry leaves", "at seven."), "The ferry leaves at seven."),
        ("unlocked.pdf", locked(pdf("May be read, not changed"), ""), "May be read, not changed"),
        ("pdf.bin", pdf("Found by its first bytes"), "Found by its first bytes"),
    ],
)
def test_texts_are_read(name: str, content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert documents.read(str(tmp_path / name)) == text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9 noir", "not a text file in UTF-8 .byte 4"),
        ("a.png", b"\x89PNG\xff\xfe", "not a text file"),
        ("zeros", b"text\0text", "bytes of value 0"),
        ("a.txt", b" \n\t", "empty"),
        ("a.html", b"<script>x</script>", "empty"),
        ("a.pdf", b"this is no PDF", "cannot be read as a PDF"),
        ("cut.pdf", pdf("text")[:200], "PDF"),
        ("locked.pdf", locked(pdf("text"), "sesame"), "locked with a password"),
        ("wound.pdf", pdf("text").replace(b"/Count 1", b"/Count x").replace(b"[4 0 R]", b"<44>"), "PDF"),
        ("scan.pdf", pdf(pages=3), "3 pages and no text"),
        ("page.pdf", pdf(pages=1), "1 page and no text"),
    ],
)
def test_what_holds_no_text_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        documents.read(str(tmp_path / name))


def test_standard_input_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, message in (
        (b"\n", "standard input is empty: there is no text in it. Name a file, or pipe a text into the command."),
        (b"caf\xe9", "standard input is not a text file in UTF-8"),
        (b"%PDF-nonsense", "standard input cannot be read as a PDF"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        with pytest.raises(SourceError, match=f"^{message}"):
            documents.read("-")


def test_an_encryption_that_needs_another_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(*args: Any, **kwargs: Any) -> None:
        raise DependencyError("cryptography is required")

    monkeypatch.setattr("pypdf.PdfReader.decrypt", needs)
    (tmp_path / "a.pdf").write_bytes(locked(pdf("text"), "sesame"))
    with pytest.raises(SourceError, match=r"needs another package [(]cryptography"):
        documents.read(str(tmp_path / "a.pdf"))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=9), st.integers(0, 700))
def test_a_damaged_pdf_gives_a_text_or_a_message(damage: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(pdf("The ferry leaves", "at seven."))
    for place, byte in damage:
        content[place % len(content)] = byte
    with suppress(SourceError):
        assert documents._pdf(bytes(content[: len(content) - cut // 10]), "a.pdf")


def test_folders_missing_files_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="is a folder"):
        documents.read(str(tmp_path))
    with pytest.raises(SourceError, match="There is no file"):
        documents.read(str(tmp_path / "nowhere"))
    (tmp_path / "a.html").write_text(PAGE)
    monkeypatch.setattr("impatience.registry.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r'needs the package bs4: pip install -e "\.\[write\]"'):
        documents.read(str(tmp_path / "a.html"))


# impatience write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_level_tokenizer()
    tokenizer.model_max_length = 2048
    base = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=2048)
    attach(base, "none", tokenizer=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def command(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(CORPUS[0], encoding="utf-8")
    (tmp_path / "b.txt").write_text(CORPUS[1], encoding="utf-8")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["impatience", "write", *arguments, "--model", str(model)])
        code = 0
        try:
            commands.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


def test_several_files_and_lengths(command: Any) -> None:
    code, out, err = command("a.txt", "b.txt", "--words", "3,5", "--exact")
    assert code == 0
    heads = [line for line in out.splitlines() if line.startswith("== ")]
    assert heads == [f"== {file}, {count} words ==" for file in ("a.txt", "b.txt") for count in (3, 5)]
    assert err.count("asked for. The ending was forced") == 4
    code, out, err = command("a.txt", "b.txt", "--words", "3,5", "--exact", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["file"], row["length"], row["unit"], row["parts"]) for row in rows] == [
        (file, count, "words", 1) for file in ("a.txt", "b.txt") for count in (3, 5)
    ]
    assert err == ""
    code, out, err = command("a.txt", "--ratio", "0.5", "--at-most", "--json", "-q")
    assert json.loads(out)["target"] == 8


def test_a_file_that_cannot_be_used_does_not_stop_the_rest(command: Any) -> None:
    code, out, err = command("nowhere.txt", "a.txt", "--words", "3", "--exact", "-q")
    assert (code, len(out.split())) == (1, 3)
    assert err == "impatience: There is no file 'nowhere.txt'. Name a text file, or - for standard input.\n"
    code, out, err = command("nowhere.txt", "nor.txt", "--words", "3")
    assert (code, out) == (2, "")
    assert err.count("There is no file") == 2


def test_a_text_that_the_model_cannot_write_does_not_stop_the_rest(command: Any) -> None:
    code, out, err = command("a.txt", "b.txt", "--words", "3,9000", "--exact", "--json")
    assert (code, [json.loads(line)["file"] for line in out.splitlines()]) == (1, ["a.txt", "b.txt"])
    assert err.splitlines()[0].startswith("impatience: a.txt, 9,000 words: 9,000 words are more than this model")
    code, out, err = command("a.txt", "b.txt", "--words", "9000")
    assert (code, out, err.count("impatience: ")) == (2, "", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ratio", "0"], "--ratio 0: give a share"),
        (["--ratio", "nan"], "--ratio nan"),
        (["--words", "4,x"], "--words 4,x: give whole numbers"),
        (["--words", "1" * 5000], "give whole numbers of at least 1"),
        (["--words", "1" * 30], "give a whole number from 1 to 10,000,000"),
        (["--words", "3", "--natural", "--exact"], "--natural and --exact: choose one"),
        (["--words", "3", "--task", "sing"], "There is no task 'sing'"),
        (["--words", "9000"], "9,000 words are more than this model can write"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], message: str, command: Any) -> None:
    code, out, err = command("a.txt", *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "'empty.txt' is empty: there is no text in it."),
        ("blank.md", b" \n\n\t", "'blank.md' is empty"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "'picture.png' is not a text file in UTF-8"),
        ("program", b"\x7fELF\x02\x01\x01\0\0\0", "'program' is not a text file: it has bytes of value 0"),
        ("scan.pdf", pdf(pages=2), "'scan.pdf' has 2 pages and no text"),
        ("half.txt", b"\xff\xfe\x3d\xd8", "'half.txt' is not a text file in UTF-16 (byte 3"),
    ],
)
def test_files_without_a_text_end_with_a_message(name: str, content: bytes, message: str, command: Any) -> None:
    Path(name).write_bytes(content)
    code, out, err = command(name, "--words", "30")
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "The name of a file is empty"),
        ("~nobody-here/a.txt", "'~nobody-here/a.txt' is no name of a file"),
        ("a\0b", "is no name of a file"),
        (".", "'.' is a folder"),
    ],
)
def test_names_of_no_file_end_with_a_message(name: str, message: str, command: Any) -> None:
    code, out, err = command(name, "--words", "3")
    assert (code, out) == (2, "")
    assert message in err


def test_closed_standard_input_is_empty(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = command("--words", "3")
    assert code == 2
    assert "standard input is empty" in err


TEXTS = {
    "five words": "The cat sat very still.",
    "Chinese": "今天早上港口下了大雪,渡船没有开。我们在港口等渡船,等了一个早上。",
    "Arabic": "وصلت السفينة إلى الميناء في الصباح الباكر.",
    "Hebrew": "הסירה הגיעה לנמל מוקדם בבוקר.",
    "emoji": "👩‍🚀🚀🎂👍🏽❤️",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("option", [["--words", "60"], ["--chars", "40"], ["--ratio", "0.5"]], ids="".join)
def test_any_script_and_a_target_longer_than_the_source(text: str, option: list[str], command: Any) -> None:
    Path("c.txt").write_text(text, encoding="utf-8")
    code, out, _ = command("c.txt", *option, "--exact", "--json")
    row = json.loads(out)
    assert code == 0
    assert (
        row["length"]
        == row["target"]
        == {"words": len(row["text"].split()), "characters": len(row["text"])}[row["unit"]]
    )


@pytest.mark.slow
def test_three_hundred_words_from_five(command: Any) -> None:
    Path("c.txt").write_text(TEXTS["five words"], encoding="utf-8")
    code, out, _ = command("c.txt", "--words", "300", "--exact", "-q")
    assert (code, len(out.split())) == (0, 300)


def test_fifty_pages_of_pdf(command: Any) -> None:
    Path("book.pdf").write_bytes(pdf(*CORPUS[:12], pages=50))
    code, out, err = command("book.pdf", "--words", "30", "--exact")
    assert (code, len(out.split())) == (0, 30)
    assert "parts, each was written shorter, and the whole was written from those" in err


def test_write_on_a_terminal_watches(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(pieces: Any, console: Console) -> Any:
        *some, result = pieces
        seen.extend(some)
        return result

    monkeypatch.setattr(live_text, "watch", watched)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, out, _ = command("a.txt", "--words", "4", "--exact", "--tries", "1")
    assert code == 0
    assert "".join(piece.text for piece in seen) == out.rstrip("\n")
    seen.clear()
    code, out, _ = command("a.txt", "--words", "4", "--exact")
    assert (code, len(out.split())) == (0, 4)
    assert [re.sub(r", \d+ not in the source", "", piece.stage) for piece in seen if piece.stage] == [
        f"{seen[-1].progress} of 4 words, not finished; trying 3 other endings",
        f"{seen[-1].progress} of 4 words, not finished; trying 5 other endings",
        "no good one ended there by itself; holding one to 4 words",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_short_page_is_read_in_its_encoding(encoding: str) -> None:
    assert documents.read_content("<p>5 € – 7 €</p>".encode(encoding), "a.html") == "5 € – 7 €"
    declared = '<meta charset="iso-8859-1"><p>Zürich</p>'
    assert documents.read_content(declared.encode("iso-8859-1"), "a.html") == "Zürich"
