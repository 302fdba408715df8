"""A store is whole or not there, whatever happens to its writer (case 59)."""

import json
import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from harness import REPO

DIGITS = REPO / "tools/data/digits-images.npy"


@pytest.fixture(scope="session")
def source(session_box) -> Path:
    """24 MiB, so that writing it takes long enough to be interrupted anywhere."""
    array = np.random.default_rng(11).integers(0, 256, (24_576, 1024), np.uint8)
    return session_box.npy("create/source", array)


def whole_or_not_there(box, dest: Path) -> bool:
    if not dest.exists():
        return False
    box.run("verify", dest)
    return True


def kill_at_random(box, source: Path, times: int) -> None:
    dest = box.folder("out") / "store"
    began = time.monotonic()
    box.run("create", dest, "--from", source)
    whole = time.monotonic() - began
    box.tool("rm", "-r", dest)
    moments = random.Random(1)
    published = 0
    for _ in range(times):
        writer = box.start(box.program, "create", dest, "--from", source, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0, whole))
        writer.kill()
        writer.wait()
        if whole_or_not_there(box, dest):
            published += 1
            box.tool("rm", "-r", dest)
        for name in os.listdir(dest.parent):
            # Whoever left it, no reader takes it for data.
            assert name.startswith(".store.batchfs-tmp-"), name
            box.fails("info", dest.parent / name, names=[name])
            box.fails("info", dest.parent, names=["not finished"])
    # The next run says what it found, works, and cleans up.
    box.run("create", dest, "--from", source)
    box.run("verify", dest)
    assert os.listdir(dest.parent) == ["store"]
    assert published < times


@pytest.mark.timeout(300)
def test_killed_while_writing(box, source):
    kill_at_random(box, source, 20)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_killed_while_writing_500_times(box, source):
    kill_at_random(box, source, 500)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(box, source, number):
    dest = box.folder("out") / "store"
    writer = box.start(box.program, "create", dest, "--from", source, stderr=subprocess.DEVNULL)
    while not os.listdir(dest.parent) and writer.poll() is None:
        time.sleep(0.001)
    writer.send_signal(number)
    assert writer.wait(60) != 0 or dest.exists()
    whole_or_not_there(box, dest)
    if not dest.exists():
        box.run("create", dest, "--from", source)
    assert os.listdir(dest.parent) == ["store"]


def test_a_limit_on_file_size(box, source):
    """`ulimit -f`: an error, or the end by SIGXFSZ; nothing is published."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    dest = box.folder("out") / "store"
    done = box.run("create", dest, "--from", source, check=False, preexec_fn=limit)
    assert done.returncode != 0 and not dest.exists()
    assert done.returncode == -signal.SIGXFSZ or str(dest) in done.stderr
    box.run("create", dest, "--from", source)
    assert os.listdir(dest.parent) == ["store"]


def test_two_writers_of_one_target(box, source):
    dest = box.folder("out") / "store"
    writers = [
        box.start(box.program, "create", dest, "--from", source, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    said = [w.communicate(timeout=120)[1] for w in writers]
    codes = sorted(w.returncode for w in writers)
    assert codes == [0, 1, 1], said
    assert sum(str(dest) in line for line in said) == 2
    box.run("verify", dest)
    assert os.listdir(dest.parent) == ["store"]


def test_what_a_store_says_of_itself(box):
    box.run("create", "digits", "--from", DIGITS, "--shards", "5")
    text = box.run("info", "digits").stdout
    assert "1797 records" in text and "uint8 (8, 8)" in text and "5 shard(s)" in text
    told = json.loads(box.run("info", "digits", "--json").stdout)
    assert told["format"] == "batchfs-info" and told["records"] == 1797
    [stream] = told["streams"]
    assert stream["item_shape"] == [8, 8] and stream["dtype"] == "uint8"
    assert (stream["codec"], stream["shards"]) == ("raw", 5)
    assert stream["payload_bytes"] == 1797 * 64
    assert "whole" in box.run("verify", "digits").stdout
    ids = box.run("ids", "digits", "--spec", "batch=5,mode=sequential", "--step", "3").stdout
    assert ids == "15\n16\n17\n18\n19\n"


def test_the_same_input_gives_the_same_bytes(box):
    for name in ("one", "two"):
        box.run("create", name, "--from", DIGITS)
    for file in (box.path / "one").iterdir():
        if file.name not in ("batchfs.json", "seal"):
            assert file.read_bytes() == (box.path / "two" / file.name).read_bytes()


def test_a_store_may_be_moved_and_copied(box):
    box.run("create", "a", "--from", DIGITS)
    box.tool("cp", "-r", "a", "b")
    box.tool("mv", "a", "c")
    told = [json.loads(box.run("info", name, "--json").stdout) for name in ("b", "c")]
    for one in told:
        one.pop("path")
        for stream in one["streams"]:
            stream.pop("stream")
            stream.pop("source")
    assert told[0] == told[1]
    box.run("verify", "b")


def test_ids_to_a_pipe_that_closes(box):
    done = box.tool(
        "bash",
        "-c",
        f"set -o pipefail; {box.program} ids {DIGITS} --spec batch=1797 --step 0 | head -1",
    )
    assert done.stdout.strip().isdigit() and done.stderr == ""
