"""HTTP client of a judge: any endpoint with OpenAI's ``POST …/chat/completions``.

Answers are cached by content: the file name is the SHA-256 of the request body (model, messages, settings), without the
URL and the key. The raw text is cached, readable or not, so a second evaluation computes the same figures from the same
answers, and an evaluation that was killed requests only the missing ones.
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
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from impatience.errors import JudgeError
from impatience.files import write_whole
from impatience.version import __version__

if TYPE_CHECKING:
    import httpx2

KEY = "IMPATIENCE_JUDGE_KEY"
_RETRY_STATUSES = (408, 429)  # and all from 500 on
_MAX_DOUBLINGS = 6  # the back-off stops growing at about a minute
_MAX_WAIT_SECONDS = 600.0
_EXCERPT = 300

log = logging.getLogger(__name__)
_random = random.Random()  # private, so that retries do not change anybody's seeded numbers


class _TemporaryError(Exception):
    """A failure that may be over at the next attempt, and the seconds that the server asked to wait."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _open_http() -> httpx2.Client:
    """Open an HTTP client with as many connections as threads; it follows no redirection."""
    import httpx2

    return httpx2.Client(limits=httpx2.Limits(max_connections=None))


@dataclass(frozen=True)
class JudgeClient:
    """Sends prompts to a judge and caches its answers; may be shared by threads."""

    url: str  # base URL of the endpoint, without a slash at its end
    model: str  # name of the judge at the endpoint
    key: str = field(repr=False)  # bearer token; none is sent if it is empty
    cache: Path  # folder of the cached answers
    timeout_seconds: float  # time limit of one answer
    retries: int  # number of attempts after the first
    settings: dict[str, Any] = field(default_factory=dict)  # other fields of the request body
    # waits for a number of seconds; by default until they are over or the client is stopped
    wait: Callable[[float], object] | None = None
    _http: httpx2.Client = field(default_factory=_open_http, init=False, repr=False)
    _stopped: Event = field(default_factory=Event, init=False, repr=False)
    _locks: dict[str, Lock] = field(default_factory=dict, init=False, repr=False)
    _failures: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _counting: Lock = field(default_factory=Lock, init=False, repr=False)

    def complete(self, prompt: str) -> str:
        """Return the judge's answer to a prompt, from the cache if it is there."""
        # One user message: some chat templates have no system role.
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], **self.settings}
        content = json.dumps(body, sort_keys=True).encode()
        name = hashlib.sha256(content).hexdigest()
        file = self.cache / name[:2] / f"{name}.json"
        with self._locks.setdefault(name, Lock()):  # threads with the same prompt wait for the first one's answer
            answer = _read_cached(file)
            if answer is None:
                answer = self._request(content)
                self._store(file, answer)
            return answer

    def stop(self) -> None:
        """End all waiting and send no further request."""
        self._stopped.set()

    def close(self) -> None:
        """Close all connections and log how often each failure happened."""
        self._http.close()
        with self._counting:
            repeated = ", ".join(f"{kind} ({count} times)" for kind, count in self._failures.items() if count > 1)
        if repeated:
            log.warning("The judge at %s, in all: %s.", self.url, repeated)

    def _store(self, file: Path, answer: str) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({"model": self.model, "answer": answer}) + "\n")
        except OSError as error:
            raise JudgeError(
                f"The judge's answer cannot be cached in {self.cache}: {error}. Free some space there, or choose "
                "another folder with the option cache."
            ) from error

    def _request(self, content: bytes) -> str:
        """Send a request until it is answered or all attempts are used."""
        attempt = 0
        while not self._stopped.is_set():
            try:
                return self._post(content)
            except _TemporaryError as failure:
                if failure.retry_after > _MAX_WAIT_SECONDS:
                    raise JudgeError(
                        f"The judge at {self.url} asks to wait {failure.retry_after:.0f} s ({failure}). Run the same "
                        "command after that: answers are cached, only the missing ones are requested."
                    ) from failure
                if attempt == self.retries:
                    raise JudgeError(
                        f"The judge at {self.url} gave no answer in {self.retries + 1} attempts; the last: {failure}. "
                        "Check that it is running, raise timeout_seconds or retries, or lower parallel. "
                        "Answers are cached: the same command requests only the missing ones."
                    ) from failure
                seconds = failure.retry_after + 2.0 ** min(attempt, _MAX_DOUBLINGS) * _random.uniform(0.5, 1.5)
                self._log_first(failure, seconds)
            attempt += 1
            (self.wait or self._stopped.wait)(seconds)
        raise JudgeError("The request was not sent, because another request to the judge failed for good.")

    def _log_first(self, failure: _TemporaryError, seconds: float) -> None:
        """Log the first failure of each kind; parallel requests often have the same one."""
        kind = str(failure).partition(":")[0]
        with self._counting:
            self._failures[kind] += 1
            first = self._failures[kind] == 1
        if first:
            log.warning("The judge at %s: %s. Next attempt in %.1f s.", self.url, failure, seconds)

    def _post(self, content: bytes) -> str:
        import httpx2

        url, deadline, body = f"{self.url}/chat/completions", time.monotonic() + self.timeout_seconds, b""
        headers = {"Content-Type": "application/json", "User-Agent": f"impatience/{__version__}"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request: dict[str, Any] = {"content": content, "headers": headers, "timeout": self.timeout_seconds}
        try:
            with self._http.stream("POST", url, **request) as response:
                for part in response.iter_bytes():  # httpx2 limits the time of each part, not of the whole
                    body += part
                    if time.monotonic() > deadline:
                        raise httpx2.ReadTimeout("")
        except httpx2.TimeoutException as error:
            raise _TemporaryError(f"it took more than {self.timeout_seconds:g} s") from error
        except httpx2.ConnectError as error:
            raise _TemporaryError(f"it cannot be reached: {error}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _TemporaryError(f"the connection broke: {error}") from error
        if not response.is_success:
            raise self._rejection(response, self._excerpt(body))
        try:
            answer = json.loads(body)["choices"][0]["message"]["content"]
            if not isinstance(answer, str | None):
                raise TypeError(type(answer))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _TemporaryError(f"its response is not a chat completion: {self._excerpt(body)!r}") from error
        return answer or ""  # null if the model declines to answer

    def _rejection(self, response: httpx2.Response, excerpt: str) -> Exception:
        """Return the error for an HTTP status other than success."""
        code = response.status_code
        status = f"HTTP {code}" + (f": {excerpt!r}" if excerpt else "")
        if code in _RETRY_STATUSES or code >= 500:
            return _TemporaryError(status, _retry_after(response.headers.get("Retry-After", "")))
        if code in (401, 403):
            key = f"the key in {KEY}" if self.key else f"a request without a key ({KEY} is not set)"
            advice = f"rejects {key}. Set it to a key that it accepts."
        elif code == 404:
            advice = (
                f"has no /chat/completions, or no model {self.model!r}. Check the URL, which usually ends in /v1, and "
                "the model's name."
            )
        elif 300 <= code < 400:
            advice = (
                f"redirects to {response.headers.get('Location')!r}. Redirections are not followed, to protect the "
                "key: give the new URL."
            )
        else:
            advice = (
                "rejects the request. If it mentions response_format, set json_mode to false; if it mentions the "
                "length, choose a judge with a longer context or lower max_tokens."
            )
        return JudgeError(f"The judge at {self.url} {advice} It answered {status}.")

    def _excerpt(self, body: bytes) -> str:
        """Return the start of a response in one line, without the key, which some servers repeat."""
        text = " ".join(body[: 10 * _EXCERPT].decode("utf-8", "replace").split())
        return (text.replace(self.key, "***") if self.key else text)[:_EXCERPT]


def _read_cached(file: Path) -> str | None:
    """Return a cached answer; None if the file is missing or damaged."""
    try:
        answer = json.loads(file.read_text(encoding="utf-8"))["answer"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return answer if isinstance(answer, str) else None


def _retry_after(header: str) -> float:
    """Return the seconds that the header Retry-After gives, as a number or a date; 0 if it gives neither."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
