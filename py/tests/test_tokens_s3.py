"""Token streams from an S3 server, in this process."""

import os
import shutil
import socket
import subprocess
import time

import batchfs
import numpy as np
import pytest
from batchfs import TokenLoader
from token_files import dataset

SETTINGS = {"lanes": 6, "window": 3, "seq_len": 16, "seed": 7}
KEY, SECRET = "AKIDEXAMPLE1234567", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY="


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder that is served as a bucket, and what reaches it."""
    program = os.environ.get("BATCHFS_S3_SERVER") or shutil.which("s3s-fs")
    if not program or not os.access(program, os.X_OK):
        pytest.skip("needs an S3 server: cargo install s3s-fs --features binary --locked")
    monkeypatch.setenv("BATCHFS_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "s3" / "bucket" / "data"
    dataset(folder)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [program, "--host", "127.0.0.1", "--port", str(port), "--access-key", KEY]
    command += ["--secret-key", SECRET, str(tmp_path / "s3")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < until and server.poll() is None
            time.sleep(0.02)
        endpoint = f"http://127.0.0.1:{port}"
        yield (
            folder,
            {
                "endpoint": endpoint,
                "region": "us-east-1",
                "access_key_id": KEY,
                "secret_access_key": SECRET,
            },
        )
    finally:
        server.kill()
        server.wait(30)


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
