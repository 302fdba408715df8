"""Token streams from an S3 server: the same bytes as from a folder, whatever goes wrong."""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import s3
from harness import alive, errno_of, mounts_at, wait_for
from token_data import AWKWARD, by_pyarrow, documents

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


# Says by its exit code that it could not read.
READER = """
import sys
print("ready", flush=True)
try:
    open(sys.argv[1], "rb").read()
except OSError:
    sys.exit(7)
"""


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


@pytest.mark.full
@pytest.mark.timeout(1200)
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
    # The same in pages, and then without the second one: that is not the end of the list.
    front.page = (many.parent, 400)
    front.seen.clear()
    shutil.rmtree(box.path / "cache")
    again = json.loads(box.run("index", "s3://bucket/many", "--json", env=env).stdout)
    assert again["files"] == told["files"] and again["fingerprint"] == told["fingerprint"]
    pages = [path for _, path in front.seen if "list-type" in path]
    assert len(pages) == 3 and "continuation-token" in pages[2]
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


class Credentials(BaseHTTPRequestHandler):
    """Gives out credentials that live for some seconds, each time others."""

    def do_GET(self):
        given = self.server.given
        given.append(time.time() + self.server.life)
        until = datetime.fromtimestamp(given[-1], timezone.utc).strftime("%FT%TZ")
        keys = {"AccessKeyId": s3.KEY, "SecretAccessKey": s3.SECRET}
        body = json.dumps({**keys, "Token": f"token-{len(given) - 1}", "Expiration": until})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


