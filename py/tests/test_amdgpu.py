"""Tensors of AMD's GPUs, against a stand-in for the runtime and its render node."""

import os
import re
from pathlib import Path

import pytest
from standin import build, run

__all__ = ["build"]


@pytest.fixture
def gpu(build):
    """The environment of a program that has the stand-in."""

    def made(*flags, **env):
        name = "-".join(["libamdhip64", *(f.strip("-D=") for f in flags)]) + ".so"
        path = build(name, *flags)
        return {"BATCHFS_HIP_LIBRARY": path, "BATCHFS_RENDER_NODE": "stand-in", **env}

    return made


def test_batches_are_delivered_to_the_device(gpu, data):
    run(
        """
        root = sys.argv[1]
        with DenseStore(root + "/images") as store, Allocator("amdgpu", 1) as memory:
            assert memory.device == (10, 1) and memory.device_type == "amdgpu"
            assert memory.device_id == 1 and "stand-in" in memory.node
            assert repr(memory) == "Allocator('amdgpu', 1, pool_size=268435456)"
            view = store.bind(memory)
            assert view.device == (10, 1)
            with Allocator("cpu") as cpu:
                want = store.bind(cpu)[:].numpy().copy()
            batch = view[[7, 3, 3, 499]]
            assert batch.device == batch.__dlpack_device__() == (10, 1)
            assert np.array_equal(on_device(batch), want[[7, 3, 3, 499]])
            assert np.array_equal(on_device(batch[1]), want[3])
            assert np.array_equal(on_device(batch[1:3]), want[[3, 3]])
            assert np.array_equal(on_device(view[5]), want[5])
            assert np.array_equal(batch.numpy(), want[[7, 3, 3, 499]]), "the processor sees it, too"
            host = np.from_dlpack(type("Host", (), {
                "__dlpack_device__": lambda self: (1, 0),
                "__dlpack__": lambda self, **k: batch.__dlpack__(dl_device=(1, 0)),
            })())
            assert np.array_equal(host, want[[7, 3, 3, 499]])
        print("ok")
        """,
        data,
        env=gpu(),
    )


def test_a_loader_with_dense_and_ragged_streams(gpu, data):
    run(
        """
        root = sys.argv[1]
        with DenseStore(root + "/labels") as labels, RaggedStore(root + "/boxes") as boxes:
            def batches(memory, workers):
                streams = {"labels": [labels.bind(memory)], "boxes": [boxes.bind(memory)]}
                sampler = Sampler(len(labels), 50, seed=4)
                with Loader(streams, sampler, workers=workers, prefetch=3) as loader:
                    for _ in range(12):
                        yield next(loader)[0]
            cpu, gpu = Allocator("cpu"), Allocator("amdgpu", 0)
            for workers in (0, 2):
                for want, got in zip(batches(cpu, 0), batches(gpu, workers)):
                    assert np.array_equal(on_device(got["labels"]), want["labels"].numpy())
                    for name in ("values", "cu_seqlens", "shapes"):
                        tensor = getattr(got["boxes"], name)
                        assert tensor.device == (10, 0)
                        expected = getattr(want["boxes"], name).numpy()
                        assert np.array_equal(on_device(tensor), expected)
                    records = got["boxes"].to_tensors()
                    assert all(r.device == (10, 0) for r in records)
                    for r, w in zip(records, want["boxes"].to_tensors()):
                        assert np.array_equal(on_device(r), w.numpy())
        """,
        data,
        env=gpu(),
    )


@pytest.mark.parametrize("owns", [False, True])
def test_everything_is_given_back(gpu, data, owns):
    """Mappings, imports, descriptors; also if the runtime takes the descriptor for its own."""
    env = gpu(**({"STANDIN_HIP_OWNS_FD": 1} if owns else {}))
    run(
        """
        with DenseStore(sys.argv[1] + "/images") as store:
            def fds(): return len(os.listdir("/proc/self/fd"))
            memory = Allocator("amdgpu", 0, pool_size=0)
            view = store.bind(memory)
            view[0]
            before = fds()
            held = [view[i : i + 40] for i in range(20)]
            assert counts()["imports"] == counts()["mappings"] == 20
            capsules = [t.__dlpack__() for t in held]
            want = [t.numpy().copy() for t in held]
            memory.close(); store.close(); del memory, view
            assert all(np.array_equal(on_device(t), w) for t, w in zip(held, want))
            del held; gc.collect()
            assert counts()["imports"] == 20, "a capsule holds what it is of"
            del capsules; gc.collect()
            assert counts()["imports"] == counts()["mappings"] == 0
            assert fds() == before, (fds(), before)
        with DenseStore(sys.argv[1] + "/images") as store:
            kept = Allocator("amdgpu", 0, pool_size=1 << 20)
            view = store.bind(kept)
            for i in range(2000):
                view[i % 400 : i % 400 + 30]
            assert counts()["imports"] == 1 and kept.cached_bytes == 8192
            assert kept.size_class(1) == 4096
            kept.close()
            assert counts()["imports"] == 0 and kept.cached_bytes == 0
        """,
        data,
        env=env,
    )


