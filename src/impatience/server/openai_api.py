"""Reads chats and completions in OpenAI's format, and replies in it.

The source text is the last message, or the prompt. Fields that ask for something the server does not do (several
choices, tools, probabilities, …) are rejected. Fields that do not matter are ignored, and so is what says how to sample
or to think, which many clients always send; the header ``X-Impatience-Ignored`` then names it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.lengths import Landing, Length, Unit, aim, ends_sentence
from impatience.server.errors import ApiError
from impatience.server.responses import event
from impatience.server.schemas import ChatBody, CompletionBody, report_fields
from impatience.server.service import OpenRequest, Service
from impatience.writing.streaming import taken_back

IGNORED_HEADER = "X-Impatience-Ignored"
_IGNORED = (  # fields that do not change the text
    *("user", "safety_identifier", "metadata", "store", "seed", "service_tier", "prediction"),
    *("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"),
)
# Fields that are ignored although they would change the text, and values with which they would not; null never does.
_NOT_HONOURED = {"temperature": 0, "top_p": 1, "verbosity": None, "reasoning_effort": None}
# Reasons against other fields, and values that are accepted because they ask for nothing; null never does.
_LIKELIEST = "The server writes the likeliest text of the length asked for"
_REFUSED: dict[str, dict[str, tuple[Any, ...]]] = {
    _LIKELIEST: {"presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},)},
    "The server writes one text for a request": {"n": (1,), "best_of": (1,)},
    "The length says where the text ends": {"stop": ([],)},
    "Probabilities of tokens are not computed": {"logprobs": (False,), "top_logprobs": (0,)},
    "The model calls no tools": {
        **{"tools": ([],), "functions": ([],), "web_search_options": ()},
        **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    },
    "The server writes plain text": {"response_format": ({"type": "text"},), "modalities": (["text"],), "audio": ()},
    "The server sends only the new text": {"echo": (False,), "suffix": ("",)},
}
_REASONS = {name: (reason, values) for reason, fields in _REFUSED.items() for name, values in fields.items()}


class CompletionCall:
    """One call of ``/v1/chat/completions`` or ``/v1/completions``."""

    def __init__(self, body: ChatBody | CompletionBody, service: Service) -> None:
        self.body, self.service = body, service
        self.is_chat = isinstance(body, ChatBody)
        self.source_field = "messages" if self.is_chat else "prompt"
        self.max_tokens = (body.max_completion_tokens if isinstance(body, ChatBody) else None) or body.max_tokens
        self._id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._object = "chat.completion" if self.is_chat else "text_completion"
        self._chunk_object = "chat.completion.chunk" if self.is_chat else "text_completion"

    @property
    def headers(self) -> dict[str, str]:
        """The additional headers of the reply."""
        given = {name: getattr(self.body, name) for name in _NOT_HONOURED}
        ignored = [name for name, value in given.items() if value is not None and value != _NOT_HONOURED[name]]
        return {IGNORED_HEADER: ", ".join(ignored)} if ignored else {}

    def request(self) -> Request:
        """Return the request; raise an ``ApiError`` if the model, a field or a value is not supported."""
        check_model(self.body.model, self.service, "model")
        _check_fields(self.body.model_extra or {})
        length, unit, landing = _length(self.body, self.max_tokens)
        target, within = aim(length, landing)
        text, history = _conversation(self.body) if isinstance(self.body, ChatBody) else (self.body.text, ())
        # The messages say what to do; a model that takes no instructions does what it was trained for.
        task = self.body.task or ("chat" if self.service.writer.prompts.takes_instructions else None)
        # Without a target, the limit is the target. A landing in tokens needs no other limit.
        held = unit is Unit.TOKENS and landing is not Landing.NATURAL
        limit = self.max_tokens if self.body.target and not held else None
        return Request(self._id, text, target, unit, landing, task=task, history=history, within=within, limit=limit)

    def reply(self, result: Result, source_tokens: int) -> dict[str, Any]:
        """Return the whole reply."""
        message = {"message": {"role": "assistant", "content": result.text, "refusal": None}}
        choice = {**(message if self.is_chat else {"text": result.text}), **_ending(result)}
        details = {"usage": _usage(result, source_tokens), "report": report_fields(result)}
        return self._envelope(self._object, choice) | details

    async def events(self, open_request: OpenRequest) -> AsyncIterator[str]:
        """Yield server-sent events. Clients cannot take text back, so text that may still change is held back."""
        if self.is_chat:
            opening = {"delta": {"role": "assistant", "content": ""}, **_ending(None)}
            yield event(self._envelope(self._chunk_object, opening))
        written = sent = ""
        async for item in open_request.items():
            if isinstance(item, Result):
                if item.text.startswith(sent) and len(item.text) > len(sent):
                    yield event(self._chunk(item.text[len(sent) :]))
                last = replace(item, taken_back=taken_back(sent, item.text))
                yield event(self._chunk("", last) | {"report": report_fields(last)})
                if self.body.stream_options and self.body.stream_options.include_usage:
                    usage = _usage(item, open_request.source_tokens)
                    yield event(self._envelope(self._chunk_object) | {"usage": usage})
                continue
            written += item.text
            if len(written) > len(sent) and _stays(written, item.progress, open_request.request):
                yield event(self._chunk(written[len(sent) :]))
                sent = written
        yield "data: [DONE]\n\n"

    def _chunk(self, text: str, result: Result | None = None) -> dict[str, Any]:
        """Return a piece of a stream; the last one has the result."""
        delta = {} if result else {"content": text}
        choice = {**({"delta": delta} if self.is_chat else {"text": text}), **_ending(result)}
        return self._envelope(self._chunk_object, choice)

    def _envelope(self, kind: str, *choices: dict[str, Any]) -> dict[str, Any]:
        head = {"id": self._id, "object": kind, "created": self._created, "model": self.service.name}
        return {**head, "choices": list(choices)}


def check_model(name: str, service: Service, param: str | None = None) -> None:
    """Raise an error about the field ``param`` if the server has no model of this name."""
    if name != service.name:
        raise ApiError(404, f"Unknown model {name!r}: this server has {service.name!r}.", "model_not_found", param)


def _length(body: ChatBody | CompletionBody, limit: int | None) -> tuple[Length, Unit, Landing]:
    if body.target:
        return *body.target.length_and_unit, Landing.parse(body.landing or "natural")
    if limit:
        return limit, Unit.TOKENS, Landing.parse(body.landing or "at_most")
    package = 'with the openai package: extra_body={"target": {"words": 40}}'
    message = f'The request has no length. Give "target", e.g. {{"words": 40}} ({package}), or max_tokens.'
    raise ApiError(400, message, "missing_target", "target")


def _conversation(body: ChatBody) -> tuple[str, tuple[tuple[str, str], ...]]:
    *earlier, last = body.messages
    if last.role != "user":
        message = f"The last message has the role {last.role!r}; it must be 'user'."
        raise ApiError(400, message, "last_message", "messages")
    roles = {"developer": "system"}
    return last.text, tuple((roles.get(message.role, message.role), message.text) for message in earlier)


def _check_fields(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is None or name in _IGNORED:
            continue
        if name not in _REASONS:
            raise ApiError(400, f"Unknown field {name!r}. Leave it out.", "unknown_parameter", ascii(name)[1:-1])
        reason, neutral = _REASONS[name]
        if not any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in neutral):
            accepted = " or ".join(map(json.dumps, neutral)) or "null"
            message = f"{name} is not supported. {reason}: leave it out, or give {accepted}."
            raise ApiError(400, message, "unsupported_parameter", name)


def _stays(written: str, progress: int, request: Request) -> bool:
    """Check that no landing takes back a text that has grown so far: one beyond its target loses its end.

    The landing ``at_most`` cuts a text back to the end of a sentence, never further.
    """
    if request.landing is Landing.NATURAL:
        return True
    return progress <= request.target and (request.landing is Landing.EXACT or ends_sentence(written))


def _ending(result: Result | None) -> dict[str, Any]:
    """Return the fields of a choice that say how it ended, if it has."""
    return {"index": 0, "finish_reason": None if result is None else finish_reason(result), "logprobs": None}


def finish_reason(result: Result) -> str:
    """Return "stop" for a finished text, and "length" for one that a limit or its target cut."""
    return "stop" if result.finished else "length"


def _usage(result: Result, source_tokens: int) -> dict[str, Any]:
    """Return the counts of tokens, and a short report: LangChain keeps the usage, and no field of our own beside it."""
    kept = ("length", "target", "within", "unit", "landed", "finished", "looping", "unsupported")
    report = {name: value for name, value in report_fields(result).items() if name in kept}
    total = source_tokens + result.tokens
    counts = {"prompt_tokens": source_tokens, "completion_tokens": result.tokens, "total_tokens": total}
    return {**counts, "report": report}
