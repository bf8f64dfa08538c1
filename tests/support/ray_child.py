"""Starts a Ray cluster as the engine does, and prints at which addresses its processes listen.

They are known by RAY_CHILD in their environment, which they have from this one. Linux only.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from impatience.engines.ray import cluster


def address(text: str) -> str:
    """Read an address as /proc/net has it: words of four bytes, the last byte first."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    if len(words) == 1:
        return str(IPv4Address(words[0]))
    whole = IPv6Address(b"".join(words))
    return str(whole.ipv4_mapped or whole)


def main() -> None:
    listening = {}
    mark = f"RAY_CHILD={os.environ['RAY_CHILD']}".encode()
    found = []
    with cluster():
        for table in ("tcp", "tcp6"):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    listening[fields[9]] = address(fields[1].partition(":")[0])
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    sockets = (
                        re.fullmatch(r"socket:\[(\d+)\]", os.readlink(file)) for file in (process / "fd").iterdir()
                    )
                    found += [listening[one[1]] for one in sockets if one and one[1] in listening]
    print(json.dumps({"usage": os.environ["RAY_USAGE_STATS_ENABLED"], "listening": found}))


if __name__ == "__main__":
    main()
