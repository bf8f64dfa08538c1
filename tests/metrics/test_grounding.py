"""Grounding: foreign words, and support and gains against a tiny language model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from impatience.backends.llama_cpp import library
from impatience.errors import ModelFilesError, OptionError
from impatience.grounding import support, torch_reading
from impatience.grounding.reading import Row
from impatience.grounding.support import QUESTION, SupportReader
from impatience.grounding.torch_reading import TorchReader
from impatience.metrics import _decoder
from impatience.metrics.grounding import Grounding
from impatience.sources import PACKAGED
from support.predictions import aggregates, prediction
from support.toys import CHAT_TEMPLATE, TOKENIZERS, tiny_model

SOURCE = "Anna Bergström runs a bakery in Voss. It sells 1,200 loaves a week."
PAIRS = [
    (SOURCE, "Anna sells loaves."),
    ("The ferry is late.", "A ferry, perhaps two, left Voss before seven."),
    (SOURCE, "It."),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, tokenizer = tmp_path_factory.mktemp("reader"), TOKENIZERS["byte_level"]()
    tokenizer.save_pretrained(folder)
    tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512).save_pretrained(folder)
    return str(folder)


def reader(folder: str, context: int | None = None, chat: bool = False) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    return SupportReader(TorchReader(AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer), context)


def logits(one: Any, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = one.model.model(torch.tensor([ids])).logits[0]
    return found


class Scripted:
    """A model that finds each token as likely as a script says, and keeps the rows that it was asked."""

    def __init__(self, chances: dict[int, float]) -> None:
        self.tokenizer, self.chances, self.rows = TOKENIZERS["byte_level"](), chances, list[Row]()

    def log_chances(self, rows: Any) -> list[list[list[float]]]:
        self.rows += rows
        return [[[math.log(self.chances.get(i, 0.001)) for i in ids] for ids in row.tokens] for row in rows]


def test_a_model_is_asked_all_at_once_and_what_rows_share_is_the_source() -> None:
    model = Scripted({})
    one = SupportReader(model)
    model.chances = {**dict.fromkeys(one._yes, 0.3 / len(one._yes)), **dict.fromkeys(one._no, 0.1 / len(one._no))}
    values, words = one.measure([(SOURCE, "It is."), (SOURCE, "So.")], [(SOURCE, "Loaves sell.")])
    assert values == pytest.approx([0.75, 0.75])
    assert [word.word for word in words[0]] == ["Loaves", "sell"]
    first, second, informed, blind = model.rows
    assert first.shared == second.shared == informed.shared > 0
    head = first.ids[: first.shared]
    assert head == second.ids[: first.shared] == informed.ids[: first.shared]
    assert model.tokenizer.decode(head).startswith(f"user: Text:\n{SOURCE}")
    assert 0 < blind.shared <= min(blind.places)
    assert SOURCE not in model.tokenizer.decode(blind.ids)


def test_foreign_texts_are_counted_without_a_model() -> None:
    texts = ["The bakery in Voss sells loaves.", "The bakery in Oslo sells 900 loaves.", ""]
    predictions = [prediction(text, source=SOURCE) for text in texts] + [prediction("Oslo.", source=" ")]
    scores = Grounding().score(predictions)
    assert scores["foreign"][:3] == [0.0, 1.0, 0.0]
    assert scores["foreign_words"][:3] == [0.0, 2.0, 0.0]
    assert math.isnan(scores["foreign"][3])  # nothing to be foreign to
    assert all(map(math.isnan, scores["support"] + scores["support_lowest"] + scores["gain"]))
    assert aggregates(Grounding(), predictions[:2])["foreign"] == pytest.approx(0.5)
    assert Grounding().facts() == {"model": None}


@pytest.mark.parametrize("chat", [False, True])
def test_support_is_the_share_of_yes_among_yes_and_no(folder: str, chat: bool) -> None:
    one = reader(folder, chat=chat)
    expected = []
    for source, said in PAIRS:
        question = QUESTION.format(text=source, statement=said)
        text = f"user: {question}\nassistant: " if chat else f"{question}\nAnswer:"
        chances = logits(one, one.tokenizer(text).input_ids)[-1].softmax(-1)
        yes, no = (
            {one.tokenizer(form).input_ids[0] for form in (word, word.lower(), f" {word}", f" {word.lower()}")}
            for word in ("Yes", "No")
        )
        of_yes, of_no = (chances[sorted(ids)].sum().item() for ids in (yes - no, no - yes))
        expected.append(of_yes / (of_yes + of_no))
    assert one.support(PAIRS) == pytest.approx(expected, abs=1e-5)
    assert one.support([]) == []


def test_a_gain_is_what_the_source_adds_to_the_likelihood_of_a_word(folder: str) -> None:
    one = reader(folder)
    source, said = PAIRS[1]
    words = one.gains(PAIRS)[1]
    assert [word.word for word in words] == ["ferry", "perhaps", "left", "Voss", "seven"]

    def likelihood(before: str, text: str, word: str) -> float:
        encode = lambda piece: one.tokenizer(piece, add_special_tokens=False).input_ids  # noqa: E731
        pieces = [encode(before), *(encode(piece) for _, piece in support.split(text))]
        place = 1 + [name for name, _ in support.split(text)].index(word)
        head = [token for piece in pieces[:place] for token in piece]
        odds = logits(one, head + pieces[place]).log_softmax(-1)
        return sum(odds[len(head) - 1 + k, token].item() for k, token in enumerate(pieces[place]))

    for word in words:
        informed, blind = (
            likelihood(before, said, word.word) for before in (f"Text:\n{source}\n\nSummary:", "Summary:")
        )
        assert (word.informed, word.blind) == pytest.approx((informed, blind), abs=1e-4)
        assert word.gain == pytest.approx(informed - blind, abs=1e-4)
    assert one.gains(PAIRS)[2] == []


def test_texts_read_together_are_read_as_alone(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = reader(folder).support(PAIRS), reader(folder).gains(PAIRS)
    monkeypatch.setitem(torch_reading._BATCH_ROWS, "cpu", 1)
    alone = reader(folder)
    assert together[0] == pytest.approx(alone.support(PAIRS), abs=1e-5)
    for a, b in zip(together[1], alone.gains(PAIRS), strict=True):
        assert [word.gain for word in a] == pytest.approx([word.gain for word in b], abs=1e-4)


def test_no_more_of_a_source_is_read_than_the_context(folder: str) -> None:
    short = reader(folder, context=5)
    beginning = short._cut([SOURCE])[0]
    assert SOURCE.startswith(beginning)
    assert len(short.tokenizer(beginning).input_ids) == 5
    assert short.support([(SOURCE, "It.")]) == pytest.approx(reader(folder).support([(beginning, "It.")]))


def test_a_text_has_the_mean_and_the_lowest_support_of_its_sentences(folder: str) -> None:
    metric = Grounding(model=folder)
    text = "Anna sells loaves. The ferry is late."
    scores = metric.score([prediction(text, source=SOURCE), prediction("", source=SOURCE)])
    values = metric.reader.support([(SOURCE, "Anna sells loaves."), (SOURCE, "The ferry is late.")])
    assert scores["support"][0] == pytest.approx(sum(values) / 2)
    assert scores["support_lowest"][0] == pytest.approx(min(values))
    words = metric.reader.gains([(SOURCE, text)])[0]
    assert [word.word for word in words] == ["Anna", "sells", "loaves", "ferry", "late"]
    assert scores["gain"][0] == pytest.approx(sum(word.gain for word in words) / 5, abs=1e-5)
    assert math.isnan(scores["support"][1])
    assert metric.facts() == {"model": folder, "backend": "", "context": 2048}
    metric.check()


def test_every_text_is_cut_into_all_of_its_characters() -> None:
    for _, text in PAIRS:
        assert "".join(piece for _, piece in support.split(text)) == text
    assert support.split("") == []


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="context=0"):
        Grounding(context=0)
    with pytest.raises(ModelFilesError, match="grounding: the language model"):
        Grounding(model=str(tmp_path)).check()
    tiny_model("t5").save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="encoder-decoder"):
        Grounding(model=str(tmp_path)).check()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same model as a GGUF file and as a folder."""
    from support.tiny_gguf import write_tiny_gguf

    folder = tmp_path_factory.mktemp("both")
    write_tiny_gguf(folder / "tiny.gguf", folder / "model")
    return str(folder / "tiny.gguf"), str(folder / "model")


