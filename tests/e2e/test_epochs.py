"""Epochs, resumed runs, worlds that change, and data that is smaller than a batch."""

import hashlib

import numpy as np
import pytest

RECORDS, BATCH, STEPS = 100, 7, 14
SPEC = f"batch={BATCH},seed=9"


@pytest.fixture
def numbers(box):
    """Record i holds i."""
    box.npy("data/x", np.arange(RECORDS, dtype=np.int64))
    return box.path / "data"


def steps(m, first: int, last: int) -> list[tuple[int, ...]]:
    return [tuple(np.frombuffer(m.read(f"x/batch/{n}"), "<i8")) for n in range(first, last)]


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_three_epochs_after_a_resume_in_any_epoch(box, numbers, epoch):
    with box.mount(numbers, spec=SPEC) as m:
        unbroken = steps(m, 0, 6 * STEPS)
    stop = epoch * STEPS + 5
    with box.mount(numbers, spec=SPEC) as m:
        seen = steps(m, 0, stop)
        # What was read ahead, or opened and not used, is no part of the state.
        m.read(f"x/batch/{stop + 7}")
    with box.mount(numbers, spec=SPEC) as m:
        seen += steps(m, stop, (epoch + 4) * STEPS)
    assert seen == unbroken[: len(seen)]
    epochs = [seen[at : at + STEPS] for at in range(0, len(seen), STEPS)]
    assert len(epochs) == epoch + 4
    for whole in epochs:
        ids = [i for batch in whole for i in batch]
        assert len(ids) == len(set(ids)) == STEPS * BATCH
        assert set(ids) < set(range(RECORDS))
    assert len({tuple(whole) for whole in epochs}) == len(epochs), "orders differ"


def test_a_world_that_changes(box):
    box.npy("data/x", np.arange(500, dtype=np.int64))
    spec = "batch=32,seed=4"
    with box.mount(box.path / "data", spec=spec) as m:

        def chain(worlds: list[int]) -> list[str]:
            """A hash over all steps so far, after each step; its batch is read by so many ranks."""
            total, out = hashlib.sha256(), []
            for step, world in enumerate(worlds):
                batch = b"".join(
                    m.read(f"view/{spec},rank={rank},world={world}/x/batch/{step}")
                    for rank in range(world)
                )
                assert len(batch) == 32 * 8
                total.update(batch)
                out.append(total.hexdigest())
            return out

        unbroken = chain([1] * 12)
        for world in (2, 8):
            assert chain([world] * 12) == unbroken
        assert chain([8] * 6 + [2] * 6) == unbroken
    for world in (3, 5):
        refused = ["--spec", f"{spec},rank=0,world={world}"]
        box.fails("mount", "data", box.folder("no"), *refused, names=["32", str(world)])


@pytest.mark.parametrize("mode", ["cyclic", "sequential", "iid"])
@pytest.mark.parametrize("records, batch", [(1, 1), (1, 4), (3, 4)])
def test_less_data_than_a_batch(box, mode, records, batch):
    """Endless batches of the right size, or a refusal that names both numbers; nothing hangs."""
    data = box.npy("data/x", np.arange(records, dtype=np.int64)).parent
    spec = f"mode={mode},batch={batch}"
    done = box.run("ids", data, "--spec", spec, "--step", 0, check=False, timeout=10)
    if done.returncode:
        assert mode != "iid" and batch > records
        box.fails(
            "mount", data, box.folder("no"), "--spec", spec, timeout=10, names=[batch, records]
        )
        return
    with box.mount(data, spec=spec) as m:
        for step in (0, 1, 10**9, 2**64 - 1):
            ids = np.frombuffer(m.read(f"x/batch/{step}"), "<i8")
            assert len(ids) == batch and set(ids) <= set(range(records))
            if mode == "sequential":
                assert ids.tolist() == [(step * batch + i) % records for i in range(batch)]
