"""Ragged records, compression, and the faces with names, through the mount and without batchfs."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

RECORDS = 400
CODECS = ["raw", "zstd", "zstd_dict"]


@pytest.fixture(scope="module")
def ragged():
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 40, RECORDS)
    lengths[:3] = [0, 1, 39]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = (rng.integers(0, 9, offsets[-1]) + np.arange(offsets[-1]) // 500).astype(np.int32)
    return values, offsets, [values[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]


def make(box, ragged, codec, *more):
    values, offsets, _ = ragged
    v, o = box.npy("values.npy", values), box.npy("cu.npy", offsets)
    args = ["--from", v, "--offsets", o, "--codec", codec, *more]
    if codec == "zstd_dict":
        box.run("create", box.path / "sample", "--from", v, "--offsets", o)
        box.run("train-dict", box.path / "sample", "-o", box.path / "dict", "--size", "2KiB")
        args += ["--dict", box.path / "dict"]
    box.run("create", box.path / "train" / "text", *args)
    numbers = np.arange(RECORDS, dtype=np.float32) * 3
    n = box.npy("n.npy", numbers)
    dense = "zstd" if codec == "zstd_dict" else codec
    box.run("create", box.path / "train" / "number", "--from", n, "--codec", dense)
    box.run("verify", box.path / "train")
    return box.path / "train", numbers


@pytest.mark.parametrize("codec", CODECS)
def test_every_batch_and_record_is_right(box, ragged, mode, codec):
    source, numbers = make(box, ragged, codec)
    records = ragged[2]
    with box.mount(source, spec="batch=32,seed=1", mode=mode) as m:
        for step in (0, 1, 2, 11, 12, 2**50):
            ids = m.ids(step)
            wanted = [records[i] for i in ids]
            flat = np.concatenate(wanted)
            about = json.loads(m.read(f"text/batch/{step}.json"))
            assert about["layout"] == "ragged" and about["ids"] == ids.tolist()
            bare = m.read(f"text/batch/{step}")
            assert len(bare) == about["nbytes"] == (m / f"text/batch/{step}").stat().st_size
            found = {}
            for a in about["arrays"]:
                assert a["offset"] % 64 == 0
                part = bare[a["offset"] : a["offset"] + a["nbytes"]]
                found[a["name"]] = np.frombuffer(part, a["dtype"]).reshape(a["shape"])
            lengths = [len(r) for r in wanted]
            assert found["values"].tolist() == flat.tolist()
            assert found["cu_seqlens"].tolist() == [0, *np.cumsum(lengths).tolist()]
            assert found["shapes"].tolist() == [[n] for n in lengths]
            tensors = load_file(m / f"text/batch/{step}.safetensors")
            for name in ("values", "cu_seqlens", "shapes"):
                np.testing.assert_array_equal(tensors[name], found[name])
            both = load_file(m / f"all/batch/{step}.safetensors")
            np.testing.assert_array_equal(both["text.values"], flat)
            np.testing.assert_array_equal(both["number"], numbers[ids])
            index = json.loads(m.read(f"all/batch/{step}.json"))
            assert {a["name"] for a in index["arrays"]} >= {"number", "text.values", "text.shapes"}
        for i in (0, 1, 2, 57, RECORDS - 1):
            assert m.read(f"text/record/{i}") == records[i].tobytes()
            assert (m / f"text/record/{i}").stat().st_size == records[i].nbytes
            if i:
                np.testing.assert_array_equal(np.load(m / f"text/record/{i}.npy"), records[i])
        assert not (m / "text/batch/0.npy").exists()
        assert "single array" in m.errors()
        assert not (m / "all/batch/0").exists()


def test_shapes_of_more_axes(box, ragged):
    values = np.arange(24, dtype=np.float64)
    v = box.npy("v.npy", values)
    o = box.npy("o.npy", np.array([0, 6, 6, 24], np.int32))
    s = box.npy("s.npy", np.array([[2, 3], [0, 5], [9, 2]], np.uint64))
    box.run("create", box.path / "s", "--from", v, "--offsets", o, "--shapes", s)
    with box.mount(box.path / "s", spec="batch=3,mode=sequential") as m:
        record = np.load(m / "s/record/2.npy")
        np.testing.assert_array_equal(record, values[6:].reshape(9, 2))
        shapes = load_file(m / "s/batch/0.safetensors")["shapes"]
        assert shapes.tolist() == [[2, 3], [0, 5], [9, 2]]


def test_what_does_not_fit_together_is_refused(box):
    v = box.npy("v.npy", np.arange(10, dtype=np.int32))
    cases = [
        (np.array([1, 10]), "first offset"),
        (np.array([0, 9]), "last offset"),
        (np.array([0, 8, 5, 10]), "record 1"),
        (np.array([0, -2, 10]), "negative"),
        (np.array([0.0, 10.0]), "float64"),
    ]
    for i, (offsets, said) in enumerate(cases):
        o = box.npy(f"o{i}.npy", offsets)
        box.fails("create", box.path / "s", "--from", v, "--offsets", o, names=(said, f"o{i}.npy"))
        assert not (box.path / "s").exists()
    o = box.npy("o.npy", np.array([0, 4, 10]))
    s = box.npy("s.npy", np.array([[2, 2], [2, 2]]))
    args = ["create", box.path / "s", "--from", v, "--offsets", o, "--shapes", s]
    box.fails(*args, names=("record 1", "s.npy"))
    box.fails("create", box.path / "s", "--from", v, "--codec", "lz4", names=("zstd_dict",))


def test_two_mounts_give_the_same_files(box, ragged):
    source, _ = make(box, ragged, "zstd")
    spec = "batch=40,seed=9"
    with box.mount(source, spec=spec) as a, box.mount(source, spec=spec, at="second") as b:
        for step in (0, 3, 10**9):
            name = f"all/batch/{step}.safetensors"
            assert a.read(name) == b.read(name)
