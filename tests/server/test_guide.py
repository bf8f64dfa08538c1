"""The guide docs/serving.md: its requests work as printed, with a tiny model."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import shlex
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer

from impatience.cli import commands
from impatience.server import Limits
from impatience.server.middleware import ROUTES
from impatience.sources import DEFAULT_MODEL
from support import serving
from support.serving import Client, make_writer, running

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"


def printed(after: str) -> str:
    """Return the output that the guide shows below the block with a text in it."""
    index = next(n for n, (_, code) in enumerate(BLOCKS) if after in code)
    kind, code = BLOCKS[index + 1]
    assert kind == "text"
    return str(code)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(serving, "NAME", DEFAULT_MODEL)
    with running(make_writer()) as (client, *_):
        yield client


def test_the_curl_command_gets_the_printed_reply(client: Client) -> None:
    (line,) = (code for kind, code in BLOCKS if code.startswith("curl"))
    _, address, _, head, _, body = shlex.split(line)
    assert head == "Content-Type: application/json"
    reply = client(address.removeprefix(ADDRESS), body.encode()).json
    shown = json.loads(printed("curl"))
    assert list(reply) == list(shown)
    assert reply["model"] == shown["model"] == DEFAULT_MODEL
    report, shown_report = reply["report"], shown["report"]
    assert list(report) == list(shown_report)
    assert report["length"] == shown_report["length"] == len(shown["text"].split())


def test_the_openai_example_prints_the_shown_lines(client: Client) -> None:
    (code,) = (code for kind, code in BLOCKS if "from openai" in code)
    output = StringIO()
    names: dict[str, Any] = {}
    try:
        with contextlib.redirect_stdout(output):
            exec(compile(code.replace(ADDRESS, client.address), "serving.md", "exec", dont_inherit=True), names)
    finally:
        names["client"].close()  # an open connection would fail another test
    counts = [line for line in output.getvalue().splitlines() if re.fullmatch(r"\d+ words \w+", line)]
    assert [line.split()[0] for line in counts] == ["13"]
    text, count, streamed = printed("from openai").splitlines()
    assert (len(text.split()), count.split()[:2], len(streamed.split())) == (13, ["13", "words"], 20)


def test_the_langchain_example_reads_a_field_of_the_reply(client: Client) -> None:
    (code,) = (code for kind, code in BLOCKS if "from langchain" in code)
    (call,) = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and len(node.keywords) > 2)
    options = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    messages = [{"role": "user", "content": "Bumblebees can learn to pull a string."}]
    assert options["base_url"] == f"{ADDRESS}/v1"
    body = {"model": options["model"], "messages": messages, **options["extra_body"]}
    assert code.endswith('print(message.response_metadata["token_usage"]["report"])\n')  # token_usage is the usage
    shown, report = (
        ast.literal_eval(printed("from langchain")),
        client("/v1/chat/completions", body).json["usage"]["report"],
    )
    assert [*report] == [*shown]
    assert all(report[name] == shown[name] for name in ("length", "target", "unit"))


def test_the_guide_names_every_option_and_path() -> None:
    command: Any = typer.main.get_command(commands.app)
    named = set(re.findall(r"--[a-z-]+", GUIDE))
    options = {name for option in command.commands["serve"].params for name in option.opts if name.startswith("--")}
    assert options - named == {"--port", "--quiet"}
    assert [path for path in ROUTES if f"`{path}`" not in GUIDE and path not in GUIDE] == []
    for value in (Limits.requests, Limits.budget, Limits.target_tokens, int(Limits.seconds)):
        assert str(value) in GUIDE
    for value in (Limits.body_bytes, Limits.source_characters):
        assert f"{value:,}" in GUIDE


def test_the_container_copies_existing_files_and_needs_a_key() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert set(copied) >= {"pyproject.toml", "src", "recipes", "LICENSE"}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert [name for name in copied if f"!{name}" not in allowed] == []
    entry = next(json.loads(line.removeprefix("ENTRYPOINT ")) for line in lines if line.startswith("ENTRYPOINT"))
    assert entry == ["impatience", "serve", "--host", "0.0.0.0"]