def test_memory_is_not_filled_again_before_the_device_is_done_with_it(gpu, data):
    """A tensor is dropped when its work is queued, and not when that is done."""
    run(
        """
        def sum_of(array):
            total = 0
            for b in array.reshape(-1).view(np.uint8).tolist():
                total = (total * 31 + b) % 2**64
            return total
        with DenseStore(sys.argv[1] + "/labels") as store, Allocator("amdgpu", 0) as memory:
            view = store.bind(memory)
            for i in range(20):
                tensor = view[i : i + 40]
                want, at = sum_of(tensor.numpy()), seen(tensor.__dlpack__()).data
                waits = counts()["waits"]
                library().standin_launch_sum(ctypes.c_void_p(at), ctypes.c_size_t(tensor.nbytes))
                del tensor; gc.collect()
                again = view[100 + i : 140 + i]
                assert seen(again.__dlpack__()).data == at, "the same memory"
                assert library().standin_result() == want, "the work saw the old bytes"
                assert counts()["waits"] == waits + 1
                del again; gc.collect()
            # One wait serves all that came back before it.
            held = [view[i : i + 40] for i in range(8)]
            del held; gc.collect()
            waits = counts()["waits"]
            held = [view[i : i + 40] for i in range(8)]
            assert counts()["waits"] == waits + 1
        """,
        data,
        env=gpu(),
    )


WAYS = {
    "through a dma-buf": ((), {}, "exported"),
    "by a copy, without the symbol": (("-DNO_EXPORT",), {}, "hipMemcpy"),
    "by a copy, out of a fragment": ((), {"STANDIN_HIP_FRAGMENT": 1}, "hipMemcpy"),
}


@pytest.mark.parametrize("way", WAYS)
def test_tensors_of_the_device_are_appended(gpu, tmp_path, way):
    flags, more, told = WAYS[way]
    log = tmp_path / "log"
    run(
        """
        root = sys.argv[1]
        random = np.random.default_rng(1)
        dense = random.integers(0, 256, (50, 3, 7), np.uint8)
        values = random.random(60).astype(np.float32)
        cu = np.array([0, 10, 10, 60], np.int32)
        shapes = np.array([[10], [0], [50]], np.uint64)
        with DenseWriter(root + "/d", np.uint8, (3, 7), codec="raw") as w:
            w.append(GpuArray(dense[:20]))
            w.append(GpuArray(dense[20:40], device=1))
            w.append(GpuArray(dense[40:], old=True))
        assert GpuArray.streams == [0, 0, "none"], GpuArray.streams
        with RaggedWriter(root + "/r", np.float32, 1, codec="zstd") as w:
            w.append(RaggedBatch(GpuArray(values), GpuArray(cu), GpuArray(shapes)))
        with DenseStore(root + "/d") as d, RaggedStore(root + "/r") as r:
            cpu, memory = Allocator("cpu"), Allocator("amdgpu", 0)
            assert np.array_equal(d.bind(cpu)[:].numpy(), dense)
            assert np.array_equal(r.bind(cpu)[:].values.numpy(), values)
            # And what was delivered goes back, with what the device has made of it.
            batch = d.bind(memory)[:]
            at = seen(batch.__dlpack__()).data
            library().standin_launch_fill(ctypes.c_void_p(at), ctypes.c_size_t(21), 9)
            with DenseWriter(root + "/e", np.uint8, (3, 7), codec="raw") as w:
                w.append(batch)
        with DenseStore(root + "/e") as e:
            got = e.bind(cpu)[:].numpy()
            assert (got[0] == 9).all() and np.array_equal(got[1:], dense[1:])
        for strided in (GpuArray(dense),):
            strided.array = strided.array.transpose(1, 0, 2)
            try:
                DenseWriter(root + "/no", np.uint8, (50, 7), codec="raw").append(strided)
            except ValueError as e:
                assert "C-contiguous" in str(e)
            else:
                raise AssertionError("taken")
        """,
        tmp_path,
        env=gpu(*flags, STANDIN_HIP_LOG=log, **more),
    )
    lines = set(log.read_text().splitlines()) & {"exported", "hipMemcpy"}
    assert told in lines
    assert (lines == {told}) or way.endswith("fragment")


