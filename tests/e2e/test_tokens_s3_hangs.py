"""Readers of token streams whose S3 server never answers, and everybody else meanwhile."""

import contextlib
import os
import signal
import time

import pytest
import s3
from harness import alive, errno_of, mounts_at, wait_for

SPEC = "lanes=4,window=3,seq_len=16,seed=7"


# Says by its exit code that it could not read.
READER = """
import sys
print("ready", flush=True)
try:
    open(sys.argv[1], "rb").read()
except OSError:
    sys.exit(7)
"""


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
