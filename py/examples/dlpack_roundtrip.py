#!/usr/bin/env python3
"""From a framework's tensors into stores and back, without a copy on either side of the disk.

python3 py/examples/dlpack_roundtrip.py --framework torch
python3 py/examples/dlpack_roundtrip.py --framework jax
"""

import argparse
import tempfile

import numpy as np
from batchfs import Allocator, dtypes
from batchfs.store import DenseStore, DenseWriter, RaggedBatch, RaggedStore, RaggedWriter


def torch_tensors() -> tuple:
    import torch

    dense = torch.arange(12, dtype=torch.bfloat16).reshape(3, 2, 2)
    values = torch.tensor([3, 5, 7, 11, 13, 17, 19], dtype=torch.int32)
    offsets = torch.tensor([0, 2, 6, 7], dtype=torch.int32)
    shapes = torch.tensor([[1, 2], [2, 2], [1, 1]], dtype=torch.uint64)
    same = torch.equal
    return (dense, values, offsets, shapes), torch.from_dlpack, same


def jax_tensors() -> tuple:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    dense = jnp.arange(12, dtype=jnp.bfloat16).reshape(3, 2, 2)
    values = jnp.array([3, 5, 7, 11, 13, 17, 19], dtype=jnp.int32)
    offsets = jnp.array([0, 2, 6, 7], dtype=jnp.int32)
    shapes = jnp.array([[1, 2], [2, 2], [1, 1]], dtype=jnp.uint64)
    return (dense, values, offsets, shapes), jax.dlpack.from_dlpack, jnp.array_equal


def main() -> None:
    parser = argparse.ArgumentParser(description="Tensors into stores and back.")
    parser.add_argument("--framework", choices=["torch", "jax"], default="torch")
    args = parser.parse_args()
    made = torch_tensors() if args.framework == "torch" else jax_tensors()
    (dense, values, offsets, shapes), from_dlpack, same = made

    with tempfile.TemporaryDirectory() as folder:
        with DenseWriter(f"{folder}/dense", dtypes.bfloat16, (2, 2), codec="zstd") as writer:
            writer.append(dense)
        with RaggedWriter(f"{folder}/ragged", dtypes.int32, 2, codec="zstd") as writer:
            writer.append(RaggedBatch(values, offsets, shapes))

        with (
            DenseStore(f"{folder}/dense") as one,
            RaggedStore(f"{folder}/ragged") as other,
            Allocator("cpu") as allocator,
        ):
            again = from_dlpack(one.bind(allocator)[:])
            assert same(again, dense), again
            batch = other.bind(allocator)[:]
            assert same(from_dlpack(batch.values), values)
            assert same(from_dlpack(batch.cu_seqlens), offsets)
            records = [t.numpy() for t in batch.to_tensors()]
    # The stores are closed and gone; the tensors hold what they need.
    assert same(again, dense) and np.array_equal(records[1], [[7, 11], [13, 17]])
    print(
        f"{args.framework}: dense {tuple(again.shape)} and {len(records)} ragged records, the same"
    )


if __name__ == "__main__":
    main()
