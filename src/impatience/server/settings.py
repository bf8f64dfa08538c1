"""What a server allows, and whom."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from impatience.decoding.packing import BUDGET
from impatience.errors import OptionError

KEY_VARIABLE = "IMPATIENCE_API_KEY"
_SHORTEST_KEY = 16


@dataclass(frozen=True)
class Limits:
    """What one server takes on.

    Attributes:
        requests: The most requests that are answered or wait at a time; one more is answered 429.
        budget: The most tokens that are written at once, rows × (source + output); 1 writes one text at a time.
        source_characters: The most characters of a text to write from.
        target_tokens: The most tokens that a text may be asked to have, as far as that is known before.
        body_bytes: The most bytes of a request.
        seconds: The most time from a request to its last word.
    """

    requests: int = 64
    budget: int = BUDGET
    source_characters: int = 200_000
    target_tokens: int = 4096
    body_bytes: int = 2_000_000
    seconds: float = 300.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise OptionError(f"{name}={value}: give a number above 0.")


@dataclass(frozen=True)
class Access:
    """Who may use a server.

    Attributes:
        key: What clients must know; None lets everybody in who reaches the server.
        origins: Other web sites whose pages may use it.
        log_texts: Whether texts are written to the log.
    """

    key: str | None = None
    origins: tuple[str, ...] = ()
    log_texts: bool = False


def read_key(file: Path | None) -> str | None:
    """Read the key of a server from a file, or else from the environment; None if there is none.

    Raises:
        OptionError: If the file cannot be read, or the key is not one.
    """
    where = f"--key-file {file}" if file else KEY_VARIABLE
    try:
        key = file.read_text(encoding="ascii") if file else os.environ.get(KEY_VARIABLE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise OptionError(f"{where} cannot be read: {reason}.") from None
    if key is None:
        return None
    key = key.strip()
    if len(key) < _SHORTEST_KEY or not (key.isascii() and key.isprintable() and " " not in key):
        raise OptionError(f"{where}: give a key of {_SHORTEST_KEY} letters, digits or signs at least, without spaces.")
    return key


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_host(host: str, key: str | None) -> None:
    """Refuse to be reached from elsewhere by everybody.

    Raises:
        OptionError: If the address is not this machine's own, and there is no key.
    """
    if key is None and not is_loopback(host):
        raise OptionError(
            f"--host {host} can be reached from other machines, and there is no key. Give one with --key-file or "
            f"{KEY_VARIABLE}, or stay on 127.0.0.1."
        )
