"""What loaderx does, as a program: it runs in an environment of its own, with Python 3.12.

write DEST CODEC SHARDS DTYPE VALUES.npy [OFFSETS.npy SHAPES.npy] [--dict FILE]
dtypes DEST BITS.npy          a container for each dtype, named after it, of the bytes given
die DEST VALUES.npy           is killed before it closes the container
read SOURCE OUT               OUT.npy, or OUT.values.npy and OUT.shapes.npy
train SOURCE OUT
"""

import os
import sys

import numpy as np
from loaderx import Allocator, dtypes
from loaderx.zrecord import (
    DenseStore,
    DenseWriter,
    RaggedBatch,
    RaggedStore,
    RaggedWriter,
    train_dict,
)


def write(dest, codec, shards, name, values, *more):
    dictionary = None
    if "--dict" in more:
        *more, _, path = more
        with open(path, "rb") as file:
            dictionary = file.read()
    dtype = np.dtype(getattr(dtypes, name))
    # Types that NumPy lacks come as integers of their size.
    values = np.load(values).view(dtype)
    options = {"codec": codec, "data_shards": int(shards), "dict_bytes": dictionary}
    if not more:
        with DenseWriter(dest, dtype, values.shape[1:], **options) as writer:
            writer.append(values)
        return
    offsets, shapes = (np.load(path) for path in more)
    with RaggedWriter(dest, dtype, shapes.shape[1], **options) as writer:
        batch = values, offsets.astype(np.int32), shapes.astype(np.uint32)
        writer.append(RaggedBatch(*map(np.ascontiguousarray, batch)))


def dtypes_(dest, bits):
    bits = np.load(bits)
    for dtype in dtypes.supported:
        values = bits[:, : 4 * dtype.itemsize].copy().view(dtype)
        path = os.path.join(dest, dtype.name)
        with DenseWriter(path, dtype, (4,), codec="raw", data_shards=2) as writer:
            writer.append(values)


def die(dest, values):
    values = np.load(values)
    writer = DenseWriter(dest, values.dtype, values.shape[1:], codec="raw")
    writer.append(values)
    os._exit(0)


def read(source, out):
    """All records in order, seven at a time."""
    try:
        store = DenseStore(source)
    except ValueError:
        store = RaggedStore(source)
    with store, Allocator("cpu") as allocator:
        view = store.bind(allocator)
        ids = np.arange(len(view))
        parts = [view[ids[i : i + 7]] for i in range(0, len(ids), 7)]
        if isinstance(store, DenseStore):
            np.save(f"{out}.npy", np.concatenate([np.from_dlpack(p) for p in parts]))
            return
        for name in ("values", "shapes"):
            arrays = [np.from_dlpack(getattr(p, name)) for p in parts]
            np.save(f"{out}.{name}.npy", np.concatenate(arrays))


def train(source, out):
    with DenseStore(source) as store, Allocator("cpu") as allocator:
        dictionary = train_dict(store.bind(allocator))
    with open(out, "wb") as file:
        file.write(dictionary)


if __name__ == "__main__":
    command, *args = sys.argv[1:]
    commands = {"write": write, "dtypes": dtypes_, "die": die, "read": read, "train": train}
    commands[command](*args)
