"""Whatever tries to write gets the right errno, and changes nothing (case 46)."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from harness import as_user, errno_of, mode_of, needs_root

FILES = ["images/batch/3", "x/batch/0.npy", "index/1", "README.txt", ".batchfs/errors"]


def open_close(path, flags):
    os.close(os.open(path, flags, 0o644))


def attempts(root: Path, name: str) -> dict[str, str | None]:
    """What each attempt to write fails with."""
    file, folder, new = root / name, (root / name).parent, (root / name).parent / "new"
    call = errno_of
    return {
        "O_WRONLY": call(open_close, file, os.O_WRONLY),
        "O_RDWR": call(open_close, file, os.O_RDWR),
        "O_APPEND": call(open_close, file, os.O_WRONLY | os.O_APPEND),
        "O_TRUNC": call(open_close, file, os.O_RDONLY | os.O_TRUNC),
        "O_TRUNC|O_WRONLY": call(open_close, file, os.O_WRONLY | os.O_TRUNC),
        "r+b": call(lambda: open(file, "r+b")),
        "O_CREAT|O_RDWR": call(open_close, file, os.O_RDWR | os.O_CREAT),
        "O_CREAT new": call(open_close, new, os.O_WRONLY | os.O_CREAT),
        "O_EXCL new": call(open_close, new, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        "O_TMPFILE": call(open_close, folder, os.O_RDWR | os.O_TMPFILE),
        "utime": call(os.utime, file),
        "mkdir": call(os.mkdir, new),
        "mknod": call(os.mkfifo, new),
        "unlink": call(os.unlink, file),
        "rmdir": call(os.rmdir, folder),
        "rename": call(os.rename, file, new),
        "link": call(os.link, file, new),
        "symlink": call(os.symlink, "x", new),
        "chmod": call(os.chmod, file, 0o600),
        "chown": call(os.chown, file, os.geteuid(), os.getegid()),
        "truncate": call(os.truncate, file, 0),
        "setxattr": call(os.setxattr, file, "user.a", b"b"),
        "removexattr": call(os.removexattr, file, "user.a"),
    }


def allowed(root: Path, name: str) -> None:
    """What looks like writing and is not."""
    file = root / name
    assert errno_of(open_close, file, os.O_RDONLY | os.O_CREAT) is None
    assert errno_of(open_close, file, os.O_RDONLY | os.O_CREAT | os.O_EXCL) == "EEXIST"
    assert errno_of(os.mkdir, file) == "EEXIST"
    assert not os.access(file, os.W_OK) and os.access(file, os.R_OK)
    assert not os.access(file, os.X_OK)
    # There are none, and the kernel knows.
    for call, args in [(os.getxattr, (file, "user.a")), (os.listxattr, (file,))]:
        assert errno_of(call, *args) in ("EOPNOTSUPP", "ENOTSUP")
    with open(file, "rb") as one, open(file, "rb") as two:
        for lock in (fcntl.flock, fcntl.lockf):
            for file_ in (one, two):
                lock(file_, fcntl.LOCK_SH | fcntl.LOCK_NB)
            for file_ in (one, two):
                lock(file_, fcntl.LOCK_UN)
        assert errno_of(os.write, one.fileno(), b"x") == "EBADF"
        assert errno_of(os.ftruncate, one.fileno(), 0) in ("EINVAL", "EBADF")
        assert errno_of(os.posix_fallocate, one.fileno(), 0, 10) == "EBADF"
        assert errno_of(os.fchmod, one.fileno(), 0o777) == "EROFS"
    # A new way to the open file is no way to write either: /proc/self/fd.
    with open(file, "rb") as one:
        assert errno_of(open_close, f"/proc/self/fd/{one.fileno()}", os.O_RDWR) == "EROFS"


def more_attempts(root: Path, name: str) -> dict[str, str | None]:
    """The rarer ones: renames over something, links from elsewhere, times and owners of links."""
    file, folder = root / name, (root / name).parent
    other = next(p for p in folder.iterdir() if p != file)
    outside = Path(os.environ["TMPDIR"] if "TMPDIR" in os.environ else "/tmp")
    call = errno_of
    found = {
        "rename over": call(os.rename, file, other),
        "replace": call(os.replace, other, file),
        "lchown": call(os.lchown, file, os.geteuid(), os.getegid()),
        "utime of a link": call(lambda: os.utime(file, ns=(1, 1), follow_symlinks=False)),
        "acl": call(os.setxattr, file, "system.posix_acl_access", b"\2\0\0\0"),
        "trusted": call(os.setxattr, file, "trusted.a", b"b"),
        "mkdir over": call(os.mkdir, folder / "a b"),
        "socket": call(os.mknod, folder / "new", 0o600 | stat.S_IFSOCK),
        "xattr of a folder": call(os.setxattr, folder, "user.a", b"b"),
        "chmod of a folder": call(os.chmod, folder, 0o700),
        "utime of a folder": call(os.utime, folder),
    }
    # From another filesystem to here, and the other way: another errno may come first.
    for what, source, dest in (("in", outside, folder / "new"), ("out", file, outside / "new")):
        for how in (os.rename, os.link):
            assert call(how, source, dest) in ("EXDEV", "EROFS", "EPERM", "EACCES"), (what, how)
    return found


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in FILES if not name.startswith(".")}


def check(root: Path) -> None:
    before = contents(root)
    for name in FILES:
        found = attempts(root, name) | more_attempts(root, name)
        if (root / name).parent == root:
            # A mount point is busy, and its own folder may be closed to us, before all else.
            assert found.pop("rmdir") in ("EROFS", "EBUSY", "EACCES")
            found.pop("chmod of a folder"), found.pop("utime of a folder")
        # Without an ACL the kernel may not even ask; without the right to, `trusted` is not there.
        assert found.pop("acl") in ("EROFS", "EOPNOTSUPP", "EINVAL")
        assert found.pop("trusted") in ("EROFS", "EPERM")
        wrong = {what: got for what, got in found.items() if got != "EROFS"}
        assert not wrong, f"{name}: {wrong}"
        allowed(root, name)
        assert mode_of(root / name) == 0o444
    assert contents(root) == before


def test_as_the_owner(box, data, mode):
    with box.mount(data, mode=mode) as m:
        check(m.dir)


def test_as_another_user(box, data, mode, user):
    with box.mount(data, "--allow-other", mode=mode) as m:
        as_user(user, check, m.dir)


def test_as_the_user_who_mounted(box, data, user):
    with box.mount(data, user=user) as m:
        as_user(user, check, m.dir)


SHELL = {
    "touch": ["touch", "FILE"],
    "touch new": ["touch", "FOLDER/new"],
    "truncate": ["truncate", "-s", "0", "FILE"],
    "fallocate": ["fallocate", "-l", "1", "FILE"],
    "rm": ["rm", "-f", "FILE"],
    "rm -r": ["rm", "-rf", "FOLDER"],
    "rmdir": ["rmdir", "FOLDER"],
    "mv": ["mv", "-f", "FILE", "FOLDER/new"],
    "mv away": ["mv", "-f", "FILE", "OUT"],
    "cp over": ["cp", "-f", "/etc/hostname", "FILE"],
    "cp into": ["cp", "/etc/hostname", "FOLDER/new"],
    "dd": ["dd", "if=/dev/zero", "of=FILE", "count=1", "conv=notrunc"],
    "tee": ["tee", "-a", "FILE"],
    "sed -i": ["sed", "-i", "s/a/b/", "FILE"],
    "ln": ["ln", "-f", "/etc/hostname", "FILE"],
    "ln -s": ["ln", "-sf", "x", "FILE"],
    "mkdir": ["mkdir", "-p", "FOLDER/a/b"],
    "mkfifo": ["mkfifo", "FOLDER/new"],
    "chmod": ["chmod", "-R", "a+rwx", "FOLDER"],
    "chown": ["chown", "-R", "0:0", "FOLDER"],
    "install": ["install", "/etc/hostname", "FILE"],
    "find -delete": ["find", "FOLDER", "-delete"],
    "setfattr": ["setfattr", "-n", "user.a", "-v", "b", "FILE"],
    "chattr": ["chattr", "+i", "FILE"],
    "shell": ["sh", "-c", "echo x > FILE"],
    "shell, appending": ["sh", "-c", "echo x >> FILE"],
    "numpy": [sys.executable, "-c", "import numpy; numpy.load('FILE.npy', mmap_mode='r+')"],
}


def test_by_programs(box, data, mode):
    """What people and their scripts do. Nothing is changed, and all of it fails."""
    with box.mount(data, mode=mode) as m:
        before = contents(m.dir)
        listed = sorted(os.listdir(m / "images/batch"))
        for what, command in SHELL.items():
            if shutil.which(command[0]) is None:
                continue
            for old, new in (
                ("FILE", m / "images/batch/3"),
                ("FOLDER", m / "images/batch"),
                ("OUT", box.path / "out"),
            ):
                command = [part.replace(old, str(new)) for part in command]
            done = box.tool(*command, check=False, stdin=subprocess.DEVNULL)
            assert done.returncode != 0, what
            told = done.stderr.lower()
            # `chattr` is an ioctl, which is not there; `ln` tries another filesystem first.
            known = ("read-only", "inappropriate ioctl", "not supported", "cross-device")
            assert any(word in told for word in known), f"{what}: {told}"
        assert contents(m.dir) == before
        assert sorted(os.listdir(m / "images/batch")) == listed


@needs_root
def test_others_see_nothing_unless_allowed(box, data, user):
    with box.mount(data) as m:
        assert as_user(user, errno_of, os.listdir, m.dir) == "EACCES"
    with box.mount(data, "--allow-other") as m:
        assert as_user(user, (m / "x/batch/1").read_bytes) == m.read("x/batch/1")


@needs_root
def test_a_remount_does_not_open_it_for_writing(box, data, mode):
    """Even if root takes the read-only flag off, the filesystem refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    remount = 32 | 2 | 4 | 8  # MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC
    with box.mount(data, mode=mode) as m:
        before = m.read("images/batch/0")
        if libc.mount(b"none", str(m.dir).encode(), None, remount, None):
            pytest.skip("the kernel does not remount it")
        for flags in (os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_TRUNC):
            assert errno_of(open_close, m / "images/batch/0", flags) in ("EROFS", "EACCES")
        for call in (lambda p: os.truncate(p, 0), lambda p: os.chmod(p, 0o777), os.unlink):
            with contextlib.suppress(OSError):
                call(m / "images/batch/0")
        assert m.read("images/batch/0") == before
