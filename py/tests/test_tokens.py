"""TokenLoader: order, epochs, states, lifetime."""

import gc
import logging
import pickle
import shutil
import subprocess
import sys
import threading
import weakref

import batchfs
import numpy as np
import pyarrow as pa
import pytest
from batchfs import TokenLoader
from test_fork import in_child
from token_files import SETTINGS, SPEC, Expected, dataset, documents, write


@pytest.fixture
def loader(folder, expected):
    with TokenLoader(folder, **SETTINGS) as loader:
        yield loader


def check(batch, expected, step):
    assert batch.step == step
    rows = batch.tokens.numpy()
    assert rows.dtype == np.int32 and np.array_equal(rows, expected.rows(step))
    pieces = [piece for row in expected.pieces(step) for piece in row]
    assert batch.document_ids.numpy().tolist() == [d for d, _, _ in pieces]
    assert batch.document_offsets.numpy().tolist() == [at for _, at, _ in pieces]
    ends = np.cumsum([0] + [n for _, _, n in pieces])
    assert batch.cu_seqlens.numpy().tolist() == ends.tolist()


@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
def test_steps_are_those_of_the_second_implementation(folder, expected, prefetch):
    with TokenLoader(folder, **SETTINGS, prefetch=prefetch) as loader:
        assert loader.spec == SPEC and loader.shape == (6, 16)
        step = 0
        for epoch in range(3):
            assert loader.epoch == epoch and loader.step == loader.first_step(epoch)
            for batch in loader:
                check(batch, expected, step)
                assert batch.epoch == epoch
                step += 1
        total = sum(len(doc) for doc in expected.documents)
        assert loader.epoch_tokens == total and loader.documents == len(expected.documents)
        assert step == -(-3 * total // (6 * 16))
        for far in (10_000_000, 2**42 + 1, 2**64 - 1):
            loader.seek(far)
            check(loader.next(), expected, far)
        for use in (loader.next, loader.checkpoint, lambda: loader.epoch):
            with pytest.raises(RuntimeError, match="no step after"):
                use()
        loader.seek(5)
        check(loader.next(), expected, 5)


def test_an_iteration_that_was_broken_off_goes_on(loader, expected):
    for batch in loader:
        if batch.step == 4:
            break
    assert [batch.step for batch in loader] == list(range(5, loader.first_step(1)))


def test_ranks_joined_are_the_global_step(folder, expected):
    for world in (2, 3, 6):
        ranks = [TokenLoader(folder, **SETTINGS, rank=r, world=world) for r in range(world)]
        for step in (0, 1, 2):
            rows = np.concatenate([loader.next().tokens.numpy() for loader in ranks])
            assert np.array_equal(rows, expected.rows(step))
        states = [loader.checkpoint() for loader in ranks]
        assert batchfs.merge(states) == states[0]
        [loader.close() for loader in ranks]
    for world in (4, 5):
        with pytest.raises(ValueError, match=f"lanes=6.*world={world}"):
            TokenLoader(folder, **SETTINGS, world=world)


def test_tensors_go_everywhere(loader, expected):
    batch = loader.next()
    rows = expected.rows(0)
    assert np.array_equal(np.from_dlpack(batch.tokens), rows)
    table = pa.array(batch.tokens)
    assert table.type == pa.list_(pa.field("item", pa.int32(), nullable=False), 16)
    assert table.to_pylist() == rows.tolist() and len(table) == 6
    flat = table.flatten().to_numpy()
    assert flat.ctypes.data == batch.tokens.numpy().ctypes.data, "no copy"
    for name in ("cu_seqlens", "document_ids", "document_offsets"):
        tensor = getattr(batch, name)
        assert pa.array(tensor).to_pylist() == tensor.numpy().tolist()
    kept = rows.copy()
    del batch, loader
    gc.collect()
    assert table.to_pylist() == kept.tolist() and np.array_equal(flat, kept.ravel())


def test_arrow_arrays_of_any_tensor():
    allocator = batchfs.Allocator("cpu")
    cube = allocator.acquire(4 * 24).view("float32", (2, 3, 4))
    cube.numpy()[:] = np.arange(24).reshape(2, 3, 4)
    assert pa.array(cube).to_pylist() == cube.numpy().tolist()
    assert len(pa.array(allocator.acquire(64).view("int8", (3, 0)))) == 3
    for name in ("bool", "bfloat16", "complex64"):
        with pytest.raises(TypeError, match=name):
            allocator.acquire(64).view(name, (4,)).__arrow_c_array__()
    with pytest.raises(TypeError, match="0-d"):
        cube[0][0][0].__arrow_c_array__()


def test_capsules_are_freed_once(loader, flat):
    tensor = loader.next().tokens

    def use(i):
        capsules = tensor.__arrow_c_array__()
        if i % 2:
            pa.Array._import_from_c_capsule(*capsules)

    flat(use, times=4000)


def test_states_resume_on_any_number_of_ranks(folder, expected, loader):
    for _ in range(9):
        loader.next()
    state = loader.checkpoint()
    # Some steps are made ahead by now; the state knows nothing of them.
    assert pickle.loads(pickle.dumps(state)) == state and isinstance(state, bytes)
    for unit in (b'"unit":"steps of all ranks"', b'"version":1', b'"step":9', b'"column":"tokens"'):
        assert unit in state
    for world in (1, 2, 3):
        for rank in range(world):
            with TokenLoader(folder, **SETTINGS, rank=rank, world=world) as other:
                other.resume(state)
                assert other.step == 9 and other.checkpoint() == state
                got = other.next().tokens.numpy()
                each = 6 // world
                want = expected.rows(9)[rank * each : (rank + 1) * each]
                assert np.array_equal(got, want)


def test_what_is_no_state_is_refused(loader):
    loader.seek(3)
    state = loader.checkpoint()
    for bad in (b"", b"x", state[:-1], state[:40], state + b"\n", state.replace(b"3", b"4", 1)):
        with pytest.raises(ValueError, match="no state"):
            loader.resume(bad)
        with pytest.raises(ValueError, match="no state"):
            loader.resume(bad, force=True)
    newer = state.replace(b'"version":1', b'"version":2')
    with pytest.raises(ValueError, match="version 2.*version 1"):
        loader.resume(newer, force=True)
    with pytest.raises(TypeError):
        loader.resume(None)
    with pytest.raises(ValueError, match="there are none"):
        batchfs.merge([])
    loader.seek(4)
    with pytest.raises(ValueError, match="part 0 is at step 3, part 1 at step 4"):
        batchfs.merge([state, loader.checkpoint()])
    with pytest.raises(ValueError, match="part 1"):
        batchfs.merge([state, b""])
    assert loader.step == 4


@pytest.mark.parametrize(
    "key, value", [("lanes", 12), ("window", 2), ("seq_len", 8), ("seed", 8), ("column", "other")]
)
def test_states_of_other_settings_name_them(tmp_path, key, value, caplog):
    docs = documents(1, 80)
    table = {"tokens": docs, "other": docs[::-1]}
    data = tmp_path / "x.parquet"
    columns = {name: pa.array(part, pa.list_(pa.int32())) for name, part in table.items()}
    pa.parquet.write_table(pa.table(columns), data, row_group_size=10)
    with TokenLoader(data, **SETTINGS) as loader:
        loader.seek(10)
        state = loader.checkpoint()
    with TokenLoader(data, **{**SETTINGS, key: value}) as loader:
        with pytest.raises(ValueError, match=rf"\b{key}\b.*force=True") as refused:
            loader.resume(state)
        others = {"lanes", "window", "seq_len", "seed", "column"} - {key}
        assert not any(f"{other} is" in str(refused.value) for other in others)
        assert loader.step == 0
        with caplog.at_level(logging.WARNING, logger="batchfs"):
            loader.resume(state, force=True)
        assert loader.step == 10
        [told] = caplog.records
        assert key in told.getMessage() and "10" in told.getMessage()


def rewritten(folder):
    write(folder / "2.parquet", documents(2, 80, first=160), group=40)


CHANGES = {
    "added": (lambda f: write(f / "25.parquet", documents(9, 20)), "25.parquet is new"),
    "removed": (lambda f: (f / "1.parquet").unlink(), "1.parquet is gone"),
    "renamed": (
        lambda f: (f / "0.parquet").rename(f / "9.parquet"),
        "0.parquet is gone, 9.parquet",
    ),
    "other row groups": (rewritten, "2.parquet was written anew"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_states_of_data_that_changed_name_the_file(tmp_path, change, caplog):
    folder = tmp_path / "data"
    dataset(folder)
    with TokenLoader(folder, **SETTINGS) as loader:
        loader.seek(10)
        state = loader.checkpoint()
    # Where it lies is no change, nor is when it was written.
    shutil.copytree(folder, tmp_path / "elsewhere")
    with TokenLoader(tmp_path / "elsewhere", **SETTINGS) as loader:
        loader.resume(state)
        assert loader.step == 10
    with TokenLoader(f"file://{tmp_path}/elsewhere", **SETTINGS) as loader:
        loader.resume(state)
    work, said = CHANGES[change]
    work(folder)
    with TokenLoader(folder, **SETTINGS) as loader:
        with pytest.raises(ValueError, match=said):
            loader.resume(state)
        with caplog.at_level(logging.WARNING, logger="batchfs"):
            loader.resume(state, force=True)
        assert loader.step == 10 and said in caplog.text


def test_errors_leave_nothing_out(tmp_path):
    folder = tmp_path / "data"
    groups = dataset(folder)
    expected = Expected(SPEC, groups)
    loader = TokenLoader(folder, **SETTINGS)
    loader.next()
    hidden = tmp_path / "hidden"
    folder.rename(hidden)
    with pytest.raises(OSError) as gone:
        for _ in range(1000):
            loader.next()
    assert isinstance(gone.value, FileNotFoundError) and "parquet" in str(gone.value)
    step = loader.step
    with pytest.raises(FileNotFoundError):
        loader.next()
    assert loader.step == step and 0 < step
    hidden.rename(folder)
    check(loader.next(), expected, step)
    loader.close()


def test_damage_is_a_store_error(tmp_path):
    path = tmp_path / "x.parquet"
    write(path, documents(1, 200), group=200, write_page_checksum=True, compression="none")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0x10
    path.write_bytes(raw)
    with TokenLoader(path, **SETTINGS) as loader:
        with pytest.raises(batchfs.StoreError, match="row group 0") as bad:
            loader.next()
        assert bad.value.path == path


def test_settings_that_do_not_fit(tmp_path, folder, expected):
    def refused(kind, match, uri=folder, **more):
        with pytest.raises(kind, match=match):
            TokenLoader(uri, **{**SETTINGS, **more})

    refused(ValueError, "fewer lanes", lanes=60_000)
    refused(ValueError, "budget is 1000;.*budget=", budget=1000)
    refused(ValueError, "lanes=0", lanes=0)
    refused(ValueError, "rank=3", rank=3, world=2)
    refused(TypeError, "lanes", lanes="x")
    refused(TypeError, "lanes", lanes=True)
    refused(batchfs.StoreError, "no column", column="text")
    refused(FileNotFoundError, "nowhere", uri=tmp_path / "nowhere")
    refused(batchfs.StoreError, ".parquet", uri=tmp_path)
    refused(TypeError, "'k' does not", storage_options={"k": 3})
    with pytest.raises(TypeError):
        TokenLoader(folder, 3)


def test_secrets_are_not_shown(caplog):
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY="
    options = {
        "endpoint": "http://127.0.0.1:1",
        "access_key_id": "AKIDEXAMPLE1234567",
        "secret_access_key": secret,
    }
    with pytest.raises(OSError) as failed:
        TokenLoader("s3://bucket/data", **SETTINGS, storage_options=options)
    assert secret not in repr(failed.value) and "AKID" not in repr(failed.value)
    with pytest.raises(batchfs.StoreError) as failed:
        TokenLoader("s3://user:hunter22@bucket/data", **SETTINGS)
    assert "hunter22" not in repr(failed.value) and secret not in caplog.text


def test_repr_and_pickle(loader, folder):
    loader.next()
    assert repr(loader) == f"TokenLoader({str(folder)!r}, {SPEC!r}, step=1)"
    assert repr(loader.next()) == "TokenBatch(step=1, epoch=0, tokens=(6, 16))"
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(loader)


def test_it_ends_its_threads(folder, expected):
    before = threading.active_count()
    loader = TokenLoader(folder, **SETTINGS)
    loader.next()
    assert threading.active_count() == before + 1
    loader.close()
    loader.close()
    assert threading.active_count() == before
    for use in (loader.next, lambda: loader.seek(3), lambda: next(iter(loader))):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    assert loader.checkpoint() and loader.step == 1
    other = TokenLoader(folder, **SETTINGS)
    batch, gone = other.next(), weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None and threading.active_count() == before
    check(batch, expected, 0)


def test_nothing_grows(folder, expected, flat):
    def use(i):
        with TokenLoader(folder, **SETTINGS) as loader:
            loader.next()

    flat(use, times=200, grows=16 << 20)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_in_a_forked_child_it_raises_at_once(folder, expected, prefetch):
    loader = TokenLoader(folder, **SETTINGS, prefetch=prefetch)
    loader.next()

    def child():
        for use in (loader.next, lambda: loader.seek(3), lambda: loader.figures):
            with pytest.raises(RuntimeError, match="fork"):
                use()
        assert loader.epoch == 0 and loader.checkpoint()
        loader.close()
        with TokenLoader(folder, **SETTINGS) as fresh:
            check(fresh.next(), expected, 0)

    for _ in range(20):
        assert in_child(child) == 0
        loader.next()
    check(loader.next(), expected, 21)
    loader.close()


def test_forgotten_in_a_child_it_does_not_hang(folder, expected):
    code = f"""
import os, batchfs
loader = batchfs.TokenLoader({str(folder)!r}, lanes=6, window=3, seq_len=16)
for step in range(30):
    loader.next()
    pid = os.fork()
    if pid == 0:
        del loader
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_wide_column(tmp_path):
    path = tmp_path / "x.parquet"
    write(path, [[2**31, 2**32 - 1] * 8], kind=pa.uint32())
    with TokenLoader(path, lanes=1, window=1, seq_len=16, out="uint32") as loader:
        rows = loader.next().tokens
        assert rows.dtype == np.uint32 and rows.numpy().tolist() == [[2**31, 2**32 - 1] * 8]
    with TokenLoader(path, lanes=1, window=1, seq_len=16) as loader:
        rows = loader.next().tokens
        assert rows.dtype == np.int32 and rows.numpy().tolist() == [[-(2**31), -1] * 8]
    with pytest.raises(ValueError, match="'int32' or 'uint32'"):
        TokenLoader(path, lanes=1, window=1, seq_len=16, out="int64")


def test_figures(folder, expected):
    with TokenLoader(folder, **SETTINGS, budget=1 << 30) as loader:
        list(loader)
        list(loader)
        figures = loader.figures
        assert figures["row_groups_decoded"] == 16 and figures["budget_limit_bytes"] == 1 << 30
        assert figures["received_bytes"] > 0 and figures["row_group_hits"] > 16


def test_mixtures(tmp_path):
    places = {"a": tmp_path / "a", "b": tmp_path / "b"}
    for number, place in enumerate(places.values()):
        write(place / "x.parquet", documents(number, 300, first=1000 * number))
    mix = {"a": 0.75, "b": "0.25"}
    with TokenLoader(places, mix=mix, **SETTINGS) as whole:
        seen = {"a": 0, "b": 0}
        for _ in range(40):
            batch = whole.next()
            rows = batch.tokens.numpy()
            # Documents of b begin behind those of a, and their tokens from ten millions on.
            of_b = rows[:, 0] >= 10_000_000
            assert ((rows >= 10_000_000) == of_b[:, None]).all()
            firsts = batch.document_ids.numpy()[
                np.searchsorted(batch.cu_seqlens.numpy(), np.arange(6) * 16)
            ]
            assert ((firsts >= 300) == of_b).all()
            seen["b"] += int(of_b.sum())
            seen["a"] += int((~of_b).sum())
        assert abs(seen["a"] - 180) <= 6, seen
        whole.seek(7)
        want, state = whole.next().tokens.numpy().copy(), whole.checkpoint()
    for rank in range(3):
        with TokenLoader(places, mix=mix, **SETTINGS, rank=rank, world=3) as part:
            part.resume(state)
            part.seek(7)
            assert np.array_equal(part.next().tokens.numpy(), want[2 * rank : 2 * rank + 2])
    with TokenLoader(places, mix={"a": 0.5, "b": 0.5}, **SETTINGS) as other:
        with pytest.raises(ValueError, match="the mix is .* in the state and"):
            other.resume(state)
    write(places["b"] / "y.parquet", documents(5, 30))
    with TokenLoader(places, mix=mix, **SETTINGS) as other:
        with pytest.raises(ValueError, match="b/y.parquet is new"):
            other.resume(state)
    for bad in ({"a": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": -1}):
        with pytest.raises(ValueError):
            TokenLoader(places, mix=bad, **SETTINGS)
    for args in ((places, None), (places["a"], mix)):
        with pytest.raises(TypeError, match="mixture"):
            TokenLoader(args[0], mix=args[1], **SETTINGS)


def test_weights_are_any_decimals(tmp_path):
    places = {"a": tmp_path / "a", "b": tmp_path / "b"}
    for number, place in enumerate(places.values()):
        write(place / "x.parquet", documents(number, 300))
    for mix, told in (
        ({"a": 1e-05, "b": 1.0}, "a=1,b=100000"),
        ({"a": np.float64(0.5), "b": 1}, "a=1,b=2"),
        ({"a": 250000000.0, "b": "0.5"}, "a=500000000,b=1"),
    ):
        if told.endswith("b=1"):
            with pytest.raises(ValueError, match="weight of b is too small"):
                TokenLoader(places, mix=mix, **SETTINGS)
            continue
        with TokenLoader(places, mix=mix, **SETTINGS) as loader:
            assert f'"mix":"{told}"' in loader.checkpoint().decode()
    for weight in (1 / 3, float("nan"), float("inf"), -0.5, 0.0, True):
        with pytest.raises(ValueError, match="no weight"):
            TokenLoader(places, mix={"a": weight, "b": 1}, **SETTINGS)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_threads_share_a_loader(folder, expected, prefetch):
    with TokenLoader(folder, **SETTINGS, prefetch=prefetch) as loader:
        seen, lock = [], threading.Lock()

        def take():
            for _ in range(25):
                batch = loader.next()
                with lock:
                    seen.append(batch)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for step, batch in enumerate(sorted(seen, key=lambda batch: batch.step)):
            check(batch, expected, step)
        assert loader.step == len(seen) == 100
        state = loader.checkpoint()
        check(loader.next(), expected, 100)
        loader.resume(state)
        check(loader.next(), expected, 100)


def test_nothing_is_made_ahead_unless_it_is_wanted(folder, expected):
    with TokenLoader(folder, **SETTINGS, prefetch=0) as loader:
        assert loader.figures["row_groups_decoded"] == 0
        check(loader.next(), expected, 0)
        assert loader._pipeline.undelivered == 0


def test_a_state_is_bytes(loader):
    state = loader.checkpoint()
    loader.next()
    for same in (bytearray(state), memoryview(state)):
        loader.resume(same)
        assert loader.step == 0 and batchfs.merge([same]) == state
    for wrong in (5, 1 << 62, None, [1], "text"):
        for use in (loader.resume, lambda state: batchfs.merge([state])):
            with pytest.raises(TypeError):
                use(wrong)
