"""The sampler's contract, seen through the mount."""

import contextlib
import errno

import numpy as np
import pytest

SPECS = [
    "batch=32",
    "batch=32,seed=18446744073709551615",
    "batch=7,seed=3,remainder=carry",
    "batch=32,mode=sequential",
    "batch=64,mode=iid,seed=5",
    "batch=30,seed=2,rank=2,world=3",
    "batch=1000",
]
STEPS = [0, 1, 30, 31, 5000, 2**42, 2**64 - 1]


@pytest.mark.parametrize("spec", SPECS)
def test_ids_index_and_batches_agree(box, data, arrays, spec):
    with box.mount(data, spec=spec) as m:
        for step in STEPS:
            told = box.run("ids", data, "--spec", spec, "--step", step).stdout
            ids = [int(line) for line in told.splitlines()]
            assert m.ids(step).tolist() == ids
            for name in ("labels", "x"):
                assert m.read(f"{name}/batch/{step}") == arrays[name][ids].tobytes()


def test_ranks_joined_are_the_global_batch(box, data):
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        whole = enter(box.mount(data, spec="batch=32,seed=4"))
        ranks = [
            enter(box.mount(data, spec=f"batch=32,seed=4,rank={r},world=4", at=f"rank{r}"))
            for r in range(4)
        ]
        for step in (0, 3, 31, 2**64 - 1):
            for name in ("index", "images/batch", "labels/batch"):
                parts = b"".join(m.read(f"{name}/{step}") for m in ranks)
                assert parts == whole.read(f"{name}/{step}")


def everything(m) -> dict:
    files = [f"{s}/batch/{n}" for s in ("images", "x") for n in (5, 6, 7, 100, 10**12)]
    files += [f"index/{n}.npy" for n in (5, 6, 7)] + ["labels/record/17.npy", "x/batch/5.json"]
    stats = {f: (m / f).stat() for f in files}
    return {f: (m.read(f), s.st_size, s.st_mtime_ns, s.st_ino) for f, s in stats.items()}


def test_a_resumed_run_sees_the_same(box, data, mode):
    """Bytes, sizes, times and inode numbers are a function of data, spec and step."""
    with box.mount(data, mode=mode) as m:
        for step in range(5):
            m.read(f"images/batch/{step}")
        before = everything(m)
    with box.mount(data, mode=mode) as m:
        assert everything(m) == before


def test_carry_gives_each_record_once_per_cycle(box, data):
    with box.mount(data, spec="batch=32,seed=6,remainder=carry") as m:
        ids = np.concatenate([m.ids(step) for step in range(125)]).reshape(4, 1000)
        assert all(np.array_equal(np.sort(cycle), np.arange(1000)) for cycle in ids)
        assert not np.array_equal(ids[0], ids[1])
        labels = b"".join(m.read(f"labels/batch/{step}") for step in range(125))
    assert labels == np.load(data_source(box, data))[ids.ravel()].tobytes()


def data_source(box, data):
    """The labels again as one file, taken through a mount in order."""
    with box.mount(data, spec="batch=1000,mode=sequential", at="order") as m:
        path = box.path / "labels.npy"
        path.write_bytes(m.read("labels/batch/0.npy"))
    return path


def test_drop_gives_full_batches_of_one_cycle(box, data):
    with box.mount(data, spec="batch=32,seed=6") as m:
        cycles = [np.concatenate([m.ids(31 * c + s) for s in range(31)]) for c in range(3)]
        for ids in cycles:
            assert len(np.unique(ids)) == len(ids) == 992
        left_out = [frozenset(range(1000)) - set(ids.tolist()) for ids in cycles]
        assert len(set(left_out)) == 3


def test_sequential_wraps(box, data):
    with box.mount(data, spec="batch=32,mode=sequential") as m:
        for step in (0, 31, 32, 2**64 - 1):
            assert m.ids(step).tolist() == [(step * 32 + j) % 1000 for j in range(32)]


def test_iid_draws_with_replacement(box, data):
    with box.mount(data, spec="batch=1000,mode=iid,seed=1") as m:
        ids = np.concatenate([m.ids(step) for step in range(20)])
    # A record is missing from one batch of 1000 with probability 1/e.
    counts = np.bincount(ids.astype(np.int64), minlength=1000)
    assert len(counts) == 1000 and 0 < counts.min() and counts.max() < 60
    assert 550 < len(np.unique(ids[:1000])) < 720


NOT_NAMES = [
    "017", "00", "+1", "-1", " 1", "1 ", "1.", "1.NPY", "1.npy.npy", "1.npz", ".npy", "0x1", "1e3",
    "18446744073709551616", "99999999999999999999999", "\u0661", "1\u00e9", "a" * 255,
]  # fmt: skip


@pytest.mark.parametrize("folder", ["images/batch", "images/record", "index", ".", "images"])
def test_other_names_are_not_there(box, data, folder):
    with box.mount(data) as m:
        for name in NOT_NAMES:
            for call in (lambda p: p.stat(), lambda p: p.read_bytes()):
                with pytest.raises(OSError) as caught:
                    call(m / folder / name)
                assert caught.value.errno == errno.ENOENT, name
        with pytest.raises(OSError) as caught:
            (m / folder / ("a" * 256)).stat()
        assert caught.value.errno in (errno.ENAMETOOLONG, errno.ENOENT)


def test_a_face_that_a_stream_cannot_have_says_why(box, data):
    with box.mount(data) as m:
        assert not (m / "index/3.json").exists()
        assert not (m / "x/record/1000").exists()
        errors = m.errors()
        assert "index/3.json" in errors and "an index is bare" in errors
        assert "x/record/1000" in errors and "1000" in errors
        # A shell that asks again and again does not push these out.
        for i in range(2000):
            assert not (m / f"index/{i}.json").exists()
        assert len(m.errors().splitlines()) < 20
        assert "x/record/1000" in m.errors()