def test_a_runtime_that_can_neither_export_nor_copy(gpu, tmp_path):
    said = run(
        """
        writer = DenseWriter(sys.argv[1] + "/d", np.uint8, (4,), codec="raw")
        array = GpuArray(np.zeros((2, 4), np.uint8))
        try:
            writer.append(array)
        except RuntimeError as e:
            print(e)
        assert counts()["last_error"] == 0, "nobody else finds our errors"
        with DenseWriter(sys.argv[1] + "/e", np.uint8, (4,), codec="raw") as writer:
            writer.append(array.array)
        assert Allocator("amdgpu").acquire(100).size == 4096, "all else works"
        """,
        tmp_path,
        env=gpu("-DBARE"),
    )
    assert ".cpu()" in said and "hipMemcpy" in said and "8 bytes on HIP device 0" in said, said


def test_dlpack_requests(gpu, data):
    run(
        """
        with DenseStore(sys.argv[1] + "/images") as store:
            tensor = store.bind(Allocator("amdgpu", 0))[:4]
            def refused(**request):
                try:
                    tensor.__dlpack__(**request)
                except BufferError as e:
                    return str(e)
                raise AssertionError(request)
            for stream in (None, 0, -1, 12345678):
                seen(tensor.__dlpack__(stream=stream))
            assert "streams 1 and 2" in refused(stream=1) and refused(stream=2)
            assert "(2, 0)" in refused(dl_device=(2, 0)) and refused(dl_device=(10, 1))
            assert "dl_device=(1, 0)" in refused(copy=True)
            own = seen(tensor.__dlpack__(dl_device=(10, 0), copy=False))
            assert (own.kind, own.id) == (10, 0)
            host = seen(tensor.__dlpack__(dl_device=(1, 0)))
            assert (host.kind, host.id) == (1, 0) and host.data == tensor._address != own.data
            copied = seen(tensor.__dlpack__(dl_device=(1, 0), copy=True))
            assert copied.kind == 1 and copied.data != host.data
            try:
                np.from_dlpack(tensor)
            except (BufferError, RuntimeError, ValueError) as e:
                print("ok")
            else:
                raise AssertionError("a consumer for the processor took a tensor of the device")
        """,
        data,
        env=gpu(),
    )


def test_allocations(gpu):
    run(
        """
        import pickle
        memory = Allocator("amdgpu", 1, pool_size=1 << 16, minimum_size=10_000)
        with memory.acquire(5, alignment=4096) as a:
            assert a.size == 16384 and a.device == (10, 1) and a.alignment == 4096
            assert a.device_pointer not in (0, a.owner_base_ptr)
            tensor = a.view("int32", (5, 2), offset=8)
            tensor.numpy()[:] = np.arange(10).reshape(5, 2)
            assert np.array_equal(on_device(tensor), np.arange(10).reshape(5, 2))
        again = pickle.loads(pickle.dumps(memory))
        assert again.device == (10, 1) and again.pool_size == 1 << 16
        for args, error, words in [
            (("amdgpu", 2), RuntimeError, ["no HIP device 2", "sees 2"]),
            (("amdgpu", -1), ValueError, ["-1"]),
        ]:
            try:
                Allocator(*args)
            except error as e:
                assert all(w in str(e) for w in words), e
            else:
                raise AssertionError(args)
        """,
        env=gpu(),
    )


def test_foreign_memory_is_refused(build):
    """Without the stand-in's node there is none for the device, and no other memory is taken."""
    said = run(
        """
        try:
            Allocator("amdgpu", 1)
        except RuntimeError as e:
            print(e)
        assert Allocator("cpu").acquire(1), "the processor's is not concerned"
        """,
        env={"BATCHFS_HIP_LIBRARY": build("libamdhip64.so")},
    )
    assert said.startswith("HIP device 1 at 0000:c1:00.0 has no render node of amdgpu here"), said
    missing = "/dev/dri/renderD999"
    said = run(
        "try: Allocator('amdgpu')\nexcept RuntimeError as e: print(e)",
        env={"BATCHFS_HIP_LIBRARY": build("libamdhip64.so"), "BATCHFS_RENDER_NODE": missing},
    )
    assert missing in said and "--device" in said, said