def test_credentials_that_expire_are_fetched_anew(box, bucket, front):
    folder, _ = bucket
    with box.mount(folder, spec=SPEC) as m:
        steps = range(m.config()["steps_per_cycle"])
        want = batches(m, steps)

    keeper = ThreadingHTTPServer(("127.0.0.1", 0), Credentials)
    keeper.given, keeper.life = [], 2
    threading.Thread(target=keeper.serve_forever, daemon=True).start()

    def refuse(headers):
        token = headers.get("x-amz-security-token", "")
        number = int(token.removeprefix("token-") or 0) if token.startswith("token-") else None
        if number is None:
            return 403, "AccessDenied"
        return (400, "ExpiredToken") if time.time() > keeper.given[number] else None

    front.refuse = refuse
    env = s3.environment(front.port)
    del env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
    env["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = f"http://127.0.0.1:{keeper.server_port}/keys"
    (box.path / "authorization").write_text("let me in")
    env["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = str(box.path / "authorization")
    try:
        with box.mount("s3://bucket/data", "--budget", "100KB", spec=SPEC, env=env) as m:
            first = len(keeper.given)
            for part in range(3):
                share = steps[part * len(steps) // 3 : (part + 1) * len(steps) // 3]
                assert batches(m, share) == want[share.start : share.stop]
                # Longer than any credentials live.
                time.sleep(2.5)
            assert len(keeper.given) > first
            said = m.errors() + m.read(".batchfs/config.json").decode()
            assert "token-" not in said and s3.SECRET not in said
    finally:
        keeper.shutdown()
        keeper.server_close()


def test_public_buckets_are_read_without_a_signature(box, bucket):
    folder, _ = bucket
    with s3.server(folder.parent.parent, signed=False) as port, s3.proxy(port) as front:
        signed = []
        front.refuse = lambda headers: signed.append(headers.get("Authorization"))
        env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{front.port}", "AWS_REGION": "us-east-1"}
        option = ("--storage-option", "skip_signature=true")
        told = json.loads(box.run("index", "s3://bucket/data", "--json", *option, env=env).stdout)
        assert told["tokens"] == json.loads(box.run("index", folder, "--json").stdout)["tokens"]
        assert signed and not any(signed)


def test_a_wrong_region_is_said_as_the_server_says_it(box, bucket, front):
    front.refuse = lambda headers: (
        (400, "AuthorizationHeaderMalformed")
        if "/eu-west-9/" in headers.get("Authorization", "")
        else None
    )
    env = {**s3.environment(front.port), "AWS_REGION": "eu-west-9"}
    said = box.fails("index", "s3://bucket/data", env=env, names=["s3://bucket/data"])
    assert "AuthorizationHeaderMalformed" in said and s3.KEY not in said
    assert box.run("index", "s3://bucket/data", "--storage-option", "region=us-east-1", env=env)


def test_what_hangs_holds_up_nobody_else(box, bucket, front):
    """Sixty-four readers wait for a server that never answers; everything else goes on."""
    folder, _ = bucket
    with contextlib.ExitStack() as stack:
        far = stack.enter_context(
            box.mount("s3://bucket/data", spec=SPEC, env=s3.environment(front.port), at="far")
        )
        near = stack.enter_context(box.mount(folder, spec=SPEC, at="near"))
        far.read("tokens/batch/0")
        step = far.config()["steps_per_cycle"] // 2
        front.fault = lambda method, path, n: "hang"
        readers = [box.python(READER, far / f"tokens/batch/{step + i % 8}") for i in range(64)]
        for _ in range(3):
            assert os.listdir(far.dir) and os.statvfs(far.dir).f_blocks
            assert len(os.listdir(far / "tokens/batch")) > step
            assert (far / f"tokens/batch/{step + 9}.npy").stat().st_size > 0
            assert len(far.read("tokens/batch/0")) == 256
            assert near.read(f"tokens/batch/{step}")
        assert any(reader.poll() is None for reader in readers), "they wait"
        # What hangs is given up: each reader hears of it.
        assert {reader.wait(120) for reader in readers} == {7}
        assert "part" in far.errors() and (
            "no answer" in far.errors() or "imed out" in far.errors()
        )
        front.fault = lambda method, path, n: None
        # What was on its way is given up within its own time.
        path = far / f"tokens/batch/{step}"
        wait_for(lambda: errno_of(path.read_bytes) is None, "it recovers", 60)
        assert path.read_bytes() == near.read(f"tokens/batch/{step}")


@pytest.mark.parametrize(
    ("mode", "name"), [("passthrough", "{step}"), ("cached", "{step}.txt")], indirect=["mode"]
)
def test_who_waits_can_be_killed(box, bucket, front, mode, name):
    """By any signal that ends a program; and Python's handler of Ctrl-C runs at once."""
    folder, _ = bucket
    far = box.mount("s3://bucket/data", spec=SPEC, env=s3.environment(front.port), mode=mode)
    with far as m, box.mount(folder, spec=SPEC, at="near") as near:
        m.read("tokens/batch/0")
        step = m.config()["steps_per_cycle"] // 2
        path = m / "tokens/batch" / name.format(step=step)
        front.fault = lambda method, path, n: "hang"
        catches = """
import sys
print("ready", flush=True)
try:
    open(sys.argv[1], "rb").read()
except KeyboardInterrupt:
    sys.exit(len(open(sys.argv[2], "rb").read()) % 199)
"""
        waits = "import sys; print('ready', flush=True); open(sys.argv[1], 'rb').read()"
        ends = {signal.SIGKILL: -9, signal.SIGTERM: -15, signal.SIGINT: 64}
        readers = {}
        for sign in ends:
            code = catches if sign == signal.SIGINT else waits
            readers[sign] = box.python(code, path, m / "tokens/schema.json")
        asleep = lambda pid: open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] in "SD"  # noqa: E731
        wait_for(lambda: all(asleep(reader.pid) for reader in readers.values()), "they wait")
        time.sleep(0.2)
        assert all(reader.poll() is None for reader in readers.values())
        begun = time.monotonic()
        ends[signal.SIGINT] = len(m.read("tokens/schema.json")) % 199
        for sign, reader in readers.items():
            reader.send_signal(sign)
        assert {sign: reader.wait(120) for sign, reader in readers.items()} == ends
        # Else the source's own limits would have let them go.
        assert "no answer" not in m.errors(), f"after {time.monotonic() - begun} s"
        front.fault = lambda method, path, n: None
        wait_for(lambda: errno_of(path.read_bytes) is None, "it recovers", 90)
        assert path.read_bytes() == (near / "tokens/batch" / path.name).read_bytes()
        wait_for(lambda: m.metrics()["open_handles"] == 0, "nothing is open")


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


@pytest.mark.parametrize("way", ["signal", pytest.param("lazy", marks=pytest.mark.full)])
def test_a_mount_ends_while_its_source_hangs(box, bucket, front, way):
    with box.mount("s3://bucket/data", spec=SPEC, env=s3.environment(front.port)) as m:
        m.read("tokens/batch/0")
        step = m.config()["steps_per_cycle"] // 2
        front.fault = lambda method, path, n: "hang"
        asked = len(front.seen)
        readers = [box.python(READER, m / f"tokens/batch/{step + i}") for i in range(8)]
        wait_for(lambda: len(front.seen) > asked, "somebody waits")
        said = box.fails("umount", m.dir)
        assert "in use" in said and "waiting for a file to open" in said
        daemon = box.daemon(m.dir)
        if way == "lazy":
            box.run("umount", "--lazy", m.dir)
        else:
            for _ in range(2):
                os.kill(daemon, signal.SIGTERM)
        wait_for(lambda: not mounts_at(m.dir), "it is gone from the tree", 30)
        assert {reader.wait(120) for reader in readers} == {7}
        wait_for(lambda: not alive(daemon), "the daemon has ended", 120)
