"""Chats and completions in OpenAI's form: what they ask for, and how the replies look.

The text to write from is the last message, or the prompt. What would change the text and is not done here (several
choices, tools, sampling, …) is refused; what would not is accepted and left alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.lengths import Landing, Unit, ends_sentence
from impatience.server.errors import ApiError
from impatience.server.schemas import ChatBody, CompletionBody, report
from impatience.server.service import OpenRequest, Service
from impatience.writing.streaming import taken_back

_HARMLESS = (
    *("user", "safety_identifier", "metadata", "store", "seed", "service_tier", "verbosity", "reasoning_effort"),
    *("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"),
)
"""Fields that do not change what is written here."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "temperature": (0, 1),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "stop": ([],),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
"""Fields that would change it, and the values with which they do not; null never does."""


@dataclass(frozen=True)
class Form:
    """How replies look.

    Attributes:
        chat: Whether they are messages.
        id: Of the request.
        model: The model's name.
        created: When the request came, in seconds.
    """

    chat: bool
    id: str
    model: str
    created: int

    @classmethod
    def new(cls, chat: bool, id: str, model: str) -> Form:  # noqa: A002
        """Return the form of a reply to a request that comes now."""
        return cls(chat, f"{'chatcmpl' if chat else 'cmpl'}-{id}", model, int(time.time()))

    def reply(self, result: Result, source_tokens: int) -> dict[str, Any]:
        """Return the whole reply."""
        text = {"message": {"role": "assistant", "content": result.text, "refusal": None}}
        choice = {**(text if self.chat else {"text": result.text}), **_end(result)}
        kind = "chat.completion" if self.chat else "text_completion"
        return self._head(kind, [choice]) | {"usage": _usage(result, source_tokens), "report": report(result)}

    def chunk(self, text: str, result: Result | None = None) -> dict[str, Any]:
        """Return a piece of a stream; the last has the result."""
        delta = {"content": text} if text or not result else {}
        choice = {**({"delta": delta} if self.chat else {"text": text}), **_end(result)}
        return self._head(self._chunk_kind, [choice]) | ({"report": report(result)} if result else {})

    async def stream(self, job: OpenRequest, *, usage: bool) -> AsyncIterator[str]:
        """Yield server-sent events. A reader cannot take back what it was sent, so what may change is held back."""
        if self.chat:
            opening = {"delta": {"role": "assistant", "content": ""}, **_end(None)}
            yield _event(self._head(self._chunk_kind, [opening]))
        shown = sent = ""
        async for item in job.items():
            if isinstance(item, Result):
                if item.text.startswith(sent) and len(item.text) > len(sent):
                    yield _event(self.chunk(item.text[len(sent) :]))
                yield _event(self.chunk("", replace(item, taken_back=taken_back(sent, item.text))))
                if usage:
                    head = self._head(self._chunk_kind, [])
                    yield _event(head | {"usage": _usage(item, job.source_tokens)})
                continue
            shown += item.text
            # A text of at most some length is cut back to where a sentence ends, never further.
            if len(shown) > len(sent) and (job.ask.landing is not Landing.AT_MOST or ends_sentence(shown)):
                yield _event(self.chunk(shown[len(sent) :]))
                sent = shown
        yield "data: [DONE]\n\n"

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def ask_of(body: ChatBody | CompletionBody, id: str, service: Service) -> Request:  # noqa: A002
    """Return what a request asks for.

    Raises:
        ApiError: If it asks for what is not done here.
        ImpatienceError: If the text or the length cannot be used.
    """
    if body.model != service.name:
        raise ApiError(
            404, f"There is no model {body.model!r} here; there is {service.name!r}.", "model_not_found", "model"
        )
    _refuse(body.model_extra or {})
    target, unit, landing = _length(body)
    text, before = (body.text, ()) if isinstance(body, CompletionBody) else _conversation(body)
    # A model that takes chats is told in the text what to do; any other does what it always does.
    task = body.task or ("chat" if service.writer.prompts.takes_chats else None)
    return Request(id, text, target, unit, landing, task, before)


def _length(body: ChatBody | CompletionBody) -> tuple[int, Unit, Landing]:
    if body.target is None and body.most_tokens is None:
        raise ApiError(
            400,
            'There is no length. Give "target", e.g. {"words": 40} (with the openai package: '
            'extra_body={"target": {"words": 40}}), or max_tokens.',
            "missing_target",
            "target",
        )
    if body.target is None:
        return body.most_tokens or 1, Unit.TOKENS, Landing.parse(body.landing or "at_most")
    if body.most_tokens is not None:
        raise ApiError(
            400,
            "There are a target and a limit of tokens: the target says how long the text is, so leave the limit out. "
            'With landing "at_most" the target is a limit.',
            "two_lengths",
            "max_tokens",
        )
    return *body.target.counted, Landing.parse(body.landing or "natural")


def _conversation(body: ChatBody) -> tuple[str, tuple[tuple[str, str], ...]]:
    *earlier, last = body.messages
    if last.role != "user":
        raise ApiError(
            400, f"The last message is the {last.role}'s; it must be the user's.", "last_message", "messages"
        )
    roles = {"developer": "system"}
    return last.text, tuple((roles.get(message.role, message.role), message.text) for message in earlier)


def _refuse(extra: Mapping[str, Any]) -> None:
    for name, value in extra.items():
        if value is None or name in _HARMLESS:
            continue
        if name not in _NEUTRAL:
            raise ApiError(400, f"There is no field {name!r}.", "unknown_parameter", ascii(name)[1:-1])
        neutral = _NEUTRAL[name]
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
            accepted = " or ".join(map(json.dumps, neutral)) or "null"
            raise ApiError(
                400,
                f"{name} would change the text, and this server does not do it: it writes the likeliest text of the "
                f"length asked for. Leave it out, or give {accepted}.",
                "unsupported_parameter",
                name,
            )


def _end(result: Result | None) -> dict[str, Any]:
    """Return how a choice ends, or that it has not ended: "length" is a text that was cut."""
    cut = result is not None and result.landed == "missed" and not result.eos_probability
    return {"index": 0, "finish_reason": None if result is None else "length" if cut else "stop", "logprobs": None}


def _usage(result: Result, source_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": source_tokens,
        "completion_tokens": result.tokens,
        "total_tokens": source_tokens + result.tokens,
    }


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
