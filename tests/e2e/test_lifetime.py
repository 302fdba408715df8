"""What readers hold stays what it is; what they let go comes back."""

import errno
import hashlib
import mmap
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from harness import (
    Mapping,
    alive,
    cached_if_full,
    descriptors,
    errno_of,
    needs_root,
    rss_kib,
    wait_for,
)

PAGE = mmap.PAGESIZE


@pytest.fixture(scope="session")
def pages(session_box) -> tuple[Path, np.ndarray]:
    """Records of one page; a batch of 8 is 32 KiB."""
    array = np.random.default_rng(1).integers(0, 256, (256, PAGE), np.uint8)
    return session_box.store("pages/pages", array).parent, array


def test_maps_outlive_thousands_of_further_steps(box, pages, mode, compiled):
    """Regions are filled anew as long as the mount runs, but never one that somebody maps."""
    source, array = pages
    soak = compiled("soak")
    with box.mount(source, spec="batch=8,seed=1", mode=mode, memory="256KiB") as m:
        early = {step: Mapping(m / f"pages/batch/{step}") for step in range(4)}
        wanted = {step: array[m.ids(step)].tobytes() for step in early}
        for first, stride in ((4, 1), (10**6, 1), (10**9, 7919)):
            box.tool(soak, m / "pages/batch", first, 2000, stride)
            for step, map_ in early.items():
                assert map_.read() == wanted[step], f"step {step} changed under its reader"
        late = Mapping(m / "pages/batch/2")
        assert late.read() == wanted[2]
        late.close()
        for map_ in early.values():
            map_.close()
        m.settle()
        assert m.errors() == ""


class Holders:
    """Holds batches as a reader does: mapped in passthrough, open in cached mode."""

    def __init__(self, mode: str):
        self.mode = mode
        self.held: list = []

    def hold(self, path: Path) -> None:
        if self.mode == "passthrough":
            self.held.append(Mapping(path))
        else:
            self.held.append(open(path, "rb"))

    def release(self, count: int) -> None:
        for _ in range(count):
            self.held.pop(0).close()


def test_more_held_than_the_budget(box, pages, mode):
    """Fails in bounded time, says who holds what, and works again afterwards."""
    source, array = pages
    with box.mount(source, spec="batch=8,seed=1", mode=mode, memory="256KiB") as m:
        holders = Holders(mode)
        with pytest.raises(OSError) as caught:
            for step in range(100):
                holders.hold(m / f"pages/batch/{step}")
        assert caught.value.errno == errno.ENOMEM
        count = len(holders.held)
        # 8 batches fit; a page or two are the mount's own.
        assert 6 <= count <= 8
        line = m.errors().splitlines()[-1]
        assert f"pages/batch/{count}" in line and str(256 << 10) in line
        held = [f"pages/batch/{step}" for step in range(count)]
        assert all(name in line for name in held), line
        assert ("mapped" in line) == (mode == "passthrough")

        holders.release(2)
        path = m / f"pages/batch/{count}"
        assert path.read_bytes() == array[m.ids(count)].tobytes()
        holders.release(count - 2)
        for step in range(50):
            assert m.read(f"pages/batch/{step}") == array[m.ids(step)].tobytes()
        m.settle()


def limited(box) -> Path:
    """The program with few descriptors."""
    limit = box.folder("bin") / "limited"
    limit.write_text(f'#!/bin/sh\nulimit -n 48\nexec {box.program} "$@"\n')
    limit.chmod(0o755)
    return limit


def test_idle_memory_gives_up_its_descriptors(box):
    """Regions are kept by their sizes, and more sizes are read than there are descriptors."""
    lengths = np.arange(1, 201)
    values = np.arange(lengths.sum(), dtype=np.int32)
    cu = np.concatenate([[0], np.cumsum(lengths)])
    files = ["--from", box.npy("values", values), "--offsets", box.npy("cu", cu)]
    box.run("create", box.path / "words", *files)
    target = box.folder()
    box.tool(limited(box), "mount", box.path / "words", target, "--cached", "--spec", "batch=8")
    try:
        for record in range(200):
            want = values[cu[record] : cu[record + 1]].tobytes()
            assert (target / f"words/record/{record}").read_bytes() == want
        assert "descriptor" not in (target / ".batchfs/errors").read_text()
    finally:
        box.run("umount", target)


