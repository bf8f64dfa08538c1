"""Defines a family: a declaration of where a kind of model has its decoder. A family knows no method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

_SAMPLE = 8192
"""Most token embeddings to measure."""


@dataclass(frozen=True)
class CrossAttention:
    """Declares the cross-attention of a decoder layer.

    Attributes:
        module: Path from a decoder layer to its cross-attention.
        query: Name of the module that projects the steps.
        key: Name of the module that projects the source.
        mask: Name of the argument that holds the mask.
        heads: Reads the number of heads off the model's configuration.
        source: Name of the argument that holds the encoded source.
        scaled: Whether scores are divided by the square root of a head's width.
        mask_of_heads: Whether the mask may have values for each head, as a method that biases attention needs.
    """

    module: str
    query: str
    key: str
    mask: str
    heads: Callable[[Any], int]
    source: str = "key_value_states"
    scaled: bool = True
    mask_of_heads: bool = True

    def of(self, layer: nn.Module) -> nn.Module:
        """Return the cross-attention of a decoder layer."""
        return layer.get_submodule(self.module)

    def scores(self, attention: nn.Module, args: Any, kwargs: Any, config: Any) -> tuple[Tensor, Tensor]:
        """Return the (B, H, T, S) scores of a call, and the (B, S) mask of source tokens that are not padding."""
        import torch

        steps = args[0] if args else kwargs["hidden_states"]
        source = kwargs[self.source]
        heads = self.heads(config)
        query, key = (
            module(states).unflatten(-1, (heads, -1)).transpose(1, 2)
            for module, states in (
                (attention.get_submodule(self.query), steps),
                (attention.get_submodule(self.key), source),
            )
        )
        scores = query @ key.transpose(-1, -2)
        mask = kwargs.get(self.mask)
        readable = torch.ones(source.shape[:2], dtype=torch.bool, device=source.device)
        if mask is not None:
            readable = (mask if mask.dtype == torch.bool else mask >= 0)[:, 0, 0].expand_as(readable)
        return scores / query.shape[-1] ** 0.5 if self.scaled else scores, readable

    @staticmethod
    def add(bias: Tensor, mask: Tensor | None) -> Tensor:
        """Add a bias to a mask that is None, boolean (True where a token may be read) or additive."""
        import torch

        if mask is None:
            return bias
        if mask.dtype == torch.bool:
            return bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
        return (bias + mask).to(mask.dtype)


@dataclass(frozen=True)
class Family:
    """Declares where a kind of model has its decoder and how it takes its input.

    Attributes:
        model_types: ``config.model_type`` of all models that the declaration holds for.
        decoder: Path from the model to its decoder: the module that takes ``input_ids`` or ``inputs_embeds``.
        layers: Path from the decoder to the list of its layers, each taking hidden states first.
        scale: Returns the factor by which the decoder multiplies ``inputs_embeds``.
        positions: Path from the decoder to its absolute position embeddings; None if it has none.
        limit: Name of the configuration field with the number of positions; None if there is no limit.
        source_limit: The same for the source of an encoder-decoder; None if it is that of ``limit``.
        cross_attention: Cross-attention of the decoder; None for decoder-only models.
        fast_loop: Whether ``decoding.loop`` can write with these types, else ``generate`` does. Their layers must keep
            keys and values of all tokens and nothing else, and take positions and additive masks for each row.
        mixes_packed: Those of ``model_types`` that mix the examples of packed rows: (B, T) ``position_ids`` that begin
            again do not keep their layers from reading the example before.
    """

    model_types: tuple[str, ...]
    decoder: str
    layers: str = "layers"
    scale: Callable[[Any], float] = lambda config: 1.0  # noqa: ARG005
    positions: str | None = None
    limit: str | None = "max_position_embeddings"
    source_limit: str | None = None
    cross_attention: CrossAttention | None = None
    fast_loop: bool = False
    mixes_packed: tuple[str, ...] = ()

    @property
    def encoder_decoder(self) -> bool:
        """True if the model has an encoder."""
        return self.cross_attention is not None

    def decoder_of(self, model: Any) -> Any:
        """Return the decoder of an unwrapped model."""
        return model.get_submodule(self.decoder)

    def layers_of(self, model: Any) -> list[nn.Module]:
        """Return the decoder's layers."""
        return list(self.decoder_of(model).get_submodule(self.layers).children())

    @property
    def reader(self) -> CrossAttention:
        """The cross-attention of a family that has one."""
        assert self.cross_attention is not None
        return self.cross_attention

    def width(self, model: Any) -> int:
        """Return D, the width of the decoder's input embeddings, and of the signal."""
        import torch

        return int(self._embed(model, torch.zeros(1, dtype=torch.long, device=model.device)).shape[-1])

    def layer_width(self, model: Any) -> int:
        """Return the width of the states between layers; some decoders map narrower embeddings to it."""
        return int(text_config(model).hidden_size)

    def embedding_rms(self, model: Any) -> float:
        """Return the root mean square of the token embeddings as the decoder sees them."""
        import torch

        config = text_config(model)
        count = int(config.vocab_size)
        ids = torch.linspace(0, count - 1, min(count, _SAMPLE), device=model.device).long()
        seen = self._embed(model, ids).float() * self.scale(config)
        return float(seen.square().mean().sqrt())

    def _embed(self, model: Any, ids: Tensor) -> Tensor:
        """Return the (1, T, D) embeddings of (T,) ids, also where an adapter is around the table."""
        import torch

        with torch.no_grad():
            embeddings: Tensor = self.decoder_of(model).get_input_embeddings()(ids[None])
        return embeddings

    def checkpoints(self, model: Any) -> bool:
        """Check whether gradient checkpointing is on, without a walk through all modules; it is set in all alike."""
        decoder = self.decoder_of(model)
        first = next(decoder.get_submodule(self.layers).children())
        return any(getattr(module, "gradient_checkpointing", False) for module in (first, decoder))

    def room(self, model: Any) -> int | None:
        """Return the number of positions of the decoder, or None if there is no limit."""
        return int(getattr(text_config(model), self.limit)) if self.limit else None

    def source_room(self, model: Any) -> int | None:
        """Return the number of positions that read the source, or None if there is no limit."""
        return int(getattr(text_config(model), self.source_limit)) if self.source_limit else self.room(model)

    def special_ids(self, model: Any) -> list[int]:
        """Return the ids that the model's configuration calls special."""
        names = ("pad", "bos", "eos", "decoder_start", "forced_bos")
        ids: list[int] = []
        for config in (model.config, text_config(model), model.generation_config):
            for value in (getattr(config, f"{name}_token_id", None) for name in names):
                ids += value if isinstance(value, list) else [value] if value is not None else []
        return ids


def text_config(model: Any) -> Any:
    """Return the configuration of a model's text part; of most models it is the whole one."""
    return model.config.get_text_config()


def unwrap(model: Any) -> Any:
    """Return the Hugging Face model inside the wrappers of PEFT and torch.compile."""
    while True:
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model
