"""A server that speaks as much of the chat API as a client in a terminal sees; each test says what it answers."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def chunk(**delta: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}) + "\n\n"


DONE = "data: [DONE]\n\n"


Reply = Callable[[str], list[str] | tuple[int, str]]


class ChatServer:
    """`reply(question)` is the stream's text, or a status and a body; `HOLD` keeps the stream open until it is left."""

    HOLD = "hold"

    def __init__(self, reply: Reply, models: tuple[str, ...] = ("tiny",)) -> None:
        self.reply = reply
        self.models = models
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.left = threading.Event()
        """Set once a client has gone away from a stream that was held."""
        self.url = ""


@contextmanager
def serving(server: ChatServer) -> Iterator[ChatServer]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_GET(self) -> None:
            server.keys.append(self.headers.get("Authorization"))
            self.answer(200, json.dumps({"object": "list", "data": [{"id": name} for name in server.models]}))

        def do_POST(self) -> None:
            server.keys.append(self.headers.get("Authorization"))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.bodies.append(body)
            reply = server.reply(body["messages"][-1]["content"])
            if isinstance(reply, tuple):
                self.answer(*reply)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for part in reply:
                if part == ChatServer.HOLD:
                    self.hold()
                else:
                    self.wfile.write(part.encode())

        def answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def hold(self) -> None:
            try:
                while not server.left.wait(0.02):
                    self.wfile.write(b": keepalive\n\n")
            except OSError:
                server.left.set()

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.left.set()
        listener.shutdown()
        thread.join(10)
        listener.server_close()
