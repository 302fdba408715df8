"""A mount ends when it is told to, and says who keeps it from that (case 33)."""

import os
import signal
import subprocess
from contextlib import contextmanager

import pytest
from harness import alive, cached_if_full, mounts_at, need_fuse, needs_root, needs_tool, wait_for

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@contextmanager
def foreground(box, data, *args):
    """`batchfs mount -f`, and the folder it is on."""
    need_fuse()
    target = box.folder()
    daemon = box.start(box.program, "mount", data, target, "-f", *args, stderr=subprocess.PIPE)
    line = daemon.stdout.readline()
    assert "is mounted" in line and "Ctrl-C unmounts" in line, line + daemon.stderr.read()
    yield daemon, target
    assert daemon.returncode is not None
    assert not mounts_at(target)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_idle(box, data, mode, number):
    with foreground(box, data, *(["--cached"] if mode == "cached" else [])) as (daemon, target):
        (target / "x/batch/0").read_bytes()
        daemon.send_signal(number)
        assert daemon.wait(30) == 0
        assert daemon.stderr.read() == ""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_the_daemon(box, data, number):
    with box.mount(data) as m:
        os.kill(m.pid, number)
        m.gone()
        assert not mounts_at(m.dir)


WAYS = {
    "file": "f = open('images/batch/0', 'rb')\n",
    "map": "import mmap\nf = open('images/batch/0', 'rb')\n"
    "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n",
    "folder": "",
}


def holder(box, target, way: str):
    leave = "" if way == "folder" else "os.chdir('/')\n"
    code = (
        f"import os, sys\nos.chdir(sys.argv[1])\n{WAYS[way]}{leave}"
        "print('ready', flush=True)\nsys.stdin.readline()\n"
    )
    return box.python(code, target)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_signal_ends_a_busy_mount(box, data, way):
    with foreground(box, data) as (daemon, target):
        child = holder(box, target, way)
        daemon.send_signal(signal.SIGINT)
        line = daemon.stderr.readline()
        assert "in use" in line and f"({child.pid})" in line and str(target) in line
        assert daemon.poll() is None
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(30) != 0
        assert f"({child.pid})" in daemon.stderr.read()
        assert not mounts_at(target)
        child.communicate("\n", timeout=30)
        assert child.returncode == 0


def test_a_busy_mount_ends_when_its_reader_does(box, data):
    with foreground(box, data) as (daemon, target):
        child = holder(box, target, "map")
        daemon.send_signal(signal.SIGTERM)
        assert "in use" in daemon.stderr.readline()
        child.communicate("\n", timeout=30)
        assert daemon.wait(30) == 0


@cached_if_full
def test_a_busy_mount_is_detached_after_a_while(box, data, mode):
    """With one signal only; what the reader has mapped stays readable."""
    with foreground(box, data, *(["--cached"] if mode == "cached" else [])) as (daemon, target):
        child = holder(box, target, "map")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) != 0
        said = daemon.stderr.read()
        assert "detached" in said and f"({child.pid})" in said
        child.communicate("\n", timeout=30)
        assert child.returncode == 0


def test_umount_of_a_busy_mount_names_the_holders(box, data):
    with box.mount(data) as m:
        child = holder(box, m.dir, "map")
        said = box.fails("umount", m.dir, names=[m.dir, f"({child.pid})", "--lazy"])
        assert "python" in said
        assert m.read("x/batch/0")
        m.unmount("--lazy")
        assert not mounts_at(m.dir) and alive(m.pid)
        child.communicate("\n", timeout=30)
        m.gone()


@needs_root
def test_unmounted_from_outside(box, data):
    for command in (["umount"], ["fusermount3", "-u"], ["umount", "-l"]):
        with foreground(box, data) as (daemon, target):
            box.tool(*command, target)
            assert daemon.wait(30) == 0, daemon.stderr.read()
            assert daemon.stderr.read() == ""


@needs_tool("fusermount3")
def test_a_user_unmounts_from_outside(box, data, user):
    with box.mount(data, user=user) as m:
        box.tool("fusermount3", "-u", m.dir, user=user)
        m.gone()


def test_ctrl_c_while_a_cat_runs(box, data):
    """Readers come and go while the end is asked for; nothing hangs."""
    with foreground(box, data) as (daemon, target):
        reader = box.start(
            "sh",
            "-c",
            f"while cat {target}/images/batch/* > /dev/null; do :; done",
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: reader.poll() is None, "the reader runs")
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(60) in (0, 1)
        reader.kill()
        reader.wait()
