"""Reads a document in a process of its own, which can be ended: a hostile one may take hours, or all memory.

No thread can be ended while it reads. The process ends with the one that started it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from threading import Thread

from impatience.errors import ImpatienceError, SourceError
from impatience.writing.documents import format_of, read_content, readable_formats

_MEMORY = 4_000_000_000  # most bytes that such a process may take, where the system can tell


async def read_apart(content: bytes, name: str) -> str:
    """Return the text of a file's content, as ``read_content`` does; the process is ended if this is cancelled."""
    if format_of(content, name) not in readable_formats():  # plain text, or a missing package: done at once
        return await asyncio.to_thread(read_content, content, name)
    command = (sys.executable, "-m", "impatience.writing.document_process")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment)
    assert process.stdin
    assert process.stdout
    try:
        with suppress(ConnectionError):  # it has ended already; its output, or the lack of it, says why
            process.stdin.write(json.dumps({"name": name, "size": len(content)}).encode() + b"\n" + content)
            await process.stdin.drain()
        output = await process.stdout.read()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.stdin.close()
        await process.wait()
    try:
        reply = json.loads(output)
    except ValueError:
        raise SourceError(f"{name!r} cannot be read: it takes too much memory. Save its text first.") from None
    if "error" in reply:
        raise SourceError(reply["error"])
    return str(reply["text"])


def main() -> None:
    """Read a document from standard input, and write its text or the reason against it to standard output as JSON."""
    head = json.loads(sys.stdin.buffer.readline())
    content = sys.stdin.buffer.read(head["size"])
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(ImportError, OSError, ValueError):  # not on Windows, and not on every other system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        reply = {"text": read_content(content, head["name"])}
    except ImpatienceError as error:
        reply = {"error": str(error)}
    print(json.dumps(reply), flush=True)
    os._exit(0)  # Python would wait for nothing here, and freeing a large document takes long


def _end_with_parent() -> None:
    """End this process when nothing can come from standard input any more."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
