"""``impatience teach``: its author, models that cannot be taught, whole runs, and its options."""

from __future__ import annotations

import errno
import inspect
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

from impatience import load
from impatience.cli import teach as command
from impatience.errors import OptionError, RunError, TokenizerError
from impatience.training.run_folder import Run
from impatience.training.teaching import TeachOptions, rows, run, teach
from impatience.training.teaching.author import Author
from impatience.training.teaching.pupil import Pupil, check_chats
from support.teaching import OPTIONS, SOURCE, Scripted, data_file, read, save_tiny, text_of
from support.toys import byte_level_tokenizer, tiny_model, wordpiece_tokenizer

# The author


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Author:
    """A tiny model in 256 positions, most tokens of which end its texts."""
    folder = tmp_path_factory.mktemp("author")
    name = save_tiny(folder, max_position_embeddings=256)
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["eos_token_id"] = [1, *range(30, 600)]
    del settings["pad_token_id"]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    tokenizer_settings = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer_settings.pop("pad_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_settings))
    return Author(name, 0)


def test_a_text_ends_at_any_of_the_tokens_that_end_it(author: Author) -> None:
    answers = author.answers(["Say it.", "Why is it cold? " * 60, "Tell me."])
    assert answers[1] is None  # longer than half of the positions
    assert answers[0] is not None
    written = author._draw(["user: Write a", "user: Explain why it is"], 100)
    assert len(written) == 2
    assert all(len(text) < 100 for text in written)
    assert author.answers([]) == []
    assert author._draw([], 5) == []


def test_support_is_the_same_in_every_batch(author: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(CORPUS_PART[:n], "It rained.") for n in (20, 60, 90, 61)]
    together = author.support(pairs)
    assert all(0 < value < 1 for value in together)
    assert together == pytest.approx([author.support([pair])[0] for pair in pairs], abs=1e-5)
    assert author.support([]) == []


CORPUS_PART = "It rained for nine days; on the tenth, the river was over the wall. The cat slept on the printer."


def test_turns_and_documents_are_the_same_each_time_they_are_written(author: Author) -> None:
    torch.manual_seed(5)
    once = author.turns(60), author.documents(5)
    assert once == (author.turns(60), author.documents(5))


# What cannot be taught


def test_bases_that_cannot_be_taught_are_refused_before_any_work(tmp_path: Path, scripted: type[Scripted]) -> None:
    out = tmp_path / "out"
    shallow = save_tiny(tmp_path / "shallow", num_hidden_layers=2)
    with pytest.raises(OptionError, match=r"has 2 layers.*teach a model with at least 3 layers"):
        teach(shallow, out, OPTIONS)
    plain = save_tiny(tmp_path / "plain", chats=False, kind="gpt2")
    with pytest.raises(OptionError, match=r"takes no chats, so it cannot write the rows.*--teacher"):
        teach(plain, out, OPTIONS)
    with pytest.raises(OSError, match="nowhere"):
        teach(str(tmp_path / "nowhere"), out, OPTIONS)
    endless = tmp_path / "endless"
    tokenizer = byte_level_tokenizer()
    tokenizer.eos_token = None
    for part in (tiny_model("llama", vocab_size=800, num_hidden_layers=3), tokenizer):
        part.save_pretrained(endless)
    with pytest.raises(TokenizerError, match="no end-of-sequence token"):
        teach(str(endless), out, OPTIONS)
    assert not scripted.made
    assert not out.exists()


def test_pupils_know_how_much_they_read(tmp_path: Path, tiny: str) -> None:
    assert Pupil(tiny).source_tokens == 1024 - 120
    assert Pupil(tiny).reads(SOURCE)
    assert not Pupil(tiny).reads(SOURCE * 20)
    for part in (tiny_model("bart", vocab_size=900, max_position_embeddings=512), wordpiece_tokenizer()):
        part.save_pretrained(tmp_path / "bart")
    bart = Pupil(str(tmp_path / "bart"))
    assert bart.source_tokens == 512 - 120
    assert run.make_recipe("bart", tmp_path, OPTIONS, bart).model.options["layers"] == "all"
    with pytest.raises(OptionError, match="takes no chats"):
        check_chats(str(tmp_path / "bart"))
    recipe = run.make_recipe(tiny, tmp_path, OPTIONS)
    assert recipe.model.options["layers"] == [2]
    assert recipe.name == "taught-tiny-model"


# The whole of it


def test_a_model_is_taught_and_goes_on_after_a_kill_in_its_training(
    tiny: str, tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "out"
    spec = data_file(tmp_path, {"source": SOURCE, "target": "The ferry stays in the yard."})
    given: dict[str, Any] = {"texts": [text_of("mine", 8)], "data": [spec]}
    assert teach(tiny, out, OPTIONS, **given, rows_only=True) == out
    said = capsys.readouterr().err
    assert f"{spec}: 1 of 1 human targets kept" in said
    assert "2 steps of 32 read each" in said
    assert not (out / "run.json").exists()
    targets = [row["target"] for row in read(out / "rows" / "train.jsonl")]
    assert targets.count("The ferry stays in the yard.") == 1

    with pytest.raises(RunError, match=r"was begun already. Continue with --resume"):
        teach(tiny, out, OPTIONS, **given)
    for changes, name in (({"texts": []}, "texts"), ({"data": []}, "data"), ({"teacher": "other"}, "teacher")):
        with pytest.raises(RunError, match=rf"begun with other options \({name}\)"):
            teach(tiny, out, OPTIONS, **given | changes, resume=True)

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("impatience.training.run.save_result", kill)
        with pytest.raises(KeyboardInterrupt):
            teach(tiny, out, OPTIONS, **given, resume=True)
    with pytest.raises(RunError, match=r"begun with other options \(steps\)"):
        teach(tiny, out, replace(OPTIONS, steps=3), **given, resume=True)
    teach(tiny, out, OPTIONS, **given, resume=True)
    assert scripted.made == 1

    said = capsys.readouterr().err
    assert "Loss on held-out answers: " in said
    validations = [line for line in Run(out).metrics() if "eval_loss" in line]
    assert [line["step"] for line in validations] == [0, 1, 2]
    assert ["eval_length_mae" in line for line in validations] == [False, True, True]  # the signal is silent at step 0
    writer = load(out / "model")
    assert writer.model.method.layers == (2,)
    assert writer.write("Write a note about amber.", words=5, tries=1).target == 5
    assert writer.prompts.takes_chats


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # PEFT corrects it for GPT-2
@pytest.mark.parametrize(("kind", "layers"), [("gpt2", (2,)), ("bart", "all")])
def test_models_that_take_no_chats_are_taught_by_another(
    kind: str, layers: object, tiny: str, tmp_path: Path, scripted: type[Scripted]
) -> None:
    tokenizer = wordpiece_tokenizer()
    sizes = {"n_layer": 3} if kind == "gpt2" else {}
    for part in (tiny_model(kind, vocab_size=len(tokenizer), max_position_embeddings=1024, **sizes), tokenizer):
        part.save_pretrained(tmp_path / "base")
    options = replace(OPTIONS, turns=20, documents=20, steps=1)
    out = teach(str(tmp_path / "base"), tmp_path / "out", options, teacher=tiny)
    writer = load(out / "model")
    assert scripted.made == 1
    assert writer.model.method.layers == layers
    assert writer.write("Write a note about amber.", words=3, tries=1).target == 3


def test_a_folder_of_another_run_or_of_none_and_a_damaged_plan_are_refused(tiny: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds nothing to resume. Leave out --resume"):
        teach(tiny, tmp_path / "none", OPTIONS, resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunError, match="holds a run already"):
        teach(tiny, tmp_path, OPTIONS)
    (tmp_path / "out" / "rows").mkdir(parents=True)
    (tmp_path / "out" / "rows" / "teach.json").write_text("{")
    with pytest.raises(RunError, match=r"teach.json is damaged"):
        teach(tiny, tmp_path / "out", OPTIONS, resume=True)


def test_a_full_disk_says_what_to_do(
    tiny: str, tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rows, "write_whole", full)
        with pytest.raises(
            RunError, match=r"No space left for the rows in .*Free some space and continue with --resume"
        ):
            teach(tiny, tmp_path / "out", OPTIONS, rows_only=True)
    teach(tiny, tmp_path / "out", OPTIONS, rows_only=True, resume=True)
    assert (tmp_path / "out" / "rows" / "train.jsonl").exists()


def test_a_loss_that_rises_is_told() -> None:
    lines = [{"step": 0, "eval_loss": 2.0}, {"step": 9, "loss": 1.0}, {"step": 9, "eval_loss": 2.03}]
    said = "Loss on held-out answers: 2.0000 before, 2.0300 at step 9 (+1.5 %)."
    assert run.describe_loss(lines) == said
    assert "more than 2 % up" in run.describe_loss([*lines, {"step": 18, "eval_loss": 2.05}])
    assert run.describe_loss([*lines, {"step": 18, "eval_loss": 1.0}]).endswith("(-50.0 %).")
    assert "not known" in run.describe_loss(lines[1:])


def test_many_passes_over_few_rows_are_told() -> None:
    options = TeachOptions(steps=100, batch_size=10)
    assert run.describe_passes(options, 500) == "100 steps of 10 read each 2.0 times."
    assert run.describe_passes(options, 100).endswith("Give --steps 30, or more texts.")


@pytest.mark.parametrize(
    "wrong", [{"asks": 0}, {"turns": -1}, {"doubted": 1.0}, {"learning_rate": 0.0}, {"steps": 0}], ids=str
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))}=.*give a"):
        TeachOptions(**wrong)


def test_the_command_line_has_the_defaults_and_words_of_the_options() -> None:
    shown, hints = inspect.signature(command.teach).parameters, get_type_hints(command.teach, include_extras=True)
    for field in fields(TeachOptions):
        if field.name != "doubted":  # in Python alone
            assert shown[field.name].default == field.default
            assert hints[field.name].__metadata__[0].help == field.metadata["help"]
