"""What loaderx does, as a program: it runs in an environment of its own, with Python 3.12.

write DEST CODEC SHARDS DTYPE VALUES.npy [OFFSETS.npy SHAPES.npy] [--dict FILE]
read SOURCE OUT [BATCH]       OUT.npy, or OUT.values.npy and OUT.shapes.npy
train SOURCE OUT
"""

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
        dictionary = open(path, "rb").read()
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


def read(source, out, batch="7"):
    """All records, in batches of some, in order."""
    try:
        store = DenseStore(source)
    except ValueError:
        store = RaggedStore(source)
    with store, Allocator("cpu") as allocator:
        view = store.bind(allocator)
        step = int(batch)
        parts = [view[list(range(i, min(i + step, len(view))))] for i in range(0, len(view), step)]
        if isinstance(store, DenseStore):
            np.save(f"{out}.npy", np.concatenate([np.from_dlpack(p) for p in parts]))
            return
        values = np.concatenate([np.from_dlpack(p.values) for p in parts])
        shapes = np.concatenate([np.from_dlpack(p.shapes) for p in parts])
        np.save(f"{out}.values.npy", values)
        np.save(f"{out}.shapes.npy", shapes)


def train(source, out):
    with DenseStore(source) as store, Allocator("cpu") as allocator:
        dictionary = train_dict(store.bind(allocator))
    with open(out, "wb") as file:
        file.write(dictionary)


if __name__ == "__main__":
    command, *args = sys.argv[1:]
    {"write": write, "read": read, "train": train}[command](*args)
