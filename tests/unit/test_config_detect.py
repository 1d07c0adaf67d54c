"""Looking around for models: what answers is offered, what does not is left out, and nobody is waited for."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from outrider.config.discover import DiscoveredKey, LocalModelServer, find_keys, find_local_servers
from outrider.config.models import ProviderPreset

LONG = 20.0
"""Far more than loopback needs; reached only when the code under test is broken."""


@contextmanager
def serving(answer: bytes, closes: bool = True) -> Generator[tuple[ProviderPreset, list[bytes]]]:
    """A server on loopback that gives everyone this answer."""
    asked, kept = list[bytes](), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                asked.append(peer.recv(65_536))
                if asked[-1]:
                    peer.sendall(answer)
                peer.close() if closes else kept.append(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield ProviderPreset("mine", "openai-chat", f"http://127.0.0.1:{listener.getsockname()[1]}/v1"), asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LONG)
        for peer in kept:
            peer.close()


def page(body: bytes, status: bytes = b"200 OK", head: bytes = b"") -> bytes:
    return b"HTTP/1.0 " + status + b"\r\nContent-Type: application/json\r\n" + head + b"\r\n" + body


def test_a_server_that_answers_is_offered_with_its_models_and_what_to_type() -> None:
    with serving(page(b'{"data": [{"id": "llama3.2"}, {"id": "qwen3:4b"}, {"id": 7}, 8]}')) as (server, asked):
        assert find_local_servers([server], LONG, LONG) == (
            LocalModelServer("mine", server.url, ("llama3.2", "qwen3:4b"), "outrider config set model mine:llama3.2"),
        )
    assert asked[0].startswith(b"GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:")


def test_a_server_that_keeps_the_connection_open_is_heard_by_its_length() -> None:
    body = b'{"data": null}'
    with serving(page(body, head=b"Content-Length: %d\r\n" % len(body)), closes=False) as (server, _):
        assert find_local_servers([server], LONG, LONG) == (
            LocalModelServer("mine", server.url, (), "outrider config set model mine:<model>"),
        )


@pytest.mark.parametrize(
    "answer",
    [
        page(b"<html>"),
        page(b"[]"),
        page(b'{"data": "x"}'),
        page(b'{"data": []}', b"404 Not Found"),
        page(b"[" * 100_000),
        page(b'{"data": ["' + b"x" * 400_000 + b'"]}'),
        b"\x00\xff",
        b"",
    ],
    ids=["page", "list", "text", "missing", "deep", "long", "noise", "nothing"],
)
def test_what_is_no_model_server_is_not_offered(answer: bytes) -> None:
    with serving(answer) as (server, _):
        assert find_local_servers([server], LONG, LONG) == ()


def test_a_closed_port_does_not_hide_its_neighbour() -> None:
    with socket.socket() as unused, serving(page(b'{"data": [{"id": "m"}]}')) as (server, _):
        unused.bind(("127.0.0.1", 0))
        closed = ProviderPreset("closed", "openai-chat", f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        assert [offer.provider for offer in find_local_servers([closed, server], LONG, LONG)] == ["mine"]


def test_a_silent_server_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = ProviderPreset("mute", "openai-chat", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        assert find_local_servers([mute], LONG, 0.05) == ()


def test_found_keys_are_told_by_name_and_never_by_value() -> None:
    environ = {"OPENAI_API_KEY": "sk-do-not-tell", "TOGETHER_API_KEY": "t", "GROQ_API_KEY": " "}
    assert find_keys(environ) == (
        DiscoveredKey("openai", "OPENAI_API_KEY", "outrider config set model openai:gpt-5.6-terra"),
        DiscoveredKey("together", "TOGETHER_API_KEY", "outrider config set model together:<model>"),
    )
