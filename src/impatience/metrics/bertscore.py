"""BERTScore: the cosine of each token of a text with the most similar token of a reference.

    precision = mean over the text's tokens of max cosine with the reference's        recall: vice versa

As the library *bert-score* computes it, neither weighted by IDF nor rescaled. The default encoder is bert-base-uncased
and its 12th layer, as in the paper (the library's default for that encoder is the 9th). With several references each
number is the best over the references; an empty text scores 0. The library's ``score`` fails under transformers 5 on an
empty text, reads any path with "t5" in it as a T5, and fails if a tokenizer has no maximum length. So this module
leaves out empty texts and loads the encoder; the library computes the scores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar

from impatience.config import option
from impatience.errors import ModelFilesError, OptionError
from impatience.metrics.base import Aggregate, Column, Metric, Prediction, loading
from impatience.sources.hub_folder import in_hub_folder
from impatience.sources.pretrained import load_settings, load_weights

DEFAULT, DEFAULT_LAYERS = "bert-base-uncased", 12
_KINDS = {  # in the library's order
    "bertscore_precision": "similarity of the text's tokens to the reference's",
    "bertscore_recall": "similarity of the reference's tokens to the text's",
    "bertscore_f1": "harmonic mean of BERTScore precision and recall",
}


@dataclass(frozen=True)
class BertScore(Metric):
    """BERTScore's F1, precision and recall."""

    needs: ClassVar[tuple[str, ...]] = ("bert_score",)
    summary: ClassVar[str] = "similarity to a reference by a language model's encodings (bert-score)"
    columns: ClassVar[tuple[Column, ...]] = tuple(
        Column(kind, text, "higher", percent=True) for kind, text in _KINDS.items()
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = tuple(
        Aggregate(kind, f"mean {text}", "higher", (kind,), percent=True) for kind, text in reversed(_KINDS.items())
    )

    model: str = option(DEFAULT, "encoder: a folder, or a name on the hub")
    layers: int | None = option(
        None, f"layer whose output is compared; None is {DEFAULT_LAYERS} for {DEFAULT}, others have no default"
    )
    batch_size: int = option(64, "pairs of texts that are compared at the same time")

    def __post_init__(self) -> None:
        if self.layers is None and self.model != DEFAULT:
            raise OptionError(
                f"bertscore: model={self.model!r} needs layers, the number of the layer whose output is compared; "
                f"only {DEFAULT} has a default ({DEFAULT_LAYERS})."
            )
        for name, value in (("layers", self.layers), ("batch_size", self.batch_size)):
            if value is not None and value < 1:
                raise OptionError(f"bertscore: {name}={value}: give a whole number of at least 1.")

    def check(self) -> None:
        """Check that the encoder exists and has the layer, without loading it."""
        super().check()
        with self._loading():
            self._config()

    @property
    def layer(self) -> int:
        """The layer whose output is compared."""
        return self.layers or DEFAULT_LAYERS

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Compare each text with its references; NaN if it has none."""
        pairs = [
            (index, reference, prediction.text)
            for index, prediction in enumerate(predictions)
            for reference in prediction.references
            if reference.strip() and prediction.text.strip()
        ]
        best: dict[int, list[float]] = {}
        for start in range(0, len(pairs), self.batch_size):
            indices, references, texts = zip(*pairs[start : start + self.batch_size], strict=True)
            for index, scores in zip(indices, self._compare(list(references), list(texts)), strict=True):
                best[index] = [max(pair) for pair in zip(best.get(index, scores), scores, strict=True)]
        rows = [
            best.get(index, [0.0 if prediction.references else float("nan")] * 3)
            for index, prediction in enumerate(predictions)
        ]
        return {kind: [row[number] for row in rows] for number, kind in enumerate(_KINDS)}

    def facts(self) -> dict[str, Any]:
        """Return the library, the encoder and the layer."""
        return {
            "bert-score": version("bert-score"),
            "model": self.model,
            "layer": self.layer,
            "idf": False,
            "rescaled": False,
            "references": "best",
        }

    def _compare(self, references: list[str], texts: list[str]) -> list[list[float]]:
        """Return precision, recall and F1 of each pair."""
        from bert_score.utils import bert_cos_score_idf

        model, tokenizer = self._encoder
        weights: dict[int, float] = defaultdict(lambda: 1.0)
        weights |= {tokenizer.sep_token_id: 0.0, tokenizer.cls_token_id: 0.0}
        scores: list[list[float]] = bert_cos_score_idf(
            model, references, texts, tokenizer, weights, batch_size=self.batch_size, device=model.device
        ).tolist()
        return scores

    @cached_property
    def _encoder(self) -> tuple[Any, Any]:
        """The encoder up to the layer, and its tokenizer; loaded once."""
        import torch
        from transformers import AutoModel, AutoTokenizer

        with self._loading():
            config = self._config()
            tokenizer = load_settings(
                AutoTokenizer, self._source, split_special_tokens=True
            )  # texts may contain "[SEP]"
            model, info = load_weights(
                AutoModel, self._source, config=config, dtype=torch.float32, output_loading_info=True
            )
        if missing := [name for name in info["missing_keys"] if not name.startswith("pooler.")]:
            raise ModelFilesError(f"bertscore: {self.model} lacks weights of its encoder, e.g. {sorted(missing)[0]}.")
        limit = config.to_dict().get("max_position_embeddings", tokenizer.model_max_length)
        tokenizer.model_max_length = min(tokenizer.model_max_length, limit)
        return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer

    @property
    def _source(self) -> str:
        return str(in_hub_folder(self.model) or self.model)

    def _config(self) -> Any:
        """Return the configuration of the encoder up to the layer."""
        from transformers import AutoConfig

        config = load_settings(AutoConfig, self._source)
        if config.is_encoder_decoder or self.layer > config.num_hidden_layers:
            raise OptionError(
                f"bertscore: layers={self.layer}: {self.model} is a {config.model_type} of "
                f"{config.num_hidden_layers} layers. Give an encoder such as BERT, and one of its layers."
            )
        config.num_hidden_layers = self.layer
        return config

    def _loading(self) -> AbstractContextManager[None]:
        return loading(
            f"bertscore: the encoder {self.model!r}",
            "Without the hub, give a folder that holds one with its tokenizer as model, and its layer as layers.",
        )


METRIC = BertScore
