"""The daemon dies: what readers have stays, and the path can be used again (cases 32 and 41)."""

import ctypes
import os
import signal
import subprocess

import pytest
from harness import (
    Mapping,
    as_user,
    errno_of,
    mounts_at,
    need_fuse,
    needs_root,
    wait_for,
)


def test_restart_on_the_same_path(box, data, mode):
    with box.mount(data, mode=mode) as m:
        wanted = m.read("images/batch/0")
        m.kill()
        assert errno_of(os.listdir, m.dir) == "ENOTCONN"
        again = box.run("mount", data, m.dir, "--spec", "batch=32,seed=1")
        assert "removed 1 batchfs mount" in again.stderr and again.stderr.count("\n") == 1
        assert mounts_at(m.dir) == ["fuse.batchfs"]
        assert m.read("images/batch/0") == wanted
        m.pid = box.daemon(m.dir)


def test_restart_though_the_kernel_remembers_the_folder(box, data):
    """Attributes are cached for long: `stat` of a dead mount's root still works."""
    with box.mount(data) as m:
        wanted = m.read("x/batch/0")
        assert os.stat(m.dir).st_ino == 1
        m.kill()
        again = box.run("mount", data, m.dir, "--spec", "batch=32,seed=1")
        assert "removed 1 batchfs mount" in again.stderr
        m.pid = box.daemon(m.dir)
        assert m.read("x/batch/0") == wanted


@pytest.mark.parametrize("looked", [False, True])
def test_umount_of_a_dead_mount(box, data, looked):
    with box.mount(data) as m:
        if looked:
            os.stat(m.dir)
        m.kill()
        box.run("umount", m.dir)
        assert not mounts_at(m.dir)
        assert os.listdir(m.dir) == []


@pytest.mark.parametrize("command", ["mount", "umount"])
def test_a_dead_mount_behind_symbolic_links(box, data, command):
    """The links lead to the folder, whose own filesystem does not answer."""
    (box.path / "one").symlink_to("mnt")
    (box.path / "in").mkdir()
    (box.path / "in/two").symlink_to("../one")
    for link in ("one", "in/two", "in/../one/"):
        with box.mount(data) as m:
            m.kill()
            if command == "mount":
                again = box.run("mount", data, link)
                assert "removed 1 batchfs mount" in again.stderr
                assert mounts_at(m.dir) == ["fuse.batchfs"] and m.read("x/batch/0")
                m.pid = m.config()["pid"]
                box.run("umount", link)
            else:
                box.run("umount", link)
            assert not mounts_at(m.dir) and os.listdir(m.dir) == []


def test_a_dead_mount_is_cleared_once_and_told_once(box, data):
    log = box.path / "log"
    with box.mount(data) as m:
        m.kill()
        again = box.run("mount", data, m.dir, "--log", log)
        assert (again.stderr + log.read_text()).count("daemon had died") == 1
        m.pid = box.daemon(m.dir)


def test_a_mapped_reader_keeps_its_bytes(box, data, arrays, mode):
    """Case 41. In cached mode it keeps what it has touched."""
    with box.mount(data, mode=mode) as m:
        wanted = arrays["images"][m.ids(4)].tobytes()
        map_ = Mapping(m / "images/batch/4")
        file = open(m / "images/batch/5", "rb")
        assert map_.read() == wanted
        five = file.read()
        m.kill()
        assert map_.read() == wanted
        file.seek(0)
        assert file.read() == five
        for name in ("images/batch/6", "images/batch/4", "README.txt"):
            assert errno_of((m / name).read_bytes) == "ENOTCONN"
        # A trainer that reopens the path goes on, while old maps still live.
        box.run("mount", data, m.dir, "--spec", "batch=32,seed=1")
        m.pid = box.daemon(m.dir)
        assert m.read("images/batch/4") == wanted == map_.read()
        map_.close()
        file.close()


HOLDER = (
    "import mmap, os, sys\n"
    "os.chdir(sys.argv[1])\n"
    "f = open('images/batch/0', 'rb')\n"
    "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
    "print('ready', flush=True)\n"
    "sys.stdin.readline()\n"
)


