"""The middleware: body, security headers, metrics and logs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from impatience import Writer
from impatience.server import Access, Limits
from support.serving import Client, eventually, running


def test_an_unexpected_error_gives_500_without_details(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    with running(writer) as (client, service, _):
        monkeypatch.setattr(service, "model_card", lambda: 1 / 0)
        failed = client("/v1/models")
        assert (failed.status, failed.error["code"]) == (500, "internal_error")
        assert b"zero" not in failed.body
        assert failed.headers["x-content-type-options"] == "nosniff"
        assert 'route="/v1/models",status="500"' in client("/metrics").body.decode()
    assert "ZeroDivisionError" in caplog.text


def test_a_slow_body_gives_408_and_a_missing_one_400(writer: Writer) -> None:
    with running(writer, Limits(receive_seconds=0.2)) as (client, service, _):
        slow = client.open("/v1/write", method="POST", Content_Length="9", Content_Type="application/json")
        assert slow.getresponse().status == 408
        slow.close()
        disconnected = client.open("/v1/write", method="POST", Content_Length="9", Content_Type="application/json")
        disconnected.close()
        eventually(lambda: 'route="/v1/write",status="400"' in client("/metrics").body.decode())
        assert not service.open_requests


def test_replies_have_security_headers(client: Client) -> None:
    page = client("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.body.lower().startswith(b"<!doctype html>")
    assert client("/static/index.html").body == page.body
    assert client("/static/index.html").headers["cache-control"] == page.headers["cache-control"] == "no-cache"
    for reply in (page, client("/healthz"), client("/v1/nothing"), client.write(words=3)):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "server" not in reply.headers
        assert "access-control-allow-origin" not in reply.headers


def test_metrics_count_requests_texts_and_batches(writer: Writer) -> None:
    with running(writer) as (client, *_):
        client.write(tokens=6)
        client.write("", tokens=6)
        client("/somebody's/secret")
        reply = client("/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        described = client("/openapi.json").json["paths"]["/metrics"]["get"]["responses"]
        types = {status: [*reply["content"]] for status, reply in described.items()}
        assert types == {"200": ["text/plain"], "4XX": ["application/json"], "5XX": ["application/json"]}
        counts = dict(line.rsplit(" ", 1) for line in reply.body.decode().splitlines() if not line.startswith("#"))
        assert counts['impatience_requests_total{route="/v1/write",status="200"}'] == "1.0"
        assert counts['impatience_requests_total{route="/v1/write",status="400"}'] == "1.0"
        assert counts['impatience_requests_total{route="other",status="404"}'] == "1.0"
        assert counts["impatience_written_tokens_total"] == "6.0"
        assert counts["impatience_batch_rows_count"] == "1.0"
        assert counts["impatience_requests_open"] == "0.0"
        assert b"secret" not in reply.body


@pytest.mark.parametrize("log_texts", [False, True])
def test_texts_are_logged_only_if_enabled(writer: Writer, caplog: Any, log_texts: bool) -> None:
    with caplog.at_level(logging.INFO), running(writer, access=Access(log_texts=log_texts)) as (client, *_):
        written = client.write("A secret about the ferry.", words=5).json["text"]
        client("/v1/write", {"text": "A secret about the ferry.", "target": {"words": "A secret"}})
        client("/v1/secret?text=secret")
        client("/static/app.js?text=secret")
        client("/static/secret/../app.css")
    assert "5 of 5 words" in caplog.text
    assert "POST /v1/write 400" in caplog.text
    assert "GET /static/app.js 200" in caplog.text
    assert "GET /static/ 200" in caplog.text
    assert "/secret" not in caplog.text
    assert ("A secret about the ferry." in caplog.text) is log_texts
    assert (repr(written) in caplog.text) is log_texts
