"""Defines the JSON that clients send and receive: the simple interface, and the supported part of OpenAI's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from impatience.data import MOST
from impatience.decoding.results import Result
from impatience.decoding.retries import MOST_TRIES
from impatience.lengths import Length, Unit, parse_length
from impatience.server.errors import LENGTH_TAGS

Count = Annotated[int, Field(ge=1, le=MOST)]
Range = Annotated[list[Count], Field(min_length=2, max_length=2, description="First and last length on target.")]
CountOrRange = Annotated[
    Annotated[Count, Tag(LENGTH_TAGS[0])] | Annotated[Range, Tag(LENGTH_TAGS[1])],
    Discriminator(lambda value: LENGTH_TAGS[isinstance(value, list)]),
]
Task = Literal["summarize", "rewrite", "title", "question", "description", "post", "abstract"]
LandingName = Literal["natural", "exact", "at_most"]
TryCount = Annotated[
    int, Field(description="Write up to so many texts, send the best; not in pieces.", ge=1, le=MOST_TRIES)
]


class TargetBody(BaseModel, strict=True, extra="forbid"):
    """Length asked for, in exactly one of the units: a number, or a list of the first and last length of a range."""

    model_config = ConfigDict(
        json_schema_extra={
            "minProperties": 1,
            "maxProperties": 1,
            "examples": [{"words": 40}, {"words": [120, 160]}],
        }
    )

    words: CountOrRange | None = None
    characters: CountOrRange | None = None
    sentences: CountOrRange | None = None
    tokens: CountOrRange | None = None

    @model_validator(mode="after")
    def _check_one_unit(self) -> TargetBody:
        if len(given := self.model_dump(exclude_none=True)) != 1:
            units = " and ".join(given) or "no unit"
            raise ValueError(f"it has {units}: give one of words, characters, sentences and tokens")
        return self

    @property
    def length_and_unit(self) -> tuple[Length, Unit]:
        """The length or range, and its unit."""
        ((unit, length),) = self.model_dump(exclude_none=True).items()
        return parse_length(length), Unit(unit)


class WriteBody(BaseModel, strict=True, extra="forbid"):
    """What to write, a source text, and the length of the text to write."""

    text: str = Field("", description="Text to write from; may be left out with an instruction.")
    instruction: str = Field("", description="What to write, in your own words, for a model that takes instructions.")
    target: TargetBody
    task: Task | None = Field(None, description="Task for the model; null is the task it was trained for.")
    landing: LandingName = Field("natural", description="How the text ends.")
    stream: bool = Field(False, description="Send the text in pieces, as server-sent events.")
    tries: TryCount = 1

    @model_validator(mode="after")
    def _check_one_task(self) -> WriteBody:
        if self.task and self.instruction.strip():
            raise ValueError("it has a task and an instruction: give one of them")
        return self

    @model_validator(mode="after")
    def _check_stream(self) -> WriteBody:
        _check_one_stream(self.stream, self.tries)
        return self


class Report(BaseModel):
    """Length and ending of a text."""

    length: int
    target: int
    within: list[int] | None = Field(None, description="First and last length on target, if a range was asked for.")
    unit: str
    landed: Literal["natural", "forced", "missed"]
    finished: bool = Field(description="Whether the text ends as a whole one.")
    looping: bool = Field(description="Whether the text repeats itself.")
    unsupported: list[str] = Field(description="Names and numbers of the text that the source does not have.")
    eos_probability: float = Field(description="The model's probability of ending where the text ends.")
    parts: int = Field(description="Number of parts in which the source was read.")
    note: str = Field(description="Explains reading in parts, or why words cannot be counted.")
    drawn: bool = Field(description="Whether the ending was sampled, because the first text was not good.")
    backend: str = Field(description="The library that ran the model.")
    taken_back: int = Field(description="Characters at the end of the streamed pieces that are not in the text.")


class DocumentReply(BaseModel):
    """The text of a document."""

    text: str


class WriteReply(BaseModel):
    """A text and its report."""

    id: str
    model: str
    text: str
    report: Report


class TextPart(BaseModel, strict=True):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(BaseModel, strict=True):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @field_validator("content", mode="before")
    @classmethod
    def _check_is_text(cls, content: Any) -> Any:
        if isinstance(content, str):
            return content
        if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            return content
        raise ValueError("only text is supported: give a string, or parts of the type text")

    @model_validator(mode="before")
    @classmethod
    def _check_tools(cls, message: Any) -> Any:
        if isinstance(message, dict):
            if message.get("role") in ("tool", "function"):
                raise ValueError("results of tools are not supported: the model calls no tools. Leave the message out")
            if calls := [name for name in ("tool_calls", "function_call", "audio") if message.get(name)]:
                raise ValueError(f"{' and '.join(calls)} in a message: only text is supported. Leave the message out")
        return message

    @property
    def text(self) -> str:
        """The whole text of the message."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class StreamOptions(BaseModel, strict=True):
    """Options of a stream."""

    include_usage: bool = False


class _Completion(BaseModel, strict=True, extra="allow"):
    """Common fields of chats and completions; ``openai_api`` checks the others one by one."""

    model: str = Field(description="Name of the model, as in /v1/models.")
    target: TargetBody | None = Field(None, description="Length of the text; without it, max_tokens is the length.")
    landing: LandingName | None = Field(None, description='"natural" by default; with max_tokens, "at_most".')
    task: Task | None = Field(None, description="Task for the model, if the text itself does not say it.")
    max_tokens: Count | None = Field(
        None, description="Limit in tokens that cuts a text; with a target, it must leave room for that."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(None, description="Ignored.")
    top_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="Ignored.")
    verbosity: str | None = Field(None, description="Ignored.")
    reasoning_effort: str | None = Field(None, description="Ignored.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tries: TryCount | None = Field(None, description="Write up to so many texts, send the best; 1 by default.")

    @model_validator(mode="after")
    def _check_stream(self) -> _Completion:
        _check_one_stream(self.stream, self.tries)
        return self


class ChatBody(_Completion):
    """A chat as OpenAI's clients send it, with a target."""

    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_completion_tokens: Count | None = None


class CompletionBody(_Completion):
    """A prompt as OpenAI's clients send it, with a target."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)] = Field(description="One text.")

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_one_text(cls, prompt: Any) -> Any:
        if isinstance(prompt, str) or (isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str)):
            return prompt
        raise ValueError("only one prompt is supported: give a string")

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


def _check_one_stream(stream: bool | None, tries: int | None) -> None:
    """Check that a text that is sent in pieces is the only one."""
    if stream and (tries or 1) > 1:
        raise ValueError("the best of several texts is known only at the end: leave out stream, or tries")


def report_fields(result: Result) -> dict[str, Any]:
    """Return the report on a text as JSON fields."""
    return Report.model_validate(result, from_attributes=True).model_dump(exclude_none=True)
