"""A client of the descriptor service, written from docs/dmabuf.md and nothing else."""

import array
import contextlib
import ctypes
import json
import mmap
import os
import select
import socket
from pathlib import Path

import numpy as np
from libc import libc, mapped

REPLY = 64 << 10


class Refused(Exception):
    def __init__(self, error: dict):
        super().__init__(error["message"])
        self.errno = error["errno"]


class Batch:
    """What was handed out."""

    def __init__(self, about: dict, fd: int):
        self.about, self.fd = about, fd
        self.lease = about["lease"]

    def bytes(self) -> bytes:
        with mmap.mmap(self.fd, self.about["size"], prot=mmap.PROT_READ) as mapped:
            return mapped[:]

    def array(self, name: str = "data") -> np.ndarray:
        tensor = next(t for t in self.about["tensors"] if t["name"] == name)
        data, dtype = self.bytes(), np.dtype(tensor["dtype"])
        shape, strides = tensor["shape"], tensor["strides"]
        return np.ndarray(shape, dtype, data, tensor["offset"], strides)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


class Service:
    def __init__(self, mount: Path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(os.readlink(mount / ".batchfs" / "service.sock"))
        self.last = 0

    def send(self, **request) -> int:
        self.last += 1
        self.socket.send(json.dumps({"version": 1, "id": self.last, **request}).encode())
        return self.last

    def receive(self) -> dict | Batch:
        data, control, _, _ = self.socket.recvmsg(REPLY, socket.CMSG_SPACE(64))
        if not data:
            raise EOFError
        about = json.loads(data)
        fds = array.array("i")
        for _, _, rights in control:
            fds.frombytes(rights)
        if "error" in about:
            assert not fds
            raise Refused(about["error"])
        return Batch(about, fds[0]) if fds else about

    def ask(self, op: str, **fields) -> dict | Batch:
        number = self.send(op=op, **fields)
        got = self.receive()
        assert (got.about if isinstance(got, Batch) else got)["id"] == number
        return got

    def export(self, stream: str, step: int, **more) -> Batch:
        return self.ask("export", stream=stream, step=step, **more)

    def release(self, *batches: Batch) -> None:
        for batch in batches:
            batch.close()
        self.ask("release", release=[b.lease for b in batches])

    def quiet(self, seconds: float = 0.2) -> bool:
        """Whether nothing comes."""
        return not select.select([self.socket], [], [], seconds)[0]

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *exc) -> None:
        self.close()


def writes(fd: int, size: int) -> list[str]:
    """The ways in which the holder of `fd` could change the file's bytes or length."""
    done = []

    def attempt(name: str, call, *args) -> object:
        try:
            got = call(*args)
        except (OSError, ValueError):
            return None
        done.append(name)
        return got

    def through(name: str, fd: int) -> None:
        attempt(f"{name}: pwrite", os.pwrite, fd, b"x", 0)
        attempt(f"{name}: shrink", os.ftruncate, fd, 0)
        attempt(f"{name}: grow", os.ftruncate, fd, size + 4096)
        attempt(f"{name}: fallocate", os.posix_fallocate, fd, 0, size + 8192)
        with contextlib.suppress(OSError):
            at = mapped(fd, size)
            if libc.mprotect(at, size, mmap.PROT_READ | mmap.PROT_WRITE) == 0:
                done.append(f"{name}: mprotect")
            libc.munmap(at, size)
        both = mmap.PROT_READ | mmap.PROT_WRITE
        writable = attempt(f"{name}: mmap", lambda: mmap.mmap(fd, size, prot=both))
        if writable is not None:
            writable.close()
        # Punching a hole: FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE.
        if libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)) == 0:
            done.append(f"{name}: hole")

    path = f"/proc/self/fd/{fd}"
    through("as it came", fd)
    attempt("truncate by path", os.truncate, path, 0)
    # A change of mode is harmless where it does not let anybody write; that is tried below.
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o777)
    with contextlib.suppress(OSError):
        os.chmod(path, 0o777)
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_RDWR | os.O_APPEND):
        with contextlib.suppress(OSError):
            again = os.open(path, flags)
            through(f"opened again with {flags:o}", again)
            os.close(again)
    return done
