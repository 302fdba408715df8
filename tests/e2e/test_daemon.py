"""What a daemon keeps of its caller, and what can end it: nothing but its unmounting."""

import fcntl
import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from harness import mounts_at, need_fuse, needs_root, processes_about, wait_for


@pytest.fixture
def source(box):
    return box.npy("data/x", np.arange(4000, dtype=np.float32).reshape(1000, 4)).parent


@contextmanager
def detached(box, target):
    """Afterwards nothing is mounted, and no daemon runs."""
    need_fuse()
    yield
    pid = box.daemon(target)
    assert mounts_at(target) == ["fuse.batchfs"]
    assert json.loads((target / ".batchfs/config.json").read_bytes())["pid"] == pid
    box.run("umount", target)
    assert not mounts_at(target)
    wait_for(lambda: not processes_about(target), "the daemon is gone")


@pytest.mark.parametrize("out", ["full", "closed", "pipe"])
def test_the_mount_is_there_though_it_cannot_be_told(box, source, out):
    target = box.folder()
    where = {"full": ">/dev/full", "closed": ">&-", "pipe": "| true"}[out]
    script = f"set -o pipefail; '{box.program}' mount '{source}' '{target}' {where}"
    with detached(box, target):
        done = box.tool("bash", "-c", script)
        if out == "full":
            assert "is mounted" in done.stderr and "standard output" in done.stderr
            assert done.stderr.count("\n") == 1
        else:
            assert done.stderr == ""


def test_the_mount_is_there_though_nothing_at_all_can_be_told(box, source):
    target = box.folder()
    with detached(box, target), open("/dev/full", "wb") as full:
        box.run("mount", source, target, capture_output=False, stdout=full, stderr=full)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_in_front_with_a_full_output(box, source, stream):
    need_fuse()
    target = box.folder()
    with open("/dev/full", "wb") as full:
        daemon = box.start(box.program, "mount", source, target, "-f", **{stream: full})
        wait_for(lambda: mounts_at(target), "mounted")
        held = open(target / "x/batch/0", "rb")
        # It has something to say on standard error now.
        daemon.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert daemon.poll() is None and held.read()
        held.close()
        assert daemon.wait(30) == 0
    assert not mounts_at(target)


def test_a_folder_with_a_newline_in_its_name(box, source):
    target = box.folder("two\nlines")
    with detached(box, target):
        done = box.run("mount", source, target)
        assert done.stdout.startswith(f"{target} is mounted (") and done.stderr == ""
        assert (target / "x/batch/0").stat().st_size == 256 * 16


