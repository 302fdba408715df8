"""TokenDataset: PyTorch's side of token streams."""

import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from batchfs.torch import TokenDataset, TokenStep  # noqa: E402
from token_files import SETTINGS, SPEC, Expected, dataset  # noqa: E402
from token_rows import reference  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_epochs_through_a_data_loader(folder, expected):
    data = TokenDataset(folder, **SETTINGS)
    loader = DataLoader(data, batch_size=None, num_workers=0)
    step = 0
    while data.epoch < 2:
        for batch in loader:
            assert isinstance(batch, TokenStep) and (batch.step, batch.epoch) == (
                step,
                data_epoch(data, step),
            )
            assert torch.equal(batch.tokens, torch.from_numpy(expected.rows(step)))
            assert batch.cu_seqlens.dtype == torch.int32 and batch.cu_seqlens[-1] == 96
            assert (
                len(batch.document_ids) == len(batch.document_offsets) == len(batch.cu_seqlens) - 1
            )
            step += 1
            assert data.step == step
    assert step == data.loader.first_step(2)
    data.close()


def data_epoch(data, step):
    return next(e for e in range(9) if data.loader.first_step(e + 1) > step)


def test_states_are_saved_with_a_model(folder, expected, tmp_path):
    data = TokenDataset(folder, **SETTINGS)
    for batch in DataLoader(data, batch_size=None):
        if batch.step == 6:
            break
    torch.save({"model": torch.zeros(3), "data": data.state_dict()}, tmp_path / "saved")
    kept = torch.load(tmp_path / "saved")
    again = TokenDataset(folder, **SETTINGS, rank=1, world=2)
    again.load_state_dict(kept["data"])
    batch = next(iter(again))
    assert batch.step == 7 and np.array_equal(batch.tokens.numpy(), expected.rows(7)[3:])
    for bad in ({}, None, 3, b"x"):
        with pytest.raises(ValueError, match="no state"):
            again.load_state_dict(bad)
    other = TokenDataset(folder, **{**SETTINGS, "seed": 8})
    with pytest.raises(ValueError, match="seed is 7 in the state and 8 here"):
        other.load_state_dict(kept["data"])
    other.load_state_dict(kept["data"], force=True)
    assert other.step == 7


def test_a_mixture(tmp_path):
    sources = {name: tmp_path / name for name in ("web", "code")}
    alone = {
        "code": Expected(SPEC, dataset(sources["code"], 2)),
        "web": Expected(SPEC, dataset(sources["web"], 3, first=5000)),
    }
    mix = {"web": 0.7, "code": 0.3}

    def rows(step):
        places = (p.split(":") for p in reference.mixed("code=3,web=7", SPEC, step).split())
        return np.array([alone[name].rows(int(own))[int(lane)] for name, own, lane in places])

    data = TokenDataset(sources, mix=mix, **SETTINGS)
    names = set()
    for batch in DataLoader(data, batch_size=None):
        assert np.array_equal(batch.tokens.numpy(), rows(batch.step))
        # Tokens say which source they are of: those of `web` are large.
        names |= {bool(token >= 5000 * 10_000) for token in batch.tokens[:, 0].tolist()}
    total = sum(len(doc) for one in alone.values() for doc in one.documents)
    assert data.step == -(-total // 96) and data.epoch == 1 and names == {False, True}
    data.seek(10_000_000)
    state = data.state_dict()
    for rank in range(3):
        again = TokenDataset(sources, mix=mix, rank=rank, world=3, **SETTINGS)
        again.load_state_dict(state)
        batch = next(iter(again))
        assert batch.step == 10_000_000 and batch.tokens.shape == (2, 16)
        assert np.array_equal(batch.tokens.numpy(), rows(batch.step)[2 * rank : 2 * rank + 2])
        again.close()
    other = TokenDataset(sources, mix={"web": 1, "code": 1}, **SETTINGS)
    with pytest.raises(ValueError, match="the mix is code=3,web=7 in the state"):
        other.load_state_dict(state)
    with pytest.raises(TypeError, match="mixture"):
        TokenDataset(sources, **SETTINGS)
    other.close()
    data.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_refused(folder, expected, method):
    data = TokenDataset(folder, **SETTINGS)
    loader = DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=100
    )
    with pytest.raises((RuntimeError, TypeError), match="num_workers=0|does not pickle"):
        next(iter(loader))


def test_a_group_that_is_not_there_is_missed(folder, expected, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(RuntimeError, match="init_process_group"):
        TokenDataset(folder, **SETTINGS)
    with pytest.raises(ValueError, match="together"):
        TokenDataset(folder, **SETTINGS, rank=1)
    assert TokenDataset(folder, **SETTINGS, rank=1, world=2).loader.rank == 1


APART = f"""
import sys
from torch import distributed
from batchfs.torch import TokenDataset

distributed.init_process_group("gloo")
rank = distributed.get_rank()
data = TokenDataset(sys.argv[1], **{SETTINGS!r})
assert (data.loader.rank, data.loader.world) == (rank, 2)
assert next(iter(data)).tokens.shape == (3, 16)
state = data.state_dict()
everyone = [None, None]
distributed.all_gather_object(everyone, state)
assert everyone[0] == everyone[1]
data.seek(4 + rank)
try:
    data.state_dict()
except RuntimeError as e:
    assert "rank 0 at 4, rank 1 at 5" in str(e), e
else:
    raise AssertionError("it was not noticed")
data = TokenDataset(sys.argv[1], **{{**{SETTINGS!r}, "seed": rank}})
try:
    data.state_dict()
except RuntimeError as e:
    assert "rank 1 has other data or other settings" in str(e), e
else:
    raise AssertionError("it was not noticed")
data.load_state_dict(state, force=True)
assert data.step == 1
"""


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_ranks_that_are_apart_are_noticed(folder, expected, tmp_path):
    script = tmp_path / "apart.py"
    script.write_text(APART)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *run, script, folder], env=env, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
