"""Prompts of steered texts that name the length, for models that were taught so."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

from impatience import attach
from impatience.data import TASKS, Encoder, Example, Request, instruct
from impatience.decoding.generator import TextGenerator
from impatience.evaluation import load_evaluated_model
from impatience.lengths import Unit
from impatience.sources import toy
from impatience.strategies import STRATEGIES
from support.generators import generator
from support.toys import CORPUS


def taught(template: str = "summarize") -> TextGenerator:
    own = generator("llama")
    return TextGenerator(own.model, Encoder(own.tokenizer, False, template, 200, names_length=True))


def read(own: TextGenerator, request: Request, *, steered: bool = True) -> str:
    (ids,) = own.encode_sources([request], steered=steered)
    return str(own.tokenizer.decode(ids))


@pytest.mark.parametrize(
    ("unit", "target", "named"),
    [(Unit.WORDS, 7, " Answer in 7 words."), (Unit.SENTENCES, 1, " Answer in 1 sentence."), (Unit.TOKENS, 7, "")],
)
def test_a_steered_text_reads_its_length(unit: Unit, target: int, named: str) -> None:
    request = Request("a", CORPUS[0], target, unit)
    assert read(taught(), request).startswith(f"user: {CORPUS[0]}\n\nSummarize the text above.{named}\n")
    assert "Answer" not in read(taught(), request, steered=False)
    assert "Answer" not in read(generator("llama"), request)
    assert "Answer" not in read(taught("instruct"), request)


def test_a_long_source_is_cut_and_the_length_stays() -> None:
    own = taught()
    own.encoder.max_source_tokens = 40
    prompt = read(own, Request("a", " ".join(CORPUS), 7))
    assert prompt.startswith("user: The")
    assert prompt.endswith("\n\nSummarize the text above. Answer in 7 words.\nassistant: ")
    assert len(own.encode_sources([Request("a", " ".join(CORPUS), 7)], steered=True)[0]) <= 40


@pytest.mark.parametrize("kind", ["bart", "llama"])
@pytest.mark.parametrize("tokens", [400, 40])
def test_a_model_without_chats_reads_instruction_and_length_too(kind: str, tokens: int) -> None:
    tokenizer = generator(kind).tokenizer
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = None
    encoder = Encoder(tokenizer, kind == "bart", "summarize", tokens)
    (ids,) = encoder.prompts_with_lengths([Example("a", " ".join(CORPUS[:9]), "")], ["7 words"])
    prompt = tokenizer.decode(ids, skip_special_tokens=True).strip()
    assert prompt.startswith("The")
    assert prompt.endswith("Summarize the text above. Answer in 7 words.")
    assert len(ids) <= tokens


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_long_message_keeps_the_instruction_at_its_end(kind: str) -> None:
    encoder = Encoder(generator(kind).tokenizer, kind == "bart", "instruct", 40)
    message = instruct("Summarize it.", " ".join(CORPUS[:9]), "7 words")
    prompt = encoder.tokenizer.decode(encoder.prompt(Example("a", message, "")), skip_special_tokens=True)
    assert "Summarize it. Answer in 7 words." in prompt


def test_the_task_of_a_request_goes_before_the_template() -> None:
    request = Request("a", CORPUS[0], 7, task="chat")
    for own in (taught(), generator("llama")):
        assert read(own, request) == f"user: {CORPUS[0]}\nassistant: "
    both = [request, replace(request, id="b", task=None)]
    prompts = [taught().tokenizer.decode(ids) for ids in taught().encode_sources(both)]
    assert ["Summarize" in prompt for prompt in prompts] == [False, True]
    seen: list[list[int]] = []
    own = taught()
    own.pad = lambda rows: seen.extend(rows) or TextGenerator.pad(own, rows)  # type: ignore[method-assign, func-returns-value]
    STRATEGIES["prompted"](limit=1).write(own, [request])
    assert own.tokenizer.decode(seen[0]).startswith("user: Write exactly 7 words, and nothing but the text itself.")


def test_every_task_is_put_to_a_taught_model_as_a_writer_puts_it() -> None:
    for task in ("summarize", "rewrite", "title", "description", "post", "abstract"):
        prompt = read(taught(), Request("a", CORPUS[0], 7, task=task))
        assert prompt == f"user: {instruct(TASKS[task], CORPUS[0], '7 words')}\nassistant: "


def test_a_taught_model_is_known_by_its_template(tmp_path: Path) -> None:
    base, tokenizer = toy.build("toy-llama")
    attach(base, "pre", tokenizer=tokenizer).save_pretrained(tmp_path)
    prompt = {"template": "summarize", "prefix": "", "max_source_tokens": 64}
    for template, names in (("instruct", True), ("summarize", False)):
        (tmp_path / "prompt.json").write_text(json.dumps(prompt | {"template": template}))
        opened = load_evaluated_model(tmp_path, template="summarize", quiet=True)
        assert opened.generator.encoder.names_length is names
        assert ("names_length" in opened.prompt) is names
        assert not load_evaluated_model(tmp_path, names_length=False, quiet=True).generator.encoder.names_length
