"""A store is whole or not there, whatever happens to its writer (case 59)."""

import fcntl
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
from harness import REPO, Box, needs_root

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


def commands(box, store: Path) -> dict[str, list]:
    """Every command that has something to say on its standard output."""
    return {
        "create": ["create", box.path / "made", "--from", DIGITS],
        "train-dict": ["train-dict", box.path / "text.npy", "-o", box.path / "dict"],
        "info": ["info", store],
        "info --json": ["info", store, "--json"],
        "verify": ["verify", store],
        "verify a file": ["verify", DIGITS],
        "ids": ["ids", store, "--spec", "batch=1797", "--step", "0"],
        "doctor": ["doctor"],
        "demo": ["demo"],
        "ls": ["ls", store, "digits/record"],
        "cat": ["cat", store, "digits/batch/0"],
        "man": ["man"],
        "completions": ["completions", "zsh"],
    }


def outputs(box) -> None:
    """What these commands need; a dictionary pays for these records."""
    box.run("create", "digits", "--from", DIGITS)
    random = np.random.default_rng(2)
    words = random.integers(0, 256, (64, 16), np.uint8)
    box.npy("text", words[random.integers(0, 64, (20_000, 8))].reshape(20_000, 128))


@pytest.mark.parametrize("what", commands(Box(Path(), Path()), Path()))
def test_a_full_standard_output(box, what):
    """One line about it, and exit code 1; what was made is there all the same."""
    outputs(box)
    with open("/dev/full", "wb") as full:
        command = commands(box, box.path / "digits")[what]
        options = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
        said = box.fails(*command, **options, names=["standard output", "No space left"])
    if what == "create":
        assert "it is there, whole" in said
        box.run("verify", box.path / "made")
    if what == "train-dict":
        assert (box.path / "dict").stat().st_size > 256
    assert os.listdir(box.tmp) == []


