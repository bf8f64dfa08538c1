"""One question to a judge: asked over HTTP until it is answered, and never asked twice.

The judge is any endpoint that takes OpenAI's ``POST …/chat/completions``. Answers are kept by content: the file's name
is the SHA-256 of the request's body (model, messages, settings), without the address and without the key. What is kept
is the raw text, whether or not it can be made sense of afterwards: a second evaluation reads the same figures from the
same answers, and an evaluation that was killed asks only for the rest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from threading import Event, Lock
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from impatience.errors import JudgeError
from impatience.files import write_whole
from impatience.version import __version__

KEY = "IMPATIENCE_JUDGE_KEY"
_BUSY = 408, 429  # these and 5xx may pass
_SLOWEST = 6  # back-off doubles no further: about a minute
_LONGEST_WAIT = 600.0  # seconds a server may ask for
_EXCERPT = 300

log = logging.getLogger(__name__)
_random = random.Random()  # its own, so that nobody's seeded numbers change with the weather


class _PassingError(Exception):
    """Something that may be gone at the next try; ``asked_seconds`` is how long the server wants to be left alone."""

    def __init__(self, message: str, asked_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.asked_seconds = asked_seconds


class _StayHere(HTTPRedirectHandler):
    """Follow no redirection: it would carry the key to a host that the user did not name."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs


