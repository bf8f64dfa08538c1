"""Templates: how an example is put to a model.

A model that is trained on a data set never reads the target's length: the signal carries it. A model that follows
instructions reads it too (``instruct``), so that it can plan what to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from impatience.data.base import Example
from impatience.errors import DataError

_ANSWER_AND_CONTEXT = re.compile(r"answer: .+ context: .+", re.DOTALL)


def answer_and_context(answer: str, context: str) -> str:
    """Join an answer and its passage as the template ``question`` reads them."""
    return f"answer: {answer} context: {context}"


@dataclass(frozen=True)
class Template:
    """One way to put an example to a model."""

    summary: str  # purpose, in a line
    instruction: str = ""  # instruction for a chat model; empty if the source contains it
    # form that the source must have, as a regular expression and in words
    form: tuple[re.Pattern[str], str] | None = None
    text_first: bool = False  # whether a chat model reads the source before the instruction

    def prompt(self, example: Example, prefix: str = "") -> str:
        """Return plain text, for an encoder or a model without a chat template."""
        asked = f"\n\n{self.instruction}" if self.text_first else ""
        return prefix + self._source(example) + asked

    def messages(self, example: Example) -> list[dict[str, str]]:
        """Return the messages for a chat model."""
        parts = [self.instruction, self._source(example)]
        return [{"role": "user", "content": "\n\n".join(reversed(parts) if self.text_first else parts).strip()}]

    def asking(self, length: str) -> Template:
        """Return the template that asks for a length, in the words of ``instruct``; itself without an instruction."""
        if not self.instruction:
            return self
        return replace(self, instruction=instruct(_above(self.instruction), length=length), text_first=True)

    def _source(self, example: Example) -> str:
        if self.form and not self.form[0].match(example.source):
            raise DataError(f"{example.id}: the source must have the form {self.form[1]!r}; use another template.")
        return example.source


def instruct(instruction: str, text: str = "", length: str = "") -> str:
    """Return the message that asks for a text.

    The text comes first: all instructions over it then begin alike, so a model reads it once for all of them, and what
    is asked for is the last that the model reads.

    Args:
        instruction: What to write, in the words of a user.
        text: The source; empty if there is none.
        length: The target with its unit, e.g. "40 words"; empty if the message does not name it. An instruction that
            ends in a letter or digit gets a full stop before it.
    """
    asked = instruction.strip()
    if length:
        asked = f"{asked}{'.' if asked[-1:].isalnum() else ''} Answer in {length}."
    return f"{text.strip()}\n\n{asked}".strip()


def _above(instruction: str) -> str:
    """Return an instruction for a text that stands before it."""
    return instruction.replace("below", "above")


TEMPLATES: dict[str, Template] = {
    "summarize": Template("a text is summarised", "Summarize the text below."),
    "rewrite": Template("a text is rewritten", "Rewrite the text below."),
    "title": Template("a text is given a title", "Write a title for the text below."),
    "question": Template(
        "an answer and its passage give the question",
        "Write the question to which the answer below is found in the context.",
        (_ANSWER_AND_CONTEXT, "answer: … context: …"),
    ),
    "description": Template("a text is described in a line", "Write a meta description for the text below."),
    "post": Template("a text is made a post", "Write a post about the text below."),
    "abstract": Template("a text is given an abstract", "Write an abstract of the text below."),
    "chat": Template("the source is a message to the model as it stands"),
    "instruct": Template("the source is an instruction, with the text that it is about, if there is one"),
}
TASKS = {name: _above(template.instruction) for name, template in TEMPLATES.items() if name != "instruct"}
TASKS["question"] = "Write a question that the text above answers."  # any text; the template needs the answer
"""Tasks of a request, with their instructions to a model that takes any. Each is also the name of a template."""
