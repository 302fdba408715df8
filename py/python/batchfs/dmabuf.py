"""Batches as descriptors: the service that every mount runs.

A batch is handed out as a file descriptor with the places of its tensors, to be mapped, or passed
on to other processes and devices. The protocol is plain and documented, for clients in other
languages.
"""

from __future__ import annotations

import errno
import json
import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import _native

__all__ = ["Client", "Export", "connect"]


def connect(mount: str | os.PathLike[str]) -> Client:
    """Connects to the service of the mount at this folder.

    Raises ``FileNotFoundError`` if no mount with a service is there, ``OSError`` if it cannot be
    reached or does not let this user in.
    """
    return Client(mount)


class Client:
    """A client of a mount's service. Threads may share it, and a child made by ``fork`` may use it.

    with batchfs.dmabuf.connect("/mnt/ds") as client:
        with client.export("images", 17) as batch:
            images = batch["data"].numpy()
    """

    def __init__(self, mount: str | os.PathLike[str]) -> None:
        self.path = Path(mount)
        """The folder of the mount."""
        link = self.path / ".batchfs" / "service.sock"
        if not link.is_symlink():
            why = "no batchfs mount with a descriptor service is there"
            raise FileNotFoundError(errno.ENOENT, why, str(self.path))
        self._service = _native.Service(link)
        self.about: dict[str, Any] = json.loads(self._service.hello())
        """What the service says of itself: streams, spec, limits, kinds of descriptors."""

    def export(self, stream: str, step: int, *, view: str = "", face: str = "") -> Export:
        """The batch of a step.

        ``stream`` is the name of a stream, or ``index``, or ``all``; ``view`` a spec, the mount's
        own if not given; ``face`` is ``npy``, ``safetensors``, ``arrow``, or nothing for the bare
        arrays.

        Raises ``OSError`` with the errno that the file would have, and the reason.
        """
        number = operator.index(step)
        if not 0 <= number < 2**64:
            raise IndexError(f"{number} is out of range; steps are 0 to 2^64 - 1")
        return Export(self._service.export(view, stream, number, face))

    def stats(self) -> dict[str, Any]:
        """What this connection holds, and what the service is doing."""
        return json.loads(self._service.stats())

    def close(self) -> None:
        """Ends the connection. Batches that are held stay valid."""
        self._service.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.path}>"


class Export:
    """A batch that was handed out. Its memory is used again when it was released and no tensor of
    it is left; pages of it must not stay in a pipe, a socket or a device then."""

    def __init__(self, native: _native.Export) -> None:
        self._native = native
        about = json.loads(native.descriptor())
        self.kind: str = about["kind"]
        """``memfd`` or ``dmabuf``."""
        self.size: int = about["size"]
        """Bytes of the file."""
        self.shared: bool = about["shared"]
        """Whether the pages are those that the mount serves."""
        self.tensors: dict[str, dict[str, Any]] = {t["name"]: t for t in about["tensors"]}
        """By name: dtype, shape, strides in bytes, and offset in the file."""

    def fileno(self) -> int:
        """The descriptor, read-only; it is closed by :meth:`release`."""
        return self._native.fileno()

    def tensor(self, name: str, *, writable: bool = True) -> _native.DLTensor:
        """A tensor in a private mapping: what is written to it, nobody else sees."""
        return self._native.tensor(name, writable)

    def __getitem__(self, name: str) -> _native.DLTensor:
        return self.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def release(self) -> None:
        """Closes the descriptor. Tensors stay valid."""
        self._native.release()

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Export {self.kind} of {self.size} bytes: {', '.join(self.tensors)}>"