def test_killed_with_a_blocked_reader_a_map_and_a_working_folder(box, data):
    """A reader that waits for room gets its answer at once, and the path is free again."""
    with box.mount(data, spec="batch=32,seed=1", memory="64KiB") as m:
        holder = box.python(HOLDER, m.dir)
        held = [open(m / f"images/batch/{i}", "rb") for i in (1, 2, 3, 4)]
        code = (
            "import os, sys\n"
            "print('ready', flush=True)\n"
            "try: os.open(sys.argv[1], os.O_RDONLY)\n"
            "except OSError as e: print(e.errno, flush=True)\n"
        )
        waiting = m.metrics()["waits_total"]
        blocked = box.python(code, m / "images/batch/9")
        wait_for(lambda: m.metrics()["waits_total"] > waiting, "a reader is blocked")
        m.kill()
        got = int(blocked.stdout.readline())
        assert os.strerror(got) and got in (103, 107), got  # ECONNABORTED, ENOTCONN
        assert blocked.wait(30) == 0
        again = box.run("mount", data, m.dir)
        assert "removed 1" in again.stderr
        assert m.read("images/batch/0")
        m.pid = box.daemon(m.dir)
        for file in held:
            file.close()
        holder.communicate("\n", timeout=30)
        assert holder.returncode == 0


@needs_root
def test_dead_mounts_stacked(box, data):
    with box.mount(data) as m:
        other = box.folder("other")
        box.run("mount", data, other)
        pid = box.daemon(other)
        box.tool("mount", "--bind", other, m.dir)
        box.tool("umount", other)
        assert mounts_at(m.dir) == ["fuse.batchfs"] * 2
        m.kill()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: errno_of(os.listdir, m.dir) == "ENOTCONN", "the upper one is dead")
        again = box.run("mount", data, m.dir)
        assert "removed 2 batchfs mount" in again.stderr
        assert mounts_at(m.dir) == ["fuse.batchfs"]
        m.pid = box.daemon(m.dir)


@needs_root
def test_a_dead_mount_of_others_is_left_alone(box, data):
    need_fuse()
    target = box.folder()
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    made = libc.mount(b"foreign", str(target).encode(), b"fuse", 0, options)
    os.close(fd)
    assert made == 0, os.strerror(ctypes.get_errno())
    try:
        assert errno_of(os.listdir, target) == "ENOTCONN"
        for command in (["mount", data, target], ["umount", target]):
            said = box.fails(*command, names=[target, "not batchfs"])
            assert f"umount -l {target}" in said
        assert mounts_at(target) == ["fuse"]
    finally:
        box.tool("umount", "-l", target)


@needs_root
@pytest.mark.parametrize("allowed", [False, True])
def test_a_dead_mount_of_another_user(box, data, user, allowed):
    """Is not for this user to remove; the command that does it is printed."""
    with box.mount(data, *(["--allow-other"] if allowed else [])) as m:
        m.kill()
        said = box.fails("mount", data, m.dir, user=user, names=[m.dir, "batchfs mount"])
        assert f"umount -l {m.dir}" in said
        assert mounts_at(m.dir) == ["fuse.batchfs"]
        box.run("umount", m.dir)


def test_the_user_restarts_after_a_crash(box, data, user):
    with box.mount(data, user=user) as m:
        m.kill()
        assert as_user(user, errno_of, os.listdir, m.dir) == "ENOTCONN"
        again = box.run("mount", data, m.dir, user=user)
        assert "removed 1 batchfs mount" in again.stderr
        m.pid = box.daemon(m.dir)
        assert as_user(user, m.read, "x/batch/0")


def test_a_live_mount_is_not_cleared(box, data):
    """A daemon that is merely stopped is not dead."""
    with box.mount(data) as m:
        os.kill(m.pid, signal.SIGSTOP)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                box.run("mount", data, m.dir, timeout=1)
            assert mounts_at(m.dir) == ["fuse.batchfs"]
        finally:
            os.kill(m.pid, signal.SIGCONT)
        assert m.read("x/batch/0")
