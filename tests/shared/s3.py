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
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from waiting import wait_for

KEY = "AKIDEXAMPLE1234567"
# Where machines of a cloud find credentials of their own.
METADATA = "169.254.169.254"
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
def server(root: Path, signed: bool = True, port: int | None = None):
    """Serves the folders in `root` as buckets, to signed requests only, or to anybody."""
    port = port or free_port()
    command = [server_program(), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--access-key", KEY, "--secret-key", SECRET] if signed else []
    command.append(str(root))
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


LIES = ["whole", "misnamed", "elsewhere", "longer", "endless"]
"""Answers to a range that are not that range: all of the file, another range, or more than it."""


class Proxy(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Passes requests on. `fault(method, path, number)` says what goes wrong, if anything, with the
    request that was made so many times before."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, backend: int, root: Path | None = None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.backend = backend
        # Where the buckets lie, to answer with what was not asked for.
        self.root = root
        self.fault = lambda method, path, number: None
        # Says no to a request by what is in its headers: a status and the code in the answer.
        self.refuse = lambda headers: None
        # Keys to a page of a listing, which is then answered here, of the folder of the bucket.
        self.page: tuple[Path, int] | None = None
        self.seen: list[tuple[str, str]] = []
        # Method, path and range.
        self.asked: list[tuple[str, str, str | None]] = []
        self.lock = threading.Lock()

    @property
    def port(self) -> int:
        return self.server_address[1]

    def ranges(self) -> list[tuple[str, int, int]]:
        """Key and bounds, the end excluded, of each range that was asked for."""
        found = []
        for _, path, asked in list(self.asked):
            if asked:
                begin, end = asked.removeprefix("bytes=").split("-")
                key = unquote(path).split("/", 2)[2]
                found.append((key, int(begin), int(end) + 1))
        return found

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
        refused = proxy.refuse(self.headers)
        if refused:
            self.answer(refused[0], f"<Error><Code>{refused[1]}</Code></Error>".encode())
            return
        fault = proxy.fault(self.command, self.path, number)
        if fault == "hang":
            time.sleep(3600)
        if isinstance(fault, int):
            slow = b"<Error><Code>SlowDown</Code></Error>"
            self.answer(fault, slow if fault == 503 else b"<Error></Error>")
            return
        if proxy.page and "list-type=2" in self.path and not fault:
            self.answer(200, self.listing(*proxy.page))
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
        length = answer.getheader("Content-Length")
        headers = {name.lower(): value for name, value in answer.getheaders()}
        for name in ("content-length", "transfer-encoding", "connection"):
            headers.pop(name, None)
        status, body = self.lie(fault, answer.status, headers, body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        head = self.command == "HEAD"
        if fault == "endless" and "content-range" in headers:
            self.send_header("Content-Length", str(1 << 50))
            self.end_headers()
            # Until nobody listens any more.
            while True:
                self.wfile.write(body)
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

    def lie(self, fault, status: int, headers: dict, body: bytes) -> tuple[int, bytes]:
        """The status and the body to give instead; `headers` are changed in place."""
        if fault not in LIES or "content-range" not in headers:
            return status, body
        whole = (self.server.root / unquote(self.path).lstrip("/")).read_bytes()
        bounds = headers["content-range"].removeprefix("bytes ").split("/")[0]
        begin, end = (int(n) for n in bounds.split("-"))
        named = lambda begin, end: f"bytes {begin}-{end}/{len(whole)}"  # noqa: E731
        if fault == "whole":
            del headers["content-range"]
            return 200, whole
        if fault == "misnamed":
            headers["content-range"] = named(begin - 1, end - 1)
        if fault == "elsewhere":
            headers["content-range"] = named(begin - 1, end - 1)
            body = whole[begin - 1 : end]
        if fault == "longer":
            body += bytes(1000)
        return status, body

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def listing(self, bucket: Path, count: int) -> bytes:
        """A page of the keys below the prefix that is asked for."""
        asked = parse_qs(urlsplit(self.path).query)
        [prefix], after = asked.get("prefix", [""]), asked.get("continuation-token", [""])[0]
        files = [path for path in bucket.rglob("*") if path.is_file()]
        keys = sorted(path.relative_to(bucket).as_posix() for path in files)
        keys = [key for key in keys if key.startswith(prefix) and key > after]
        page = keys[:count]
        more = len(keys) > count
        out = "<ListBucketResult>"
        for key in page:
            stat = (bucket / key).stat()
            time = datetime.fromtimestamp(stat.st_mtime, timezone.utc).strftime("%FT%T.000Z")
            out += f"<Contents><Key>{escape(key)}</Key><Size>{stat.st_size}</Size>"
            out += f"<LastModified>{time}</LastModified></Contents>"
        out += f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>"
        if more:
            out += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        return (out + "</ListBucketResult>").encode()


@contextlib.contextmanager
def proxy(backend: int, root: Path | None = None):
    it = Proxy(backend, root)
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