def test_a_daemon_without_descriptors(box, pages, mode):
    """Each batch that is open takes some: ENOMEM, with the reason, until there are some again."""
    source, array = pages
    target = box.folder()
    more = ["--cached"] if mode == "cached" else []
    box.tool(limited(box), "mount", source, target, "--spec", "batch=8,seed=1", *more)
    try:
        held = []
        with pytest.raises(OSError) as caught:
            for step in range(0, 2000, 20):
                held.append(open(target / f"pages/batch/{step}", "rb"))
        assert caught.value.errno == errno.ENOMEM and held
        first = held[0].read()
        for file in held:
            file.close()
        told = (target / ".batchfs/errors").read_text()
        assert "Too many open files" in told, told
        # What was closed comes back soon, and what is kept for reuse when it is wanted.
        wait_for(lambda: errno_of((target / "index/0").read_bytes) is None, "descriptors again")
        ids = np.fromfile(target / "index/0", "<u8")
        assert first == array[ids].tobytes() == (target / "pages/batch/0").read_bytes()
    finally:
        for file in held:
            file.close()
        box.run("umount", target)


@cached_if_full
def test_gauges_follow_readers(box, pages, mode):
    source, _ = pages
    with box.mount(source, spec="batch=8,seed=1", mode=mode, memory="16MiB") as m:
        held = [os.open(m / f"pages/batch/{step}", os.O_RDONLY) for step in range(5)]
        assert m.metrics()["open_handles"] == 5
        assert m.metrics()["memory_live_bytes"] >= 5 * 8 * PAGE
        maps = [Mapping(m / f"pages/batch/{step}") for step in range(5)]
        for fd in held:
            os.close(fd)
        for map_ in maps:
            map_.close()
        m.settle(idle=True)
        metrics = m.metrics()
        assert metrics["opens_total"] >= 5
        assert metrics["memory_limit_bytes"] == 16 << 20
        assert metrics["failures_total"] == 0


def test_what_is_still_mapped_is_told(box, pages):
    if os.geteuid() != 0:
        pytest.skip("passthrough needs root")
    source, _ = pages
    with box.mount(source, spec="batch=8,seed=1", mode="passthrough", memory="512KiB") as m:
        map_ = Mapping(m / "pages/batch/0")
        for step in range(1000, 1050):
            m.read(f"pages/batch/{step}")
        assert m.metrics()["memory_outside_bytes"] == 8 * PAGE
        map_.close()
        m.settle()


def sizes(pid: int) -> tuple[int, int]:
    assert alive(pid)
    return rss_kib(pid), descriptors(pid)


def soak(box, m, program, folder: str, count: int, grows: int) -> None:
    """Opens `count` steps, in order and not; the daemon's size after a tenth is what it keeps, but
    for `grows` KiB."""

    def run(first: int, count: int, stride: int) -> None:
        box.tool(program, m / folder, first, count, stride, timeout=3000)

    warm = count // 10
    run(0, warm, 1)
    run(10**8, warm, 977)
    rss, fds = sizes(m.pid)
    run(warm, count - warm, 1)
    run(2 * 10**8, count - warm, 977)
    rss_after, fds_after = sizes(m.pid)
    assert rss_after < rss + grows, f"the daemon grew from {rss} to {rss_after} KiB"
    assert fds_after <= fds + 64, f"descriptors went from {fds} to {fds_after}"
    m.settle(idle=True)


@cached_if_full
def test_soak(box, pages, mode, compiled):
    """Case 44: nothing is kept of 100,000 different steps."""
    source, _ = pages
    with box.mount(source, spec="batch=1,seed=1", mode=mode, memory="4MiB") as m:
        soak(box, m, compiled("soak"), "pages/batch", 50_000, 2048)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_long_soak(box, pages, mode, compiled):
    source, count = pages[0], 1_000_000
    # When memory is short the kernel forgets names, 16 bytes each, in messages of as many as there
    # are if the daemon gets no processor. Its buffers for messages stay as large as that was: up to
    # 31 MiB. An allocation of the smallest size that is kept of each open would be 55 MiB.
    grows = 2048 + 2 * count * 16 // 1024
    with box.mount(source, spec="batch=1,seed=1", mode=mode, memory="4MiB") as m:
        soak(box, m, compiled("soak"), "pages/batch", count, grows)


