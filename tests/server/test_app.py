"""The routes of the server: replies, streams, and errors of unknown paths."""

from __future__ import annotations

import re
from typing import Any

import pytest

from impatience import Unit, Writer
from impatience.lengths import Landing
from impatience.server import Limits
from support.fake_server import STATIC
from support.serving import NAME, NOTE, Client, running


def test_a_reply_has_the_text_and_its_report(client: Client, writer: Writer) -> None:
    reply = client("/v1/write", {"text": NOTE, "target": {"words": 7}, "landing": "exact", "task": "title"})
    alone = writer.write(NOTE, words=7, landing="exact", task="title", tries=1)
    assert reply.status == 200
    assert set(reply.json) == {"id", "model", "text", "report"}
    assert (reply.json["text"], reply.json["model"]) == (alone.text, NAME)
    assert reply.json["report"] == {
        "length": 7,
        "target": 7,
        "unit": "words",
        "landed": alone.landed,
        "finished": alone.finished,
        "looping": alone.looping,
        "unsupported": list(alone.unsupported),
        "eos_probability": alone.eos_probability,
        "parts": 1,
        "note": "",
        "drawn": False,
        "backend": "transformers",
        "taken_back": 0,
    }


@pytest.mark.parametrize("landing", ["natural", "at_most"])
def test_tries_returns_the_best_of_several_texts(client: Client, writer: Writer, landing: str) -> None:
    reply = client("/v1/write", {"text": NOTE, "target": {"words": 7}, "landing": landing, "tries": 4})
    alone = writer.write(NOTE, words=7, landing=landing, tries=4)
    assert (reply.status, reply.json["text"]) == (200, alone.text)
    assert (reply.json["report"]["target"], reply.json["report"]["landed"]) == (7, alone.landed)


@pytest.mark.parametrize("landing", list(Landing))
@pytest.mark.parametrize("unit", list(Unit))
def test_a_stream_has_pieces_and_ends_with_the_whole_reply(client: Client, unit: str, landing: str) -> None:
    target = {str(unit): 2 if unit == "sentences" else 12}
    whole = client.write(NOTE, landing, **target).json
    reply = client.write(NOTE, landing, True, **target)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *pieces, (name, result) = reply.events
    assert name == "result"
    assert {**result, "id": ""} == {**whole, "id": "", "report": {**whole["report"], **_taken_back(result)}}
    assert {name for name, _ in pieces} == {"piece"}
    assert all(set(piece) == {"text", "progress", "target", "unit", "stage"} for _, piece in pieces)
    shown = "".join(piece["text"] for _, piece in pieces)
    assert shown[: len(shown) - result["report"]["taken_back"]].rstrip() == result["text"]


def _taken_back(result: dict[str, Any]) -> dict[str, int]:
    return {"taken_back": result["report"]["taken_back"]}


def test_unknown_paths_methods_and_content_types_are_rejected(client: Client) -> None:
    assert client("/v1/nothing").status == 404
    assert client("/v1/nothing").error["type"] == "not_found_error"
    assert client("/static/../report.css").status == 404
    assert client("/static/%2e%2e/report.css").status == 404
    assert client("/docs").status == 404
    rejected = client("/v1/write")
    assert (rejected.status, rejected.headers["allow"]) == (405, "POST")
    assert rejected.error["message"] == "Method Not Allowed."
    body = {"text": NOTE, "target": {"words": 3}}
    for content_type, message in (("text/plain", "Its content type is 'text/plain'"), ("", "It has no content type")):
        rejected = client("/v1/write", body, Content_Type=content_type)  # a form of another site may send this
        assert rejected.status == 400
        assert f"{message}: send the header Content-Type: application/json." in rejected.error["message"]


def preset(length: int, unit: str, landing: str, task: str) -> dict[str, Any]:
    return {"length": length, "unit": unit, "landing": landing, "task": task}


def test_a_text_is_asked_for_with_or_without_a_source(client: Client, writer: Writer) -> None:
    body = {"instruction": "Thank them.", "target": {"words": 7}, "landing": "exact"}
    for text in ({}, {"text": NOTE}):
        reply = client("/v1/write", {**body, **text})
        assert (reply.status, reply.json["report"]["length"]) == (200, 7)
        alone = writer.write(*text.values(), ask="Thank them.", words=7, landing="exact", tries=1)
        assert reply.json["text"] == alone.text


