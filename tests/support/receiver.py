"""A server that receives webhooks, on a loopback port, in its own thread."""

import json
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
from msgspec import Struct

PATIENCE = 60
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


class Answer(Struct, frozen=True):
    """The response to one request."""

    status: int = 204
    headers: Mapping[str, str] = {}
    until: threading.Event | None = None
    """When to respond."""


class ReceivedRequest(Struct, frozen=True):
    """One received request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def response(self) -> str:
        """The id of the response in the event, without checking the signature."""
        return json.loads(self.body)["data"]["id"]

    def event(self, secret: str = SECRET) -> Any:
        """The event as the official client parses it. Raises for a wrong signature."""
        with openai.OpenAI(api_key="none") as client:
            return client.webhooks.unwrap(self.body, self.headers, secret=secret)


class Receiver:
    """Gives these responses in order, then 204, and records the requests."""

    def __init__(self, port: int, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self._changed = threading.Condition()
        self.requests: list[ReceivedRequest] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.answer(self, ReceivedRequest(self.path, headers, body))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hooks/t0k3n-in-the-path"

    def answer(self, request: BaseHTTPRequestHandler, requests: ReceivedRequest) -> None:
        with self._changed:
            self.requests.append(requests)
            answer = self._answers.pop(0) if self._answers else Answer()
            self._changed.notify_all()
        if answer.until:
            answer.until.wait(PATIENCE)
        try:
            request.send_response(answer.status)
            for name, value in {"content-length": "0", **answer.headers}.items():
                request.send_header(name, value)
            request.end_headers()
        except ConnectionError:  # the sender did not wait
            request.close_connection = True

    def wait(self, count: int) -> Sequence[ReceivedRequest]:
        """All requests, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, PATIENCE), self.requests
            return tuple(self.requests)

    def wait_for(self, *responses: str) -> Sequence[ReceivedRequest]:
        """All requests, once all of these responses are in them."""
        with self._changed:
            done = self._changed.wait_for(lambda: {*responses} <= {one.response for one in self.requests}, PATIENCE)
            assert done, (responses, self.requests)
            return tuple(self.requests)

    def run(self) -> None:
        self._server.serve_forever(0.01)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiving(*answers: Answer, port: int = 0) -> Generator[Receiver]:
    """Receive webhooks while the block runs. Every `until` must be set before it ends."""
    receiver = Receiver(port, answers)
    thread = threading.Thread(target=receiver.run)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.close()
        thread.join(PATIENCE)
