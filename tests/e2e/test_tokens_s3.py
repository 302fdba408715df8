"""Token streams from an S3 server: the same bytes as from a folder."""

import json
import os
import shutil

import s3
from token_data import AWKWARD, batches, by_pyarrow

SPEC = "lanes=4,window=3,seq_len=16,seed=7"


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


def test_more_than_a_thousand_keys(box, bucket, front):
    folder, _ = bucket
    many = folder.parent / "many"
    by_pyarrow(many / "0000.parquet", [[1] * 3])
    for i in range(1, 1100):
        shutil.copy(many / "0000.parquet", many / f"{i:04}.parquet")
    env = s3.environment(front.port)
    told = json.loads(box.run("index", "s3://bucket/many", "--json", env=env).stdout)
    assert len(told["files"]) == 1100 and told["tokens"] == 3300
    # The same in pages, and then without the second one: that is not the end of the list.
    front.page = (many.parent, 400)
    front.seen.clear()
    shutil.rmtree(box.path / "cache")
    again = json.loads(box.run("index", "s3://bucket/many", "--json", env=env).stdout)
    assert again["files"] == told["files"] and again["fingerprint"] == told["fingerprint"]
    pages = [path for _, path in front.seen if "list-type" in path]
    assert len(pages) == 3 and "continuation-token" in pages[2]
    # One that breaks off is asked for again, from the first page on.
    front.asked.clear()
    front.fault = lambda method, path, n: (
        "cut" if "continuation-token" in path and n == 0 else None
    )
    again = json.loads(box.run("index", "s3://bucket/many", "--json", env=env).stdout)
    assert again["files"] == told["files"] and again["fingerprint"] == told["fingerprint"]
    pages = ["continuation-token" in path for _, path, _ in front.asked if "list-type" in path]
    # The second page breaks off, and then the third.
    assert pages == [False, True, False, True, True, False, True, True]
    front.fault = lambda method, path, n: 500 if "continuation-token" in path else None
    front.asked.clear()
    box.fails("index", "s3://bucket/many", env=env, names=["s3://bucket/many", "list"])
    # The client itself asks nine times; that is not done four times over.
    assert len(front.asked) == 1 + 9


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
    container = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:1/",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{front.port}",
    }
    fails("s3://bucket/data", names=["TOKEN_FILE", "AWS_ACCESS_KEY_ID"], env=container)
    off = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    fails("s3://bucket/data", names=["AWS_ACCESS_KEY_ID", "skip_signature"], env=off)


NAMES = [*AWKWARD, "L%3ABC.parquet"]


def test_awkward_names_are_read_from_everywhere_in_one_order(box, bucket, front):
    folder = bucket[0].parent / "awkward"
    for number, name in enumerate(NAMES):
        by_pyarrow(folder / name, [[number] * 8])
    env = s3.environment(front.port)
    spec = "lanes=2,window=3,seq_len=8,seed=1"
    seen = []
    for source in (folder, f"file://{folder}", "s3://bucket/awkward"):
        told = json.loads(box.run("index", source, "--json", env=env).stdout)
        assert [f["file"] for f in told["files"]] == sorted(NAMES, key=os.fsencode)
        with box.mount(source, spec=spec, env=env) as m:
            seen.append(batches(m, range(8)))
    assert seen[0] == seen[1] == seen[2]


def test_a_file_at_a_plain_address(box, bucket):
    """One file of any web server that knows ranges."""
    folder, _ = bucket
    spec = "lanes=2,window=2,seq_len=8"
    with s3.server(folder.parent.parent, signed=False) as port, s3.proxy(port) as front:
        far = f"http://127.0.0.1:{front.port}/bucket/data/part%203.parquet"
        args = ("tokens/batch/5.sha256", "--spec", spec)
        near = box.run("cat", folder / "part 3.parquet", *args).stdout
        assert box.run("cat", far, *args).stdout == near
        front.fault = lambda method, path, n: 503 if n < 2 else None
        shutil.rmtree(box.path / "cache")
        assert box.run("cat", far, *args).stdout == near
        front.fault = lambda method, path, n: None
        gone = far.replace("part%203", "none")
        box.fails("cat", gone, *args, names=["none.parquet"])


def test_settings_of_the_client_are_heeded(box, bucket, front):
    agents = set()
    front.refuse = lambda headers: agents.add(headers.get("User-Agent"))
    env = s3.environment(front.port)
    box.run("index", "s3://bucket/data", "--storage-option", "user_agent=mine", env=env)
    assert agents == {"mine"}