def test_a_model_of_one_task_offers_no_other_and_refuses_instructions(writer: Writer) -> None:
    trained = Writer(writer.model, {"template": "summarize", "max_source_tokens": 500, "tasks": ["summarize", "title"]})
    with running(trained) as (client, *_):
        (model,) = client("/v1/models").json["data"]
        assert (model["impatience"]["instructions"], model["impatience"]["tasks"]) == (False, ["summarize", "title"])
        refused = client("/v1/write", {"instruction": "Sing.", "target": {"words": 7}})
        assert (refused.status, refused.error["code"]) == (400, "unsupported_by_model")
        assert "takes no instruction" in refused.error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_range_is_reported(client: Client, stream: bool) -> None:
    reply = client("/v1/write", {"text": NOTE, "target": {"words": [5, 9]}, "landing": "at_most", "stream": stream})
    report = (reply.events[-1][1] if stream else reply.json)["report"]
    assert (report["target"], report["within"], report["length"] <= 9) == (9, [5, 9], True)
    assert (report["landed"] == "missed") == (report["length"] < 5)
    assert "within" not in client("/v1/write", {"text": NOTE, "target": {"words": 5}}).json["report"]


def test_the_text_of_a_document_is_read(client: Client) -> None:
    reply = client("/v1/documents?name=a.html", b"<nav>Menu</nav><main><p>The ferry.</p></main>")
    assert (reply.status, reply.json) == (200, {"text": "The ferry."})
    assert client("/v1/documents", b"The\nferry.").json == {"text": "The\nferry."}
    refused = client("/v1/documents?name=scan.pdf", b"%PDF-nonsense")
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "invalid_source", None)
    assert refused.error["message"].startswith("'scan.pdf' cannot be read as a PDF")


def test_a_document_may_be_longer_than_a_request_but_not_endless(writer: Writer) -> None:
    with running(writer, limits=Limits(body_bytes=1000, document_bytes=3000)) as (client, *_):
        assert client("/v1/documents", b"ferry " * 400).status == 200
        refused = client("/v1/documents", b"ferry " * 600)
        assert (refused.status, refused.error["code"]) == (413, "body_too_long")


def test_hostile_documents_of_clients_that_hang_up_do_not_keep_others_from_being_read(client: Client) -> None:
    for _ in range(2):  # as many as are read at a time; Python's parser looks at the rest of the page at each mark
        client.open("/v1/documents?name=a.html", b"<!--" * 1_000_000).close()
    assert client("/v1/documents?name=b.html", b"<p>The ferry.</p>").json == {"text": "The ferry."}


def test_a_missing_package_for_documents_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impatience.registry.find_spec", lambda name: None)
    assert client("/v1/models").json["data"][0]["impatience"]["documents"] == []
    assert "needs the package pypdf" in client("/v1/documents?name=a.pdf", b"%PDF-").error["message"]


def test_the_model_lists_units_tasks_landings_and_limits(client: Client) -> None:
    (model,) = client("/v1/models").json["data"]
    assert (model["id"], model["object"]) == (NAME, "model")
    assert model["impatience"] == {
        "units": ["tokens", "words", "characters", "sentences"],
        "instructions": True,
        "tasks": ["summarize", "rewrite", "title", "question", "description", "post", "abstract"],
        "landings": ["natural", "exact", "at_most"],
        "max_target_tokens": 1023,
        "max_source_characters": 200_000,
        "presets": {
            "meta-description": preset(160, "characters", "at_most", "description"),
            "post": preset(280, "characters", "at_most", "post"),
            "abstract": preset(250, "words", "natural", "abstract"),
            "title": preset(10, "words", "natural", "title"),
        },
        "documents": ["html", "pdf"],
        "max_document_bytes": 20_000_000,
    }
    assert client(f"/v1/models/{NAME}").json == model
    assert client("/v1/models/other").status == 404


def test_the_page_has_no_inline_code_and_loads_nothing_from_other_sites() -> None:
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|//\w+\.\w|@import|url\(|eval\(|innerHTML", text), file.name
        assert len(text.splitlines()) < 300, file.name
    assert set(re.findall(r'"/static/([^"]+)"', html)) <= {file.name for file in STATIC.iterdir()}