@pytest.mark.parametrize("what", commands(Box(Path(), Path()), Path()))
def test_a_standard_output_that_nobody_reads(box, what):
    """A quiet end, and the exit code that a shell shows for it."""
    outputs(box)
    out, into = os.pipe()
    os.close(out)
    with open(into, "wb") as pipe:
        command = commands(box, box.path / "digits")[what]
        options = {"capture_output": False, "stdout": pipe, "stderr": subprocess.PIPE}
        done = box.run(*command, **options, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    if what == "create":
        box.run("verify", box.path / "made")
    assert os.listdir(box.tmp) == []


def test_standard_error_is_full(box):
    """What is wrong cannot be said, but the exit code says that something is."""
    with open("/dev/full", "wb") as full:
        options = {"capture_output": False, "stdout": full, "stderr": full, "check": False}
        assert box.run("info", box.path / "nothing", **options).returncode == 1
        assert box.run("info", DIGITS, **options).returncode == 1


def test_ids_to_a_pipe_that_closes(box):
    script = (
        f"{box.program} ids {DIGITS} --spec batch=1797 --step 0 | head -1; echo ${{PIPESTATUS[0]}}"
    )
    done = box.tool("bash", "-c", script)
    first, code = done.stdout.split()
    assert first.isdigit() and code in ("0", "141") and done.stderr == ""


@pytest.mark.parametrize("why", ["exists", "codec", "cut", "disk"])
def test_folders_made_on_the_way_go_again(box, why):
    """A refused or failed `create` leaves nothing, not even the folders that it has made."""
    root = box.folder("root")
    dest, more = root / "a/b/store", []
    source = DIGITS
    if why == "codec":
        more = ["--codec", "zstd_dict"]
    elif why == "cut":
        source = box.path / "cut.npy"
        source.write_bytes(DIGITS.read_bytes()[:-1])
    elif why == "disk":
        dest = root / "a/b" / ("x" * 250)
    elif why == "exists":
        dest.mkdir(parents=True)
    box.fails("create", dest, "--from", source, *more, names=["cut.npy" if why == "cut" else dest])
    assert os.listdir(root) == (["a"] if why == "exists" else [])
    if why != "exists":
        box.run("create", root / "a/b/store", "--from", DIGITS)
        box.run("verify", root / "a/b/store")


def test_what_earlier_writers_left_is_told_and_that_of_live_ones_is_not(box):
    dest = box.folder("out") / "store"
    dead, live = (dest.parent / f".store.batchfs-tmp-1-0000000{n}" for n in (0, 1))
    for folder in (dead, live):
        folder.mkdir()
        (folder / "data-000.npy").write_text("half")
    # A writer at work holds a lock on its folder.
    lock = os.open(live, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    said = box.run("create", dest, "--from", DIGITS).stderr
    assert str(dead) in said and said.count("\n") == 1 and not dead.exists()
    assert (live / "data-000.npy").exists()
    os.close(lock)
    box.tool("rm", "-r", dest)
    assert str(live) in box.run("create", dest, "--from", DIGITS).stderr
    assert os.listdir(dest.parent) == ["store"]


def peak_kib(command: list) -> int:
    """The most memory that a program had at a time."""
    child = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss


def test_memory_does_not_grow_with_the_number_of_records(box):
    """Records of one byte: what each of them costs besides counts."""
    peaks = {}
    for millions in (8, 32):
        source = box.npy(f"{millions}", np.zeros(millions << 20, np.uint8))
        dest = box.path / f"out{millions}"
        peak = peak_kib([box.program, "create", dest, "--from", source])
        # The source is mapped, and counts as far as it is read.
        peaks[millions] = peak - millions * 1024
        told = json.loads(box.run("info", dest, "--json").stdout)
        assert told["records"] == millions << 20
    # 24 million ids take 192 MiB.
    assert peaks[32] < peaks[8] + 96 * 1024, peaks
    assert peaks[32] < 320 * 1024, peaks


LOST = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1}


@pytest.mark.parametrize("dtype", LOST)
def test_what_numpy_has_no_name_for(box, dtype):
    """ml_dtypes saves these as raw bytes; what they are is said on the command line."""
    bits = np.random.default_rng(6).integers(0, 256, (100, 6), np.uint8)
    path = box.npy("lost/x", bits.view(f"V{LOST[dtype]}"))
    for command in (["info", path], ["mount", path, box.folder()], ["ids", path, "--step", "0"]):
        box.fails(*command, names=[path, "--dtype", dtype])
    box.fails("create", "no", "--from", path, names=[path, "--dtype", dtype])
    box.fails("create", "no", "--from", path, "--dtype", "float64", names=[path, "float64"])
    box.fails("info", DIGITS, "--dtype", dtype, names=["uint8", dtype])
    done = box.run("info", path, "--dtype", "bf16", check=False)
    assert done.returncode == 2 and "bfloat16" in done.stderr

    assert dtype in box.run("info", path, "--dtype", dtype).stdout
    box.run("create", "stores/x", "--from", path, "--dtype", dtype)
    assert dtype in box.run("info", "stores").stdout
    box.npy("lost/labels", np.arange(100))
    folder = path.parent
    box.fails("info", folder, "--dtype", dtype, names=["labels.npy", "int64"])
    for source, said in ((box.path / "stores", []), (folder, ["--dtype", f"x={dtype}"])):
        with box.mount(source, *said, spec="batch=10,seed=1") as m:
            assert json.loads(m.read("x/schema.json"))["dtype"] == dtype
            assert m.read("x/batch/3") == bits[m.ids(3)].tobytes()
            assert not (m / "x/batch/3.npy").exists()
            assert (m / "x/batch/3.safetensors").exists() or dtype == "float8_e8m0fnu"


@needs_root
def test_a_dictionary_on_a_full_disk(box):
    disk = box.folder("disk")
    box.tool("mount", "-t", "tmpfs", "-o", "size=4k", "none", disk)
    try:
        box.fails("train-dict", DIGITS, "-o", disk / "dict", names=[disk / "dict", "No space"])
        assert os.listdir(disk) == []
    finally:
        box.tool("umount", disk)
    box.run("train-dict", DIGITS, "-o", "dict")
    before = (box.path / "dict").read_bytes()
    box.fails("train-dict", DIGITS, "-o", "dict", names=["dict", "exists"])
    assert (box.path / "dict").read_bytes() == before
