"""A daemon in a small memory cgroup, with many slow readers (case 41)."""

import contextlib
import os
import re
from pathlib import Path

import numpy as np
import pytest
from harness import alive, cached_if_full, needs_root, wait_for

LIMIT = 256 << 20
READERS = 200


class Group:
    """A memory cgroup below our own, of version 1 or 2."""

    def __init__(self):
        self.path = self._make()

    @staticmethod
    def _make() -> Path:
        own = dict(
            line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
        name = f"batchfs-test-{os.getpid()}"
        tried = []
        for top, below, limit in (
            ("/sys/fs/cgroup/memory", own.get("memory"), "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", own.get(""), "memory.max"),
        ):
            if below is None:
                continue
            path = Path(top + below) / name
            try:
                path.mkdir()
                (path / limit).write_text(str(LIMIT))
                return path
            except OSError as e:
                tried.append(f"{path}: {e.strerror}")
                with contextlib.suppress(OSError):
                    path.rmdir()
        pytest.skip(f"needs a memory cgroup of its own: {'; '.join(tried) or 'there is none'}")

    def stat(self) -> dict[str, int]:
        pairs = (line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return {name: int(value) for name, value in pairs}

    def killed(self) -> int:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                found = re.search(r"^oom_kill (\d+)$", (self.path / name).read_text(), re.M)
                if found:
                    return int(found[1])
        return 0

    def end(self) -> None:
        wait_for(lambda: not (self.path / "cgroup.procs").read_text(), "the group is empty")
        self.path.rmdir()


@pytest.fixture
def group():
    group = Group()
    yield group
    group.end()


# Opens ten batches, and reads them all at once, slowly. Where there is no room it makes some, by
# reading to the end what it has, and goes on.
SLOW = """
import os, sys, time
import numpy as np
folder, index, source, first = sys.argv[1:5]
array = np.load(source, mmap_mode="r")
steps = list(range(int(first), int(first) + 10))
ids = {s: np.frombuffer(open(f"{index}/{s}", "rb").read(), "<u8") for s in steps}
print("ready", flush=True)
sys.stdin.readline()
files, refused = {}, 0
def drain():
    parts = {step: [] for step in files}
    more = True
    while more:
        more = False
        for step, fd in files.items():
            part = os.read(fd, 1 << 18)
            parts[step].append(part)
            more |= bool(part)
        time.sleep(0.05)
    for step, fd in files.items():
        os.close(fd)
        assert b"".join(parts[step]) == array[ids[step]].tobytes(), step
    files.clear()
while steps:
    try:
        files[steps[0]] = os.open(f"{folder}/{steps[0]}", os.O_RDONLY)
        steps.pop(0)
    except OSError as e:
        assert e.errno == 12, e
        refused += 1
        drain()
drain()
print(refused, flush=True)
"""


@needs_root
@pytest.mark.timeout(280)
@cached_if_full
def test_200_slow_readers_of_a_daemon_in_256_mib(box, mode, group):
    """It holds work back, and does not die; whoever gets a batch gets the right one."""
    source = box.npy("x", np.random.default_rng(5).integers(0, 256, (2000, 65_536), np.uint8))
    # Batches of 1 MiB: 200 of them do not fit, neither here nor into the budget.
    target = box.folder()
    script = 'echo $$ > "$0"; exec "$@"'
    command = [
        "sh",
        "-c",
        script,
        group.path / "cgroup.procs",
        box.program,
        "mount",
        source,
        target,
    ]
    command += ["--spec", "batch=16,seed=1", "--memory", "160MiB"]
    command += ["--cached"] if mode == "cached" else []
    box.tool(*command)
    try:
        pid = box.daemon(target)
        assert str(pid) in (group.path / "cgroup.procs").read_text().split()
        readers = [
            box.python(SLOW, target / "x/batch", target / "index", source, 1000 * reader)
            for reader in range(READERS // 10)
        ]
        for reader in readers:
            reader.stdin.write("\n")
            reader.stdin.flush()
        refused = [reader.communicate(timeout=200)[0].strip() for reader in readers]
        assert all(reader.returncode == 0 for reader in readers)
        assert alive(pid) and group.killed() == 0
        stat = group.stat()
        assert stat.get("rss", stat.get("anon", 0)) < 64 << 20, stat
        assert stat.get("sock", 0) < 1 << 20
        errors = (target / ".batchfs/errors").read_text()
        assert any(int(n) for n in refused) == ("no room" in errors), errors
    finally:
        box.run("umount", target)
