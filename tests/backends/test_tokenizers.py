"""Tokenizers in GGUF files: chat templates, special tokens and ends are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from impatience.backends.llama_cpp.export import export_model
from impatience.backends.llama_cpp.gguf_weights import ARCHITECTURES, tensors, write_sizes
from impatience.backends.llama_cpp.model import GgufModel
from impatience.backends.llama_cpp.tokenizer import GgufTokenizer
from impatience.families import unwrap
from impatience.user_text import encode_chats, encode_texts
from impatience.vocabulary import Vocabulary
from support.gguf_models import PROMPT, Pair, tiny_steered
from support.toys import CORPUS, EOS, tiny_model

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # types of tokens, see ``gguf.TokenType``
CHAT = [
    {"role": "system", "content": "Answer <b>briefly</b> & with 'care'."},
    {"role": "user", "content": "Où est le café ? <|end|>"},
    {"role": "assistant", "content": "Là-bas."},
]
_EACH = "{%- for message in messages %}"
_ALL = _EACH + "{{ message.content }}{% endfor %}"  # a template that leaves out what the user says is refused
TEMPLATES = {
    "tools": "{% if tools is not none %}TOOLS{% endif %}{% if documents is not none %}DOCUMENTS{% endif %}plain" + _ALL,
    "names": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ enable_thinking is defined }}" + _ALL,
    "json": _EACH + "{{ message | tojson }}{{ message | tojson(indent=2) }}{{ message.content | tojson }}{% endfor %}",
    "generation": _EACH
    + "{% if message.role == 'assistant' %}\n  {% generation %}\n{{ message.content }}\n{% endgeneration %}\n"
    "{% else %}{{ message.content }}{% endif %}{% endfor %}!",
    "loops": _EACH
    + "{% if loop.first %}{% continue %}{% endif %}{{ message.role }}{% if loop.index > 1 %}{% break %}{% endif %}"
    "{% endfor %}" + _ALL,
    "date": "{{ strftime_now('%Y-%m') }}" + _ALL,
    "space": _EACH + "\n    {%- set ns = namespace(n=loop.index) %}\n  {{ ns.n }}\n    {%- endfor %}\n\n" + _ALL,
    "prompt": "{{ add_generation_prompt }}{{ messages[0]['content'].split('<b>')[-1] | trim | upper }}",
}


@pytest.fixture
def tokenizers(llama: Pair) -> tuple[GgufTokenizer, Any]:
    return GgufTokenizer(GgufModel(llama.file)), llama.torch_model.tokenizer


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates_are_rendered_as_by_transformers(
    tokenizers: tuple[GgufTokenizer, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tokenizers
    for tokenizer in tokenizers:
        monkeypatch.setattr(tokenizer, "chat_template", TEMPLATES[name])
    chats = [CHAT, CHAT[1:2]]
    written = theirs.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(chats) == written
    assert encode_chats(ours, [CHAT[1:2]]) == encode_chats(theirs, [CHAT[1:2]])


def test_a_template_can_refuse_a_chat(tokenizers: tuple[GgufTokenizer, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for tokenizer in tokenizers:
        monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('no system role') }}")
        with pytest.raises(Exception, match="no system role"):
            tokenizer.apply_chat_template([CHAT], tokenize=False)
    ours = tokenizers[0]
    monkeypatch.setattr(ours, "chat_template", "{{ messages[0].content }}")
    assert ours.apply_chat_template([[{"role": "user", "content": CORPUS[0]}]]) == [CORPUS[0]]


@pytest.mark.parametrize("ends", [1, [1, 3], [3, 1], [3], [3, 0, 1], [0, 1, 3, 40]])
def test_ends_are_those_of_the_model(tmp_path: Path, ends: int | list[int]) -> None:
    model = tiny_steered(method="none")
    unwrap(model.base).generation_config.eos_token_id = ends
    export_model(model, PROMPT, tmp_path / "m.gguf", kind="f32")
    export_model(model, PROMPT, tmp_path / "copy.gguf", kind="f32", base=tmp_path / "m.gguf")
    for name in ("m.gguf", "copy.gguf"):
        tokenizer = GgufTokenizer(GgufModel(tmp_path / name))
        assert tokenizer.eos_ids == (ends if isinstance(ends, list) else [ends])
        assert tokenizer.eos_token_id == model.tokenizer.eos_token_id == EOS
        assert tokenizer.special_tokens_map == model.tokenizer.special_tokens_map


def write_vocabulary(path: Path, kind: str, tokens: dict[str, int], **ids: int) -> GgufTokenizer:
    """Write a tiny Llama with a vocabulary, tokens with their types, and return its tokenizer."""
    model = tiny_model("llama", vocab_size=len(tokens), max_position_embeddings=64)
    writer = gguf.GGUFWriter(path, "llama")
    write_sizes(writer, model.config, "f32")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(tokens))
    writer.add_token_scores([-float(n) for n in range(len(tokens))])
    writer.add_token_types(list(tokens.values()))
    if kind == "gpt2":
        writer.add_token_merges(["< /", "</ s", "</s >"])
    for name, value in ids.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{name}", value)
    for name, content, form in tensors(model, ARCHITECTURES["llama"], "f32"):
        writer.add_tensor(name, content, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufTokenizer(GgufModel(path))


def sentencepiece(path: Path, **ids: int) -> GgufTokenizer:
    letters = dict.fromkeys(("▁", *"abs<>/", "</", "/s", "</s", "▁a"), NORMAL)
    special = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    tokens = {**special, **{f"<0x{byte:02X}>": BYTE for byte in range(256)}, **letters}
    chosen = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True, **ids}
    return write_vocabulary(path, "llama", tokens, **chosen)


def test_the_unknown_token_of_sentencepiece_is_no_text(tmp_path: Path) -> None:
    tokenizer = sentencepiece(tmp_path / "m.gguf")
    assert tokenizer.all_special_ids == [0, 1, 2]
    assert Vocabulary(len(tokenizer), tokenizer.eos_ids, tokenizer).special_ids == {0, 1, 2}
    assert tokenizer.token_bytes()[:4] == [b"", b"", b"", b"\x00"]
    ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode([0, *ids, 0], skip_special_tokens=True).strip() == "a"


@pytest.mark.parametrize("adds_bos", [True, False])
def test_an_end_that_the_tokenizer_adds_stays_an_end(tmp_path: Path, adds_bos: bool) -> None:
    tokenizer = sentencepiece(tmp_path / "m.gguf", add_bos_token=adds_bos, add_eos_token=True)
    first = [1] * adds_bos
    for text in ("a b", "", "</s>", "<s>a</s>"):
        (row,) = encode_texts(tokenizer, [text])
        assert (row[: len(first)], row[-1]) == (first, 2)
        assert not {1, 2} & set(row[len(first) : -1]), "the names in the text are spelled"
        batch = tokenizer([text], split_special_tokens=True, return_special_tokens_mask=True)
        assert batch["special_tokens_mask"][0] == [1] * adds_bos + [0] * (len(batch["input_ids"][0]) - 1 - adds_bos) + [
            1
        ]
    (whole,), (short,) = encode_texts(tokenizer, ["abab"]), encode_texts(tokenizer, ["abab"], max_length=4)
    assert short == [*whole[:3], 2]
    assert encode_texts(tokenizer, ["abab"], add_special_tokens=False) == [whole[adds_bos:-1]]


def test_only_named_tokens_end_a_text(tmp_path: Path) -> None:
    tokens = dict.fromkeys(("a", "s", "<", "/", ">", "</", "</s", "</s>"), NORMAL)
    tokens |= {"<|endoftext|>": CONTROL, "<|im_end|>": CONTROL, "<|fim_pad|>": USER_DEFINED, "<|call|>": CONTROL}
    end, turn, tool = 8, 9, 11
    plain = write_vocabulary(tmp_path / "m.gguf", "gpt2", tokens, eos_token_id=end, eot_token_id=turn)
    assert (plain.eos_ids, plain.eos_token_id) == ([turn, end], end)
    calls = write_vocabulary(
        tmp_path / "c.gguf", "gpt2", tokens, eos_token_id=end, eot_token_id=turn, eom_token_id=tool
    )
    assert calls.eos_ids == [turn, end, tool]
    assert calls.all_special_ids == [end, turn, tool], "types are those of the file"
    assert calls.token_bytes()[7] == b"</s>"
    assert calls.decode(calls("a</s>")["input_ids"], skip_special_tokens=True) == "a</s>"
