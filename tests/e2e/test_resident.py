"""Records that are kept in memory (`--resident`), where there is no udmabuf: the same batches."""

import numpy as np

SPEC = "batch=16,seed=3"


def test_the_batches_are_the_same(box, mode):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (100, 51, 27, 3), dtype=np.uint8)
    pages = rng.integers(0, 2**32, (100, 1024), dtype=np.uint32)
    folder = box.folder("data")
    box.run("create", folder / "images", "--from", box.npy("i", images), "--codec", "zstd")
    box.run("create", folder / "pages", "--from", box.npy("p", pages))
    box.run("create", folder / "labels", "--from", box.npy("l", np.arange(100)))
    with box.mount(folder, "--resident", spec=SPEC, mode=mode) as m:
        for step in (0, 3, 11):
            ids = m.ids(step)
            assert m.read(f"images/batch/{step}") == images[ids].tobytes()
            assert m.read(f"pages/batch/{step}") == pages[ids].tobytes()
            assert m.read(f"labels/batch/{step}") == ids.tobytes()
        assert m.read("images/record/99") == images[99].tobytes()
        assert m.config()["resident"] == {
            "images": {"bytes": 819200, "stride": 8192},
            "pages": {"bytes": 409600, "stride": 4096},
        }
        assert m.metrics()["memory_resident_bytes"] == 819200 + 409600
        (line,) = m.errors().splitlines()
        why = "labels: records of 8 bytes are not kept in memory: each would take 4096"
        assert line.endswith(why)
    with box.mount(folder, spec=SPEC, mode=mode) as m:
        assert m.config()["resident"] == {}
        assert m.metrics()["memory_resident_bytes"] == 0


def test_a_damaged_record_is_found_before_the_mount(box):
    store = box.store("x", np.ones((64, 4096), dtype=np.uint8))
    with open(store / "data-000.npy", "r+b") as file:
        file.seek(4096 + 17)
        file.write(b"\x02")
    said = box.fails("mount", store, box.folder(), "--resident", names=[store, "record 0"])
    assert "checksum" in said


def test_more_than_the_machine_has_is_refused_before_a_byte_is_read(box):
    path = box.path / "huge.npy"
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (1 << 22, 1 << 20))
    del array
    said = box.fails("mount", path, box.folder(), "--resident", names=[path])
    assert "to keep all records in memory takes 4398046511104 bytes" in said
    assert "mount without --resident" in said


def test_memory_for_dma_bufs_is_a_memfd(box, mode):
    store = box.store("x", np.arange(32 * 4096, dtype=np.uint32).reshape(32, 4096))
    with box.mount(store, "--dmabuf", spec="batch=8,mode=sequential", mode=mode) as m:
        assert m.config()["memory_backing"] == "memfd"
        wanted = np.arange(8 * 4096, dtype=np.uint32) + 8 * 4096
        assert m.read("x/batch/1") == wanted.tobytes()
