"""Discovery of models: servers that respond are offered, all others are left out, and the time is bounded."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import pytest

from outrider.config.discover import DiscoveredKey, LocalModelServer, find_keys, find_local_servers
from outrider.config.models import ProviderPreset

LONG = 60.0
"""Far more than loopback needs; reached only when the code under test is broken."""


@contextmanager
def serving(response: bytes, closes: bool = True) -> Generator[tuple[ProviderPreset, list[bytes]]]:
    """A server on loopback that sends this response to every request."""
    requests, open_peers = list[bytes](), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                requests.append(peer.recv(65_536))
                if requests[-1]:
                    peer.sendall(response)
                peer.close() if closes else open_peers.append(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield ProviderPreset("mine", "openai-chat", f"http://127.0.0.1:{listener.getsockname()[1]}/v1"), requests
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LONG)
        for peer in open_peers:
            peer.close()


def response(body: bytes, status: bytes = b"200 OK", head: bytes = b"") -> bytes:
    return b"HTTP/1.0 " + status + b"\r\nContent-Type: application/json\r\n" + head + b"\r\n" + body


def test_a_server_that_responds_is_offered_with_its_models_and_the_command_to_type() -> None:
    with serving(response(b'{"data": [{"id": "llama3.2"}, {"id": "qwen3:4b"}, {"id": 7}, 8]}')) as (server, requests):
        assert anyio.run(find_local_servers, [server], LONG) == (
            LocalModelServer("mine", server.url, ("llama3.2", "qwen3:4b"), "outrider config set model mine:llama3.2"),
        )
    assert requests[0].startswith(b"GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:")


def test_the_content_length_ends_a_response_when_the_connection_stays_open() -> None:
    body = b'{"data": null}'
    with serving(response(body, head=b"Content-Length: %d\r\n" % len(body)), closes=False) as (server, _):
        assert anyio.run(find_local_servers, [server], LONG) == (
            LocalModelServer("mine", server.url, (), "outrider config set model mine:<model>"),
        )


@pytest.mark.parametrize(
    "content",
    [
        response(b"<html>"),
        response(b"[]"),
        response(b'{"data": "x"}'),
        response(b'{"data": []}', b"404 Not Found"),
        response(b"[" * 100_000),
        response(b'{"data": ["' + b"x" * 400_000 + b'"]}'),
        b"\x00\xff",
        b"",
    ],
    ids=["html", "list", "text", "missing", "deep", "long", "noise", "nothing"],
)
def test_anything_but_a_model_server_is_not_offered(content: bytes) -> None:
    with serving(content) as (server, _):
        assert anyio.run(find_local_servers, [server], LONG) == ()


def test_a_closed_port_does_not_hide_its_neighbour() -> None:
    with socket.socket() as unused, serving(response(b'{"data": [{"id": "m"}]}')) as (server, _):
        unused.bind(("127.0.0.1", 0))
        closed = ProviderPreset("closed", "openai-chat", f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        assert [offer.provider for offer in anyio.run(find_local_servers, [closed, server], LONG)] == ["mine"]


def test_a_silent_server_is_abandoned_when_the_time_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = ProviderPreset("mute", "openai-chat", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        assert anyio.run(find_local_servers, [mute], 0.05) == ()


def test_keys_are_reported_by_variable_and_never_by_value() -> None:
    environ = {"OPENAI_API_KEY": "sk-do-not-tell", "TOGETHER_API_KEY": "t", "GROQ_API_KEY": " "}
    assert find_keys(environ) == (
        DiscoveredKey("openai", "OPENAI_API_KEY", "outrider config set model openai:gpt-5.6-terra"),
        DiscoveredKey("together", "TOGETHER_API_KEY", "outrider config set model together:<model>"),
    )
