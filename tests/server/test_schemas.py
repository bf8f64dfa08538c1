"""Requests that do not match the schemas: each is rejected with the field and the reason."""

from __future__ import annotations

from typing import Any

import pytest

from support.serving import NOTE, Client

INVALID: list[tuple[Any, str, str]] = [
    (b"{", "", "JSON"),
    (b"\xff\xfe", "", ""),
    (b"[" * 100_000, "", ""),
    (b'{"text": 1' + b"0" * 5000 + b"}", "", ""),
    ([], "", "dictionary"),
    ({"text": NOTE}, "target", "target: it is missing. Give one of words, characters"),
    ({"target": {"words": 4}}, "text", "empty. Give a text, or say in an instruction what to write"),
    ({"text": "", "target": {"words": 4}}, "text", "empty"),
    ({"instruction": " ", "target": {"words": 4}}, "text", "empty"),
    ({"instruction": 3, "target": {"words": 4}}, "instruction", "valid string"),
    ({"instruction": "Sing.", "task": "title", "target": {"words": 4}}, "", "a task and an instruction: give one"),
    (
        {"text": NOTE, "target": {"words": [4]}},
        "target.words",
        "it is no length. Give a whole number from 1 to 10,000,000, or a range as in [120",
    ),
    ({"text": NOTE, "target": {"words": [4, 0]}}, "target.words.1", "a whole number from 1"),
    ({"text": NOTE, "target": {"words": [5, 4]}}, "target", "give the first and the last length, e.g. 120-160"),
    ({"text": NOTE, "target": {"words": [4, 5]}, "landing": "exact"}, "target", "not one exact length"),
    ({"text": NOTE, "target": {"words": "4-5"}}, "target.words", "a whole number from 1"),
    ({"text": " \n", "target": {"words": 4}}, "text", "empty"),
    ({"text": 5, "target": {"words": 4}}, "text", "valid string"),
    (b'{"text": "half \\ud83d", "target": {"words": 4}}', "text", "half a character"),
    ({"text": NOTE, "target": {}}, "target", "no unit"),
    ({"text": NOTE, "target": 4}, "target", "target: it is not an object. Give one of words, characters"),
    ({"text": NOTE, "target": {"words": 4, "tokens": 4}}, "target", "words and tokens"),
    ({"text": NOTE, "target": {"pages": 4}}, "target.pages", "unknown unit. Give one of words, characters"),
    ({"text": NOTE, "target": {"words": 0}}, "target.words", "a whole number from 1"),
    ({"text": NOTE, "target": {"words": "4"}}, "target.words", "a whole number from 1"),
    ({"text": NOTE, "target": {"words": True}}, "target.words", "a whole number from 1"),
    ({"text": NOTE, "target": {"words": 10**30}}, "target.words", "a whole number from 1"),
    ({"text": NOTE, "target": {"words": 2000}}, "target", "more than this model can write"),
    ({"text": NOTE, "target": {"words": 4}, "landing": "soft"}, "landing", "'natural', 'exact' or 'at_most'"),
    ({"text": NOTE, "target": {"words": 4}, "task": "sing"}, "task", "'summarize'"),
    ({"text": NOTE, "target": {"words": 4}, "stream": "yes"}, "stream", "valid boolean"),
    ({"text": NOTE, "target": {"words": 4}, "tries": 17}, "tries", "less than or equal to 16"),
    ({"text": NOTE, "target": {"words": 4}, "tries": 2, "stream": True}, "", "leave out stream, or tries"),
    ({"text": NOTE, "target": {"words": 4}, "lenght": 3}, "lenght", "unknown field. Leave it out."),
    ({"text": NOTE, "target": {"words": 4}, "targets": 3}, "targets", "unknown field. Leave it out."),
    (b'{"text": "a", "target": {"words": 4}, "\\ud83d": 3}', "", ""),
    (
        b'{"text": "a", "target": {"words": 4}, "target": {"words": 5}}',
        "target",
        "the key 'target' twice. Give it once",
    ),
    (b'{"text": "a", "target": {"words": 4, "words": 4}}', "words", "the key 'words' twice"),
    (b'{"text": "a", "target": {"words": 4}, "\\ud83d": 3, "\\ud83d": 3}', "\ud83d", "twice"),
]


@pytest.mark.parametrize(("body", "param", "message"), INVALID, ids=[str(n) for n in range(len(INVALID))])
@pytest.mark.parametrize("stream", [False, True])
def test_an_invalid_request_gets_400_with_the_field_and_the_reason(
    client: Client, body: Any, param: str, message: str, stream: bool
) -> None:
    if isinstance(body, dict) and "stream" not in body:
        body = {**body, "stream": stream}
    reply = client("/v1/write", body)
    assert reply.status == 400
    assert (reply.error["param"] or "") == param
    assert reply.error["type"] == "invalid_request_error"
    assert message in reply.error["message"]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_no_route_takes_a_key_twice(client: Client, route: str) -> None:
    text = b'"messages": [{"role": "user", "content": "a"}], "prompt": "a", "model": "tiny/llama"'
    for extra, key in [
        (b'"max_tokens": 5, "max_tokens": 6', "max_tokens"), (b'"target": {"words": 5, "words": 6}', "words"),
        (b'"user": [{"a": 1, "a": 1}]', "a"),
    ]:  # fmt: skip
        reply = client(route, b"{%b, %b}" % (text, extra))
        assert (reply.status, reply.error["param"], reply.error["code"]) == (400, key, "repeated_key")
        assert reply.error["message"] == f"The request has the key {key!r} twice. Give it once."
