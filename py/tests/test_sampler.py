"""The order, as a Python object."""

import pickle
import subprocess

import numpy as np
import pytest
from batchfs.sampler import Sampler

Mode = Sampler.Mode


def test_ids_are_lent_and_any_step_is_found(tmp_path):
    sampler = Sampler(1000, 64, Mode.CYCLIC, seed=7)
    first = sampler.next()
    assert first.dtype == np.uint64 and first.shape == (64,)
    kept = first.copy()
    assert sampler.next() is first, "one array, filled anew"
    assert not np.array_equal(first, kept)
    assert np.array_equal(sampler.at(0), kept) and np.array_equal(sampler.at(1), first)
    assert sampler.step == 2
    sampler.seek(0)
    assert np.array_equal(next(sampler), kept)
    assert iter(sampler) is sampler


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("remainder", ["drop", "carry"])
def test_it_is_the_order_of_the_command_line(tmp_path, mode, remainder):
    if remainder == "carry" and mode is not Mode.CYCLIC:
        with pytest.raises(ValueError, match="remainder"):
            Sampler(1000, 64, mode, remainder=remainder)
        return
    np.save(tmp_path / "x.npy", np.zeros((1000, 1), np.uint8))
    sampler = Sampler(1000, 64, mode, seed=9, rank=1, world=2, remainder=remainder)
    for step in (0, 17, 2**40):
        command = [
            "batchfs",
            "ids",
            tmp_path / "x.npy",
            "--spec",
            sampler.spec,
            "--step",
            str(step),
        ]
        said = run(command)
        assert sampler.at(step).tolist() == [int(line) for line in said.split()]
    assert sampler.local_batch == 32


def run(command):
    import sys

    command = [sys.executable, "-m", "batchfs", *map(str, command[1:])]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_cycle_has_each_record_at_most_once():
    sampler = Sampler(1000, 64)
    ids = np.concatenate([sampler.at(step) for step in range(sampler.steps_per_cycle)])
    assert len(ids) == 960 == len(np.unique(ids)) and ids.max() < 1000
    ranks = [Sampler(1000, 64, rank=r, world=4).at(3) for r in range(4)]
    assert np.array_equal(np.concatenate(ranks), Sampler(1000, 64).at(3))
    assert Sampler(10, 4, Mode.SEQUENTIAL).at(2).tolist() == [8, 9, 0, 1]


def test_the_last_step_of_all():
    sampler = Sampler(100, 10, Mode.IID)
    sampler.seek(2**64 - 1)
    last = sampler.next().copy()
    assert np.array_equal(last, sampler.at(2**64 - 1)) and sampler.step is None
    with pytest.raises(OverflowError):
        sampler.next()
    ended = pickle.loads(pickle.dumps(sampler))
    again = Sampler(100, 10, Mode.IID)
    again.load_state_dict(sampler.state_dict())
    for one in (ended, again):
        assert one.step is None
        with pytest.raises(OverflowError):
            one.next()
    sampler.seek(5)
    assert sampler.step == 5


@pytest.mark.parametrize(
    "args, keys",
    [
        ((0, 1, 2), {}),
        ((10, 0, 2), {}),
        ((10, 11, 2), {}),
        ((10, 11, 0), {}),
        ((10, 2, 3), {}),
        ((10, 2, 2, -1), {}),
        ((10, 2, 2, 2**64), {}),
        ((10, 2, 2), {"rank": 1}),
        ((10, 3, 2), {"world": 2}),
        ((10, 2, 2), {"remainder": "keep"}),
    ],
)
def test_refusals(args, keys):
    with pytest.raises(ValueError):
        Sampler(*args, **keys)
    with pytest.raises(TypeError):
        Sampler(10.5, 2)
    for step, error in [(-1, ValueError), (2**64, ValueError), (1.5, TypeError)]:
        for use in (Sampler(10, 2).at, Sampler(10, 2).seek):
            with pytest.raises(error):
                use(step)


def test_state_and_pickle():
    sampler = Sampler(1000, 64, Mode.IID, seed=1)
    sampler.next()
    state, again = sampler.state_dict(), pickle.loads(pickle.dumps(sampler))
    want = sampler.next().copy()
    assert np.array_equal(again.next(), want)
    fresh = Sampler(1000, 64, Mode.IID, seed=1)
    fresh.load_state_dict(state)
    assert np.array_equal(fresh.next(), want)
    with pytest.raises(ValueError, match="spec"):
        Sampler(1000, 64, Mode.IID, seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match="length"):
        Sampler(999, 64, Mode.IID, seed=1).load_state_dict(state)
    with pytest.raises(ValueError):
        sampler.seek(-1)
