"""Defines the limits of a server and who may use it."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

from impatience.decoding.packing import BUDGET
from impatience.errors import OptionError

_KEY_VARIABLE = "IMPATIENCE_API_KEY"
_MIN_KEY_LENGTH = 16
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server."""

    requests: int = 64  # most open requests, running or waiting; any more get 429
    budget: int = BUDGET  # most tokens of a batch, rows × (source + output); 1 writes one text at a time
    source_characters: int = 200_000  # most characters of a source text
    target_tokens: int = 4096  # most tokens of a text, estimated before it is written
    body_bytes: int = 2_000_000  # most bytes of an HTTP request
    document_bytes: int = 20_000_000  # the same for a document, e.g. a PDF
    seconds: float = 300.0  # most time from a request to the end of its text
    connections: int = 256  # most connections besides those of ``requests``; a new one takes the place of the oldest
    receive_seconds: float = 30.0  # most time for a client to send a request's headers, and as much for its body

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise OptionError(f"{name}={value}: give a number above 0.")


@dataclass(frozen=True)
class Access:
    """Rules of access to a server."""

    key: str | None = None  # key that clients must send; None lets in everybody who can reach the server
    origins: tuple[str, ...] = ()  # other web sites whose pages may use the server
    log_texts: bool = False  # whether to log the texts


def read_key(file: Path | None) -> str | None:
    """Read the server's key from a file, or else from the environment; return None if there is none."""
    origin = f"--key-file {file}" if file else _KEY_VARIABLE
    try:
        key = file.read_text(encoding="ascii") if file else os.environ.get(_KEY_VARIABLE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise OptionError(f"{origin} cannot be read: {reason}.") from None
    if key is None:
        return None
    key = key.strip()
    if len(key) < _MIN_KEY_LENGTH or not (key.isascii() and key.isprintable() and " " not in key):
        raise OptionError(f"{origin}: give a key of at least {_MIN_KEY_LENGTH} ASCII characters, without spaces.")
    return key


def is_loopback(host: str) -> bool:
    """Check whether an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_this_machine(host: str) -> bool:
    """Check whether a Host header, a name or address with or without a port, is one of this machine."""
    match = _HOST.fullmatch(host)
    return match is not None and is_loopback(match[1].lower().removesuffix("."))


def is_own_origin(origin: str) -> bool:
    """Check whether an Origin header is that of a page of this machine."""
    scheme, separator, host = origin.partition("://")
    return bool(separator) and scheme.lower() in ("http", "https") and names_this_machine(host)


def check_host(host: str, key: str | None) -> None:
    """Check that a server that other machines can reach has a key."""
    if key is None and not is_loopback(host):
        raise OptionError(
            f"--host {host} can be reached from other machines, and there is no key. Give one with --key-file or "
            f"{_KEY_VARIABLE}, or stay on 127.0.0.1."
        )