def test_nothing_of_the_caller_is_kept(box, source):
    """Its locks, pipes, files, folder and terminal."""
    target, lock = box.folder(), box.path / "lock"
    with detached(box, target), open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        out, into = os.pipe()
        os.set_inheritable(into, True)
        os.set_inheritable(held.fileno(), True)
        box.run("mount", source, target, close_fds=False, stdin=subprocess.PIPE)
        os.close(into)
        # The end of the pipe: nobody else has it open.
        assert os.read(out, 1) == b""
        os.close(out)
        held.close()
        with open(lock, "w") as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid = box.daemon(target)
        names = [os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")]
        assert not [n for n in names if n.startswith(("pipe:", str(box.path / "lock")))], names


def test_command_substitution_ends(box, source):
    """`$(...)` waits for all who have its pipe, standard error among them."""
    target = box.folder()
    with detached(box, target):
        script = (
            f"exec 7>&1; said=$('{box.program}' mount '{source}' '{target}' 2>&1); echo \"<$said>\""
        )
        done = box.tool("bash", "-c", script, timeout=30)
        assert done.stdout.startswith("<") and "is mounted" in done.stdout


def states(pid: int) -> set[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {task.read_text().rsplit(")", 1)[1].split()[0] for task in tasks}


@contextmanager
def stuck(box, source):
    """A path that does not answer: that of a mount whose daemon is stopped."""
    with box.mount(source, at="stuck") as m:
        os.kill(m.pid, signal.SIGSTOP)
        # A request that one of its threads has taken already could not be given up.
        wait_for(lambda: states(m.pid) == {"T"}, "all of its threads are stopped")
        try:
            yield m.dir
        finally:
            os.kill(m.pid, signal.SIGCONT)


def waits(pid: int) -> bool:
    """Whether one of its threads waits for an answer of a filesystem."""
    stacks = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/wchan") as file:
            stacks.append(file.read())
    return any("request_wait" in stack or "fuse" in stack for stack in stacks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("what", ["source", "target"])
def test_a_start_that_hangs_can_be_interrupted(box, source, number, what):
    with stuck(box, source) as path:
        place = path / "x/batch/0.npy" if what == "source" else source
        target = path if what == "target" else box.folder("mnt")
        command = [box.program, "mount", place, target, "-f"]
        child = box.start(*command, stderr=subprocess.PIPE)
        wait_for(lambda: waits(child.pid), "it hangs", 10)
        child.send_signal(number)
        assert child.wait(10) == 128 + number
        said = child.stderr.read()
        assert "before anything was mounted" in said and said.count("\n") == 1
    assert not mounts_at(box.path / "mnt")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_caller_who_is_killed_while_it_waits_wants_no_mount(box, source, number):
    with stuck(box, source) as path:
        target = box.folder("mnt")
        caller = box.start(box.program, "mount", path / "x/batch/0.npy", target)
        daemon = wait_for(
            lambda: [p for p, c in processes_about(target).items() if "--daemon" in c], "a daemon"
        )
        wait_for(lambda: waits(daemon[0]), "it hangs", 10)
        caller.send_signal(number)
        caller.wait(10)
        wait_for(lambda: not processes_about(target), "the daemon is gone", 10)
    assert not mounts_at(target)


def test_a_daemon_that_is_killed_at_its_start_is_told(box, source):
    with stuck(box, source) as path:
        target = box.folder("mnt")
        command = [box.program, "mount", path / "x/batch/0.npy", target]
        caller = box.start(*command, stderr=subprocess.PIPE)
        daemon = wait_for(
            lambda: [p for p, c in processes_about(target).items() if "--daemon" in c], "a daemon"
        )
        wait_for(lambda: waits(daemon[0]), "it hangs", 10)
        os.kill(daemon[0], signal.SIGKILL)
        assert caller.wait(10) == 1
        assert "killed by signal 9" in caller.stderr.read()


def test_ended_at_any_moment_it_leaves_no_mount(box, source):
    """A signal before, while and after the mount is made."""
    need_fuse()
    target = box.folder()
    for moment in range(40):
        child = box.start(box.program, "mount", source, target, "-f", stderr=subprocess.DEVNULL)
        time.sleep(moment / 1000)
        child.send_signal(signal.SIGTERM)
        # Before it has taken the signal over, the signal itself ends it.
        assert child.wait(30) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
        assert not mounts_at(target)


def test_threads_are_bounded(box, source):
    for threads in ("1025", "100000", "-1", "many"):
        done = box.run("mount", source, box.folder(), f"--threads={threads}", check=False)
        assert done.returncode == 2 and "up to 1024 threads" in done.stderr
    with box.mount(source, "--threads", "3") as m:
        m.read("x/batch/0")


@needs_root
def test_the_disk_of_the_log_is_full(box, source):
    """Case 43: what cannot be logged is lost, and nothing else."""
    disk = box.folder("disk")
    box.tool("mount", "-t", "tmpfs", "-o", "size=64k", "none", disk)
    try:
        env = {"BATCHFS_LOG": "trace"}
        log = disk / "log"
        with box.mount(source, "--log", log, spec="batch=10", env=env) as m:
            wanted = m.read("x/batch/0")
            while errors_of_writing(disk / "filler") is None:
                pass
            for step in range(300):
                assert m.read(f"x/batch/{step}")
                assert not (m / f"x/record/{1000 + step}").exists()
            assert m.read("x/batch/0") == wanted
            assert "x/record/1000" in m.errors()
            assert os.readlink(f"/proc/{m.pid}/fd/2") == str(log)
        assert log.stat().st_size > 0
    finally:
        box.tool("umount", disk)


def errors_of_writing(path) -> int | None:
    """Fills a disk, to its last byte."""
    with open(path, "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                file.write(bytes(size))
            except OSError as e:
                if size == 1:
                    return e.errno
    return None


BLOCKED = "import os, sys\nprint('ready', flush=True)\nos.open(sys.argv[1], os.O_RDONLY)\n"


def test_a_reader_that_waits_for_room_is_killed(box, source):
    """Case 43: it dies in bounded time, others read on meanwhile, and nothing is kept for it."""
    with box.mount(source, spec="batch=250", memory="16KiB") as m:
        held = [open(m / f"x/batch/{i}", "rb") for i in (1, 2, 3, 4)]
        waiting = m.metrics()["waits_total"]
        readers = [box.python(BLOCKED, m / f"x/batch/{i}") for i in (7, 8, 9)]
        wait_for(lambda: m.metrics()["waits_total"] > waiting, "readers are blocked")
        for reader in readers:
            reader.kill()
        assert held[0].read() and os.listdir(m.dir) and os.statvfs(m.dir).f_files
        for reader in readers:
            assert reader.wait(30) == -signal.SIGKILL
        for file in held:
            file.close()
        assert m.read("x/batch/7")
        m.settle()
