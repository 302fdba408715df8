"""Token streams from an S3 server that does everything wrong."""

import contextlib

import pytest
import s3
from harness import errno_of, wait_for
from token_data import batches, by_pyarrow, documents

SPEC = "lanes=4,window=3,seq_len=16,seed=7"


FAULTS = {
    "503 to two of three": lambda method, path, n: 503 if n < 2 else None,
    "bodies cut": lambda method, path, n: "cut" if "list-type" not in path and n < 2 else None,
    "bodies short": lambda method, path, n: "short" if "list-type" not in path and n < 2 else None,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_pass_are_not_seen(box, bucket, front, fault):
    folder, _ = bucket
    with box.mount(folder, spec=SPEC) as m:
        want = batches(m, range(60))
    front.fault = FAULTS[fault]
    with box.mount("s3://bucket/data", spec=SPEC, env=s3.environment(front.port)) as m:
        assert batches(m, range(60)) == want
    # 7 files, 28 row groups, once or twice.
    assert len(front.seen) < 400


def test_faults_that_stay_are_errors_in_bounded_time(box, bucket, front):
    with box.mount("s3://bucket/data", spec=SPEC, env=s3.environment(front.port)) as m:
        m.read("tokens/batch/0")
        far = m.config()["steps_per_cycle"] // 2
        front.fault = lambda method, path, n: 503
        front.seen.clear()
        assert errno_of((m / f"tokens/batch/{far}").read_bytes) in ("EIO", "ETIMEDOUT")
        # Two windows of three row groups, each asked for nine times at most.
        assert len(front.seen) <= 9 * 6 + 9 * 3, "a storm of requests"
        assert "503" in m.errors() and "part" in m.errors()
        front.fault = lambda method, path, n: 403
        assert errno_of((m / f"tokens/batch/{far + 1}").read_bytes) == "EACCES"
        front.fault = lambda method, path, n: None
        # What was on its way then is told to those who join in.
        path = m / f"tokens/batch/{far}"
        wait_for(lambda: errno_of(path.read_bytes) is None, "it recovers")
        assert len(path.read_bytes()) == 256
        assert s3.SECRET not in m.errors() and s3.KEY not in m.errors()


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
