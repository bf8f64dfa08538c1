"""A tiny T5 as 8-bit ONNX holds it, converted and loaded, with the head that is its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

from impatience.control.storage import load_base
from impatience.errors import ModelFilesError
from impatience.sources import onnx_t5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def quantized(rng: np.random.Generator, shape: Any, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 8-bit numbers with their zero point and scale."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return (
        rng.integers(low, high, shape, dtype),
        np.array(rng.integers(-3, 3) + 3, dtype),
        np.float32(rng.random() / 64),
    )


def write_tiny_onnx(folder: Path, model: Any) -> None:
    """Write a T5 as the exporter and quantiser do, and give the model the values that they mean."""
    rng = np.random.default_rng(0)
    tensors: dict[str, list[onnx.TensorProto]] = {"encoder": [], "decoder": []}
    nodes: dict[str, list[onnx.NodeProto]] = {"encoder": [], "decoder": []}
    for number, (name, parameter) in enumerate(model.named_parameters()):
        part, path = ("encoder", "enc" + name[7:]) if name.startswith("encoder.") else ("decoder", "m." + name)
        if name.endswith("norm.weight"):
            value = rng.random(parameter.shape, np.float32)
            tensors[part].append(onnx.numpy_helper.from_array(value, path))
        else:
            embedding = name.startswith("shared") or "bias" in name
            # A linear layer is stored [in, out] and has a number for a name; its node has the path.
            numbers, zero, scale = quantized(rng, parameter.shape, np.uint8 if embedding else np.int8)
            value = (numbers.astype(np.float32) - zero.astype(np.float32)) * scale
            called = path if embedding else f"onnx::MatMul_{number}"
            kinds = {"quantized": numbers if embedding else numbers.T, "zero_point": zero, "scale": np.array(scale)}
            stored = [onnx.numpy_helper.from_array(array, f"{called}_{kind}") for kind, array in kinds.items()]
            tensors[part] += stored
            if name.startswith("shared"):  # the encoder's file has a copy
                copies = [onnx.numpy_helper.from_array(a, f"enc.embed_tokens.weight_{k}") for k, a in kinds.items()]
                tensors["encoder"] += copies
            if not embedding:
                steps = "/" + "/".join(_steps(path.removesuffix(".weight"))) + "/MatMul_quant"
                inputs = ["x_quantized", f"{called}_quantized", "x_zero_point", f"{called}_zero_point"]
                nodes[part].append(onnx.helper.make_node("MatMulInteger", inputs, [f"y{number}"], name=steps))
        parameter.data = torch.from_numpy(value)
    for part in tensors:
        nodes[part].append(onnx.helper.make_node("MatMul", ["scores", "values"], ["z"], name=f"/{part}/MatMul"))
        graph = onnx.helper.make_graph(nodes[part], part, [], [], tensors[part])
        onnx.save(onnx.helper.make_model(graph), folder / f"{part}.onnx")


def _steps(path: str) -> Iterator[str]:
    """Split a path into modules; ``block.0`` and ``layer.1`` are one each."""
    names = iter(path.split("."))
    for name in names:
        yield f"{name}.{next(names)}" if name in ("block", "layer") else name


def tiny_t5(files: Path) -> Any:
    """Write the files of a T5 whose head is its own, and return the model."""
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "▁ab"]
    tokenizer = Tokenizer(models.Unigram([(token, -float(i)) for i, token in enumerate(tokens)], unk_id=2))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(tokens[:3])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(files / "tokenizer.json"))
    config = T5Config(
        vocab_size=11,
        d_model=16,
        d_kv=4,
        d_ff=24,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=3,
        relative_attention_num_buckets=8,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    model = T5ForConditionalGeneration(config).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(11, 16))
    write_tiny_onnx(files, model)
    return model


def test_onnx_t5(tmp_path: Path, folder: Path) -> None:
    model = tiny_t5(tmp_path)
    onnx_t5.convert(tmp_path, folder)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert loaded.dtype == torch.float32
    own = dict(model.named_parameters())
    assert dict(loaded.named_parameters()).keys() == own.keys()
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, own[name]), name
    inputs = {"input_ids": torch.tensor([[4, 5, 6, 1]]), "decoder_input_ids": torch.tensor([[0, 4, 5]])}
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("ab ab ab ab ab").input_ids == [6, 6, 6, 6, 6, 1]
    assert tokenizer.decode([6, 6, 1], skip_special_tokens=True) == "ab ab"
    generation = loaded.generation_config
    assert (generation.eos_token_id, generation.pad_token_id, generation.decoder_start_token_id) == (1, 0, 0)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (1, 0, 2)


def test_head_of_t5_is_not_tied(tmp_path: Path, folder: Path) -> None:
    head = tiny_t5(tmp_path).lm_head.weight
    onnx_t5.convert(tmp_path, folder)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    for _ in range(2):  # as converted, and as transformers saves it again
        loaded, _ = load_base(folder)
        assert loaded.lm_head.weight is not loaded.shared.weight
        assert torch.equal(loaded.lm_head.weight, head)
        assert not loaded.config.scale_decoder_outputs
        loaded.save_pretrained(folder)


def test_t5_without_its_head_is_refused(tmp_path: Path, folder: Path) -> None:
    tiny_t5(tmp_path)
    decoder = onnx.load(tmp_path / "decoder.onnx")
    decoder.graph.node.remove(next(node for node in decoder.graph.node if "lm_head" in node.name))
    onnx.save(decoder, tmp_path / "decoder.onnx")
    with pytest.raises(ModelFilesError, match=r"T5ForConditionalGeneration .*Missing.*: lm_head\.weight"):
        onnx_t5.convert(tmp_path, folder)
    assert not list(folder.iterdir())