def missing(box, m, program, count: int) -> None:
    def run(first: int, count: int) -> None:
        box.tool(program, m / "pages/batch", first, count, "missing", timeout=3000)

    run(0, count // 10)
    rss, fds = sizes(m.pid)
    run(count, count)
    rss_after, fds_after = sizes(m.pid)
    assert rss_after < rss + 2048 and fds_after <= fds
    assert m.errors() == ""


def test_missing_names_leave_nothing(box, pages, compiled):
    source, _ = pages
    with box.mount(source) as m:
        missing(box, m, compiled("soak"), 200_000)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_millions_of_missing_names_leave_nothing(box, pages, compiled):
    source, _ = pages
    with box.mount(source) as m:
        missing(box, m, compiled("soak"), 5_000_000)


def drop(box, m) -> None:
    """Has the kernel forget all names and attributes of this mount, and of no other."""
    done = box.tool("mount", "-i", "-o", "remount,ro", m.dir, check=False)
    if done.returncode:
        pytest.skip(f"the kernel does not drop the caches of one mount: {done.stderr.strip()}")


@needs_root
def test_the_kernel_drops_its_caches(box, pages, compiled):
    """Case 44: what it forgets costs nothing here, and is found again, as the same inode."""
    source, array = pages
    program = compiled("soak")
    with box.mount(source, spec="batch=1,seed=1", memory="4MiB") as m:
        names = ["pages", "pages/batch", "pages/batch/7", f"pages/batch/{2**50}", "README.txt"]
        before = {name: (m / name).stat() for name in names}
        held = open(m / f"pages/batch/{2**60}", "rb")
        count = 40_000
        # The kernel's messages of what it forgets, and answers that wait on a busy machine, stay as
        # buffers: up to 6 MiB were seen, once. An allocation of the smallest size that is kept of
        # each name would be 17 MiB.
        grows = 10 << 10
        for round_ in range(5):
            # More of those that have to be remembered than are remembered at a time, together.
            box.tool(program, m / "pages/batch", 2**50 + round_ * 10**6, count, "stat")
            box.tool(program, m / "pages/batch", round_ * 10**6, count, "stat")
            drop(box, m)
            if round_ == 0:
                rss, fds = sizes(m.pid)
        rss_after, fds_after = sizes(m.pid)
        assert rss_after < rss + grows and fds_after <= fds + 8, f"{rss} to {rss_after} KiB"
        for name in names:
            now = (m / name).stat()
            kept = name == f"pages/batch/{2**50}"
            assert now[0] == before[name][0] and now[2:] == before[name][2:]
            assert now.st_ino == before[name].st_ino or kept
        assert held.read() == array[m.ids(2**60)].tobytes()
        held.close()
        m.settle()
        assert m.errors() == ""


def test_very_large_steps_are_kept_only_while_in_use(box, pages, compiled):
    """Steps above 2^42 do not fit an inode number; more of them than are kept at a time."""
    source, _ = pages
    program = compiled("soak")
    with box.mount(source, spec="batch=1,seed=1", memory="4MiB") as m:
        done = box.tool(program, m / "pages/batch", 2**50, 70_000, "stat", check=False)
        assert done.returncode == 0, f"{done.stdout}\n{m.errors()}"


def test_many_readers_at_once(box, pages, mode):
    """Readers share a step's region, or have their own; each sees the right bytes."""
    source, array = pages
    code = (
        "import hashlib, sys\n"
        "folder, seed = sys.argv[1], int(sys.argv[2])\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for i in range(300):\n"
        "    step = (i * (1 + seed % 3)) % 400\n"
        "    data = open(f'{folder}/{step}', 'rb').read()\n"
        "    print(step, hashlib.sha256(data).hexdigest())\n"
    )
    with box.mount(source, spec="batch=8,seed=1", mode=mode, memory="2MiB") as m:
        readers = [box.python(code, m / "pages/batch", seed) for seed in range(6)]
        for reader in readers:
            reader.stdin.write("\n")
            reader.stdin.flush()
        seen = [reader.communicate(timeout=200)[0] for reader in readers]
        assert all(reader.returncode == 0 for reader in readers)
        wanted = {
            step: hashlib.sha256(array[m.ids(step)].tobytes()).hexdigest() for step in range(400)
        }
        for line in "".join(seen).splitlines():
            step, digest = line.split()
            assert digest == wanted[int(step)]
        m.settle()


def test_a_failed_reader_leaves_nothing(box, pages, mode):
    """A reader that is killed with files open and mapped."""
    source, _ = pages
    code = (
        "import mmap, sys, time\n"
        "files = [open(f'{sys.argv[1]}/{i}', 'rb') for i in range(4)]\n"
        "maps = [mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) for f in files]\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with box.mount(source, spec="batch=8,seed=1", mode=mode, memory="1MiB") as m:
        reader = box.python(code, m / "pages/batch", stderr=subprocess.DEVNULL)
        assert m.metrics()["open_handles"] == 4
        reader.kill()
        reader.wait()
        m.settle()
