"""Somebody's server that webhooks are sent to, on a loopback port, in a thread of its own."""

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
    """How one request is answered."""

    status: int = 204
    headers: Mapping[str, str] = {}
    until: threading.Event | None = None
    """Not before this."""


class Heard(Struct, frozen=True):
    """One request, as it came in."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def response(self) -> str:
        """The response it tells of, whoever signed it."""
        return json.loads(self.body)["data"]["id"]

    def event(self, secret: str = SECRET) -> Any:
        """What the official client makes of it. Raises when the signature is not right."""
        with openai.OpenAI(api_key="none") as client:
            return client.webhooks.unwrap(self.body, self.headers, secret=secret)


class Receiver:
    """Answers as it is told, in order, then 204; remembers what it heard."""

    def __init__(self, port: int, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self._news = threading.Condition()
        self.heard: list[Heard] = []
        receiver = self

        class Hears(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.answer(self, Heard(self.path, headers, body))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Hears)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hooks/t0k3n-in-the-path"

    def answer(self, request: BaseHTTPRequestHandler, heard: Heard) -> None:
        with self._news:
            self.heard.append(heard)
            answer = self._answers.pop(0) if self._answers else Answer()
            self._news.notify_all()
        if answer.until:
            answer.until.wait(PATIENCE)
        try:
            request.send_response(answer.status)
            for name, value in {"content-length": "0", **answer.headers}.items():
                request.send_header(name, value)
            request.end_headers()
        except ConnectionError:  # whoever sent it did not wait
            request.close_connection = True

    def wait(self, count: int) -> Sequence[Heard]:
        """Everything heard, once there are so many."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.heard) >= count, PATIENCE), self.heard
            return tuple(self.heard)

    def wait_for(self, *responses: str) -> Sequence[Heard]:
        """Everything heard, once all of these were told of."""
        with self._news:
            done = self._news.wait_for(lambda: {*responses} <= {one.response for one in self.heard}, PATIENCE)
            assert done, (responses, self.heard)
            return tuple(self.heard)

    def run(self) -> None:
        self._server.serve_forever(0.01)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiving(*answers: Answer, port: int = 0) -> Generator[Receiver]:
    """Listens for as long as the block runs. What is still held then must have been let go."""
    receiver = Receiver(port, answers)
    thread = threading.Thread(target=receiver.run)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.close()
        thread.join(PATIENCE)
