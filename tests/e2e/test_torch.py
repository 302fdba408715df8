"""PyTorch reads batches of the dtypes that NumPy has no name for."""

import mmap

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
load_file = pytest.importorskip("safetensors.torch", reason="needs safetensors").load_file

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_reads_it_bit_by_bit(box, dtype, mode):
    kind = DTYPES[dtype]
    wide = np.uint16 if kind.itemsize == 2 else np.uint8
    # All bit patterns, those that are no numbers, too.
    bits = np.arange(100 * 6 * 128, dtype=np.uint32).astype(wide).reshape(100, 6, 128)
    box.npy("x", bits.view(f"V{kind.itemsize}"))
    box.run("create", "data/x", "--from", "x.npy", "--dtype", dtype)
    with box.mount(box.path / "data", spec="batch=10,seed=3", mode=mode) as m:
        for step in (0, 7, 10**12):
            compare(m, step, kind, bits[m.ids(step).astype(int)])


def compare(m, step: int, kind, want: np.ndarray) -> None:
    """In a function of its own: tensors that are left would keep the mount in use."""

    def same(tensor) -> bool:
        assert (tensor.dtype, tuple(tensor.shape)) == (kind, want.shape)
        return np.array_equal(tensor.view(torch.uint8).numpy().view(want.dtype), want)

    assert same(load_file(m / f"x/batch/{step}.safetensors")["data"])
    assert same(load_file(m / f"all/batch/{step}.safetensors")["x"])
    with open(m / f"x/batch/{step}", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    assert same(torch.frombuffer(mapped, dtype=kind).reshape(want.shape))