def test_after_a_fork(gpu, data):
    run(
        """
        with DenseStore(sys.argv[1] + "/images") as store:
            memory = Allocator("amdgpu", 0)
            view = store.bind(memory)
            kept = view[:8]; view[:8]
            want = kept.numpy().copy()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    view[:8]
                except RuntimeError as e:
                    code = 0 if "fork" in str(e) and "spawn" in str(e) else 2
                del kept; gc.collect()
                assert store.bind(Allocator("cpu"))[3].numpy().shape == (3, 8, 8)
                os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            assert np.array_equal(on_device(kept), want), "the parent's is as it was"
            assert np.array_equal(on_device(view[:8]), want)
        """,
        data,
        env=gpu(),
    )


# Which runtime is taken: case 56.

ASK = "try: print(Allocator('amdgpu').device)\nexcept RuntimeError as e: print(e)"


def place(build, folder: Path, name: str, *flags) -> Path:
    """The stand-in, under a name of its own, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = build(str(folder.relative_to(folder.parents[1])) + "/" + name, *flags)
    target = folder / name
    target.write_bytes(made.read_bytes())
    return target


@pytest.fixture
def fakes(build, tmp_path):
    return {
        "wheel": place(build, tmp_path / "site/torch/lib", "libamdhip64.so"),
        "sdk": place(build, tmp_path / "sdk/_rocm_sdk_core/lib", "libamdhip64.so.7"),
        "rocm": place(build, tmp_path / "rocm/lib", "libamdhip64.so.6"),
        "loader": place(build, tmp_path / "loader", "libamdhip64.so.5"),
    }


def asked(fakes, *on_path: str, code: str = ASK, log: Path, **env) -> tuple[str, list[str]]:
    roots = {"wheel": fakes["wheel"].parents[2], "sdk": fakes["sdk"].parents[2]}
    path = os.pathsep.join(str(roots[name]) for name in on_path)
    log.unlink(missing_ok=True)
    given = {"PYTHONPATH": path, "STANDIN_HIP_LOG": log, "BATCHFS_RENDER_NODE": "stand-in", **env}
    given["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), path])
    said = run(code, env=given)
    loaded = log.read_text().splitlines() if log.exists() else []
    return said, [line.split()[1] for line in loaded if line.startswith("loaded")]


def test_one_runtime_is_loaded_and_only_when_it_is_asked_for(fakes, tmp_path):
    log = tmp_path / "log"
    for on_path, env, want in [
        (("wheel",), {}, "torch/lib/libamdhip64.so"),
        (("sdk",), {}, "_rocm_sdk_core/lib/libamdhip64.so.7"),
        ((), {"ROCM_PATH": fakes["rocm"].parents[1]}, "rocm/lib/libamdhip64.so.6"),
        ((), {"LD_LIBRARY_PATH": fakes["loader"].parent}, "loader/libamdhip64.so.5"),
        (("wheel", "sdk"), {"BATCHFS_HIP_LIBRARY": fakes["sdk"]}, "_rocm_sdk_core"),
    ]:
        said, loaded = asked(fakes, *on_path, log=log, **env)
        assert said == "(10, 0)" and len(loaded) == 1 and want in loaded[0], (said, loaded)
    everything = "import batchfs, batchfs.store, batchfs.sampler, batchfs.loader; Allocator('cpu')"
    _, loaded = asked(fakes, "wheel", "sdk", code=everything, log=log)
    assert loaded == [], "importing loads none"


def test_what_is_loaded_already_wins(fakes, tmp_path):
    first = f"ctypes.CDLL({str(fakes['rocm'])!r})\n"
    said, loaded = asked(fakes, "wheel", "sdk", code=first + ASK, log=tmp_path / "log")
    assert said == "(10, 0)" and len(loaded) == 1 and "rocm/lib" in loaded[0], (said, loaded)
    # Two that are there already, and an override that comes too late.
    both = first + f"ctypes.CDLL({str(fakes['loader'])!r})\n"
    said, _ = asked(fakes, code=both + ASK, log=tmp_path / "log")
    assert "2 different HIP runtimes" in said and str(fakes["loader"]) in said, said
    late = {"BATCHFS_HIP_LIBRARY": fakes["sdk"]}
    said, loaded = asked(fakes, code=first + ASK, log=tmp_path / "log", **late)
    assert str(fakes["sdk"]) in said and str(fakes["rocm"]) in said and len(loaded) == 1, said


def test_two_runtimes_are_an_error_that_lists_them(fakes, tmp_path):
    log = tmp_path / "log"
    rocm = {"ROCM_PATH": fakes["rocm"].parents[1]}
    for on_path, env, names in [
        (("wheel", "sdk"), {}, ("wheel", "sdk")),
        (("wheel",), rocm, ("wheel", "rocm")),
        (("wheel",), {"LD_LIBRARY_PATH": fakes["loader"].parent}, ("wheel", "loader")),
    ]:
        said, loaded = asked(fakes, *on_path, log=log, **env)
        assert loaded == [] and all(str(fakes[n]) in said for n in names), said
        assert "2 different" in said and "BATCHFS_HIP_LIBRARY" in said


def test_the_override_is_honoured_or_refused_by_name(fakes, tmp_path):
    text = tmp_path / "libamdhip64.so.9"
    text.write_text("no library")
    for named, words in [
        (tmp_path / "missing.so", "No such file"),
        (tmp_path, "is no file"),
        ("libamdhip64.so", "is no absolute path"),
        (text, "cannot load the HIP runtime"),
    ]:
        said, loaded = asked(fakes, "wheel", log=tmp_path / "log", BATCHFS_HIP_LIBRARY=named)
        assert str(named) in said and words in said and loaded == [], said


def test_none_and_old_ones(build, tmp_path):
    said = run(ASK)
    if "hipInit failed" in said:
        pytest.skip("this machine has a HIP runtime of its own")
    assert said.startswith("there is no HIP runtime (libamdhip64.so") and "ROCm" in said, said
    node = {"BATCHFS_RENDER_NODE": "stand-in"}
    old = build("old/libamdhip64.so", "-DOLD", "-DVERSION=40200000")
    said = run(ASK, env={"BATCHFS_HIP_LIBRARY": old, **node})
    assert re.search(r"old/libamdhip64.so lacks hipImportExternalMemory, .*hipDestroy", said), said
    empty = build("empty/libamdhip64.so", "-DDEVICES=0")
    said = run(ASK, env={"BATCHFS_HIP_LIBRARY": empty, **node})
    assert said.startswith("hipInit failed: invalid device ordinal (HIP error 101), by "), said


def test_the_real_runtime_without_a_device():
    real = os.environ.get("BATCHFS_HIP_REAL")
    if not real:
        pytest.skip("needs BATCHFS_HIP_REAL, a real libamdhip64, which tests/run.sh fetches")
    env = {"BATCHFS_HIP_LIBRARY": real, "LD_LIBRARY_PATH": os.environ["BATCHFS_HIP_REAL_LIBS"]}
    said = run(ASK, env=env)
    if said.startswith("(10"):
        pytest.skip("this machine has a GPU of AMD's; tests/rocm/certify.py is for it")
    assert re.match(r"hip\w+ failed: .+ \(HIP error \d+\), by " + re.escape(real), said), said


def test_pytorch_asks_for_the_device(gpu, data):
    """A PyTorch without ROCm refuses at its device checks, and leaves the tensor as it is."""
    pytest.importorskip("torch")
    said = run(
        """
        import torch
        if torch.version.hip:
            print("this PyTorch is for ROCm; tests/rocm/certify.py is for it")
            sys.exit()
        with DenseStore(sys.argv[1] + "/images") as store:
            memory = Allocator("amdgpu", 0, pool_size=0)
            tensor = store.bind(memory)[:4]
            want = tensor.numpy().copy()
            try:
                torch.from_dlpack(tensor)
            except Exception as e:
                print(type(e).__name__, str(e).splitlines()[0])
            else:
                raise AssertionError("taken")
            gc.collect()
            assert np.array_equal(on_device(tensor), want) and counts()["imports"] == 1
            host = torch.utils.dlpack.from_dlpack(tensor.__dlpack__(dl_device=(1, 0)))
            del tensor; gc.collect()
            assert np.array_equal(host.numpy(), want)
            del host; gc.collect()
            assert counts()["imports"] == 0
        """,
        data,
        env=gpu(),
    )
    print(said)
