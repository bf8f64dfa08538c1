"""OpenAI's own client with the server: requests, replies, streams and errors."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from impatience import Writer, attach
from impatience.server import Access, Limits
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
    expected = writer.write(NOTE, words=6, landing="exact", task="chat")
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", expected.text, "stop")
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


def test_finish_reason_is_length_if_the_text_was_cut_off(client: openai.OpenAI) -> None:
    ended, cut = (chat(client, text, extra_body={"target": {"words": 3}}) for text in (NOTE, CORPUS[1]))
    assert [reply.report["landed"] for reply in (ended, cut)] == ["missed", "missed"]
    assert ended.report["eos_probability"] > 0 == cut.report["eos_probability"]
    assert [reply.choices[0].finish_reason for reply in (ended, cut)] == ["stop", "length"]


def test_a_completion_is_the_same_whole_and_streamed(client: openai.OpenAI, writer: Writer) -> None:
    expected = writer.write(NOTE, words=6, landing="exact", task="title").text
    extra = TARGET | {"task": "title"}
    reply = client.completions.create(model=NAME, prompt=[NOTE], extra_body=extra)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (expected, "stop")
    assert reply.object == "text_completion"
    chunks = list(client.completions.create(model=NAME, prompt=NOTE, extra_body=extra, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].report["length"] == 6  # type: ignore[attr-defined]


def test_max_tokens_is_the_length_without_a_target(client: openai.OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        reply = chat(client, NOTE, extra_body=None, **{name: 9})
        assert (reply.report["target"], reply.report["unit"]) == (9, "tokens")
        assert 0 < reply.report["length"] <= 9


HARMLESS: dict[str, Any] = {
    "user": "u",
    "seed": 3,
    "temperature": 0,
    "top_p": 1.0,
    "n": 1,
    "presence_penalty": 0.0,
    "stop": None,
    "tools": [],
    "logprobs": False,
    "response_format": {"type": "text"},
    "store": False,
    "metadata": {"a": "b"},
}
CHANGING: dict[str, Any] = {
    "n": 2,
    "temperature": 0.7,
    "top_p": 0.5,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "stop": ["."],
    "logprobs": True,
    "logit_bias": {"5": 10},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "response_format": {"type": "json_object"},
    "modalities": ["audio"],
    "audio": {"voice": "alloy", "format": "wav"},
}


def test_fields_that_do_not_change_the_text_are_accepted(client: openai.OpenAI) -> None:
    assert chat(client, NOTE, **HARMLESS).choices == chat(client, NOTE).choices


@pytest.mark.parametrize("name", CHANGING)
def test_fields_that_would_change_the_text_are_rejected(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError, match="would change the text") as rejected:
        chat(client, NOTE, **{name: CHANGING[name]})
    assert (rejected.value.param, rejected.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("changed", "param", "message"),
    [
        ({"extra_body": {}}, "target", "no length"),
        ({"extra_body": {"target": {"words": -1}}}, "target.words", "greater than or equal to 1"),
        ({"extra_body": TARGET | {"targets": 3}}, "targets", "Unknown field 'targets'"),
        ({"extra_body": TARGET | {"landing": "soft"}}, "landing", "'at_most'"),
        ({"max_tokens": 5}, "max_tokens", "Leave out the limit"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages", "must be 'user'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role", "'user'"),
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
