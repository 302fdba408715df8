"""What the end-to-end tests are made with: the program, data, mounts, what is left of them."""

import contextlib
import ctypes
import errno
import json
import os
import pickle
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import xxhash
from fuse import need_fuse
from libc import libc, mapped
from waiting import wait_for

REPO = Path(__file__).resolve().parents[2]

# For tests that take long, and of which both modes share nearly all.
cached_if_full = pytest.mark.parametrize(
    "mode", ["passthrough", pytest.param("cached", marks=pytest.mark.full)], indirect=True
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def needs_tool(*names: str):
    """Skips a test where one of these programs is not installed."""
    missing = [n for n in names if shutil.which(n) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@dataclass(frozen=True)
class User:
    """Somebody without rights."""

    name: str
    uid: int
    gid: int


def as_user(user: User, call: Callable, *args):
    """Calls `call(*args)` in a child that is `user`, and returns or raises what it does."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receive)
            os.setgroups([])
            os.setgid(user.gid)
            os.setuid(user.uid)
            try:
                result = (True, call(*args))
            except BaseException as e:
                traceback.print_exc()
                result = (False, e)
            with os.fdopen(send, "wb") as out:
                pickle.dump(result, out)
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    good, value = pickle.loads(told)
    if good:
        return value
    raise value


class Mapping:
    """A whole file mapped, and its descriptor closed. Python's own `mmap` keeps one open."""

    def __init__(self, path: Path):
        fd = os.open(path, os.O_RDONLY)
        try:
            self.size = os.fstat(fd).st_size
            self.at = mapped(fd, self.size)
        finally:
            os.close(fd)

    def read(self) -> bytes:
        return ctypes.string_at(self.at, self.size)

    def close(self) -> None:
        libc.munmap(self.at, self.size)


def errno_of(call: Callable, *args) -> str | None:
    """The name of the errno that `call(*args)` fails with, or None."""
    try:
        got = call(*args)
    except OSError as e:
        return errno.errorcode[e.errno or 0]
    if isinstance(got, int) and call is os.open:
        os.close(got)
    return None


def mount_table() -> list[tuple[str, str]]:
    """Mount points and their types, in the order in which they were mounted."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        found.append((point, fields[fields.index("-") + 1]))
    return found


def mounts_at(path: Path) -> list[str]:
    """The types of the filesystems mounted at `path`, the topmost last."""
    return [kind for point, kind in mount_table() if point == str(path)]


def mounts_under(path: Path) -> list[str]:
    """The mount points at and below `path`, in the order in which they were mounted."""
    points = [point for point, _ in mount_table()]
    return [p for p in points if p == str(path) or p.startswith(f"{path}/")]


def processes_about(path: Path) -> dict[int, str]:
    """Processes whose command line, program or folder has `path` in it, but this one."""
    found = {}
    needle = str(path)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            if not command:
                continue
            places = [command]
            for link in ("cwd", "exe"):
                with contextlib.suppress(OSError):
                    places.append(os.readlink(entry / link))
            if any(needle in place for place in places):
                found[int(entry.name)] = command.replace("\0", " ")
    return found


def alive(pid: int) -> bool:
    """Whether a thread of the process runs; one that waits for its parent only does not."""
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if task.read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                return True
    return False


def rss_kib(pid: int) -> int:
    """Resident anonymous memory: what a leak would grow. Regions are shared memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", text).group(1))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@dataclass
class Mount:
    """A mount that answers."""

    box: "Box"
    dir: Path
    pid: int
    user: User | None = None
    said: str = ""

    def __truediv__(self, name: str) -> Path:
        return self.dir / name

    def read(self, name: str) -> bytes:
        return (self.dir / name).read_bytes()

    def config(self) -> dict:
        return json.loads(self.read(".batchfs/config.json"))

    def errors(self) -> str:
        return self.read(".batchfs/errors").decode()

    def metrics(self) -> dict[str, int]:
        lines = self.read(".batchfs/metrics").decode().splitlines()
        pairs = (line.split() for line in lines if not line.startswith("#"))
        return {name.removeprefix("batchfs_"): int(value) for name, value in pairs}

    def decodes(self, count: int) -> None:
        """Asserts that this is how many row groups of tokens were decoded because a step needed
        them. What is decoded ahead of need does not count."""

        def needed() -> int:
            figures = self.metrics()
            done, ahead = (figures[f"row_groups_decoded{of}_total"] for of in ("", "_ahead"))
            return done - ahead

        # What was begun ahead and is not done makes it less meanwhile.
        wait_for(lambda: needed() >= count, f"{count} row groups are decoded")
        time.sleep(0.2)
        wait_for(lambda: needed() >= count, f"{count} row groups are decoded")
        assert needed() <= count, self.metrics()

    def ids(self, step: int) -> np.ndarray:
        return np.frombuffer(self.read(f"index/{step}"), "<u8")

    def settle(self, idle: bool = False) -> None:
        """Waits until nothing that readers had is left; with `idle`, nor what was filled ahead."""
        names = ["open_handles", "memory_outside_bytes"] + ["memory_live_bytes"] * idle

        seen: list[dict] = []

        def zero() -> bool:
            seen[1:] = [self.metrics()]
            return all(seen[-1][name] == 0 for name in names)

        seen.append(self.metrics())
        try:
            wait_for(zero, "gauges back at zero")
        except AssertionError as e:
            raise AssertionError(f"{e}: {seen[0]}, then {seen[-1]}") from None

    def kill(self) -> None:
        """Kills the daemon, and waits until it is gone, and its connection with it."""
        self.box.killed.add(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        self.gone()
        # A request on its way meanwhile is answered with this.
        wait_for(lambda: errno_of(os.statvfs, self.dir) != "ECONNABORTED", "the connection ends")

    def gone(self) -> None:
        wait_for(lambda: not alive(self.pid), f"the daemon {self.pid} is gone")

    def unmount(self, *args: str) -> None:
        self.box.run("umount", *args, self.dir, user=self.user)


@dataclass
class Box:
    """A folder for one test, and everything that is started there."""

    path: Path
    program: Path
    children: list[subprocess.Popen] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)

    @property
    def tmp(self) -> Path:
        """Where programs are told to put their temporary files."""
        return self.path / "tmp"

    def env(self, user: User | None = None, **more: str) -> dict[str, str]:
        env = {**os.environ, "TMPDIR": str(self.tmp), "LC_ALL": "C.UTF-8"}
        env["BATCHFS_CACHE_DIR"] = str(self.path / "cache")
        env.pop("BATCHFS_LOG", None)
        env.update(more)
        if user:
            env.update(HOME=str(self.path), USER=user.name, LOGNAME=user.name)
        return env

    def _options(self, user: User | None, env: dict[str, str] | None) -> dict:
        options = {"env": self.env(user, **(env or {})), "cwd": self.path}
        if user:
            options |= {"user": user.uid, "group": user.gid, "extra_groups": []}
        return options

    def tool(self, *command, user: User | None = None, check: bool = True, env=None, **more):
        """Runs any program."""
        command = [str(c) for c in command]
        options = {"capture_output": True, "text": True, "timeout": 120}
        options |= self._options(user, env) | more
        done = subprocess.run(command, **options)
        if check:
            shown = f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
            assert done.returncode == 0, shown
        return done

    def run(self, *args, **more) -> subprocess.CompletedProcess:
        """Runs batchfs."""
        return self.tool(self.program, *args, **more)

    def fails(self, *args, names: tuple = (), user: User | None = None, **more) -> str:
        """Runs batchfs, which has to fail with one clear line that holds all of `names`."""
        done = self.run(*args, check=False, user=user, **more)
        said = done.stderr
        assert done.returncode > 0, f"exit {done.returncode}: {done.stdout}{said}"
        lines = [line for line in said.splitlines() if line.startswith(("batchfs: ", "error: "))]
        assert len(lines) == 1, f"not one line: {said!r}"
        # The parser of the command line adds how to get help.
        assert lines[0].startswith("error: ") or said.count("\n") == 1, f"not one line: {said!r}"
        assert "panicked" not in said and "Success" not in said, said
        for name in names:
            assert str(name) in lines[0], f"{name} is not named: {said!r}"
        return lines[0]

    def start(self, *command, user: User | None = None, env=None, **more) -> subprocess.Popen:
        """Starts any program, which is ended with the test."""
        options = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **more}
        child = subprocess.Popen([str(c) for c in command], **options, **self._options(user, env))
        self.children.append(child)
        return child

    def python(self, code: str, *args, **more) -> subprocess.Popen:
        """Starts Python with `code`, and waits until it prints a line `ready`."""
        child = self.start(sys.executable, "-c", code, *args, **more)
        line = child.stdout.readline()
        assert line == "ready\n", f"a helper said {line!r}"
        return child

    def npy(self, name: str, array: np.ndarray) -> Path:
        path = self.path / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
        return path

    def store(self, name: str, array: np.ndarray, *args) -> Path:
        """Makes a store of `array` at `name`."""
        source = self.npy(f"sources/{name.replace('/', '-')}", array)
        dest = self.path / name
        dest.parent.mkdir(parents=True, exist_ok=True)
        self.run("create", dest, "--from", source, *args)
        source.unlink()
        return dest

    def folder(self, name: str = "mnt") -> Path:
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def mount_args(self, source, target, spec: str, mode: str, memory: str) -> list:
        args = ["mount", source, target]
        args += ["--spec", spec] if spec else []
        args += ["--cached"] if mode == "cached" else []
        args += ["--memory", memory] if memory else []
        return args

    @contextlib.contextmanager
    def mount(
        self,
        source: Path,
        *more,
        spec: str = "batch=32,seed=1",
        mode: str = "cached",
        memory: str = "",
        at: str = "mnt",
        user: User | None = None,
        env: dict[str, str] | None = None,
    ) -> Iterator[Mount]:
        """Mounts in the background; afterwards nothing of it is left, or that is an error."""
        need_fuse()
        target = self.folder(at)
        if user:
            os.chown(target, user.uid, user.gid)
        args = self.mount_args(source, target, spec, mode, memory)
        done = self.run(*args, *more, user=user, env=env)
        mounted = Mount(self, target, self.daemon(target), user, done.stdout)
        try:
            if mode == "passthrough":
                assert mounted.config()["delivery"] == "passthrough", mounted.config()
            yield mounted
        except BaseException:
            self.force(target)
            raise
        if mounts_at(target):
            mounted.unmount()
        mounted.gone()
        assert not mounts_at(target), f"still mounted: {target}"

    def daemon(self, target: Path) -> int:
        """The process that serves the mount at `target`."""
        found = [
            pid
            for pid, command in processes_about(target).items()
            if "--daemon" in command and f" {target} " in command
        ]
        assert len(found) == 1, f"daemons of {target}: {found}"
        return found[0]

    def force(self, target: Path) -> None:
        """Takes away whatever is mounted at or below `target`, and ends its daemon."""
        for point in reversed(mounts_under(target)):
            for command in (["umount", "-l", point], ["fusermount3", "-uz", point]):
                with contextlib.suppress(OSError):
                    if subprocess.run(command, capture_output=True).returncode == 0:
                        break

    def clean(self) -> list[str]:
        """Ends and removes everything. Returns what should not have been there any more."""
        left = []
        for child in self.children:
            if child.poll() is None:
                child.kill()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()
            child.wait(30)
        points = mounts_under(self.path)
        left += [f"mount {point}" for point in points]
        self.force(self.path)
        end = time.monotonic() + 3
        while (still := processes_about(self.path)) and time.monotonic() < end:
            time.sleep(0.02)
        for pid, command in still.items():
            left.append(f"process {pid}: {command}")
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self.tmp.is_dir():
            # A daemon that is killed leaves the folder of its socket for the next one to remove.
            dead = tuple(f"batchfs-service-{pid}-" for pid in self.killed)
            there = (path for path in self.tmp.iterdir() if not path.name.startswith(dead))
            left += [f"temporary {path}" for path in there]
        shutil.rmtree(self.path)
        return left


def passthrough_missing() -> str | None:
    """Why passthrough cannot be tested here."""
    if os.geteuid() != 0:
        return "passthrough needs root"
    kernel = tuple(int(n) for n in re.findall(r"\d+", platform.release())[:2])
    return None if kernel >= (6, 9) else "passthrough needs Linux 6.9"


def retype(store: Path, dtype: str) -> None:
    """Makes the elements of a store be of another type of their size, by docs/format.md: NumPy, and
    so `batchfs create`, lacks some that stores have."""
    header = store / "batchfs.json"
    about = json.loads(header.read_text())
    was, about["dtype"] = about["dtype"], dtype
    header.write_text(json.dumps(about, indent=2) + "\n")
    size = np.dtype(was).itemsize
    for shard in store.glob("data-*.npy"):
        with shard.open("r+b") as file:
            start = file.read(4096)
            file.seek(0)
            file.write(start.replace(np.dtype(was).str.encode(), f"|V{size}".encode(), 1))
    entry = 8
    if (store / "data-000.bin").exists():
        entry = 20 + 4 * about.get("ndim", 0)
    sums = (store / "index.bin").read_bytes()[about["records"] * entry :]
    text = header.read_bytes()
    sealed = len(text).to_bytes(8, "little") + text + sums
    (store / "seal").write_text(f"xxh3_64 {xxhash.xxh3_64_hexdigest(sealed)}\n")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