def test_llama_cpp_reads_as_torch_does(both: tuple[str, str]) -> None:
    by_llama, by_torch = (Grounding(model=model, context=40).reader.measure(PAIRS, PAIRS) for model in both)
    assert by_llama[0] == pytest.approx(by_torch[0], abs=1e-3)
    for one, other in zip(by_llama[1], by_torch[1], strict=True):
        assert [word.informed for word in one] == pytest.approx([word.informed for word in other], abs=0.02)
        assert [word.blind for word in one] == pytest.approx([word.blind for word in other], abs=0.02)


def test_a_source_is_read_once_and_scores_depend_on_nothing_else(
    both: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from impatience.backends.llama_cpp.model import Context

    alone = [Grounding(model=both[0]).reader.measure([pair], [pair]) for pair in PAIRS]
    read, counts = Context.read, list[int]()

    def counting(context: Context, ids: Any, places: Any = ()) -> Any:
        counts.append(0 if places else len(ids))
        return read(context, ids, places)

    monkeypatch.setattr(Context, "read", counting)
    one = Grounding(model=both[0]).reader
    values, words = one.measure(PAIRS, PAIRS)
    assert values == [value for (value,), _ in alone]
    assert words == [word for _, (word,) in alone]
    heads = {head.shared for head in one._heads([source for source, _ in PAIRS]).values()}
    blind = one._blind_head.shared
    assert sorted(filter(None, counts)) == sorted([*heads, blind])


def test_the_library_is_chosen_by_the_model_or_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "qwen2.5-coder-1.5b-instruct"
    monkeypatch.setattr(library, "find_spec", lambda _: object())
    assert _decoder._gguf_file("grounding", name, "") is PACKAGED[name]
    assert _decoder._gguf_file("grounding", name, "transformers") is None
    assert _decoder._gguf_file("grounding", folder, "") is None
    with pytest.raises(ModelFilesError, match=r"There is no file 'no\.gguf'"):
        Grounding(model="no.gguf").check()
    with pytest.raises(ModelFilesError, match="GGUF"):
        Grounding(model=folder, backend="llama.cpp").check()
    with pytest.raises(OptionError, match="backend='llama'"):
        Grounding(model=folder, backend="llama").check()
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    monkeypatch.delenv("IMPATIENCE_LLAMA_CPP", raising=False)
    assert _decoder._gguf_file("grounding", name, "") is None  # converted and read by transformers
    with pytest.raises(OptionError, match="xllamacpp"):
        Grounding(model=name, backend="llama.cpp").check()
