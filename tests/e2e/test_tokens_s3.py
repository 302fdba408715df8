"""Token streams from an S3 server: the same bytes as from a folder, whatever goes wrong."""

import json
import os
import shutil

import pytest
import s3
from harness import errno_of
from token_data import by_pyarrow, documents

SPEC = "lanes=4,window=3,seq_len=16,seed=7"


@pytest.fixture(scope="module")
def bucket(session_box):
    """A bucket with a dataset below `data/`, and the port that serves it."""
    root = session_box.path / "s3"
    folder = root / "bucket/data"
    for i in range(6):
        by_pyarrow(folder / f"part {i}.parquet", documents(i, 80, first=100 * i))
    by_pyarrow(folder / "lang=zh%2FCN/a+b&c.parquet", documents(9, 80, first=900))
    by_pyarrow(folder / "_temporary/0/x.parquet", documents(9, 80, first=900))
    with s3.server(root) as port:
        yield folder, port


@pytest.fixture
def front(bucket):
    with s3.proxy(bucket[1]) as proxy:
        yield proxy


def batches(m, steps) -> list[bytes]:
    return [m.read(f"tokens/batch/{step}") for step in steps]


def test_the_order_is_that_of_the_folder(box, bucket, front):
    folder, _ = bucket
    with box.mount(folder, spec=SPEC) as m:
        steps = [*range(m.config()["steps_per_cycle"]), 10**7]
        want = batches(m, steps)
    with box.mount(f"file://{folder}".replace("%", "%25"), spec=SPEC) as m:
        assert batches(m, steps) == want
    for source in ("s3://bucket/data", "s3://bucket/data/"):
        with box.mount(source, spec=SPEC, env=s3.environment(front.port)) as m:
            assert batches(m, steps) == want
            log = (m / ".batchfs/config.json").read_text() + m.errors()
            assert s3.SECRET not in log and s3.KEY not in log
            shown = open(f"/proc/{m.pid}/cmdline").read()
            assert s3.SECRET not in shown
    local = json.loads(box.run("index", folder, "--json").stdout)
    far = json.loads(
        box.run("index", "s3://bucket/data", "--json", env=s3.environment(front.port)).stdout
    )
    assert far["fingerprint"] == local["fingerprint"] and far["files"] == local["files"]
    # Again, from the index that was kept: a listing and nothing else.
    front.seen.clear()
    box.run("index", "s3://bucket/data", env=s3.environment(front.port))
    assert all("list-type" in path for _, path in front.seen), front.seen
    one = "s3://bucket/data/part%203.parquet"
    with box.mount(one, spec="lanes=1,window=1,seq_len=8", env=s3.environment(front.port)) as m:
        assert len(m.read("tokens/batch/0")) == 32


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
        assert errno_of((m / f"tokens/batch/{far}").read_bytes) in ("EIO", "ETIMEDOUT")
        assert "503" in m.errors() and "part" in m.errors()
        front.fault = lambda method, path, n: 403
        assert errno_of((m / f"tokens/batch/{far + 1}").read_bytes) == "EACCES"
        front.fault = lambda method, path, n: None
        assert len(m.read(f"tokens/batch/{far}")) == 256
        assert s3.SECRET not in m.errors() and s3.KEY not in m.errors()


@pytest.mark.full
def test_a_source_that_hangs_blocks_nobody_else(box, bucket, front):
    with box.mount("s3://bucket/data", spec=SPEC, env=s3.environment(front.port)) as m:
        m.read("tokens/batch/0")
        far = m.config()["steps_per_cycle"] // 2
        for fault in ("hang", "stall"):
            front.fault = lambda method, path, n, fault=fault: fault
            code = f"print('ready', flush=True); open('{m.dir}/tokens/batch/{far}').read()"
            reader = box.python(code)
            assert os.listdir(m.dir) and os.statvfs(m.dir).f_blocks
            assert (m / f"tokens/batch/{far + 7}.npy").stat().st_size > 0
            assert len(m.read("tokens/batch/0")) == 256
            assert reader.wait(120) != 0
            assert errno_of((m / f"tokens/batch/{far}").read_bytes) in ("EIO", "ETIMEDOUT")


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


def test_more_than_a_thousand_keys(box, bucket, front):
    folder, _ = bucket
    many = folder.parent / "many"
    by_pyarrow(many / "0000.parquet", [[1] * 3])
    for i in range(1, 1100):
        shutil.copy(many / "0000.parquet", many / f"{i:04}.parquet")
    env = s3.environment(front.port)
    told = json.loads(box.run("index", "s3://bucket/many", "--json", env=env).stdout)
    assert len(told["files"]) == 1100 and told["tokens"] == 3300
    # A page of the list that fails is not the end of it.
    pages = [n for n, (_, path) in enumerate(front.seen) if "list-type" in path]
    if len(pages) > 1:
        shutil.rmtree(box.path / "cache")
        front.seen.clear()
        front.fault = lambda method, path, n: 500 if "continuation-token" in path else None
        box.fails("index", "s3://bucket/many", env=env, names=["s3://bucket/many", "list"])


def test_refusals_say_what_to_do(box, bucket, front):
    env = s3.environment(front.port)
    fails = lambda *args, names, **more: box.fails("index", *args, names=names, **more)  # noqa: E731
    fails("s3://bucket/nowhere", names=["s3://bucket/nowhere", ".parquet"], env=env)
    fails("s3://none/data", names=["s3://none/data"], env=env)
    wrong = {**env, "AWS_SECRET_ACCESS_KEY": "wrong/secret+value"}
    said = fails("s3://bucket/data", names=["s3://bucket/data"], env=wrong)
    assert "wrong/secret" not in said
    option = ("--storage-option", "regoin=x")
    fails("s3://bucket/data", *option, names=["regoin", "region"], env=env)
    fails("s3://user:pass@bucket/data", names=["password", "environment"], env=env)
    profile = {"AWS_PROFILE": "work", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{front.port}"}
    fails("s3://bucket/data", names=["AWS_PROFILE"], env=profile)
    off = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    fails("s3://bucket/data", names=["AWS_ACCESS_KEY_ID", "skip_signature"], env=off)
