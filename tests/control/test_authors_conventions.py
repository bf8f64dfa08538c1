"""``conventions="authors"`` computes what the authors' code computes, written here from scratch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from control.test_contract import randomize_projections
from impatience import LengthControlled, attach
from impatience.errors import ModelFilesError, OptionError
from support.toys import tiny_model

SOURCE = torch.tensor([[5, 9, 14, 22, 31, 2]])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder in the authors' layout: BART's weights and configuration under the model type ``prebart``."""
    model = tiny_model("bart", scale_embedding=False)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "prebart", "architectures": ["PreBartForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def authors_signal(length: int, steps: int, width: int) -> torch.Tensor:
    """ξ on linspace(0, 1, length), then ones; even dimensions cosine, odd sine; M = d/2."""
    ratios = torch.cat([torch.linspace(0, 1, length), torch.ones(max(0, steps - length))])[:steps]
    index = torch.arange(width)
    angles = ratios[:, None] * (width / 2) * (2 * (index // 2) / width)
    return torch.where(index % 2 == 0, angles.cos(), angles.sin())


@torch.no_grad()
def authors_logits(model: LengthControlled, ids: torch.Tensor, length: int, skip_first: bool) -> torch.Tensor:
    """E + P + ξ handed to BART, which adds P once more."""
    base = model.detach()
    decoder = base.model.decoder
    width = base.config.d_model
    positions = decoder.embed_positions.weight[2 : 2 + ids.shape[1]]
    signal = authors_signal(length, ids.shape[1], width)
    if skip_first:
        signal[0] = 0
    embeds = decoder.embed_tokens(ids) + positions + signal
    return base(input_ids=SOURCE, decoder_inputs_embeds=embeds).logits


def test_an_authors_checkpoint_loads_and_trains_as_their_code_does(checkpoint: Path) -> None:
    model = LengthControlled.from_pretrained(checkpoint)
    assert model.conventions == "authors"
    labels = torch.tensor([[2, 8, 13, 21, 34, 1]])
    ids = torch.cat([torch.tensor([[model.config.decoder_start_token_id]]), labels[:, :-1]], 1)
    logits = model(input_ids=SOURCE, labels=labels).logits
    assert torch.allclose(logits, authors_logits(model, ids, length=6, skip_first=False), atol=1e-5)


def test_it_generates_as_the_authors_code_does(checkpoint: Path) -> None:
    model = LengthControlled.from_pretrained(checkpoint)
    out = model.generate(
        SOURCE, target_tokens=8, max_new_tokens=7, return_dict_in_generate=True, output_logits=True, suppress_tokens=[1]
    )
    expected = authors_logits(model, out.sequences[:, :-1], length=8, skip_first=True)
    assert torch.allclose(torch.stack(out.logits, 1), expected, atol=1e-4)


def test_layers_get_the_same_signal_at_a_step_of_few_rows_as_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    model = randomize_projections(attach(tiny_model("bart"), "pre", layers="all", conventions="authors"))
    options = {"target_tokens": 6, "max_new_tokens": 8, "output_logits": True, "return_dict_in_generate": True}
    few = model.generate(SOURCE, **options).logits
    monkeypatch.setattr("impatience.control.generation.ROWS", 0)
    assert torch.allclose(torch.stack(few), torch.stack(model.generate(SOURCE, **options).logits), atol=1e-5)


def test_the_papers_conventions_differ(checkpoint: Path) -> None:
    model = LengthControlled.from_pretrained(checkpoint)
    labels = torch.tensor([[2, 8, 13, 21, 34, 1]])
    theirs = model(input_ids=SOURCE, labels=labels).logits
    ours = attach(model.detach(), "pre", strength="raw")(input_ids=SOURCE, labels=labels).logits
    assert not torch.allclose(theirs, ours, atol=1e-2)


def test_saved_again_it_keeps_its_conventions(checkpoint: Path, tmp_path: Path) -> None:
    model = LengthControlled.from_pretrained(checkpoint)
    labels = torch.tensor([[2, 8, 13, 21, 34, 1]])
    model.save_pretrained(tmp_path / "again")
    again = LengthControlled.from_pretrained(tmp_path / "again")
    assert torch.equal(again(input_ids=SOURCE, labels=labels).logits, model(input_ids=SOURCE, labels=labels).logits)


def test_a_plain_model_folder_is_refused_and_points_to_attach(tmp_path: Path) -> None:
    tiny_model("bart").save_pretrained(tmp_path)
    with pytest.raises(ModelFilesError, match="attach"):
        LengthControlled.from_pretrained(tmp_path)


def test_an_authors_checkpoint_takes_no_base_model(checkpoint: Path) -> None:
    with pytest.raises(OptionError, match="Leave base_model out"):
        LengthControlled.from_pretrained(checkpoint, base_model=tiny_model("bart"))


def test_conventions_are_for_encoder_decoders() -> None:
    with pytest.raises(OptionError, match="encoder-decoders"):
        attach(tiny_model("llama"), "pre", conventions="authors")
    with pytest.raises(OptionError, match="'paper' or 'authors'"):
        attach(tiny_model("bart"), "pre", conventions="mine")  # type: ignore[arg-type]
