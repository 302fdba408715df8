"""Mounts made from Python, by a daemon in a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .__main__ import program
from ._numbers import MOST_THREADS, integer
from .mounted import Dataset
from .tokens import _places, _storage, _weight

__all__ = ["mount"]


def _run(*args: str, input: str = "") -> subprocess.CompletedProcess[str]:
    # Found there, too, if only this process's sys.path has it.
    home = str(Path(__file__).resolve().parent.parent)
    paths = [home, os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # What the daemon says later goes to its log; a pipe would be kept open by it.
    return subprocess.run([*program(), *args], env=env, input=input, capture_output=True, text=True)


class mount:
    """Mounts a dataset for as long as a ``with`` block lasts, and opens it.

        with batchfs.mount("train", spec="batch=256,seed=42") as ds:
            images = ds["images"].batch[17].torch()

    ``src`` is what ``batchfs mount`` takes; ``dir`` the folder to mount on, a temporary one if not
    given. The order is a ``spec`` as text, or its keys (``batch=256, seed=42, rank=3, world=8``).
    ``memory``, ``threads``, ``verify``, ``log`` (a file), ``cached`` and ``allow_other`` are the
    options of ``batchfs mount``; ``writable`` and ``local`` are those of :func:`batchfs.open`.

    For Parquet with tokens there are ``column``, ``budget`` and ``storage_options``, as for
    :class:`batchfs.TokenLoader`; for a mixture ``src`` maps names to sources and ``mix`` the same
    names to weights.

    The daemon is a process of its own. At the end of the block, or of this process, it is
    unmounted; tensors that are left stay valid. A child made by ``fork`` leaves it as it is.

    Raises ``OSError`` with what the daemon said if it cannot be mounted.
    """

    def __init__(
        self,
        src: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
        dir: str | os.PathLike[str] | None = None,
        *,
        spec: str | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
        verify: str | None = None,
        log: str | os.PathLike[str] | None = None,
        cached: bool = False,
        allow_other: bool = False,
        writable: bool = True,
        local: bool = True,
        column: str | None = None,
        budget: str | int | None = None,
        storage_options: Mapping[str, str] | None = None,
        mix: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> None:
        if spec is not None and keys:
            raise TypeError("mount takes a spec as text or as keys, not both")
        if isinstance(memory, int):
            integer(memory, "memory", 1)
        if threads is not None:
            integer(threads, "threads", most=MOST_THREADS)
        for key, value in keys.items():
            if isinstance(value, int):
                integer(value, key)
        if keys:
            spec = ",".join(f"{key}={value}" for key, value in keys.items())
        given = {"spec": spec, "memory": memory, "threads": threads, "verify": verify, "log": log}
        given |= {"column": column, "budget": budget}
        self._options = [
            part
            for key, value in given.items()
            if value is not None
            for part in (f"--{key}", _text(key, value))
        ]
        self._options += ["--cached"] * cached + ["--allow-other"] * allow_other
        # Others can see a command line: these go another way.
        self._storage = _storage(storage_options)
        self._options += ["--storage-stdin"] * bool(self._storage)
        places = _places(src, mix)
        if mix is not None:
            weights = ",".join(f"{name}={_weight(mix[name])}" for name in mix)
            self._options += ["--mix", weights]
            self._src = ",".join(f"{name}={place}" for name, place in places)
        else:
            self._src = places[0][1]
        self._dir = dir
        self._writable, self._local = writable, local
        self._temporary: str | None = None
        self._mounted: str | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Dataset:
        if self._mounted is not None:
            raise RuntimeError("this mount is in use; make another one")
        self._owner = os.getpid()
        folder = os.fspath(self._dir) if self._dir is not None else self._make_folder()
        before = os.path.ismount(folder)
        try:
            given = json.dumps(list(self._storage.items())) if self._storage else ""
            done = _run("mount", *self._options, "--", self._src, folder, input=given)
        except BaseException:
            # It may have been mounted when Ctrl-C came.
            self._mounted = folder if os.path.ismount(folder) and not before else None
            self._end()
            raise
        if done.returncode != 0:
            self._remove_folder()
            said = done.stderr.strip().removeprefix("batchfs: ") or f"exit code {done.returncode}"
            raise OSError(f"cannot mount {self._src}: {said}")
        self._mounted = folder
        _MOUNTED[id(self)] = self
        try:
            return Dataset(folder, writable=self._writable, local=self._local)
        except BaseException:
            self._end()
            raise

    def __exit__(self, *exc: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._owner != os.getpid():
            return
        _MOUNTED.pop(id(self), None)
        folder, self._mounted = self._mounted, None
        # Mapped batches keep it busy in cached mode; lazily it goes when the last of them does.
        if folder is not None and _run("umount", "--", folder).returncode != 0:
            _run("umount", "--lazy", "--", folder)
        self._remove_folder()

    def _make_folder(self) -> str:
        self._temporary = tempfile.mkdtemp(prefix="batchfs-")
        return self._temporary

    def _remove_folder(self) -> None:
        folder, self._temporary = self._temporary, None
        if folder is not None:
            # Never what is in it: if it could not be unmounted, that is the dataset.
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def __reduce__(self) -> Any:
        raise TypeError("a mount does not pickle, as it ends where it began; the Dataset does")


# What is mounted goes on when the object is forgotten, whose Dataset may be in use, until the end
# of the process.
_MOUNTED: dict[int, mount] = {}


@atexit.register
def _end_all() -> None:
    for mounted in list(_MOUNTED.values()):
        mounted._end()


def _text(key: str, value: Any) -> str:
    # A bare number is bytes.
    if key == "memory" and isinstance(value, int):
        return f"{value}B"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
