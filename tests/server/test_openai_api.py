"""OpenAI's own client with the server: requests, replies, streams and errors."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from impatience import Request, Result, Unit, Writer, attach
from impatience.lengths import Landing
from impatience.server import Access, Limits
from impatience.server.openai_api import IGNORED_HEADER
from support.results import judged
from support.serving import KEY, NAME, NOTE, Client, running
from support.toys import CORPUS, tiny_model, wordpiece_tokenizer

TARGET = {"target": {"words": 6}, "landing": "exact"}


@pytest.fixture(scope="module")
def plain(writer: Writer) -> Iterator[Client]:
    with running(writer, access=Access(key=KEY)) as (client, *_):
        yield Client(client.port, Authorization=f"Bearer {KEY}")


@pytest.fixture(scope="module")
def client(plain: Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{plain.address}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, *messages: str, **kwargs: Any) -> Any:
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(messages)]
    kwargs = {"extra_body": TARGET, "model": NAME, "messages": turns} | kwargs
    return client.chat.completions.create(**kwargs)


def test_a_chat_is_answered_to_its_length(client: openai.OpenAI, writer: Writer) -> None:
    reply = chat(client, NOTE)
    expected = writer.write(NOTE, words=6, landing="exact", task="chat", tries=1)
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        expected.text,
        "stop" if expected.finished else "length",
    )
    assert len(choice.message.content.split()) == 6
    assert reply.report["landed"] == expected.landed
    assert (reply.report["length"], reply.report["unit"]) == (6, "words")
    assert reply.usage.completion_tokens == expected.tokens > 0
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert (reply.model, reply.object) == (NAME, "chat.completion")
    assert reply.id.startswith("chatcmpl-")


def test_earlier_messages_are_read(client: openai.OpenAI, writer: Writer) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": NOTE}]},
    ]
    alone, before, after = (
        chat(client, NOTE),
        chat(client, NOTE, messages=messages),
        chat(client, NOTE, CORPUS[3], NOTE),
    )
    assert alone.usage.prompt_tokens < before.usage.prompt_tokens < after.usage.prompt_tokens
    assert len({reply.choices[0].message.content for reply in (alone, before, after)}) == 3


@pytest.mark.parametrize("landing", ["natural", "exact", "at_most"])
def test_a_streamed_chat_equals_the_whole_one(client: openai.OpenAI, landing: str) -> None:
    for target in range(5, 25, 4):
        extra = {"target": {"tokens": target}, "landing": landing}
        whole = chat(client, CORPUS[3], extra_body=extra)
        chunks = list(chat(client, CORPUS[3], extra_body=extra, stream=True, stream_options={"include_usage": True}))
        assert len({chunk.id for chunk in chunks}) == 1
        *pieces, last, usage = chunks
        assert pieces[0].choices[0].delta.role == "assistant"
        text = "".join(chunk.choices[0].delta.content for chunk in pieces)
        assert text == whole.choices[0].message.content
        assert last.choices[0].finish_reason == whole.choices[0].finish_reason
        assert last.report == whole.report
        assert (usage.usage, usage.choices) == (whole.usage, [])
        assert landing != "exact" or len(pieces) > 3


def test_a_stream_sends_nothing_beyond_its_target_that_is_taken_back(client: openai.OpenAI, writer: Writer) -> None:
    extra = {"target": {"sentences": 1}, "landing": "exact"}
    *_, shown = writer.stream(Request("a", CORPUS[3], 1, Unit.SENTENCES, Landing.EXACT, task="chat"))
    assert isinstance(shown, Result)
    assert shown.taken_back, "the text grows beyond a sentence"
    *pieces, last = chat(client, CORPUS[3], extra_body=extra, stream=True)
    assert "".join(chunk.choices[0].delta.content for chunk in pieces) == shown.text
    assert last.report["taken_back"] == 0


@pytest.mark.parametrize(
    ("landed", "ended", "text", "reason"),
    [
        ("natural", True, "A sentence.", "stop"),
        ("forced", True, "A sentence that closes.", "stop"),
        ("forced", True, "A sentence that breaks off in the", "length"),
        ("forced", True, "It ends with Mr.", "length"),
        ("forced", False, "A sentence. And a", "length"),
        ("missed", True, "It is too long.", "stop"),
        ("missed", True, "It breaks off and", "length"),
        ("missed", False, "A limit cut it.", "length"),
    ],
)
def test_finish_reason_is_length_if_the_text_was_cut_or_breaks_off(
    client: openai.OpenAI,
    writer: Writer,
    monkeypatch: pytest.MonkeyPatch,
    landed: Any,
    ended: bool,
    text: str,
    reason: str,
) -> None:
    result = judged(text, 5, 5, landed=landed, ended=ended)
    monkeypatch.setattr(writer, "write_streams", lambda streams, _: [one.finish(result) for one in streams])
    whole, *_, last = chat(client, NOTE), *chat(client, NOTE, stream=True)
    completion, *_, end = (
        client.completions.create(model=NAME, prompt=NOTE, extra_body=TARGET, stream=stream) for stream in (False, True)
    )
    ends = [reply.choices[0].finish_reason for reply in (whole, last, completion, [*end][-1])]
    assert ends == [reason] * 4


def test_a_completion_is_the_same_whole_and_streamed(client: openai.OpenAI, writer: Writer) -> None:
    written = writer.write(NOTE, words=6, landing="exact", task="title", tries=1)
    expected = (written.text, "stop" if written.finished else "length")
    extra = TARGET | {"task": "title"}
    reply = client.completions.create(model=NAME, prompt=[NOTE], extra_body=extra)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == expected
    assert reply.object == "text_completion"
    chunks = list(client.completions.create(model=NAME, prompt=NOTE, extra_body=extra, stream=True))
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert (text, chunks[-1].choices[0].finish_reason) == expected
    assert chunks[-1].report["length"] == 6  # type: ignore[attr-defined]


def test_max_tokens_is_the_length_without_a_target(client: openai.OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        reply = chat(client, NOTE, extra_body=None, **{name: 9})
        assert (reply.report["target"], reply.report["unit"]) == (9, "tokens")
        assert 0 < reply.report["length"] <= 9


def test_a_limit_of_tokens_must_leave_room_for_the_target(client: openai.OpenAI) -> None:
    limited = chat(client, NOTE, max_tokens=256)  # LangChain's OpenAI always sends one
    assert limited.choices == chat(client, NOTE).choices
    with pytest.raises(openai.BadRequestError, match="more than the 5 of max_tokens") as rejected:
        chat(client, NOTE, max_tokens=5)
    assert (rejected.value.param, rejected.value.code) == ("max_tokens", "two_lengths")


HARMLESS: dict[str, Any] = {
    "user": "u",
    "seed": 3,
    "temperature": 0,
    "top_p": 1.0,
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "a"},
    "stop": None,
    "tools": [],
    "logprobs": False,
    "response_format": {"type": "text"},
    "store": False,
    "metadata": {"a": "b"},
}
REFUSED: list[tuple[str, Any, str]] = [
    ("n", 2, "one text for a request: leave it out, or give 1"),
    ("presence_penalty", 1.0, "the likeliest text"),
    ("frequency_penalty", -1.0, "the likeliest text"),
    ("logit_bias", {"5": 10}, "the likeliest text"),
    ("stop", ["."], "The length says where the text ends"),
    ("logprobs", True, "Probabilities of tokens are not computed: leave it out, or give false"),
    ("top_logprobs", 3, "Probabilities of tokens are not computed"),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}], "calls no tools"),
    ("response_format", {"type": "json_object"}, "plain text"),
    ("modalities", ["audio"], "plain text"),
    ("audio", {"voice": "alloy", "format": "wav"}, "plain text: leave it out, or give null"),
]


def test_fields_that_do_not_change_the_text_are_accepted(client: openai.OpenAI) -> None:
    reply = client.chat.completions.with_raw_response.create(
        model=NAME, messages=[{"role": "user", "content": NOTE}], extra_body=TARGET, **HARMLESS
    )
    assert reply.parse().choices == chat(client, NOTE).choices
    assert IGNORED_HEADER not in reply.headers


@pytest.mark.parametrize(("name", "value", "reason"), REFUSED)
def test_fields_that_ask_for_something_else_are_rejected_with_the_reason(
    client: openai.OpenAI, name: str, value: Any, reason: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as rejected:
        chat(client, NOTE, **{name: value})
    assert (rejected.value.param, rejected.value.code) == (name, "unsupported_parameter")


# The fields that clients send beside the texts if they are told nothing but the model and the target.
LANGCHAIN_CHAT: dict[str, Any] = {"model": NAME, "stream": False}
LANGCHAIN_COMPLETION: dict[str, Any] = {
    **{"model": NAME, "temperature": 0.7, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "n": 1},
    **{"seed": None, "logprobs": None, "max_tokens": 256},
}
LLAMA_INDEX: dict[str, Any] = {"model": NAME, "temperature": 0.1, "stream": False}


@pytest.mark.parametrize(
    ("path", "fields", "ignored"),
    [
        ("/v1/chat/completions", LANGCHAIN_CHAT, None),
        ("/v1/completions", {**LANGCHAIN_COMPLETION, "prompt": [NOTE]}, "temperature"),
        ("/v1/chat/completions", LLAMA_INDEX, "temperature"),
        ("/v1/completions", {**LLAMA_INDEX, "prompt": NOTE, "max_tokens": 900}, "temperature"),
        ("/v1/chat/completions", {"model": NAME, "top_p": 0.9, "reasoning_effort": "low"}, "top_p, reasoning_effort"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_clients_send_by_default_is_accepted_and_named_if_it_is_ignored(
    plain: Client, path: str, fields: dict[str, Any], ignored: str | None, stream: bool
) -> None:
    messages = {} if "prompt" in fields else {"messages": [{"role": "user", "content": NOTE}]}
    reply = plain(path, {**fields, **messages, **TARGET, "stream": stream})
    assert (reply.status, reply.headers.get(IGNORED_HEADER.lower())) == (200, ignored)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_tries_and_unsupported_words_are_those_of_the_writer(plain: Client, writer: Writer, path: str) -> None:
    source = {"messages": [{"role": "user", "content": NOTE}]} if "chat" in path else {"prompt": NOTE}
    body = {"model": NAME, "target": {"words": 7}, "task": "summarize", **source}
    reply = plain(path, {**body, "tries": 4})
    alone = writer.write(NOTE, words=7, task="summarize", tries=4)
    (choice,) = reply.json["choices"]
    assert (choice["message"]["content"] if "chat" in path else choice["text"]) == alone.text
    assert reply.json["report"]["drawn"] == alone.drawn
    assert reply.json["report"]["unsupported"] == list(alone.unsupported)
    assert plain(path, {**body, "tries": None}).json["report"]["drawn"] is False
    refused = plain(path, {**body, "tries": 4, "stream": True})
    assert refused.status == 400
    assert "leave out stream, or tries" in refused.error["message"]
    assert plain(path, {**body, "tries": 17}).status == 400
    *_, last = plain(path, {**body, "stream": True}).events[:-1]
    assert last[1]["report"]["unsupported"] == list(writer.write(NOTE, words=7, task="summarize", tries=1).unsupported)


def test_the_usage_has_a_short_report_because_langchain_keeps_it(client: openai.OpenAI) -> None:
    whole = chat(client, NOTE)
    *_, usage = chat(client, NOTE, stream=True, stream_options={"include_usage": True})
    names = ("length", "target", "unit", "landed", "finished", "looping", "unsupported")
    expected = {name: whole.report[name] for name in names}
    assert whole.usage.report == usage.usage.report == expected


USER = {"role": "user", "content": "a"}
TOOL_RESULT = {"role": "tool", "content": "a", "tool_call_id": "1"}
TOOL_CALL = {
    **{"role": "assistant", "content": "a"},
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def test_messages_that_say_that_no_tool_was_called_are_accepted(plain: Client) -> None:
    empty = {"tool_calls": None, "function_call": None, "audio": None, "refusal": None, "annotations": []}
    for tools in (None, []):
        messages = [{"role": "user", "content": NOTE, **empty, "tool_calls": tools}]
        assert plain("/v1/chat/completions", {"model": NAME, "messages": messages, **TARGET}).status == 200


@pytest.mark.parametrize(
    ("changed", "param", "message"),
    [
        ({"extra_body": {}}, "target", "no length"),
        ({"extra_body": {"target": {"words": -1}}}, "target.words", "a whole number from 1"),
        ({"extra_body": TARGET | {"targets": 3}}, "targets", "Unknown field 'targets'"),
        ({"extra_body": TARGET | {"landing": "soft"}}, "landing", "'at_most'"),
        ({"max_tokens": 5}, "max_tokens", "Leave out the limit"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages", "must be 'user'"),
        ({"messages": [{"role": "bot", "content": "a"}]}, "messages.0.role", "'user'"),
        ({"messages": [TOOL_RESULT, USER]}, "messages.0", "results of tools are not supported"),
        ({"messages": [USER, TOOL_CALL, USER]}, "messages.1", "tool_calls in a message: only text is supported"),
        ({"messages": [USER, TOOL_CALL | {"content": None}, USER]}, "messages.1", "tool_calls in a message"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages", "empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content",
            "only text is supported",
        ),
        ({"extra_body": {"target": {"words": 5000}}}, "target", "more than this model can write"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_invalid_requests_raise_the_clients_errors(
    client: openai.OpenAI, changed: dict[str, Any], param: str, message: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as rejected:
        chat(client, NOTE, stream=stream, **changed)
    assert rejected.value.param == param
    assert rejected.value.type == "invalid_request_error"


def test_several_prompts_and_token_ids_are_rejected(client: openai.OpenAI) -> None:
    for prompt in ([NOTE, NOTE], [1, 2, 3], []):
        with pytest.raises(openai.BadRequestError, match="one prompt"):
            client.completions.create(model=NAME, prompt=prompt, extra_body=TARGET)  # type: ignore[arg-type]


def test_unknown_models_and_wrong_keys_raise_the_clients_errors(
    client: openai.OpenAI, plain: Client, writer: Writer
) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny/llama'"):
        chat(client, NOTE, model="other")
    with pytest.raises(openai.AuthenticationError):
        chat(client.with_options(api_key="wrong"), NOTE)
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).impatience["max_source_characters"] == 200_000  # type: ignore[attr-defined]


def test_the_client_retries_when_the_queue_is_full(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(writer, Limits(requests=1)) as (plain, service, _):
        address = f"{plain.address}/v1"
        statuses: queue.Queue[int] = queue.Queue()  # a request is counted when its answer may already be read
        count = service.metrics.request

        def recorded(route: str, status: int, seconds: float) -> None:
            service.open_requests.clear()  # the slot is free again
            count(route, status, seconds)
            statuses.put(status)

        monkeypatch.setattr(service.metrics, "request", recorded)
        service.open_requests.add(object())  # type: ignore[arg-type]
        with openai.OpenAI(base_url=address, api_key="any", max_retries=1) as patient:
            assert len(chat(patient, NOTE).choices[0].message.content.split()) == 6
        assert [statuses.get(timeout=60), statuses.get(timeout=60)] == [429, 200]
        service.open_requests.add(object())  # type: ignore[arg-type]
        with (
            openai.OpenAI(base_url=address, api_key="any", max_retries=0) as hasty,
            pytest.raises(openai.RateLimitError),
        ):
            chat(hasty, NOTE)


def test_an_error_in_a_stream_reaches_the_client(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(streams: Any, sources: Any, **kwargs: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(writer, "write_streams", fail)
    with (
        running(writer) as (plain, *_),
        openai.OpenAI(base_url=f"{plain.address}/v1", api_key="any", max_retries=0) as client,
    ):
        with pytest.raises(openai.APIError, match="could not be written"):
            list(chat(client, NOTE, stream=True))
        with pytest.raises(openai.InternalServerError, match="could not be written"):
            chat(client, NOTE)


def test_a_taught_model_reads_the_whole_chat_and_the_length(writer: Writer) -> None:
    taught = Writer(writer.model, {"template": "instruct", "max_source_tokens": 900})
    read: list[str] = []
    check = taught.check

    def note(request: Any) -> list[int]:
        ids = check(request)
        read.append(taught.tokenizer.decode(ids))
        return ids

    taught.check = note  # type: ignore[method-assign]
    with (
        running(taught) as (plain, *_),
        openai.OpenAI(base_url=f"{plain.address}/v1", api_key="any", max_retries=0) as client,
    ):
        turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Thank them"}]
        reply = chat(client, messages=turns, extra_body={"target": {"words": [5, 7]}})
        assert (reply.report["target"], reply.report["within"]) == (6, [5, 7])
        assert (reply.usage.report["target"], reply.usage.report["within"]) == (6, [5, 7])
        client.completions.create(model=NAME, prompt="Thank them", max_tokens=9)
    assert read == [
        "system: Be kind.\nuser: Thank them. Answer in 6 words.\nassistant: ",
        "user: Thank them\nassistant: ",
    ]


def test_a_model_without_chat_template_reads_one_message() -> None:
    tokenizer = wordpiece_tokenizer()
    writer = Writer(attach(tiny_model("bart", vocab_size=len(tokenizer)), "none", tokenizer=tokenizer))
    with (
        running(writer) as (plain, *_),
        openai.OpenAI(base_url=f"{plain.address}/v1", api_key="any", max_retries=0) as client,
    ):
        assert chat(client, NOTE).choices[0].message.content == writer.write(NOTE, words=6, landing="exact").text
        with pytest.raises(openai.BadRequestError, match="no system message and no earlier turns") as rejected:
            chat(client, NOTE, CORPUS[1], NOTE)
        assert rejected.value.param == "messages"
