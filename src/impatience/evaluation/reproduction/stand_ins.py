"""Tiny stand-ins for what the paper's lines need, so that they can be run from end to end in seconds.

``make_hub`` writes a folder that stands for the hub, with untrained models of the right kinds and a few made-up texts
in the form of the real sets. ``tiny_judge`` is a judge on loopback, which finds no error in anything. What comes of a
run with them says that the lines work, and nothing else.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from impatience.sources import toy

_ROWS = {"train": 10, "validation": 4, "test": 4}
_SETS = {"abisee/cnn_dailymail": "3.0.0", "EdinburghNLP/xsum": "", "rajpurkar/squad": "plain_text"}
_POSITIONS = 1024


def make_hub(folder: Path) -> None:
    """Write models and data sets, unless they are there."""
    if folder.exists():
        return
    for name, model in _models():
        tokenizer = toy.build("toy-bart")[1]
        tokenizer.cls_token, tokenizer.sep_token = "<s>", "</s>"
        for part in (model, tokenizer):
            part.save_pretrained(folder / name)
    for number, (name, config) in enumerate(_SETS.items()):
        place = folder / name / config
        place.mkdir(parents=True)
        for split, count in _ROWS.items():
            if (name, split) != ("rajpurkar/squad", "test"):  # which the real one has not either
                rows = [_row(name, f"{split}-{number}-{index}") for index in range(count)]
                text = "".join(json.dumps(row) + "\n" for row in rows)
                (place / f"{split}.jsonl").write_text(text, encoding="utf-8")


def _models() -> Iterator[tuple[str, Any]]:
    import torch
    from transformers import (
        BartConfig,
        BartForConditionalGeneration,
        BertConfig,
        BertModel,
        T5Config,
        T5ForConditionalGeneration,
    )

    words = len(toy.build("toy-bart")[1])
    ids = {"vocab_size": words, "pad_token_id": 0, "eos_token_id": 1}
    sizes = {f"{part}_{size}": count for part in ("encoder", "decoder")
             for size, count in (("layers", 1), ("ffn_dim", 32), ("attention_heads", 2))}  # fmt: skip
    bert = {"hidden_size": 16, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield "facebook/bart-large", BartForConditionalGeneration(
            BartConfig(**ids, **sizes, d_model=32, max_position_embeddings=_POSITIONS, bos_token_id=2,
                       decoder_start_token_id=1, forced_eos_token_id=None)
        )  # fmt: skip
        yield (
            "google-t5/t5-large",
            T5ForConditionalGeneration(
                T5Config(**ids, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
            ),
        )
        yield "bert-base-uncased", BertModel(BertConfig(vocab_size=words, pad_token_id=0, **bert))


def _row(name: str, key: str) -> dict[str, Any]:
    chance = random.Random(f"{name} {key}")

    def words(low: int, high: int) -> str:
        return " ".join(chance.choices(toy.WORDS, k=chance.randint(low, high)))

    number = f"{chance.randrange(16**8):08x}"  # hexadecimal, as CNN/DailyMail's
    if name == "abisee/cnn_dailymail":
        return {"id": number, "article": words(210, 260), "highlights": f"{words(8, 14)}\n{words(8, 14)}"}
    if name == "EdinburghNLP/xsum":
        return {"id": number, "document": words(60, 90), "summary": words(6, 14)}
    answers = {"text": [words(1, 2)], "answer_start": [0]}
    return {"id": number, "title": "T", "context": words(30, 40), "question": words(5, 9), "answers": answers}


class _Handler(BaseHTTPRequestHandler):
    """Answers each of the judge's three questions in the form it asks for."""

    def do_POST(self) -> None:
        """Answer one question."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][0]["content"]
        question = json.loads(text[text.index("\n{") : text.rindex("\n}") + 2])
        answer: dict[str, Any] = {"key_facts": ["One fact."]}
        if "source" in question:
            numbers = range(1, len(question["sentences"]) + 1)
            answer = {"sentences": [{"number": n, "reason": "", "category": "no_error"} for n in numbers]}
        elif "key_facts" in question:
            answer = {"key_facts": [{"number": 1, "sentences": [1]}]}
        content = json.dumps({"choices": [{"message": {"content": json.dumps(answer)}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def tiny_judge() -> Iterator[str]:
    """Serve the judge while the block runs; yields its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
