"""Training that is killed again and again and goes on with another number of processes."""

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import batchfs
import numpy as np
import pytest
from token_files import Expected, dataset
from token_rows import reference
from waiting import wait_for

SETTINGS = {"lanes": 12, "window": 2, "seq_len": 16, "seed": 1}
SPEC = "lanes=12,window=2,seq_len=16,seed=1"
STEPS = 400
MIX = {"code": 0.3, "web": 0.7}

# Steps after the last checkpoint at which a run is killed at the latest: no machine is so fast that
# it is through before.
MOST = 60

# Each rank writes down what it trained on, and every few steps its part of a checkpoint.
TRAIN = f"""
import json, sys, time
from pathlib import Path
import batchfs

folder, out, state, rank, world, until, more = sys.argv[1:8]
more, until = json.loads(more), int(until)
if "mix" in more:
    folder = {{name: f"{{folder}}/{{name}}" for name in more["mix"]}}
settings = {{**{SETTINGS!r}, **more}}
with batchfs.TokenLoader(folder, **settings, rank=int(rank), world=int(world)) as loader:
    if state:
        loader.resume(Path(state).read_bytes())
    with open(f"{{out}}/rows-{{rank}}", "w") as log:
        print("ready", flush=True)
        while loader.step < until:
            time.sleep(0.001)
            batch = loader.next()
            log.write(batch.tokens.numpy().tobytes().hex() + "\\n")
            log.flush()
            if loader.step % 5 == 0 or loader.step == {STEPS}:
                part = Path(out, f"part-{{loader.step}}-{{rank}}")
                part.with_suffix(".tmp").write_bytes(loader.checkpoint())
                part.with_suffix(".tmp").rename(part)
    if until < {STEPS}:
        time.sleep(3600)
"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHFS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "data"


def chain_of(rows):
    """The hash chain of an unbroken run: after each step that of all rows so far."""
    chain, hashes = hashlib.sha256(), [hashlib.sha256().hexdigest()]
    for step in range(STEPS):
        chain.update(rows(step).tobytes())
        hashes.append(chain.hexdigest())
    return hashes


def mixture(data):
    """Makes the sources of a mixture, and gives what makes the rows of its steps."""
    alone = {"code": dataset(data / "code", 2), "web": dataset(data / "web", 3, first=5000)}
    expected = {name: Expected(SPEC, groups) for name, groups in alone.items()}
    mix = ",".join(f"{name}={weight}" for name, weight in MIX.items())

    def rows(step):
        places = (place.split(":") for place in reference.mixed(mix, SPEC, step).split())
        return np.array([expected[name].rows(int(own))[int(lane)] for name, own, lane in places])

    return rows


def complete(out, world):
    """The last step that all ranks have written their parts of, and these."""
    found = {}
    for path in out.glob("part-*[0-9]"):
        found.setdefault(int(path.name.split("-")[1]), []).append(path.read_bytes())
    whole = [step for step, parts in found.items() if len(parts) == world]
    return max(((step, found[step]) for step in whole), default=None)


def killed_again_and_again(tmp_path, data, want, **more):
    """Trains with changing numbers of ranks, which are killed once they have got somewhere."""
    chain, reached, state = hashlib.sha256(), [0], ""
    worlds = [3, 1, 4, 12, 2, 1]
    for attempt, world in enumerate(worlds):
        last = attempt + 1 == len(worlds)
        until = STEPS if last else reached[-1] + MOST
        out = tmp_path / f"run-{attempt}"
        out.mkdir()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", TRAIN, data, out, state]
                + [str(rank), str(world), str(until), json.dumps(more)],
                stdout=subprocess.PIPE,
            )
            for rank in range(world)
        ]
        try:
            for rank in ranks:
                assert rank.stdout.readline() == b"ready\n"
            if last:
                assert [rank.wait(120) for rank in ranks] == [0] * world
            else:
                somewhere = lambda: (complete(out, world) or [0])[0] > reached[-1]  # noqa: E731, B023
                wait_for(somewhere, "a checkpoint of all ranks")
                time.sleep(random.uniform(0, 0.03))
                assert [rank.poll() for rank in ranks] == [None] * world
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait(30)
                rank.stdout.close()
        step, parts = complete(out, world)
        merged = tmp_path / f"state-{attempt}"
        merged.write_bytes(batchfs.merge(parts))
        logs = [Path(out, f"rows-{rank}").read_text().splitlines() for rank in range(world)]
        for rows in list(zip(*logs, strict=False))[: step - reached[-1]]:
            chain.update(b"".join(map(bytes.fromhex, rows)))
        assert chain.hexdigest() == want[step], f"attempt {attempt}, {world} ranks"
        reached.append(step)
        state = merged
    assert reached == sorted(set(reached)), "each got somewhere"
    assert max(reached[:-1]) < STEPS == reached[-1], reached


def test_the_hash_chain_is_that_of_an_unbroken_run(tmp_path, data):
    expected = Expected(SPEC, dataset(data))
    killed_again_and_again(tmp_path, data, chain_of(expected.rows))


def test_nor_does_a_mixture_lose_its_place(tmp_path, data):
    killed_again_and_again(tmp_path, data, chain_of(mixture(data)), mix=MIX)


# All ranks' rows are gathered on rank 0, which keeps the chain in the checkpoint.
TORCH = f"""
import hashlib, os, sys, time
import numpy as np
import torch
from torch import distributed
from torch.utils.data import DataLoader
import batchfs
from batchfs.torch import TokenDataset

