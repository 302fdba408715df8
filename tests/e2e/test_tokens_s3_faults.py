"""Token streams from an S3 server that does everything wrong."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import s3
from harness import errno_of, wait_for
from token_data import batches, by_pyarrow, documents

SPEC = "lanes=4,window=3,seq_len=16,seed=7"


FAULTS = {
    "503 to two of three": lambda method, path, n: 503 if n < 2 else None,
    "bodies cut": lambda method, path, n: "cut" if n < 1 else None,
    "bodies short": lambda method, path, n: "short" if n < 1 else None,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_pass_are_not_seen(box, bucket, front, fault):
    folder, _ = bucket
    with box.mount(folder, spec=SPEC) as m:
        want = batches(m, range(30))
    front.fault = FAULTS[fault]
    with box.mount("s3://bucket/data", spec=SPEC, env=s3.environment(front.port)) as m:
        assert batches(m, range(30)) == want
    # 7 files, 28 row groups, once or twice.
    assert len(front.seen) < 400


# Seconds that a range may take, by docs/tokens.md.
LIMIT = 45
SLOW = "check the endpoint, its region and the network"
BROKEN = "does not give ranges as it should"
LASTING = {503: SLOW, "hang": SLOW, "stall": SLOW, "cut": SLOW, "short": BROKEN}
"""Faults, and what is to be done about each."""


def far_step(m) -> int:
    """One that nothing was read for yet."""
    m.read("tokens/batch/0")
    return m.config()["steps_per_cycle"] // 2


@pytest.mark.parametrize(
    "faults",
    [("short",), pytest.param((503, "hang", "stall", "cut"), marks=pytest.mark.full)],
)
def test_faults_that_stay_are_errors_in_bounded_time(box, bucket, faults):
    """Side by side: each is tried again for a while."""
    folder, port = bucket

    def read(front, m, fault) -> tuple[str | None, float, int]:
        step = far_step(m)
        front.fault = lambda method, path, n: fault
        front.seen.clear()
        begun = time.monotonic()
        failed = errno_of((m / f"tokens/batch/{step}").read_bytes)
        took, asked = time.monotonic() - begun, len(front.seen)
        front.fault = lambda method, path, n: None
        wait_for(lambda: errno_of((m / f"tokens/batch/{step}").read_bytes) is None, "it recovers")
        return failed, took, asked

    # Without it a server that is silent is given up after ten seconds, several times in a row.
    option = ("--storage-option", "read_timeout=1 s")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(faults)))
        done = {}
        for fault in faults:
            front = stack.enter_context(s3.proxy(port))
            env = s3.environment(front.port)
            mount = box.mount("s3://bucket/data", *option, spec=SPEC, env=env, at=f"mnt-{fault}")
            m = stack.enter_context(mount)
            done[fault] = (m, pool.submit(read, front, m, fault))
        for fault, (m, result) in done.items():
            failed, took, asked = result.result(4 * LIMIT)
            assert failed in ("EIO", "ETIMEDOUT"), fault
            # The margin is for a machine that is busy.
            assert took < 2 * LIMIT, f"{fault}: {took} s"
            # Two windows of three row groups, and one ahead. The client asks nine times for what
            # fails, and we four times over for what breaks off.
            most = 9 if fault == 503 else 36
            assert asked <= most * 9, f"{fault}: a storm of {asked} requests"
            said = m.errors()
            assert "s3://bucket/data/" in said and ".parquet" in said, said
            assert LASTING[fault] in said, said
            assert fault != 503 or "503" in said
            assert s3.SECRET not in said and s3.KEY not in said


def test_what_may_not_be_read_is_not_asked_for_again(box, bucket, front):
    with box.mount("s3://bucket/data", spec=SPEC, env=s3.environment(front.port)) as m:
        step = far_step(m)
        front.fault = lambda method, path, n: 403
        front.asked.clear()
        assert errno_of((m / f"tokens/batch/{step}").read_bytes) == "EACCES"
        # Once ahead, and once by who needs it.
        assert max(map(front.asked.count, front.asked)) <= 2
        assert "check the credentials" in m.errors() and "403" in m.errors()


@pytest.mark.parametrize(
    "lie",
    [
        lie if lie in ("whole", "endless") else pytest.param(lie, marks=pytest.mark.full)
        for lie in s3.LIES
    ],
)
def test_answers_that_are_not_the_range_are_never_taken_for_it(box, bucket, front, lie):
    folder, _ = bucket
    with box.mount(folder, spec=SPEC) as m:
        steps = range(m.config()["steps_per_cycle"])
        want = batches(m, steps)
    args = ("s3://bucket/data", "--budget", "100KB")
    env = s3.environment(front.port)
    # For a while: it is asked for again.
    front.fault = lambda method, path, n: lie if n < 1 else None
    with box.mount(*args, spec=SPEC, env=env) as m:
        assert batches(m, steps) == want
    assert max(map(front.asked.count, front.asked)) >= 2
    front.fault = lambda method, path, n: None
    with box.mount(*args, spec=SPEC, env=env) as m:
        step = far_step(m)
        front.asked.clear()
        front.fault = lambda method, path, n: lie
        assert errno_of((m / f"tokens/batch/{step}").read_bytes) == "EIO"
        assert max(map(front.asked.count, front.asked)) <= 4
        said = m.errors()
        assert "s3://bucket/data/" in said and ".parquet" in said and BROKEN in said, said
        front.fault = lambda method, path, n: None
        path = m / f"tokens/batch/{step}"
        wait_for(lambda: errno_of(path.read_bytes) is None, "it recovers")
        assert batches(m, steps) == want


def test_an_object_that_changes_is_an_error(box, bucket, front):
    folder, _ = bucket
    other = folder.parent / "changing"
    by_pyarrow(other / "a.parquet", documents(1, 400))
    with box.mount("s3://bucket/changing", spec=SPEC, env=s3.environment(front.port)) as m:
        m.read("tokens/batch/0")
        by_pyarrow(other / "a.parquet", documents(2, 400))
        far = m.config()["steps_per_cycle"] // 2
        assert errno_of((m / f"tokens/batch/{far}").read_bytes) == "EIO"
        assert "has changed" in m.errors()


def test_a_server_that_is_killed_may_come_back(box, bucket):
    """The run goes on from the step that failed, without another mount."""
    folder, _ = bucket
    with box.mount(folder, spec=SPEC) as m:
        steps = range(m.config()["steps_per_cycle"])
        want = batches(m, steps)
    root, got = folder.parent.parent, []
    with contextlib.ExitStack() as stack:
        with s3.server(root) as port:
            env = s3.environment(port)
            args = ("--budget", "100KB")
            m = stack.enter_context(box.mount("s3://bucket/data", *args, spec=SPEC, env=env))
            for _ in range(5):
                got.append(m.read(f"tokens/batch/{len(got)}"))
        failed = None
        while failed is None:
            assert len(got) < len(steps), "a server that is gone was not missed"
            failed = errno_of(lambda: got.append(m.read(f"tokens/batch/{len(got)}")))
        assert failed in ("EIO", "ETIMEDOUT")
        assert "part" in m.errors() or "a+b&c" in m.errors()
        with s3.server(root, port=port):
            while len(got) < len(steps):
                got.append(m.read(f"tokens/batch/{len(got)}"))
    assert got == want
