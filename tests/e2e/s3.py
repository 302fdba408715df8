"""An S3 server over a folder, and in front of it a proxy that can do everything wrong."""

import contextlib
import http.client
import os
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from harness import wait_for

KEY = "AKIDEXAMPLE1234567"
# With the characters that are encoded in one place and not in another.
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY="


def server_program() -> str:
    found = os.environ.get("BATCHFS_S3_SERVER") or shutil.which("s3s-fs")
    if not found:
        pytest.skip("needs an S3 server: cargo install s3s-fs --features binary --locked")
    return found


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def server(root: Path):
    """Serves the folders in `root` as buckets, to signed requests only."""
    port = free_port()
    command = [server_program(), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--access-key", KEY, "--secret-key", SECRET, str(root)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0

        wait_for(answers, "the S3 server answers", 30)
        yield port
    finally:
        process.kill()
        process.wait(30)


class Proxy(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Passes requests on. `fault(method, path, number)` says what goes wrong, if anything, with the
    request that was made so many times before."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, backend: int):
        super().__init__(("127.0.0.1", 0), Handler)
        self.backend = backend
        self.fault = lambda method, path, number: None
        self.seen: list[tuple[str, str]] = []
        self.asked: list[tuple] = []
        self.lock = threading.Lock()

    @property
    def port(self) -> int:
        return self.server_address[1]

    def handle_error(self, request, client_address):
        """Clients that go away are no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        proxy = self.server
        asked = (self.command, self.path, self.headers.get("Range"))
        with proxy.lock:
            number = proxy.asked.count(asked)
            proxy.asked.append(asked)
            proxy.seen.append((self.command, self.path))
        fault = proxy.fault(self.command, self.path, number)
        if fault == "hang":
            time.sleep(3600)
        if isinstance(fault, int):
            body = b"<Error><Code>SlowDown</Code></Error>" if fault == 503 else b"<Error></Error>"
            self.send_response(fault)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            return
        backend = http.client.HTTPConnection("127.0.0.1", proxy.backend, timeout=60)
        backend.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection",):
                backend.putheader(name, value)
        backend.endheaders()
        answer = backend.getresponse()
        body = answer.read()
        backend.close()
        if fault == "short":
            # Consistent in itself, but not what was asked for.
            body = body[: len(body) // 2]
        self.send_response(answer.status)
        length = answer.getheader("Content-Length")
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        head = self.command == "HEAD"
        self.send_header("Content-Length", length if head and length else str(len(body)))
        self.end_headers()
        if head:
            return
        if fault in ("cut", "stall"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if fault == "stall":
                time.sleep(3600)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.wfile.write(body)

    do_HEAD = do_GET


@contextlib.contextmanager
def proxy(backend: int):
    it = Proxy(backend)
    thread = threading.Thread(target=it.serve_forever, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        it.shutdown()
        it.server_close()


def environment(port: int, **more: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        **more,
    }
