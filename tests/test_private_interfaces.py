"""Names of other libraries that they may change with any version: an upgrade that changes one fails here.

The table is in ``docs/architecture.md``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import uvicorn
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel, Trainer, TrainerControl, TrainerState
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import cached_file, hub
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from support.toys import tiny_model

ROOT = Path(__file__).parents[1]
OURS = ("self", "cls")


def names(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's arguments."""
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (Trainer._clip_grad_norm, ["self", "model"]),
        (Trainer._save_checkpoint, ["self", "model", "trial"]),
        (Trainer._save, ["self", "output_dir", "state_dict"]),
        (Trainer._load_from_checkpoint, ["self", "resume_from_checkpoint", "model"]),
        (Trainer._get_train_sampler, ["self", "train_dataset"]),
        (Trainer._prepare_inputs, ["self", "inputs"]),
        (uvicorn.Server.on_tick, ["self", "counter"]),
        (uvicorn.Server.handle_exit, ["self", "sig", "frame"]),
    ],
)
def test_methods_that_we_override_or_call_have_the_same_arguments(
    function: Callable[..., Any], arguments: list[str]
) -> None:
    assert names(function) == arguments


def test_the_trainer_calls_what_we_override_and_reads_what_we_set() -> None:
    source = inspect.getsource(transformers.trainer)
    for call in ("_clip_grad_norm(", "_save_checkpoint(", "_save(", "_load_from_checkpoint(", "_get_train_sampler("):
        assert f"self.{call}" in source or f"self.{call[:-1]}," in source
    for name in ("model_accepts_loss_kwargs", "loss_is_scaled_for_ga"):
        assert f"self.{name}" in source


def test_the_state_of_a_trainer_says_whether_it_stopped(tmp_path: Path) -> None:
    TrainerState(stateful_callbacks=[TrainerControl(should_training_stop=True)]).save_to_json(str(tmp_path / "s.json"))
    state = json.loads((tmp_path / "s.json").read_text())
    assert state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"] is True
    assert {"global_step", "max_steps"} <= state.keys()


def test_models_have_the_attributes_that_we_read() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    assert isinstance(model, PreTrainedModel)
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    assert model.config._attn_implementation == "eager"
    assert set(model._no_split_modules) == {"LlamaDecoderLayer"}
    assert not model._keys_to_ignore_on_save
    assert tiny_model("marian")._keys_to_ignore_on_save
    assert model.all_tied_weights_keys.keys() == {"lm_head.weight"}
    model.config._name_or_path = "somewhere"
    assert model.config.name_or_path == "somewhere"
    get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    assert any(isinstance(module, BaseTunerLayer) for module in model.modules())


def test_functions_of_transformers_take_and_return_what_we_rely_on(tmp_path: Path) -> None:
    missing = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    assert missing.keys() <= inspect.signature(hub.cached_files).parameters.keys()
    assert cached_file(str(tmp_path), "none.json", **missing) is None
    assert names(sdpa_attention_forward)[:5] == ["module", "query", "key", "value", "attention_mask"]


def test_names_of_torch_are_there() -> None:
    linear = torch.nn.Linear(2, 2)
    assert torch.compile(linear, backend="eager")._orig_mod is linear
    tensors = [torch.ones(2), torch.ones(3)]
    torch._foreach_zero_(tensors)
    assert not any(tensor.any() for tensor in tensors)

    class Extra(torch.nn.Module):
        def get_extra_state(self) -> torch.Tensor:
            return torch.ones(1)

    assert Extra().state_dict().keys() == {"_extra_state"}


def test_a_connection_of_uvicorn_has_what_ours_uses() -> None:
    assert names(H11Protocol.__init__)[:4] == ["self", "config", "server_state", "app_state"]
    loop = asyncio.new_event_loop()
    config = uvicorn.Config(lambda _: None, log_config=None)  # type: ignore[arg-type, misc, return-value]
    state = ServerState()
    connection = H11Protocol(config=config, server_state=state, app_state={"one": 1}, _loop=loop)
    loop.close()
    assert connection.connections is state.connections
    assert connection.loop is loop
    assert connection.app_state == {"one": 1}
    assert connection.transport is None


def test_private_attributes_of_libraries_are_in_the_table() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = table.split("## Private interfaces")[1].split("##")[0]
    used, own = set(), {"_exit"}  # of os, which is documented
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OURS:
                own.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own.add(node.target.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                used.add(node.attr)
    assert used - own >= {"_attn_implementation", "_orig_mod"}
    assert {name for name in used - own if not re.search(rf"\b{name}\b", table)} == set()
