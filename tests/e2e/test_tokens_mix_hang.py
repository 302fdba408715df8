"""A mixture of which one source hangs: steps without a row of it go on."""

import os
import time

import numpy as np
import pytest
import s3
from harness import cached_if_full, errno_of, wait_for
from test_tokens_mix import Mixed
from token_data import by_pyarrow, documents

MIX, SPEC = "far=1,near=9", "lanes=1,window=2,seq_len=16,seed=3"

# Reads a step, and says by its exit code whether it could.
READER = """
import sys
print("ready", flush=True)
try:
    raw = open(sys.argv[1], "rb").read()
except OSError:
    sys.exit(7)
sys.exit(0 if raw.hex() == sys.argv[2] else 8)
"""


@pytest.fixture
def mixed(box):
    """A source behind a proxy, one in a folder, and the rows of both."""
    groups = {}
    for number, (name, place) in enumerate((("far", "s3/bucket/far"), ("near", "near"))):
        folder = box.path / place
        groups[name] = []
        for i in range(3):
            docs = documents(10 * number + i, 120, first=1000 * number + 200 * i)
            groups[name] += by_pyarrow(folder / f"{i}.parquet", docs)
    with s3.server(box.path / "s3") as port, s3.proxy(port) as front:
        yield front, f"near={box.path}/near,far=s3://bucket/far", Mixed(MIX, SPEC, groups)


@pytest.mark.parametrize("fault", ["hang", pytest.param("stall", marks=pytest.mark.full)])
@cached_if_full
def test_steps_without_it_go_on_and_it_recovers(box, mixed, mode, fault):
    front, source, expected = mixed
    of = lambda step: expected.places(step)[0][0]  # noqa: E731
    env = s3.environment(front.port)
    with box.mount(source, "--mix", MIX, spec=SPEC, env=env, mode=mode) as m:
        for step in range(30):
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(1, 16)
            np.testing.assert_array_equal(got, expected.rows(step), err_msg=f"step {step}")
        assert {of(step) for step in range(30)} == {"far", "near"}
        # Steps in windows that are far from those: nobody has read them, nor was made ready for it.
        number = lambda own: next(expected.alone["far"].run.windows(own))[:2]  # noqa: E731
        own = next(own for own in range(5000) if number(own) == (0, 5))
        steps = range(10 * own, 10 * own + 200)
        waits = next(step for step in steps if of(step) == "far")
        assert number(expected.places(waits)[0][1]) == (0, 5)
        rows = {step: expected.rows(step).astype("<i4").tobytes() for step in steps}
        front.fault = lambda method, path, n: fault
        path = m / f"tokens/batch/{waits}"
        asked = len(front.seen)
        reader = box.python(READER, path, rows[waits].hex())
        wait_for(lambda: len(front.seen) > asked, "it is asked for")
        decoded, begun = m.metrics()["row_groups_decoded_total"], time.monotonic()
        for step in steps:
            if of(step) == "near":
                assert m.read(f"tokens/batch/{step}") == rows[step], f"step {step}"
                assert os.stat(m / f"index/{step}").st_size > 0
        took = time.monotonic() - begun
        assert m.metrics()["row_groups_decoded_total"] > decoded, "they were read for it"
        # Less than what hangs is waited for.
        assert took < 15, f"{took} s"
        assert reader.poll() is None, "it waits all the while"
        front.fault = lambda method, path, n: None
        # What hangs is asked for again, in time for who waits.
        assert reader.wait(120) == 0
        for step in steps:
            path = m / f"tokens/batch/{step}"
            wait_for(lambda: errno_of(path.read_bytes) is None, "it recovers")  # noqa: B023
            assert path.read_bytes() == rows[step], f"step {step}"