@dataclass(frozen=True)
class Client:
    """Asks a judge; may be shared by threads.

    Attributes:
        url: Base of the endpoint, without a slash at its end.
        model: What the endpoint calls the judge.
        key: Sent as the bearer token; "" sends none.
        cache: Where answers are kept.
        timeout_seconds: How long one answer may take.
        retries: How often a request is sent again.
        settings: What else the request's body holds.
        pause: Waits for some seconds; None waits until they are over or the client is stopped.
    """

    url: str
    model: str
    key: str = field(repr=False)
    cache: Path
    timeout_seconds: float
    retries: int
    settings: dict[str, Any] = field(default_factory=dict)
    pause: Callable[[float], object] | None = None
    _opener: OpenerDirector = field(default_factory=lambda: build_opener(_StayHere), init=False, repr=False)
    _stopped: Event = field(default_factory=Event, init=False, repr=False)
    _locks: dict[str, Lock] = field(default_factory=dict, init=False, repr=False)
    _troubles: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _counting: Lock = field(default_factory=Lock, init=False, repr=False)

    def ask(self, question: str) -> str:
        """Return the judge's answer: the kept one if there is one.

        Raises:
            JudgeError: If the judge refuses, or does not answer after all tries, or the answer cannot be kept.
        """
        # One user message: not every model's template knows the role of the system.
        body = {"model": self.model, "messages": [{"role": "user", "content": question}], **self.settings}
        content = json.dumps(body, sort_keys=True).encode()
        name = hashlib.sha256(content).hexdigest()
        file = self.cache / name[:2] / f"{name}.json"
        with self._locks.setdefault(name, Lock()):  # threads with the same question wait for the first one's answer
            answer = _kept(file)
            if answer is None:
                answer = self._answer(content)
                self._keep(file, answer)
            return answer

    def stop(self) -> None:
        """Let other threads end with the try they are at, ask nothing more, and say what was only counted."""
        self._stopped.set()
        with self._counting:
            often = ", ".join(f"{kind} ({count} times)" for kind, count in self._troubles.items() if count > 1)
        if often:
            log.warning("The judge at %s, in all: %s.", self.url, often)

    def _keep(self, file: Path, answer: str) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({"model": self.model, "answer": answer}) + "\n")
        except OSError as error:
            raise JudgeError(
                f"The judge's answer could not be kept in {self.cache}: {error}. Make room there, or name another "
                "folder with the option cache."
            ) from error

    def _answer(self, content: bytes) -> str:
        attempt = 0
        while not self._stopped.is_set():
            try:
                return self._post(content)
            except _PassingError as trouble:
                if trouble.asked_seconds > _LONGEST_WAIT:
                    raise JudgeError(
                        f"The judge at {self.url} wants to be left alone for {trouble.asked_seconds:.0f} s ({trouble})."
                        " Run the same command after that: answers that came are kept, only the rest is asked for."
                    ) from trouble
                if attempt == self.retries:
                    raise JudgeError(
                        f"The judge at {self.url} gave no answer in {self.retries + 1} tries; the last: {trouble}. "
                        "See that it is up, or allow more (timeout_seconds, retries) or ask less at once (parallel). "
                        "Answers that came are kept: the same command asks only for the rest."
                    ) from trouble
                seconds = trouble.asked_seconds + 2.0 ** min(attempt, _SLOWEST) * _random.uniform(0.5, 1.5)
                self._count(trouble, seconds)
            attempt += 1
            (self.pause or self._stopped.wait)(seconds)
        raise JudgeError("The judge was not asked, because another request had failed for good.")

    def _count(self, trouble: _PassingError, seconds: float) -> None:
        """Say what a trouble is when it comes first; many requests at once have the same one."""
        kind = str(trouble).partition(":")[0]
        with self._counting:
            self._troubles[kind] += 1
            first = self._troubles[kind] == 1
        if first:
            log.warning("The judge at %s: %s. Next try in %.1f s.", self.url, trouble, seconds)

    def _post(self, content: bytes) -> str:
        headers = {"Content-Type": "application/json", "User-Agent": f"impatience/{__version__}"}
        request = Request(f"{self.url}/chat/completions", content, headers)
        if self.key:
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        deadline = time.monotonic() + self.timeout_seconds
        try:
            with self._opener.open(request, timeout=self.timeout_seconds) as response:
                body = _read(response, deadline)
        except HTTPError as error:
            raise self._refusal(error) from None
        except URLError as error:
            raise _PassingError(f"it cannot be reached: {error.reason}") from error
        except TimeoutError as error:
            raise _PassingError(f"it took more than {self.timeout_seconds:g} s") from error
        except (OSError, HTTPException) as error:
            raise _PassingError(f"the connection broke: {error}") from error
        try:
            answer = json.loads(body)["choices"][0]["message"]["content"]
            if not isinstance(answer, str | None):
                raise TypeError(type(answer))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _PassingError(f"what it sent is no chat completion: {self._excerpt(body)!r}") from error
        return answer or ""  # null where the model declines to answer

    def _refusal(self, error: HTTPError) -> Exception:
        """Say what an HTTP status other than 200 means."""
        with error:
            try:
                said = self._excerpt(error.read(10 * _EXCERPT))
            except (OSError, HTTPException):
                said = ""
        status = f"HTTP {error.code}" + (f": {said!r}" if said else "")
        if error.code in _BUSY or error.code >= 500:
            return _PassingError(status, _asked_seconds(error.headers.get("Retry-After")))
        if error.code in (401, 403):
            what = f"the key in {KEY}" if self.key else f"a request without a key (there is none in {KEY})"
            return JudgeError(f"The judge at {self.url} refuses {what} ({status}). Set it to a key that it accepts.")
        if error.code == 404:
            return JudgeError(
                f"There is no {self.url}/chat/completions, or no model {self.model!r} behind it ({status}). "
                "Check the URL, which usually ends in /v1, and the model's name."
            )
        if 300 <= error.code < 400:
            return JudgeError(
                f"The judge at {self.url} has moved to {error.headers.get('Location')!r} ({status}). Redirections are "
                "not followed, for the key's sake: give the new URL."
            )
        return JudgeError(
            f"The judge at {self.url} refuses the request ({status}). If it speaks of response_format, set json_mode "
            "to false; if of the length, choose a judge with a longer context or lower max_tokens."
        )

    def _excerpt(self, body: bytes) -> str:
        """Return the start of what a server sent, in one line and without the key, which some repeat."""
        text = " ".join(body[: 10 * _EXCERPT].decode("utf-8", "replace").split())
        return (text.replace(self.key, "***") if self.key else text)[:_EXCERPT]


def _kept(file: Path) -> str | None:
    """Return a kept answer; None if there is none or the file is damaged."""
    try:
        answer = json.loads(file.read_text(encoding="utf-8"))["answer"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return answer if isinstance(answer, str) else None


def _read(response: HTTPResponse, deadline: float) -> bytes:
    """Read a whole body before the deadline; a socket's own timeout would begin anew with every byte."""
    parts = []
    while part := response.read1(1 << 16):
        parts.append(part)
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(parts)


def _asked_seconds(retry_after: str | None) -> float:
    """Read the header Retry-After: seconds, or a date; 0 if it is missing or neither."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
