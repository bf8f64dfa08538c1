"""Access to a server: key, addresses, and other web sites."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from impatience import Writer
from impatience.cli import commands
from impatience.errors import OptionError
from impatience.server import Access, Limits, check_host, listen, read_key
from support.serving import KEY, Client, running


def test_all_routes_but_the_page_and_health_need_the_key(writer: Writer) -> None:
    with running(writer, access=Access(key=KEY)) as (client, *_):
        for path in ("/", "/healthz", "/static/index.html"):
            assert client(path).status == 200
        closed = ("/v1/models", "/v1/documents", "/metrics", "/openapi.json", "/v1/nothing")
        for key in ("", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", "Bearer \u00fc", KEY):
            rejected = client("/v1/models", Authorization=key)
            assert (rejected.status, rejected.error["code"]) == (401, "invalid_api_key")
            assert rejected.headers["www-authenticate"] == "Bearer"
        assert [client(path).status for path in closed] == [401] * 5
        assert client.write(words=3).status == 401
        authorized = Client(client.port, Authorization=f"Bearer {KEY}")
        assert [authorized(path).status for path in closed] == [200, 405, 200, 200, 404]
        assert authorized.write(words=3).status == 200
        assert authorized("/openapi.json").json["paths"]["/v1/write"]["post"]["security"] == [{"HTTPBearer": []}]
        assert authorized("/healthz", Host="writer.example").status == 200, "with a key, any host name is accepted"


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, writer: Writer) -> None:
    from impatience.server import middleware

    lengths: list[tuple[int, int]] = []
    compare = middleware.hmac.compare_digest

    def watched(left: bytes, right: bytes) -> bool:
        lengths.append((len(left), len(right)))
        return compare(left, right)

    monkeypatch.setattr(middleware.hmac, "compare_digest", watched)
    with running(writer, access=Access(key=KEY)) as (client, *_):
        for key in ("", "Bearer short", f"Bearer {KEY}", f"Bearer {KEY * 9}"):
            client("/v1/models", Authorization=key)
    assert lengths == [(32, 32)] * 4, "digests are compared, so that the length of the key does not show"


def test_without_a_key_the_host_must_be_this_machine(client: Client) -> None:
    for host in ("127.0.0.1", f"localhost:{client.port}", "[::1]:80", "127.9.9.9", "LocalHost.", "127.0.0.1.:80"):
        assert client("/healthz", Host=host).status == 200
        assert client("/healthz", Origin=f"http://{host}").status == 200
    foreign = (
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[fe80::1]", "", "localhost..", "."),
        *("localhost:x@evil.example", "localhost:80@evil.example", "localhost@evil.example", "evil.example#@localhost"),
        *("localhost:", "localhost:80:80", "localhost:\u00b2", "[::1", "[::1]x", "::1", "localhost/evil.example"),
    )
    for host in foreign:
        assert client("/healthz", Host=host).error["code"] == "foreign_host", host
        assert client("/healthz", Origin=f"http://{host}").error["code"] == "foreign_origin", host
    for origin in ("null", "localhost", "file://", "ftp://localhost", "http://localhost/evil", ""):
        assert client("/healthz", Origin=origin).error["code"] == "foreign_origin", origin


@pytest.mark.parametrize(
    ("request_line", "hosts", "status"),
    [
        ("GET /v1/models", ["localhost", "evil.example"], 400),
        ("GET /v1/models", ["localhost", "localhost"], 400),
        ("GET http://evil.example/v1/models", ["localhost"], 404),
        ("GET http://localhost/v1/models", ["evil.example"], 403),
        ("GET //evil.example/v1/models", ["localhost"], 404),
    ],
)
def test_requests_with_two_hosts_are_not_answered(
    client: Client, request_line: str, hosts: list[str], status: int
) -> None:
    head = "".join([f"{request_line} HTTP/1.1\r\n", *(f"Host: {host}\r\n" for host in hosts), "\r\n"])
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as raw:
        raw.sendall(head.encode())
        assert raw.makefile("rb").readline().split()[1] == str(status).encode()


def test_other_origins_are_allowed_only_if_named(client: Client, writer: Writer) -> None:
    preflight = {"Origin": "https://team.example", "Access_Control_Request_Method": "POST"}
    assert client("/v1/write", method="OPTIONS", **preflight).error["code"] == "foreign_origin"
    with running(writer, access=Access(origins=("https://team.example",))) as (named, *_):
        assert named("/v1/models", Origin="https://team.example").status == 200
        assert named("/v1/models", Origin="https://team.example:1").status == 403
    access = Access(key=KEY, origins=("https://team.example",))
    with running(writer, access=access) as (open_client, *_):
        reply = open_client("/v1/write", method="OPTIONS", Access_Control_Request_Headers="authorization", **preflight)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "https://team.example")
        assert open_client("/v1/models", Origin="https://team.example").headers["access-control-allow-origin"]
        other = open_client("/v1/models", Origin="https://other.example")
        assert "access-control-allow-origin" not in other.headers


def test_keys_and_addresses_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMPATIENCE_API_KEY", raising=False)
    assert read_key(None) is None
    monkeypatch.setenv("IMPATIENCE_API_KEY", KEY)
    assert read_key(None) == KEY
    file = tmp_path / "key"
    file.write_text(f"{KEY}-2\n")
    assert read_key(file) == f"{KEY}-2"
    for bad in ("", "short", "has a space in its middle", "ü" * 20):
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(OptionError, match="--key-file"):
            read_key(file)
    with pytest.raises(OptionError, match="No such file"):
        read_key(tmp_path / "none")
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, None)
    for host in ("0.0.0.0", "::", "192.168.1.5", "writer.example"):
        with pytest.raises(OptionError, match="there is no key"):
            check_host(host, None)
        check_host(host, KEY)
    with pytest.raises(OptionError, match="above 0"):
        replace(Limits(), requests=0)
    with listen("127.0.0.1", 0) as taken, pytest.raises(OptionError, match="Cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_the_command_needs_a_key_for_a_public_address(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("IMPATIENCE_API_KEY", raising=False)
    monkeypatch.setattr("sys.argv", ["impatience", "serve", "--host", "0.0.0.0", "--model", "toy-llama"])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 2
    assert "Give one with --key-file or IMPATIENCE_API_KEY" in capsys.readouterr().err
