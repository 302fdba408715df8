"""Token streams from an S3 server, in this process."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import batchfs
import numpy as np
import pytest
import s3
from batchfs import TokenLoader
from s3 import KEY, SECRET
from token_files import SETTINGS, dataset


@pytest.fixture
def served(tmp_path):
    """A folder that is served as a bucket, and what reaches it."""
    folder = tmp_path / "s3" / "bucket" / "data"
    dataset(folder)
    with s3.server(tmp_path / "s3") as port:
        options = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        yield folder, {**options, "access_key_id": KEY, "secret_access_key": SECRET}


def test_order_and_states_are_those_of_the_folder(served):
    folder, options = served
    for there, here in (("data", folder), ("data/2.parquet", folder / "2.parquet")):
        far = TokenLoader(f"s3://bucket/{there}", storage_options=options, **SETTINGS)
        near = TokenLoader(here, **SETTINGS)
        with far, near:
            for _ in range(60):
                assert np.array_equal(far.next().tokens.numpy(), near.next().tokens.numpy())
            state = far.checkpoint()
            assert near.checkpoint() == state
            near.resume(state)
            for text in (repr(far), state.decode(), repr(vars(far)), repr(far.figures)):
                assert SECRET not in text and KEY not in text


def test_refusals_keep_secrets(served):
    _, options = served
    wrong = {**options, "secret_access_key": "wrong/secret+value"}
    with pytest.raises(OSError, match="403") as refused:
        TokenLoader("s3://bucket/data", storage_options=wrong, **SETTINGS)
    assert "wrong/secret" not in repr(refused.value)
    with pytest.raises(batchfs.StoreError, match="regoin") as refused:
        TokenLoader("s3://bucket/data", storage_options={**options, "regoin": "x"}, **SETTINGS)
    assert SECRET not in repr(refused.value)


@pytest.mark.usefixtures("fuse")
def test_a_mount_has_no_option_where_others_see_it(served, monkeypatch):
    """Neither the process that serves it, nor those that start it."""
    folder, options = served
    ran, run = [], subprocess.run

    def spy(command, **more):
        ran.append((command, more["env"]))
        return run(command, **more)

    monkeypatch.setattr(subprocess, "run", spy)
    # Whatever its name says.
    options = {**options, "user_agent": "something-secret"}
    # All but what the environment may have in other places.
    hidden = [value for key, value in options.items() if key != "region"]
    with batchfs.mount("s3://bucket/data", storage_options=options, **SETTINGS) as ds:
        rows = ds["tokens"].batch[3].numpy()
        with TokenLoader(folder, **SETTINGS) as near:
            near.seek(3)
            assert np.array_equal(rows, near.next().tokens.numpy())
        pid = json.loads((ds.path / ".batchfs/config.json").read_text())["pid"]
        for name in ("cmdline", "environ"):
            shown = Path(f"/proc/{pid}/{name}").read_text()
            assert shown and not [value for value in hidden if value in shown]
    # It is mounted and unmounted.
    assert len(ran) >= 2
    for command, env in ran:
        shown = " ".join([*command, *env.values()])
        assert not [value for value in hidden if value in shown]


class Relay:
    """Passes a server's bytes on, until it is told to hang."""

    def __init__(self, endpoint):
        self.backend = urlsplit(endpoint).port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.goes_on = threading.Event()
        self.goes_on.set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client = self.listener.accept()[0]
            server = socket.create_connection(("127.0.0.1", self.backend))
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.pass_on, args=(a, b), daemon=True).start()

    def pass_on(self, a, b):
        try:
            while data := a.recv(1 << 16):
                self.goes_on.wait()
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass


WAITS = """
import signal, glob, json, sys, time, batchfs
# A run in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings = json.load(sys.stdin)
loader = batchfs.TokenLoader("s3://bucket/data", **settings)
loader.next()
print("read", flush=True)
while not open(sys.argv[2]).read():
    time.sleep(0.01)
loader.seek(int(sys.argv[1]))
try:
    print("waits", flush=True)
    loader.next()
except KeyboardInterrupt:
    assert loader.step == int(sys.argv[1])
    loader.close()
    tasks = glob.glob("/proc/self/task/*/comm")
    assert "read\\n" in [open(task).read() for task in tasks], "it was waited for"
    print("interrupted", flush=True)
"""


MOUNTED = """
import signal, sys, batchfs
# A run in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
ds = batchfs.open(sys.argv[1])
assert ds["tokens"].batch[0].shape == (6, 16)
try:
    print("waits", flush=True)
    ds["tokens"].batch[int(sys.argv[2])]
except KeyboardInterrupt:
    assert ds["tokens"].batch[0].shape == (6, 16)
    print("interrupted", flush=True)
"""


def leaves(child):
    """A child that waits ends by Ctrl-C."""
    assert child.stdout.readline() == "waits\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    assert child.wait(60) == 0


def end(child, relay):
    relay.goes_on.set()
    child.kill()
    child.wait(30)


@pytest.mark.usefixtures("fuse")
@pytest.mark.parametrize("cached", [False, True], ids=["best", "cached"])
def test_who_waits_for_a_mounted_batch_can_leave(served, cached):
    _, options = served
    relay = Relay(options["endpoint"])
    options = {**options, "endpoint": relay.endpoint}
    with batchfs.mount(
        "s3://bucket/data", cached=cached, storage_options=options, **SETTINGS
    ) as ds:
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                assert (
                    SECRET.encode() not in command.read_bytes() or b"s3s-fs" in command.read_bytes()
                )
        child = subprocess.Popen(
            [sys.executable, "-c", MOUNTED, str(ds.path), str(ds.steps_per_cycle // 2)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            ds["tokens"].batch[0]
            relay.goes_on.clear()
            leaves(child)
        finally:
            end(child, relay)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_who_waits_for_a_server_that_hangs_can_leave(served, tmp_path, prefetch):
    """By Ctrl-C, and by the end of the process: neither waits for the server."""
    _, options = served
    relay = Relay(options["endpoint"])
    settings = {**SETTINGS, "storage_options": {**options, "endpoint": relay.endpoint}}
    with pytest.raises(ValueError, match="needs") as told:
        TokenLoader("s3://bucket/data", **settings, budget=1)
    # Room for what one step needs, and for nothing that lies ahead.
    budget = int(re.search(r"needs (\d+) bytes", str(told.value))[1])
    go = tmp_path / "go"
    go.write_text("")
    child = subprocess.Popen(
        [sys.executable, "-c", WAITS, "40", str(go)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child.stdin.write(json.dumps({**settings, "prefetch": prefetch, "budget": budget}))
    child.stdin.close()
    try:
        assert child.stdout.readline() == "read\n"
        relay.goes_on.clear()
        go.write_text("go")
        leaves(child)
    finally:
        end(child, relay)
