"""What clients send and get: the fields of the simple interface, and those of OpenAI's that are understood."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from impatience.data._requests import MOST
from impatience.decoding.results import Result
from impatience.decoding.retries import MOST_TRIES
from impatience.lengths import Unit

Count = Annotated[int, Field(ge=1, le=MOST)]
Task = Literal["summarize", "rewrite", "title", "question"]
LandingName = Literal["natural", "exact", "at_most"]


class _Strict(BaseModel):
    """Numbers are numbers, and no field is made up."""

    model_config = ConfigDict(strict=True, extra="forbid")


class TargetBody(_Strict):
    """How long the text must be: one of the units."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1, "examples": [{"words": 40}]})

    words: Count | None = None
    characters: Count | None = None
    sentences: Count | None = None
    tokens: Count | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> TargetBody:
        if len(given := self.model_dump(exclude_none=True)) != 1:
            named = " and ".join(given) or "no unit"
            raise ValueError(f"it has {named}: give one of words, characters, sentences and tokens")
        return self

    @property
    def counted(self) -> tuple[int, Unit]:
        """The length and its unit."""
        ((unit, value),) = self.model_dump(exclude_none=True).items()
        return int(value), Unit(unit)


class WriteBody(_Strict):
    """A text, and how long the new one must be."""

    text: str = Field(description="What to write from.", min_length=1)
    target: TargetBody
    task: Task | None = Field(None, description="What to do with the text; null is what the model was trained for.")
    landing: LandingName = Field("natural", description="Who decides where the text ends.")
    stream: bool = Field(False, description="Send the text in pieces, as server-sent events.")
    tries: int = Field(1, description="Write up to so many texts, send the best; not in pieces.", ge=1, le=MOST_TRIES)

    @model_validator(mode="after")
    def _whole_if_chosen(self) -> WriteBody:
        if self.stream and self.tries > 1:
            raise ValueError("the best of several texts is known at the end: leave out stream, or tries")
        return self


class Report(BaseModel):
    """How a text came out."""

    length: int
    target: int
    unit: str
    landed: Literal["natural", "forced", "missed"]
    eos_probability: float = Field(description="What the model itself gave the end where the text stops.")
    parts: int = Field(description="In how many parts the source was read.")
    note: str = Field(description="What was done with a source that was read in parts, or if words cannot be counted.")
    drawn: bool = Field(description="Whether its ending was drawn, as that of the first text did not land well.")
    taken_back: int = Field(description="Characters at the end of the streamed pieces that are not in the text.")


class WriteReply(BaseModel):
    """A text, and how it came out."""

    id: str
    model: str
    text: str
    report: Report


class TextPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @field_validator("content", mode="before")
    @classmethod
    def _text_alone(cls, content: Any) -> Any:
        if isinstance(content, str):
            return content
        if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            return content
        raise ValueError("only text is read here, as a string or in parts of the type text")

    @property
    def text(self) -> str:
        """All that it says."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    """What else a stream tells."""

    model_config = ConfigDict(strict=True)

    include_usage: bool = False


class _Completion(BaseModel):
    """What a chat and a completion have in common; other fields are looked at one by one."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str = Field(description="As in /v1/models.")
    target: TargetBody | None = Field(None, description="How long the text must be; without it, max_tokens is.")
    landing: LandingName | None = Field(None, description='"natural"; "at_most" where max_tokens is the length.')
    task: Task | None = Field(None, description="What to do with the text, if it does not say so itself.")
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def most_tokens(self) -> int | None:
        """The limit that clients give who do not know of targets."""
        return self.max_tokens


class ChatBody(_Completion):
    """A chat, as OpenAI's clients send it, with a target."""

    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_completion_tokens: Count | None = None

    @property
    def most_tokens(self) -> int | None:
        """The limit that clients give who do not know of targets."""
        return self.max_completion_tokens or self.max_tokens


class CompletionBody(_Completion):
    """A prompt, as OpenAI's clients send it, with a target."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)] = Field(description="One text.")

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_text(cls, prompt: Any) -> Any:
        if isinstance(prompt, str) or (isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str)):
            return prompt
        raise ValueError("a request has one prompt here, and it is a text")

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


def report(result: Result) -> dict[str, Any]:
    """Return what a client is told about a text besides the text."""
    return Report(
        **{name: vars(result)[name] for name in Report.model_fields} | {"unit": str(result.unit)}
    ).model_dump()
