"""The door through a mount, of tokens."""

import pickle

import batchfs
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from token_files import SPEC

pytestmark = pytest.mark.usefixtures("fuse")


@pytest.fixture(scope="module")
def data(folder, expected):
    return folder, expected


@pytest.fixture(scope="module", params=[False, True], ids=["best", "cached"])
def mounted(request, data):
    with batchfs.mount(data[0], spec=SPEC, cached=request.param) as ds:
        yield ds


def test_steps_are_those_of_the_loader(mounted, data):
    folder, expected = data
    with batchfs.TokenLoader(folder, lanes=6, window=3, seq_len=16, seed=7) as loader:
        for step in (0, 5, loader.first_step(1) - 1, loader.first_step(1), 10**9):
            loader.seek(step)
            want, got = loader.next(), mounted.batch(step)
            rows = got["tokens"].numpy()
            assert rows.dtype == np.int32 and np.array_equal(rows, expected.rows(step))
            assert np.array_equal(rows, want.tokens.numpy())
            assert np.array_equal(got.tokens.numpy(), rows)
            assert got.epoch == want.epoch and got.step == step
            for name in ("cu_seqlens", "document_ids", "document_offsets"):
                mine, other = getattr(got, name), getattr(want, name)
                assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
                assert np.array_equal(mine.numpy(), other.numpy()), name
        assert mounted.steps_per_cycle == loader.first_step(1)
        assert mounted.local_batch == 6 and mounted.spec == SPEC


def test_documents_are_records(mounted, data):
    documents = data[1].documents
    assert len(mounted) == len(documents) and list(mounted) == ["tokens"]
    for number in (0, 7, len(documents) - 1):
        assert mounted["tokens"].record[number].numpy().tolist() == documents[number]
    empty = documents.index([])
    assert mounted["tokens"].record[empty].shape == (0,)


def test_views_and_copies(mounted, data):
    view = mounted.view(lanes=6, window=3, seq_len=16, seed=7, rank=1, world=3)
    assert view.local_batch == 2 and view.steps_per_cycle == mounted.steps_per_cycle
    for ds in (view, pickle.loads(pickle.dumps(view))):
        assert np.array_equal(ds.batch(4)["tokens"].numpy(), data[1].rows(4)[2:4])
        assert ds.batch(4).cu_seqlens.numpy()[-1] == 32
    wide = mounted.view("lanes=2,seq_len=64,window=2")
    assert wide["tokens"].batch[1].shape == (2, 64)
    with pytest.raises(ValueError, match="batch"):
        mounted.view(batch=3)


def test_the_index_has_the_pieces(mounted):
    batch, pieces = mounted.batch(3), mounted.index(3)
    assert pieces.dtype == np.int64
    assert pieces[:, 0].tolist() == batch.document_ids.numpy().tolist()
    assert pieces[:, 1].tolist() == batch.document_offsets.numpy().tolist()
    assert pieces[:, 2].tolist() == np.diff(batch.cu_seqlens.numpy()).tolist()


def test_columns_budgets_and_mixtures(tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHFS_CACHE_DIR", str(tmp_path / "cache"))
    settings = {"lanes": 4, "window": 2, "seq_len": 8}
    places = {}
    for number, name in enumerate("ab"):
        docs = [[number * 1000 + i] * 20 for i in range(40)]
        ids = pa.array(docs, pa.list_(pa.int32()))
        places[name] = tmp_path / f"{name}, x.parquet"
        pa.parquet.write_table(pa.table({"ids": ids}), places[name], row_group_size=10)
    with batchfs.TokenLoader(places["a"], column="ids", **settings) as loader:
        want = loader.next().tokens.numpy()
    with batchfs.mount(places["a"], column="ids", budget=1 << 20, **settings) as ds:
        assert np.array_equal(ds["tokens"].batch[0].numpy(), want)
    with pytest.raises(OSError, match="the budget is 10"):
        batchfs.mount(places["a"], column="ids", budget=10, **settings).__enter__()
    mix = {"a": 0.75, "b": 0.25}
    with batchfs.TokenLoader(places, mix=mix, column="ids", **settings) as loader:
        want = [loader.next().tokens.numpy() for _ in range(4)]
    with batchfs.mount(places, mix=mix, column="ids", **settings) as ds:
        for step, rows in enumerate(want):
            assert np.array_equal(ds["tokens"].batch[step].numpy(), rows)
    with pytest.raises(TypeError, match="mixture"):
        batchfs.mount(places, column="ids", **settings)


def test_tokens_without_a_sign(mounted):
    spec = "lanes=6,window=3,seq_len=16,out=uint32"
    rows = mounted.view(spec).batch(2).tokens
    assert rows.dtype == np.uint32
    same = mounted.view(spec.removesuffix(",out=uint32")).batch(2).tokens.numpy()
    assert np.array_equal(rows.numpy(), same.view(np.uint32))


def test_what_there_is_not(mounted):
    narrow = mounted.view("lanes=6,window=3,seq_len=16,pieces=1")
    assert narrow.batch(0).tokens.shape == (6, 16)
    with pytest.raises(OSError, match="pieces="):
        _ = narrow.batch(0).cu_seqlens
