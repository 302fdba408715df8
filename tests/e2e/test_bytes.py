"""Bytes through the mount are those of the source, whoever reads them and however."""

import json

import numpy as np


def test_every_stream_and_face(box, data, arrays, mode):
    with box.mount(data, spec="batch=32,seed=5", mode=mode) as m:
        for step in (0, 1, 7, 30, 31, 10_000):
            ids = m.ids(step)
            assert np.array_equal(np.load(m / f"index/{step}.npy", mmap_mode="r"), ids)
            assert ids.shape == (32,) and ids.max() < 1000
            for name, source in arrays.items():
                bare = m / f"{name}/batch/{step}"
                wanted = source[ids]
                assert bare.read_bytes() == wanted.tobytes()
                mapped = np.memmap(bare, source.dtype, "r", shape=wanted.shape)
                assert np.array_equal(mapped, wanted)
                assert np.array_equal(np.fromfile(bare, source.dtype), wanted.ravel())
                loaded = np.load(m / f"{name}/batch/{step}.npy", mmap_mode="r")
                assert loaded.dtype == source.dtype and np.array_equal(loaded, wanted)
                assert loaded.offset % 4096 == 0
                told = json.loads(m.read(f"{name}/batch/{step}.json"))
                assert told["ids"] == ids.tolist() and told["step"] == step
                [array] = told["arrays"]
                assert array["shape"] == list(wanted.shape)
                assert array["dtype"] == source.dtype.name
                assert (array["offset"], array["nbytes"]) == (0, wanted.nbytes)
                assert told["nbytes"] == wanted.nbytes == bare.stat().st_size
