"""What df, du, find, rsync and tail see (case 45)."""

import os
import time

import pytest
from harness import needs_root, needs_tool, wait_for


def test_df_and_du_have_sane_totals(box, data, arrays):
    total = sum(a.nbytes for a in arrays.values())
    with box.mount(data) as m:

        def column(*command) -> list[str]:
            return box.tool(*command).stdout.splitlines()[-1].split()

        size, used, free = (int(n) for n in column("df", "-B1", m.dir)[1:4])
        assert total <= size < total + 4096 and used == size and free == 0
        inodes = int(column("df", "-i", m.dir)[1])
        assert inodes > 3 * 1000
        assert column("df", m.dir)[-1] == str(m.dir)
        stat = os.statvfs(m.dir)
        assert stat.f_bsize == 4096 and stat.f_namemax == 255 and stat.f_flag & os.ST_RDONLY
        box.tool("stat", "-f", m.dir)
        batch = m / "images/batch"
        one = 32 * 12 * 9 * 3
        apparent = int(column("du", "-s", "-B1", "--apparent-size", batch)[0])
        assert apparent == 31 * one
        blocks = int(column("du", "-s", "-B512", batch)[0])
        assert blocks == 31 * -(-one // 512)


@needs_tool("find")
def test_find_sees_the_whole_tree(box, data):
    with box.mount(data) as m:

        def lines(*test) -> list[str]:
            return box.tool("find", m.dir, *test).stdout.splitlines()

        assert lines("-links", "0") == []
        files = lines("-type", "f")
        # README.txt, three of .batchfs, the index, the batches of all streams together, and of each
        # stream its schema, batches, records.
        assert len(files) == 1 + 3 + 31 + 31 + 3 * (1 + 31 + 1000)
        # Beside the streams' the root, .batchfs, view, index, and those of all streams together.
        assert len(lines("-type", "d")) == 1 + 3 + 2 + 3 * 3
        assert lines("-empty", "-name", "[0-9]*") == []
        # A link has all rights, and nobody asks for them.
        assert lines("-type", "l") == [str(m / ".batchfs/service.sock")]
        assert lines("!", "-type", "l", "-perm", "/222") == []
        inodes = box.tool("find", m.dir, "-printf", "%i\n").stdout.splitlines()
        assert len(set(inodes)) == len(inodes)


def test_times_are_those_of_the_source(box, data):
    source = max(int(p.stat().st_mtime) for p in (data / "x.npy", data / "images/batchfs.json"))
    names = ["x/batch/3", "images/batch/3.npy", "labels/record/1", "index/9", "README.txt", "x"]
    with box.mount(data) as m:
        first = {n: (m / n).stat().st_mtime_ns for n in names}
        for n in names[:4]:
            m.read(n)
        time.sleep(1.1)
        assert {n: (m / n).stat().st_mtime_ns for n in names} == first
        assert all(abs(t // 10**9 - source) <= 2 for t in first.values())
    with box.mount(data) as m:
        assert {n: (m / n).stat().st_mtime_ns for n in names} == first


@needs_tool("rsync")
def test_a_second_rsync_copies_nothing(box, data, mode):
    copy = box.folder("copy")
    command = ["rsync", "-ai", "--exclude=.batchfs"]
    with box.mount(data, mode=mode) as m:
        first = box.tool(*command, f"{m.dir}/", f"{copy}/").stdout
        assert first.count("\n") > 3000
        assert box.tool(*command, f"{m.dir}/", f"{copy}/").stdout == ""
    with box.mount(data, mode=mode) as m:
        assert box.tool(*command, "--checksum", f"{m.dir}/", f"{copy}/").stdout == ""


@needs_tool("tar")
def test_tar_takes_it_whole_and_twice_the_same(box, data, mode):
    """Every file as a file, none as a link to another; the second time the same bytes."""
    archives = [box.path / f"{n}.tar" for n in (1, 2)]
    flags = ["--sort=name", "--exclude=./.batchfs", "--exclude=./README.txt"]
    for archive in archives:
        with box.mount(data, mode=mode) as m:
            box.tool("tar", "-cf", archive, "-C", m.dir, *flags, ".")
            listed = box.tool("tar", "-tvf", archive).stdout.splitlines()
            assert {line[0] for line in listed} == {"-", "d"}
            assert sum(line[0] == "-" for line in listed) == 31 + 31 + 3 * (1 + 31 + 1000)
            box.tool("tar", "-df", archive, "-C", m.dir)
    assert box.tool("cmp", *archives, check=False).returncode == 0
    out = box.folder("out")
    box.tool("tar", "-xf", archives[0], "-C", out)
    with box.mount(data, mode=mode) as m:
        assert (out / "images/batch/7").read_bytes() == m.read("images/batch/7")
    box.tool("chmod", "-R", "u+w", out)


def test_tail_follow_just_sits(box, data):
    with box.mount(data) as m:
        tail = box.start("tail", "-c", "5", "-f", m / "labels/batch/1", text=False)
        got = tail.stdout.read(5)
        assert got == m.read("labels/batch/1")[-5:]
        assert tail.poll() is None
        tail.kill()
        tail.wait()


def test_files_are_read_only_and_owned(box, data):
    with box.mount(data) as m:
        for name in ("x/batch/0", "README.txt", ".batchfs/metrics", "index/1.npy"):
            stat = (m / name).stat()
            assert stat.st_mode & 0o7777 == 0o444 and stat.st_nlink == 1
            assert stat.st_uid == os.geteuid()
        for name in ("x", "x/batch", "index", ".batchfs", "."):
            stat = (m / name).stat()
            assert stat.st_mode & 0o7777 == 0o555 and stat.st_nlink >= 2


@needs_root
def test_a_bind_mount_and_an_overlay_show_the_same(box, data, mode):
    with box.mount(data, mode=mode) as m:
        wanted = m.read("images/batch/5")
        other = box.folder("other")
        box.tool("mount", "--bind", m.dir, other)
        try:
            assert (other / "images/batch/5").read_bytes() == wanted
        finally:
            box.tool("umount", other)
        upper, work = box.folder("upper"), box.folder("work")
        options = f"lowerdir={m.dir},upperdir={upper},workdir={work}"
        done = box.tool("mount", "-t", "overlay", "-o", options, "none", other, check=False)
        if done.returncode:
            pytest.skip(f"needs overlayfs: {done.stderr.strip()}")
        try:
            assert (other / "images/batch/5").read_bytes() == wanted
            assert (other / "images/batch/6").read_bytes() == m.read("images/batch/6")
        finally:
            box.tool("umount", other)
        wait_for(lambda: m.metrics()["open_handles"] == 0, "the overlay lets go")