door, source, saved, steps, until = sys.argv[1:6]
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
    more = {{}}
    if door == "mixture":
        source = {{name: f"{{source}}/{{name}}" for name in {MIX!r}}}
        more = {{"mix": {MIX!r}}}
    dataset = TokenDataset(source, **{SETTINGS!r}, **more)
    if kept["done"]:
        dataset.load_state_dict(kept["state"])
    batches = in_process()
rows = kept["rows"]
for step in range(kept["done"], int(until)):
    own = next(batches)
    parts = [torch.empty_like(own) for _ in range(world)]
    distributed.all_gather(parts, own)
    rows.append(hashlib.sha256(torch.cat(parts).numpy().tobytes()).hexdigest())
    if step % 3 == 2 or step + 1 == int(steps):
        state = None if door == "mount" else dataset.state_dict()
        if rank == 0:
            torch.save({{"done": step + 1, "rows": rows, "state": state}}, saved + ".tmp")
            os.rename(saved + ".tmp", saved)
if int(until) < int(steps):
    time.sleep(3600)
distributed.destroy_process_group()
"""


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("door", ["mount", "dataset", "mixture"])
def test_torchrun_is_killed_and_goes_on_with_other_ranks(tmp_path, data, door, request):
    torch = pytest.importorskip("torch")
    rows = mixture(data) if door == "mixture" else Expected(SPEC, dataset(data)).rows
    steps = 300
    want = [hashlib.sha256(rows(step).tobytes()).hexdigest() for step in range(steps)]
    script, saved = tmp_path / "train.py", tmp_path / "saved"
    script.write_text(TORCH)
    source = data
    if door == "mount":
        request.getfixturevalue("fuse")
        mounted = batchfs.mount(data, spec=SPEC)
        source = mounted.__enter__().path
        request.addfinalizer(lambda: mounted.__exit__(None, None, None))
    reached = [0]
    for attempt, world in enumerate([2, 3, 1, 4]):
        until = steps if attempt == 3 else reached[-1] + MOST
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        command = [sys.executable, *run, script, door, source, saved, steps, until]
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
            assert trainer.poll() is None, "nothing was interrupted"
            os.killpg(trainer.pid, signal.SIGKILL)
            kill_workers(script)
            trainer.communicate(timeout=60)
        kept = torch.load(saved)
        reached.append(kept["done"])
        assert kept["rows"] == want[: kept["done"]], f"attempt {attempt}, {world} ranks"
    assert reached == sorted(set(reached)) and max(reached[:-1]) < steps == reached[-1], reached


def kill_workers(script):
    """torchrun's workers have sessions of their own."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(script).encode() in path.read_bytes():
                os.kill(int(re.sub(r"\D", "", str(path))), signal.SIGKILL)
        except OSError:
            pass
