"""Metrics on cases worked by hand, and beside the libraries they are said to equal."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel

from impatience.errors import ModelFilesError, OptionError
from impatience.evaluation.aggregation import summarise
from impatience.lengths import CLOSERS, STOPS, Unit, split_sentences
from impatience.metrics import METRICS, Metric, Prediction, _lcs
from impatience.metrics.bertscore import BertScore
from impatience.metrics.bleu import Bleu
from impatience.metrics.closing import Closing
from impatience.metrics.ending import Ending, repeats
from impatience.metrics.length import Length
from impatience.metrics.rouge import Rouge
from support.toys import CORPUS, TOKENIZERS, tiny_model

ENGLISH = CORPUS[:24]


def prediction(text: str = "", *references: str, **fields: Any) -> Prediction:
    values = {
        "key": "k", "id": "i", "group": "", "source": "", "references": references, "unit": Unit.WORDS, "target": 10,
        "text": text, "length": 10, "tokens": 10, "ended": True, "landed": "natural", "eos_probability": None,
        "tokens_spent": 11,
    }  # fmt: skip
    return Prediction(**(values | fields))


def aggregates(metric: Metric, predictions: Sequence[Prediction]) -> dict[str, float]:
    columns = {name: np.array(values) for name, values in metric.score(predictions).items()}
    return {name: score.value for name, score in summarise(columns, metric.aggregates, resamples=1).items()}


def jumbled(count: int, words: int, seed: int = 0) -> list[str]:
    """Texts of sentences whose words come from the corpus, so that some are shared."""
    whims = random.Random(seed)
    known = " ".join(ENGLISH).split()
    return [
        " ".join(whims.choice(known) for _ in range(whims.randint(1, words))).capitalize() + whims.choice([".", ""])
        for _ in range(count)
    ]


def test_names_are_unique_and_everything_has_a_direction() -> None:
    columns = [column for metric in METRICS.values() for column in metric.columns]
    names = [column.name for column in columns]
    assert len(set(names)) == len(names)
    # A report's rows hold both.
    assert not set(names) & {field.name for field in fields(Prediction)}
    shown = [aggregate.name for metric in METRICS.values() for aggregate in metric.aggregates]
    assert len(set(shown)) == len(shown)
    for name, metric in METRICS.items():
        assert metric.summary, name
        assert metric.aggregates, name
        own = {column.name for column in metric.columns}
        for thing in (*metric.columns, *metric.aggregates):
            assert thing.better in ("higher", "lower", "zero", "neither"), thing
            assert thing.summary, thing
        for aggregate in metric.aggregates:
            assert aggregate.of, aggregate
            assert set(aggregate.of) <= own, aggregate
        assert metric.aggregates[0].better != "neither", name


@pytest.mark.parametrize("metric", [Length(), Ending(), Rouge(), Bleu(), BertScore()])
def test_every_column_has_a_number_for_each_text(metric: Metric) -> None:
    predictions = [prediction("Nothing to compare with."), prediction("")]
    scores = metric.score(predictions)
    assert list(scores) == [column.name for column in metric.columns]
    assert all(len(values) == 2 for values in scores.values())
    assert all(not values for values in metric.score([]).values())
    if not isinstance(metric, Length | Ending):
        assert all(math.isnan(value) for values in scores.values() for value in values)


def test_length_by_hand() -> None:
    cases = [(100, 100), (101, 100), (95, 100), (110, 100), (79, 100), (20, 40)]
    predictions = [prediction(length=length, target=target) for length, target in cases]
    assert Length().score(predictions) == {
        "error": [0, 1, -5, 10, -21, -20],
        "absolute_error": [0, 1, 5, 10, 21, 20],
        "squared_error": [0, 1, 25, 100, 441, 400],
        "relative_error": [0, 0.01, 0.05, 0.1, 0.21, 0.5],
        "exact": [1, 0, 0, 0, 0, 0],
        "within_1": [1, 1, 0, 0, 0, 0],
        "within_5_percent": [1, 1, 1, 0, 0, 0],
        "within_10_percent": [1, 1, 1, 1, 0, 0],
        "outlier": [0, 0, 0, 0, 1, 0],
    }
    found = aggregates(Length(), predictions)
    assert next(iter(found)) == "mae"
    assert found["mae"] == 57 / 6
    assert found["sd"] == pytest.approx(np.std([0, 1, 5, 10, 21, 20]))
    assert found["bias"] == pytest.approx(-35 / 6)
    assert found["relative_error"] == pytest.approx(0.87 / 6)
    assert found["outliers"] == pytest.approx(1 / 6)
    assert aggregates(Length(outlier=4), predictions)["outliers"] == pytest.approx(4 / 6)
    with pytest.raises(OptionError, match="outlier=-1"):
        Length(outlier=-1)


def test_length_of_one_text_has_no_spread() -> None:
    assert aggregates(Length(), [prediction(length=13)])["sd"] == 0
    assert aggregates(Length(), [prediction(length=7)] * 3)["sd"] == 0


def test_ending_by_hand() -> None:
    predictions = [
        prediction("The door is open.", eos_probability=0.75, tokens_spent=6),
        prediction("He said “stop!”", landed="forced", tokens_spent=10),
        prediction("The door is", landed="missed", ended=False, eos_probability=0.25, tokens_spent=8),
        prediction("We met Dr.", landed="missed", tokens_spent=4),
    ]
    scores = Ending().score(predictions)
    assert scores["finished"] == [1, 1, 0, 0]
    assert scores["uncut"] == [1, 1, 0, 1]
    assert scores["eos_at_stop"] == pytest.approx([0.75, math.nan, 0.25, math.nan], nan_ok=True)
    assert scores["forced"] == [0, 1, 0, 0]
    assert scores["missed"] == [0, 0, 1, 1]
    assert scores["generated"] == [6, 10, 8, 4]
    found = aggregates(Ending(), predictions)
    assert next(iter(found)) == "finished"
    assert (found["ended"], found["eos_probability"], found["tokens_spent"]) == (0.75, 0.5, 7)


def test_repeats_by_hand() -> None:
    assert repeats("") == repeats("one two three") == repeats("one two three four") == 0
    assert repeats("a b c d A b c d") == pytest.approx(1 / 5)  # abcd bcda cdab dabc abcd
    assert repeats("a b c d " * 3) == pytest.approx(5 / 9)
    assert repeats("no no no no no no") == pytest.approx(2 / 3)


def test_a_loop_is_told_from_an_honest_text() -> None:
    honest = " ".join(ENGLISH)
    refrain = " ".join(f"{sentence} And so it goes." for sentence in ENGLISH)
    texts = {
        honest: 0,
        refrain: 0,
        ENGLISH[0]: 0,
        f"{ENGLISH[0]} {ENGLISH[1]} {ENGLISH[0]}": 0,  # said twice is clumsy, but no loop
        f"{ENGLISH[0]} " * 3: 1,
        f"{ENGLISH[3]} " * 50: 1,
        honest + f" {ENGLISH[4]}" * 15: 1,
        "and then " * 40: 1,
    }
    assert Ending().score([prediction(text) for text in texts])["looping"] == list(texts.values())
    assert Ending(loop=1).score([prediction("so " * 90)])["looping"] == [0]
    with pytest.raises(OptionError, match="loop=30"):
        Ending(loop=30)


def test_rouge_by_hand() -> None:
    scores = Rouge().score(
        [
            prediction("The boat is on the lake", "The boat lay on the lake"),
            prediction("The harbour slept. The ferry left.", "The ferry left. The harbour slept."),
            prediction("walked", "walking"),
            prediction("", "walking"),
        ]
    )
    assert scores["rouge1"] == pytest.approx([5 / 6, 1, 1, 0])
    assert scores["rouge2"] == pytest.approx([3 / 5, 4 / 5, 0, 0])
    assert scores["rougeL"] == pytest.approx([5 / 6, 3 / 6, 1, 0])
    assert scores["rougeLsum"] == pytest.approx([5 / 6, 1, 1, 0])


def library_rouge(predictions: Sequence[Prediction]) -> dict[str, list[float]]:
    from rouge_score.rouge_scorer import RougeScorer

    def lines(text: str) -> str:
        return "\n".join(split_sentences(text))

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    rows = [scorer.score_multi([lines(text) for text in one.references], lines(one.text)) for one in predictions]
    return {kind: [row[kind].fmeasure for row in rows] for kind in scorer.rouge_types}


def test_rouge_is_the_librarys() -> None:
    texts, references = jumbled(60, 80), jumbled(180, 80, 1)
    predictions = [prediction(text, *references[i : i + 1 + i % 3]) for i, text in enumerate(texts)]
    predictions += [
        prediction(text, *others)
        for text, others in (
            ("", ("A harbour.", "")),
            ("Boats", ("",)),
            ("我们在港口等渡船。", ("我们在港口。",)),
            ("The first line\nand the next. Dr. Berg's 3.5% café!", ("The line\n\nand the café.", "3.5% next")),
            (" ".join(ENGLISH), (" ".join(reversed(ENGLISH)), " ".join(ENGLISH[::2]))),
        )
    ]
    assert Rouge().score(predictions) == library_rouge(predictions)


tokens = st.lists(st.sampled_from("abcd"), max_size=70)


@given(tokens, tokens)
def test_common_subsequences_are_the_librarys(a: list[str], b: list[str]) -> None:
    from rouge_score import rouge_scorer

    assert _lcs.places(a, b) == rouge_scorer.lcs_ind(a, b)[::-1]
    assert _lcs.length(a, b) == rouge_scorer._lcs_table(a, b)[-1][-1]


def test_bleu_remembers_no_text() -> None:
    Bleu().score([prediction("a b c d", "a b c e")])
    assert [kind.__call__.cache_info().currsize for kind in (Tokenizer13a, TokenizerRegexp)] == [0, 0]


def test_bleu_by_hand() -> None:
    # Shares 4/5, 3/4, 2/3 and 1/2 are 1/5 together; the reference is longer by a fifth.
    found = aggregates(Bleu(), [prediction("a b c d e", "a b c d f g")])
    assert found["bleu"] == pytest.approx(100 * math.exp(1 - 6 / 5) * (1 / 5) ** (1 / 4))
    # Shares 2/4 and 1/3, then half of 1/2 and a quarter of 1/1.
    found = aggregates(Bleu(), [prediction("a b y z", "a b c d")])
    assert found["bleu"] == pytest.approx(100 * (2 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** (1 / 4))
    assert aggregates(Bleu(), [prediction("a b c d", "e f g h")])["bleu"] == 0
    assert aggregates(Bleu(), [prediction("a b c", "a b c")])["bleu"] == 0  # it has no 4-gram
    assert aggregates(Bleu(), [prediction("", "a b c")])["bleu"] == 0
    assert math.isnan(aggregates(Bleu(), [prediction("a b c")])["bleu"])


@pytest.mark.parametrize(("count", "written", "expected", "references"), [
    (1, 30, 30, 1), (3, 8, 8, 1), (40, 60, 60, 1), (40, 20, 60, 1), (40, 60, 20, 3), (5, 4, 40, 2), (12, 6, 6, 2),
])  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_bleu_is_the_librarys(count: int, written: int, expected: int, references: int, seed: int) -> None:
    import sacrebleu

    texts = jumbled(count, written, seed)
    streams = [jumbled(count, expected, seed + 10 * n + 10) for n in range(references)]
    predictions = [prediction(text, *others) for text, *others in zip(texts, *streams, strict=True)]
    bleu = aggregates(Bleu(), [*predictions, prediction("Nobody wrote a reference.")])["bleu"]
    assert bleu == pytest.approx(sacrebleu.corpus_bleu(texts, streams).score, rel=1e-12)


def test_bleu_of_many_resamples_is_that_of_each() -> None:
    import sacrebleu

    texts, others = jumbled(9, 12), jumbled(9, 12, 1)
    columns = Bleu().score([prediction(text, other) for text, other in zip(texts, others, strict=True)])
    table = np.array(list(columns.values()))
    draws = np.random.default_rng(0).integers(9, size=(50, 9))
    (aggregate,) = Bleu.aggregates
    found = aggregate.formula(*table[:, draws].sum(axis=2))
    for places, score in zip(draws, found, strict=True):
        theirs = sacrebleu.corpus_bleu([texts[i] for i in places], [[others[i] for i in places]]).score
        assert score == pytest.approx(theirs, rel=1e-12)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, tokenizer = tmp_path_factory.mktemp("reader"), TOKENIZERS["byte_level"]()
    tokenizer.add_tokens([").", ".,", " quay"])
    tokenizer.save_pretrained(folder)
    tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=8).save_pretrained(folder)
    return str(folder)


def test_a_sentence_is_over_where_a_language_model_expects_its_end(reader: str) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(reader), AutoTokenizer.from_pretrained(reader)
    pieces = {number: tokenizer.decode([number]) for number in range(len(tokenizer))}
    ends = [
        number
        for number, piece in pieces.items()
        if piece.lstrip(CLOSERS).startswith(tuple(STOPS)) and not piece.strip(STOPS + CLOSERS)
    ]
    assert {").", ".", "!"} <= {pieces[number] for number in ends} <= {*pieces.values()} - {".,", ")"}
    texts, likely = ["The lake is", "A boat", "The lake is wide (and the boat is slow", "Rain"], []
    for text in texts:
        chances = model(torch.tensor([tokenizer(text).input_ids[-8:]])).logits[0, -1].softmax(-1)
        likely.append(chances[ends].sum().item())
    bound = sorted(likely)[2]  # two of the four are above it
    assert len(set(likely)) == 4
    metric = Closing(model=reader, bound=bound - 1e-6, batch_size=3)
    for ending, finished in ((".", 1), ("!”\n", 1), ("", 0), ("? ", 1), (").\u00a0", 1)):
        scores = metric.score([prediction(text + ending) for text in texts])
        assert scores["closing"] == pytest.approx(likely, abs=1e-6)
        assert scores["closed"] == [finished * (one >= bound) for one in likely]
    assert metric.score([prediction(" . "), prediction("")]) == {"closing": [0, 0], "closed": [0, 0]}
    alike = ["The lake is", "A boat is"]
    assert len(set(metric.likely(alike))) == 2
    assert len(set(Closing(model=reader, context=1, batch_size=1).likely(alike))) == 1
    assert metric.facts()["model"] == reader


@pytest.mark.parametrize("options", [{"bound": 1.5}, {"context": 0}, {"batch_size": 0}])
def test_what_closing_cannot_do_is_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"closing: {name}="):
        Closing(**options)


def test_models_that_cannot_judge_an_end_are_refused(reader: str, tmp_path: Path) -> None:
    Closing(model=reader).check()
    tiny_model("t5").save_pretrained(tmp_path / "t5")
    for fails in (Closing(model=str(tmp_path / "t5")).check, lambda: Closing(model=str(tmp_path / "t5")).likely(["A"])):
        with pytest.raises(OptionError, match=r"an encoder-decoder \(t5\).*Give a decoder-only"):
            fails()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFilesError, match=r"could not be loaded as a language model .*Give the name"):
        Closing(model=str(tmp_path / "empty")).check()
    with pytest.raises(ModelFilesError, match="no/such/folder"):
        Closing(model="no/such/folder").check()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = TOKENIZERS["wordpiece"]()
    tokenizer.cls_token, tokenizer.sep_token, tokenizer.model_max_length = "[CLS]", "[SEP]", 64
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return str(folder)


def test_bertscore_is_the_librarys(encoder: str) -> None:
    import bert_score

    texts, references = jumbled(11, 90), [jumbled(1 + i % 3, 90, i + 1) for i in range(11)]
    predictions = [prediction(text, *others) for text, others in zip(texts, references, strict=True)]
    for layers in (1, 2, 3):
        scores = BertScore(model=encoder, layers=layers, batch_size=4).score(predictions)
        theirs = bert_score.score(texts, references, model_type=encoder, num_layers=layers)
        for kind, values in zip(("precision", "recall", "f1"), theirs, strict=True):
            assert scores[f"bertscore_{kind}"] == pytest.approx(values.tolist(), abs=1e-5)
        assert np.ptp(scores["bertscore_f1"]) > 0.05  # else anything would equal anything


def test_bertscore_by_hand(encoder: str) -> None:
    metric = BertScore(model=encoder, layers=2)
    predictions = [
        prediction(ENGLISH[0], ENGLISH[0]),
        prediction(ENGLISH[0], ENGLISH[1], ENGLISH[0]),
        prediction(" \n", ENGLISH[1]),
        prediction(ENGLISH[0], ""),
        prediction(ENGLISH[0]),
    ]
    for values in metric.score(predictions).values():
        assert values == pytest.approx([1, 1, 0, 0, math.nan], abs=1e-5, nan_ok=True)
    facts = metric.facts()
    assert (facts["model"], facts["layer"], facts["rescaled"]) == (encoder, 2, False)
    assert (BertScore().facts()["model"], BertScore().facts()["layer"]) == ("bert-base-uncased", 12)


def test_the_encoder_is_loaded_once(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    load = AutoModel.from_pretrained
    monkeypatch.setattr(
        AutoModel, "from_pretrained", lambda *args, **kwargs: loads.append(args) or load(*args, **kwargs)
    )
    metric = BertScore(model=encoder, layers=2)
    assert metric.score([prediction("A boat.")])["bertscore_f1"] != []
    assert not loads  # nothing to compare yet
    first = metric.score([prediction("A boat.", "The lake.")])
    assert metric.score([prediction("A boat.", "The lake.")]) == first
    assert len(loads) == 1


def test_an_encoder_that_cannot_be_used_is_refused(encoder: str, tmp_path: Path) -> None:
    pair = [prediction("A boat.", "The lake.")]
    for fails in (BertScore().check, lambda: BertScore().score(pair)):
        with pytest.raises(ModelFilesError, match=r"bert-base-uncased.*Without the hub, give a folder"):
            fails()
    BertScore(model=encoder, layers=2).check()
    with pytest.raises(OptionError, match=r"layers=4.*a bert of 3 layers"):
        BertScore(model=encoder, layers=4).check()
    with pytest.raises(ModelFilesError, match="could not be loaded"):
        BertScore(model=str(tmp_path), layers=2).score(pair)
    with pytest.raises(OptionError, match="needs layers"):
        BertScore(model=encoder)
    with pytest.raises(OptionError, match="batch_size=0"):
        BertScore(batch_size=0)
    with pytest.raises(OptionError, match=r"layers=4.*a bert of 3 layers"):
        BertScore(model=encoder, layers=4).score(pair)
    other = BertModel.from_pretrained(encoder)
    weights = {name: value for name, value in other.state_dict().items() if "layer.1.attention" not in name}
    other.save_pretrained(tmp_path, state_dict=weights)
    TOKENIZERS["wordpiece"]().save_pretrained(tmp_path)
    with pytest.raises(ModelFilesError, match=r"lacks weights of its encoder, e.g. encoder.layer.1"):
        BertScore(model=str(tmp_path), layers=2).score(pair)


def test_a_tokenizer_that_does_not_say_how_much_it_takes(encoder: str, tmp_path: Path) -> None:
    BertModel.from_pretrained(encoder).save_pretrained(tmp_path)
    tokenizer = TOKENIZERS["wordpiece"]()
    tokenizer.cls_token, tokenizer.sep_token, tokenizer.model_max_length = "[CLS]", "[SEP]", int(1e30)
    tokenizer.save_pretrained(tmp_path)
    pair = [prediction(" ".join(ENGLISH), ENGLISH[0])]
    mine = BertScore(model=str(tmp_path), layers=2).score(pair)
    assert mine == BertScore(model=encoder, layers=2).score(pair)
