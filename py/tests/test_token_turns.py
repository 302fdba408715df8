"""A TokenLoader's position, whatever comes between two steps: Ctrl-C, and other threads."""

import threading
import time

import numpy as np
import pytest
from batchfs import TokenLoader
from token_files import dataset


@pytest.fixture
def source(tmp_path):
    dataset(tmp_path / "data")
    return tmp_path / "data"


class Interrupted:
    """A pipeline whose consumer is interrupted when it has got a step."""

    def __init__(self, pipeline, when):
        self.pipeline, self.when = pipeline, when

    def next(self):
        batch = self.pipeline.next()
        if batch.step == self.when:
            self.when = None
            raise KeyboardInterrupt
        return batch

    def __getattr__(self, name):
        return getattr(self.pipeline, name)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_no_step_is_lost_to_a_ctrl_c_just_before_it_is_given(source, prefetch):
    with TokenLoader(source, lanes=4, window=2, seq_len=16, prefetch=prefetch) as loader:
        want = [loader.next().tokens.numpy().copy() for _ in range(5)]
        loader.seek(0)
        loader._pipeline = Interrupted(loader._pipeline, 2)
        got = [loader.next() for _ in range(2)]
        with pytest.raises(KeyboardInterrupt):
            loader.next()
        # It was not given, so it is the next one.
        assert loader.step == 2
        got += [loader.next() for _ in range(3)]
        assert [batch.step for batch in got] == [0, 1, 2, 3, 4]
        assert loader.step == 5
        for batch, tokens in zip(got, want, strict=True):
            assert np.array_equal(batch.tokens.numpy(), tokens)


def test_an_epoch_ends_for_all_threads_that_iterate(source):
    with TokenLoader(source, lanes=4, window=2, seq_len=16) as loader:
        loader.seek(loader.first_step(1) - 1)
        got = []
        threads = [threading.Thread(target=lambda: got.extend(loader)) for _ in range(4)]
        with loader._turn():
            # All are at the last step of the epoch, and wait for their turn.
            for thread in threads:
                thread.start()
            time.sleep(0.5)
        for thread in threads:
            thread.join()
        assert [batch.step for batch in got] == [loader.first_step(1) - 1]
        assert loader.epoch == 1
