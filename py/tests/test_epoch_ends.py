"""States that are taken where an epoch ends, or next to it."""

import numpy as np
import pytest
from batchfs import TokenLoader
from token_files import SETTINGS, SPEC, Expected, documents, write

STEP = 6 * 16


@pytest.fixture(params=["within a step", "with a step"])
def ends(request, tmp_path):
    """A dataset whose epochs end within a step, or with one, and its rows."""
    docs = documents(3, 200)
    left = sum(map(len, docs)) % STEP
    whole = [[10**7 + i for i in range(STEP - left)]]
    docs += whole if request.param == "with a step" else whole + [[5, 6, 7]]
    total = sum(map(len, docs))
    assert (total % STEP == 0) == (request.param == "with a step")
    return tmp_path / "data", Expected(SPEC, write(tmp_path / "data/x.parquet", docs)), total


def rows(batches):
    return [(batch.step, batch.epoch, batch.tokens.numpy().copy()) for batch in batches]


def test_a_loader_goes_on_from_the_end_of_an_epoch(ends):
    folder, expected, total = ends
    first = [-(-epoch * total // STEP) for epoch in range(4)]
    with TokenLoader(folder, **SETTINGS) as loader:
        assert [loader.first_step(epoch) for epoch in range(4)] == first
        states = {}
        for epoch in range(2):
            for batch in loader:
                states[batch.step + 1] = loader.checkpoint()
            # After the loop, nothing of the next epoch was taken.
            assert (loader.step, loader.epoch) == (first[epoch + 1], epoch + 1)
            assert states[loader.step] == loader.checkpoint()
    for world, rank in ((1, 0), (3, 2)):
        own = slice(rank * 6 // world, (rank + 1) * 6 // world)
        for end in (first[1], first[2]):
            for step in (end - 1, end, end + 1):
                with TokenLoader(folder, **SETTINGS, rank=rank, world=world) as again:
                    again.resume(states.get(step) or moved(again, step))
                    epoch = next(e for e in range(3) if first[e] <= step < first[e + 1])
                    assert (again.step, again.epoch) == (step, epoch)
                    # The rest of that epoch: from the last step one, from its end all of the next.
                    got = rows(again)
                    assert [at for at, _, _ in got] == list(range(step, first[epoch + 1]))
                    assert {of for _, of, _ in got} == {epoch}
                    for at, _, tokens in got:
                        assert np.array_equal(tokens, expected.rows(at)[own])


def moved(loader, step):
    """The state of a step that was not stopped at."""
    loader.seek(step)
    return loader.checkpoint()


def test_a_dataset_of_pytorch_goes_on_from_the_end_of_an_epoch(ends, monkeypatch):
    pytest.importorskip("torch")
    from batchfs.torch import TokenDataset
    from torch.utils.data import DataLoader

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    folder, expected, total = ends
    first = [-(-epoch * total // STEP) for epoch in range(3)]
    data = TokenDataset(folder, **SETTINGS)
    seen = [batch.step for batch in DataLoader(data, batch_size=None)]
    assert seen == list(range(first[1])) and (data.step, data.epoch) == (first[1], 1)
    state = data.state_dict()
    data.close()
    again = TokenDataset(folder, **SETTINGS)
    again.load_state_dict(state)
    assert (again.step, again.epoch) == (first[1], 1)
    got = rows(DataLoader(again, batch_size=None))
    assert [(at, of) for at, of, _ in got] == [(at, 1) for at in range(first[1], first[2])]
    for at, _, tokens in got:
        assert np.array_equal(tokens, expected.rows(at))
    assert again.epoch == 2
    again.close()
