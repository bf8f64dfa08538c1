"""Encodes text that people wrote so that it stays text: it may contain ``<|im_start|>``, but cannot start a message.

*Control tokens* are the special tokens of a tokenizer (``</s>``, T5's ``<extra_id_0>``, language codes) and other added
tokens that its chat template writes (``<think>``). Their names in a text are encoded as the characters they are made
of. All other text gets the ids that the tokenizer gives it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from impatience.errors import ModelFilesError, SourceError

_MARKUP = ("<", "[", "{", "|")  # first characters of control tokens; an added token that is a word is none
_PIPES = ("<|", "<｜")
_RARE = "𐎀𓀀"
"""Two letters of dead scripts, which no vocabulary has: a tokenizer spells them in bytes or gives them its unknown
token, whose id is found by encoding them."""
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_/\s]")  # plain is what templates look for in a text, e.g. "/no_think"


class ControlTokens:
    """The control tokens of a tokenizer; the token that it gives for letters it does not know is none of them."""

    _known: ClassVar[WeakKeyDictionary[Any, tuple[object, ControlTokens]]] = WeakKeyDictionary()

    def __init__(self, tokenizer: Any) -> None:
        template, added = str(tokenizer.chat_template or ""), tokenizer.added_tokens_decoder
        unknown = tokenizer(_RARE, add_special_tokens=False)["input_ids"]
        tokens = {token.content: i for i, token in added.items() if i not in unknown}
        special = [name for name, i in tokens.items() if added[i].special or name.startswith(_PIPES)]
        written = [name for name in tokens if name.startswith(_MARKUP) and name in template]
        self.ids = {name: tokens[name] for name in [*special, *written]}
        self.names = {i: name for name, i in self.ids.items()}
        self.any, self.special = _any(self.ids), _any(special)
        self.parts = re.compile(f"({self.any.pattern})")
        self.marked = re.compile(f"(?:\ue000(\\d+)\ue000)?({self.any.pattern})(?:\ue001(\\d+)\ue001)?")

    @classmethod
    def of(cls, tokenizer: Any) -> ControlTokens:
        """Return those of a tokenizer; they are found once, for some have thousands."""
        state = (len(tokenizer), tokenizer.chat_template, tokenizer.special_tokens_map)
        known = cls._known.get(tokenizer)
        if known is None or known[0] != state:
            known = cls._known[tokenizer] = (state, cls(tokenizer))
        return known[1]

    def among(self, row: Sequence[int]) -> list[int]:
        """Return the ids of a row that are control tokens, in order."""
        return [i for i in row if i in self.names]

    def spell(self, tokenizer: Any, row: list[int], places: Sequence[int]) -> None:
        """Replace control tokens at some places of a row by the characters of their names."""
        for place in reversed(places):
            row[place : place + 1] = self._characters(tokenizer, self.names[row[place]])

    def _characters(self, tokenizer: Any, name: str) -> list[int]:
        for parts in ([name], [name[:1], name[1:]], list(name)):
            batch = tokenizer(parts, add_special_tokens=False, split_special_tokens=True, verbose=False)
            ids = [i for part in batch["input_ids"] for i in part]
            if self.names.keys().isdisjoint(ids):
                return ids
        return []


def _any(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of these names; it never matches if there is none."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")


def encode_texts(
    tokenizer: Any,
    texts: Sequence[str],
    *,
    add_special_tokens: bool = True,
    max_length: int | None = None,
    target: bool = False,
) -> list[list[int]]:
    """Return the ids of texts; the only control tokens are those that the tokenizer puts before and after a text.

    Args:
        tokenizer: Tokenizer of the model.
        texts: What people wrote.
        add_special_tokens: Whether the tokenizer adds its own.
        max_length: The most tokens of a text, added ones included; a longer text loses its end.
        target: Whether a model writes these texts; some tokenizers differ for what is read.
    """
    if not texts:
        return []
    batch = tokenizer(
        **{"text_target" if target else "text": list(texts)},
        add_special_tokens=add_special_tokens,
        split_special_tokens=True,
        return_special_tokens_mask=True,
        truncation=max_length is not None,
        max_length=max_length,
        verbose=False,
    )
    rows = [list(ids) for ids in batch["input_ids"]]
    if not tokenizer.is_fast:  # one in Python splits the names of all added tokens
        return rows
    # One in Rust splits those of special tokens only, and a Unigram model puts them together again.
    control = ControlTokens.of(tokenizer)
    for row, added in zip(rows, batch["special_tokens_mask"], strict=True):
        if control.names.keys().isdisjoint(row):
            continue
        if forged := [k for k, i in enumerate(row) if i in control.names and not added[k]]:
            control.spell(tokenizer, row, forged)
            if max_length is not None and len(row) > max_length:
                end = len(row) - sum(added[forged[-1] :])
                del row[end - (len(row) - max_length) : end]
    return rows


def encode_text(tokenizer: Any, text: str, **options: Any) -> list[int]:
    """Return the ids of one text; the options are those of ``encode_texts``."""
    return encode_texts(tokenizer, [text], **options)[0]


def encode_chats(tokenizer: Any, chats: Sequence[Sequence[dict[str, str]]]) -> list[list[int]]:
    """Return the ids of chats, up to where the model answers; the only control tokens are those of the chat template.

    Raises:
        SourceError: If the chat template does not take the chats, or the tokenizer makes control tokens of a text in a
            way that cannot be undone.
        ModelFilesError: If the chat template leaves out what a user says.
    """
    if not chats:
        return []
    control = ControlTokens.of(tokenizer)
    secret = str(secrets.randbits(64))  # no text can contain the marks, and no template changes digits
    opening, closing = f"\ue000{secret}\ue000", f"\ue001{secret}\ue001"

    def mark(message: dict[str, str]) -> dict[str, str]:
        # Templates cut the answers of a model at such names as </think>, which has to work.
        names = control.special if message["role"] == "assistant" else control.any
        return message | {"content": names.sub(rf"{opening}\g<0>{closing}", message["content"])}

    marked = [[mark(message) for message in chat] for chat in chats]
    rendered = _render(tokenizer, marked)
    texts = [text.replace(opening, "").replace(closing, "") for text in rendered]
    if marked != [list(chat) for chat in chats] and texts != _render(tokenizer, chats):
        raise SourceError(  # it may have cut a mark or a part of the text in its place, or put it backwards
            "The text has the name of a control token, and this model's chat template makes another text of it when "
            f"the name is marked as text. Remove names such as {next(iter(control.ids))!r} from the text."
        )
    batch = tokenizer(texts, add_special_tokens=False, split_special_tokens=False, verbose=False)
    rows = [list(ids) for ids in batch["input_ids"]]
    for row, text in zip(rows, rendered, strict=True):
        names = [(match[2], match[1] == match[3] == secret) for match in control.marked.finditer(text)]
        places = [k for k, i in enumerate(row) if i in control.names]
        forged = [k for k, (_, in_text) in enumerate(names) if in_text]
        if not forged and len(places) <= len(names):
            continue
        if [control.names[row[k]] for k in places] != [name for name, _ in names]:
            raise _unreadable(control)
        control.spell(tokenizer, row, [places[k] for k in forged])
    _check_control_tokens(tokenizer, control, chats, rows)
    _check_messages_are_read(tokenizer, chats)
    return rows


def _render(tokenizer: Any, chats: Sequence[Sequence[dict[str, str]]]) -> list[str]:
    """Return what the chat template makes of chats; it is a program, which may raise anything."""
    try:
        rendered: list[str] = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise SourceError(f"The model's chat template does not take these messages: {reason}.") from error
    return rendered


def _check_messages_are_read(tokenizer: Any, chats: Sequence[Sequence[dict[str, str]]]) -> None:
    """Raise a ModelFilesError if the chat template leaves out a user's message, as a damaged one does silently.

    Each shape of chat is tried with numbers for texts: a template may edit a text, but turns no number into another.
    """
    shapes = dict.fromkeys(tuple(message["role"] for message in chat) for chat in chats)
    probes = [[{"role": role, "content": str(secrets.randbits(64))} for role in shape] for shape in shapes]
    for probe, text in zip(probes, _render(tokenizer, probes), strict=True):
        if not all(_is_read(message["content"], text) for message in probe if message["role"] == "user"):
            raise ModelFilesError(
                "The model's chat template leaves out what the user says, so the model would not read it. Its file, "
                "chat_template.jinja or tokenizer_config.json, is damaged or wrong: correct it, or download or save "
                "the model again."
            )


def _is_read(digits: str, text: str) -> bool:
    """Check whether a text has the first or last few digits, in either direction: a template may cut a message."""
    return any(part in text for part in (digits[:9], digits[-9:], digits[8::-1]))


def _unreadable(control: ControlTokens) -> SourceError:
    return SourceError(
        "The text has the name of a control token, whole or in parts, and this model's tokenizer or chat template "
        f"cannot read it as text. Remove names such as {next(iter(control.ids))!r} from the text."
    )


def _check_control_tokens(
    tokenizer: Any, control: ControlTokens, chats: Sequence[Sequence[dict[str, str]]], rows: Sequence[list[int]]
) -> None:
    """Raise a SourceError if the rows of chats have other control tokens than the template writes for other texts.

    A template that removes characters from a text can make a name of what is left, and the tokenizer can make one of
    the end of a text and what the template writes after it. The other text is first ``x``, then one that keeps the
    words of a text, because some templates look for words (``/no_think``).
    """
    if not control.ids:
        return
    pending = list(zip(chats, rows, strict=True))
    for keep_words in (False, True):
        keys = [tuple(_neutral(control, message, keep_words) for message in chat) for chat, _ in pending]
        neutral = list(dict.fromkeys(keys))
        rendered = _render(tokenizer, [[dict(message) for message in chat] for chat in neutral])
        batch = tokenizer(rendered, add_special_tokens=False, split_special_tokens=False, verbose=False)
        expected = dict(zip(neutral, map(control.among, batch["input_ids"]), strict=True))
        pending = [pair for pair, key in zip(pending, keys, strict=True) if control.among(pair[1]) != expected[key]]
        if not pending:
            return
    raise _unreadable(control)


def _neutral(control: ControlTokens, message: dict[str, str], keep_words: bool) -> tuple[tuple[str, str], ...]:
    """Return a message whose text gives no control token; blank text stays, and names that a template cuts at."""
    parts = control.parts.split(message["content"])  # texts at even places, names between them
    for place, part in enumerate(parts):
        if place % 2:
            keep = message["role"] == "assistant" and not control.special.fullmatch(part)
            parts[place] = part if keep else "x"
        elif part.strip():
            parts[place] = _NOT_PLAIN.sub("x", part) if keep_words else "x"
    return tuple((message | {"content": "".join(parts)}).items())
