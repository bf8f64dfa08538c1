"""Run the commands of a document whose output it shows, and put what they print in its place.

    python docs/refresh.py README.md docs/writing.md

A block of ``sh`` or ``python`` that is followed by a block of ``text`` is run from the root; of ``sh`` blocks only
those that write (``impatience write``, ``impatience batch``), and of them only the first command where the block says
so ("prints what is shown below"). Then a block of ``text`` that names a file shows what is in it, if anything is.
Remove what an earlier run left, and look at the difference before you commit it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = r"(?:(?!```).*\n)*"
PAIR = re.compile(rf"(```(sh|python)\n(?P<code>{LINES})```\n\n```text\n){LINES}```")
FILE = re.compile(rf"(```text (?P<name>\S+)\n){LINES}```")
OURS = ("impatience write", "impatience batch")


def main() -> None:
    """Refresh every document that is named."""
    for name in sys.argv[1:]:
        file = Path(name)
        text = PAIR.sub(renewed, file.read_text(encoding="utf-8"))
        file.write_text(FILE.sub(shown, text), encoding="utf-8")


def renewed(pair: re.Match[str]) -> str:
    """Return a block of code and a block of what it prints now."""
    code = pair["code"]
    if pair[2] == "sh" and not code.startswith(OURS):
        return pair[0]
    first = code.splitlines()[0] if "prints what is shown below" in code else code
    command = [sys.executable, "-c", code] if pair[2] == "python" else ["sh", "-e", "-c", first]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return f"{pair[1]}{done.stdout.strip()}\n```"


def shown(block: re.Match[str]) -> str:
    """Return a block of what is in a file now."""
    file = ROOT / block["name"]
    content = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    return f"{block[1]}{content}\n```" if content else block[0]


if __name__ == "__main__":
    main()
