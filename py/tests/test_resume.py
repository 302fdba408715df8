"""Training that is killed again and again and goes on with another number of processes."""

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import batchfs
import pytest
from token_files import Expected, dataset

SETTINGS = {"lanes": 12, "window": 2, "seq_len": 16, "seed": 1}
SPEC = "lanes=12,window=2,seq_len=16,seed=1"
STEPS = 400

# Each rank writes down what it trained on, and every few steps its part of a checkpoint.
TRAIN = f"""
import os, sys
from pathlib import Path
import batchfs

folder, out, state, rank, world = sys.argv[1:6]
with batchfs.TokenLoader(folder, **{SETTINGS!r}, rank=int(rank), world=int(world)) as loader:
    if state:
        loader.resume(Path(state).read_bytes())
    with open(f"{{out}}/rows-{{rank}}", "w") as log:
        print("ready", flush=True)
        while loader.step < {STEPS}:
            batch = loader.next()
            log.write(batch.tokens.numpy().tobytes().hex() + "\\n")
            log.flush()
            if loader.step % 5 == 0 or loader.step == {STEPS}:
                part = Path(out, f"part-{{loader.step}}-{{rank}}")
                part.with_suffix(".tmp").write_bytes(loader.checkpoint())
                part.with_suffix(".tmp").rename(part)
"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHFS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.fixture
def want(data):
    """The hash chain of an unbroken run: after each step that of all rows so far."""
    expected = Expected(SPEC, dataset(data))
    chain, hashes = hashlib.sha256(), [hashlib.sha256().hexdigest()]
    for step in range(STEPS):
        chain.update(expected.rows(step).tobytes())
        hashes.append(chain.hexdigest())
    return hashes


def complete(out, world):
    """The last step that all ranks have written their parts of, and these."""
    found = {}
    for path in out.glob("part-*[0-9]"):
        found.setdefault(int(path.name.split("-")[1]), []).append(path.read_bytes())
    whole = [step for step, parts in found.items() if len(parts) == world]
    return max(((step, found[step]) for step in whole), default=None)


def test_the_hash_chain_is_that_of_an_unbroken_run(tmp_path, data, want):
    chain, done, state = hashlib.sha256(), 0, ""
    for attempt, world in enumerate([3, 1, 4, 12, 2, 6, 1]):
        out = tmp_path / f"run-{attempt}"
        out.mkdir()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", TRAIN, data, out, state, str(rank), str(world)],
                stdout=subprocess.PIPE,
            )
            for rank in range(world)
        ]
        for rank in ranks:
            assert rank.stdout.readline() == b"ready\n"
        if attempt == 6:
            assert [rank.wait(120) for rank in ranks] == [0] * world
        else:
            time.sleep(random.uniform(0, 0.03))
        for rank in ranks:
            rank.kill()
            rank.wait(30)
            rank.stdout.close()
        found = complete(out, world)
        if found is None:
            continue
        step, parts = found
        merged = tmp_path / f"state-{attempt}"
        merged.write_bytes(batchfs.merge(parts))
        logs = [Path(out, f"rows-{rank}").read_text().splitlines() for rank in range(world)]
        for rows in list(zip(*logs, strict=False))[: step - done]:
            chain.update(b"".join(map(bytes.fromhex, rows)))
        assert chain.hexdigest() == want[step], f"attempt {attempt}, {world} ranks"
        done, state = step, merged
    assert done == STEPS


# All ranks' rows are gathered on rank 0, which keeps the chain in the checkpoint.
TORCH = f"""
import hashlib, os, sys
import numpy as np
import torch
from torch import distributed
from torch.utils.data import DataLoader
import batchfs
from batchfs.torch import TokenDataset

door, source, saved, steps = sys.argv[1:5]
distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
kept = torch.load(saved) if os.path.exists(saved) else {{"done": 0, "rows": []}}

def through_the_mount(step):
    place = f",rank={{rank}},world={{world}}" if world > 1 else ""
    while True:
        path = f"{{source}}/view/{SPEC}{{place}}/tokens/batch/{{step}}.npy"
        yield torch.from_numpy(np.load(path))
        step += 1

def in_process():
    while True:
        for batch in DataLoader(dataset, batch_size=None, num_workers=0):
            assert batch.tokens.shape == (12 // world, 16)
            yield batch.tokens

if door == "mount":
    batches = through_the_mount(kept["done"])
else:
    dataset = TokenDataset(source, **{SETTINGS!r})
    if kept["done"]:
        dataset.load_state_dict(kept["state"])
    batches = in_process()
rows = kept["rows"]
for step in range(kept["done"], int(steps)):
    own = next(batches)
    parts = [torch.empty_like(own) for _ in range(world)]
    distributed.all_gather(parts, own)
    rows.append(hashlib.sha256(torch.cat(parts).numpy().tobytes()).hexdigest())
    if step % 3 == 2 or step + 1 == int(steps):
        state = None if door == "mount" else dataset.state_dict()
        if rank == 0:
            torch.save({{"done": step + 1, "rows": rows, "state": state}}, saved + ".tmp")
            os.rename(saved + ".tmp", saved)
distributed.destroy_process_group()
"""


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("door", ["mount", "dataset"])
def test_torchrun_is_killed_and_goes_on_with_other_ranks(tmp_path, data, door, request):
    torch = pytest.importorskip("torch")
    expected = Expected(SPEC, dataset(data))
    steps = 300
    want = [hashlib.sha256(expected.rows(step).tobytes()).hexdigest() for step in range(steps)]
    script, saved = tmp_path / "train.py", tmp_path / "saved"
    script.write_text(TORCH)
    source = data
    if door == "mount":
        request.getfixturevalue("fuse")
        mounted = batchfs.mount(data, spec=SPEC)
        source = mounted.__enter__().path
        request.addfinalizer(lambda: mounted.__exit__(None, None, None))
    reached = []
    for attempt, world in enumerate([2, 3, 1, 4]):
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command = [sys.executable, *run, script, door, source, saved, str(steps)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        trainer = subprocess.Popen(
            list(map(str, command)), env=env, start_new_session=True, stderr=subprocess.PIPE
        )
        if attempt == 3:
            said = trainer.communicate(timeout=200)[1]
            assert trainer.returncode == 0, said.decode()
        else:
            # Until it has got somewhere, and then at any time.
            before = saved.stat().st_mtime_ns if saved.exists() else 0
            until = time.monotonic() + 150
            while not saved.exists() or saved.stat().st_mtime_ns == before:
                assert trainer.poll() is None, trainer.communicate()[1].decode()
                assert time.monotonic() < until
                time.sleep(0.005)
            time.sleep(random.uniform(0, 0.1))
            os.killpg(trainer.pid, signal.SIGKILL)
            kill_workers(script)
            trainer.communicate(timeout=60)
        kept = torch.load(saved)
        reached.append(kept["done"])
        assert kept["rows"] == want[: kept["done"]], f"attempt {attempt}, {world} ranks"
    assert reached[-1] == steps and reached == sorted(reached), reached


def kill_workers(script):
    """torchrun's workers have sessions of their own."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(script).encode() in path.read_bytes():
                os.kill(int(re.sub(r"\D", "", str(path))), signal.SIGKILL)
        except OSError:
            pass
