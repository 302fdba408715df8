"""Memory for batches."""

import gc
import pickle

import numpy as np
import pytest
from batchfs import Allocator, dtypes


def test_size_classes_and_the_pool():
    allocator = Allocator("cpu", 0, pool_size=1024)
    assert allocator.device == (1, 0) and allocator.device_type == "cpu"
    assert (allocator.pool_size, allocator.minimum_size, allocator.device_id) == (1024, 64, 0)
    assert [allocator.size_class(n) for n in (0, 1, 64, 65, 1000)] == [64, 64, 64, 128, 1024]
    assert Allocator("cpu", minimum_size=5000).size_class(1) == 8192
    with allocator.acquire(500) as allocation:
        assert (allocation.size, allocation.device) == (512, (1, 0))
        assert allocation.owner_base_ptr % 16 == 0 and allocator.cached_bytes == 0
    assert allocator.cached_bytes == 512
    with pytest.raises(RuntimeError, match="closed"):
        allocation.view(dtypes.int8, (1,))
    again = allocator.acquire(300)
    assert allocator.cached_bytes == 0, "the kept one is used"
    many = [allocator.acquire(500) for _ in range(5)]
    del again, many, allocation
    gc.collect()
    assert allocator.cached_bytes == 1024, "no more is kept"
    allocator.close()
    assert allocator.cached_bytes == 0
    with pytest.raises(RuntimeError, match="closed"):
        allocator.acquire(1)


@pytest.mark.parametrize("alignment", [1, 16, 64, 128, 4096])
def test_alignment(alignment):
    with Allocator("cpu") as allocator:
        held = [allocator.acquire(100, alignment) for _ in range(10)]
        assert all(a.owner_base_ptr % alignment == 0 and a.alignment >= alignment for a in held)


def test_views_of_an_allocation_keep_it():
    allocator = Allocator("cpu")
    allocation = allocator.acquire(1 << 20)
    tensor = allocation.view(dtypes.float32, (16, 4), offset=64)
    array = np.from_dlpack(tensor)
    allocation.close()
    allocator.close()
    del allocation, allocator, tensor
    gc.collect()
    assert array.shape == (16, 4)
    whole = Allocator("cpu").acquire(64)
    for shape, offset in [((17,), 0), ((16,), 4), ((1,), 64), ((-1,), 0), ((2**62,), 0)]:
        with pytest.raises(ValueError):
            whole.view("float32", shape, offset)
    with pytest.raises(TypeError):
        whole.view("O", (1,))


def test_refusals_and_pickle():
    for args, error in [
        (("gpu",), ValueError),
        (("cpu", 1), ValueError),
        (("amdgpu", -1), ValueError),
        ((1,), TypeError),
    ]:
        with pytest.raises(error):
            Allocator(*args)
    for keys, error in [
        ({"pool_size": -1}, ValueError),
        ({"pool_size": True}, TypeError),
        ({"minimum_size": "1"}, TypeError),
    ]:
        with pytest.raises(error):
            Allocator("cpu", **keys)
    allocator = Allocator("cpu")
    for size, alignment in [(-1, 16), (1, 3), (1, 0), (1, 8192), (2**63, 16)]:
        with pytest.raises((ValueError, MemoryError)):
            allocator.acquire(size, alignment)
    again = pickle.loads(pickle.dumps(Allocator("cpu", pool_size=4096, minimum_size=128)))
    assert (again.pool_size, again.minimum_size) == (4096, 128)
