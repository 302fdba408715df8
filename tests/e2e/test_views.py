"""`view/<spec>`: the same data in another order."""

import json
import os
from pathlib import Path

import numpy as np
from harness import errno_of, needs_root, wait_for


def ids_of(box, data, spec: str, step: int) -> list[int]:
    return [int(i) for i in box.run("ids", data, "--spec", spec, "--step", step).stdout.split()]


def drop_caches() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("2")


def test_a_view_is_the_tree_under_its_spec(box, data, arrays, mode):
    spec = "mode=iid,batch=64,seed=7,rank=3,world=8"
    with box.mount(data, spec="batch=32,seed=5", mode=mode) as m:
        view = m / "view" / spec
        assert list((m / "view").iterdir()) == []
        for step in (0, 1, 2**60):
            ids = ids_of(box, data, spec, step)
            assert len(ids) == 8
            assert np.frombuffer((view / f"index/{step}").read_bytes(), "<u8").tolist() == ids
            assert json.loads((view / f"x/batch/{step}.json").read_bytes())["spec"] == spec
            for name, source in arrays.items():
                assert (view / f"{name}/batch/{step}").read_bytes() == source[ids].tobytes()
                found = np.load(view / f"{name}/batch/{step}.npy", mmap_mode="r")
                assert np.array_equal(found, source[ids])
                del found
        assert (view / "x/record/7").read_bytes() == arrays["x"][7].tobytes()
        names = sorted(p.name for p in view.iterdir())
        assert names == ["all", "images", "index", "labels", "x"]
        assert [p.name for p in (m / "view").iterdir()] == [spec]
        assert (view / "..").resolve() == m / "view" and (view / "../..").resolve() == m.dir
        # What is in a view says so.
        assert errno_of((view / "x/batch/0.png").stat) == "ENOENT"
        assert f"view/{spec}/x/batch/0.png" in m.errors()


def test_missing_keys_are_the_defaults_and_not_the_mounts(box, data, mode):
    with box.mount(data, spec="batch=32,seed=5", mode=mode) as m:
        wanted = ids_of(box, data, "batch=64", 3)
        assert os.readlink(m / "view/batch=64") == "mode=cyclic,batch=64,seed=0"
        found = np.frombuffer(m.read("view/batch=64/index/3"), "<u8")
        assert found.tolist() == wanted


def test_other_spellings_are_links(box, data):
    with box.mount(data) as m:
        for spelling in ("seed=9,batch=20", "world=1,rank=0,batch=20,seed=9", "batch=20,seed=9"):
            link = m / "view" / spelling
            target = "mode=cyclic,batch=20,seed=9"
            assert link.is_symlink() and os.readlink(link) == target
            assert link.lstat().st_size == len(target)
            assert link.resolve() == m / "view" / target
            assert (link / "index/0").read_bytes() == m.read(f"view/{target}/index/0")
        assert [p.name for p in (m / "view").iterdir()] == ["mode=cyclic,batch=20,seed=9"]


def test_what_is_no_spec_says_why(box, data):
    wrong = {
        "sed=3": "did you mean seed?",
        "batch=0": "batch=0 is not valid",
        "batch=5000": "larger than the data's 1000 records",
        "mode=iid,batch=10,world=3": "does not divide",
        "batch=07": "plain decimal number",
    }
    with box.mount(data) as m:
        for name, why in wrong.items():
            assert errno_of(os.stat, m / "view" / name) == "ENOENT"
            last = m.errors().splitlines()[-1]
            assert f"view/{name}" in last and why in last
        before = m.errors()
        assert errno_of(os.stat, m / "view/.git") == "ENOENT"
        assert m.errors() == before


def test_ranks_joined_are_the_global_batch(box, data, arrays, mode):
    with box.mount(data, spec="batch=40,seed=3", mode=mode) as m:
        for step in (0, 24, 25, 10**9):
            parts = [m / f"view/batch=40,seed=3,rank={r},world=4" for r in range(4)]
            for name in ("index", "images/batch", "labels/batch"):
                joined = b"".join((p / f"{name}/{step}").read_bytes() for p in parts)
                assert joined == m.read(f"{name}/{step}")
            x = np.concatenate([np.load(p / f"x/batch/{step}.npy") for p in parts])
            assert np.array_equal(x, arrays["x"][m.ids(step)])


def test_a_view_whose_batch_does_not_fit_is_there_all_the_same(box, data):
    with box.mount(data, memory="4MiB") as m:
        view = m / "view/mode=iid,batch=1000000,seed=0"
        assert (view / "images/batch/0").stat().st_size == 1_000_000 * 12 * 9 * 3
        assert len(list((view / "images/batch").iterdir())) == 1
        assert errno_of(os.open, view / "images/batch/0", os.O_RDONLY) == "ENOMEM"
        assert f"{view.relative_to(m.dir)}/images/batch/0" in m.errors()
        assert "--memory" in m.errors()
        # No number of records makes the daemon take what it has not.
        huge = m / "view/mode=iid,batch=2000000000000000000,seed=0"
        for name in ("index/0", "images/batch/0.json", "images/batch/0.txt", "all/batch/0.arrow"):
            errno_of((huge / name).read_bytes)
        large = m / "view/mode=iid,batch=1000000000000,seed=0"
        assert errno_of((large / "index/0").read_bytes) == "ENOMEM"
        assert m.read("images/batch/0")


def test_many_views_come_and_go(box, data, arrays, mode):
    """Numbers of views are used again, and never show what an earlier view had."""

    def check(m, seed: int) -> None:
        view = m / f"view/mode=cyclic,batch=10,seed={seed}"
        ids = np.frombuffer((view / "index/3").read_bytes(), "<u8")
        assert (view / "x/batch/3").read_bytes() == arrays["x"][ids].tobytes()
        assert (view / f"x/batch/{2**50}.npy").stat().st_size == 4096 + 10 * 33 * 4
        if seed in seen:
            assert seen[seed] == ids.tolist()
        seen[seed] = ids.tolist()

    seen: dict[int, list[int]] = {}
    with box.mount(data, mode=mode) as m:
        for seed in [*range(300), *range(0, 300, 7)]:
            check(m, seed)
        assert len({tuple(ids) for ids in seen.values()}) == 300
        assert len(list((m / "view").iterdir())) < 127
        some = [0, 150, 299]
        for seed in some:
            assert seen[seed] == ids_of(box, data, f"batch=10,seed={seed}", 3)


def test_views_in_use_are_kept_and_too_many_are_refused(box, data, arrays):
    with box.mount(data) as m:
        held = [
            os.open(m / f"view/mode=cyclic,batch=10,seed={seed}/x/batch", os.O_RDONLY)
            for seed in range(127)
        ]
        wanted = m / "view/mode=cyclic,batch=10,seed=127"
        assert errno_of(wanted.stat) == "ENFILE"
        assert "seed=127" in m.errors() and "127 views" in m.errors()
        wrong = []
        for seed, folder in enumerate(held):
            file = os.open("3", os.O_RDONLY, dir_fd=folder)
            ids = np.frombuffer(m.read(f"view/mode=cyclic,batch=10,seed={seed}/index/3"), "<u8")
            if os.read(file, 1 << 20) != arrays["x"][ids].tobytes():
                wrong.append(seed)
            os.close(file)
        assert not wrong
        for folder in held:
            os.close(folder)
        wait_for(lambda: errno_of(wanted.stat) is None, "there is room for another view")


@needs_root
def test_a_forgotten_view_leaves_nothing(box, data, mode):
    with box.mount(data, mode=mode) as m:
        for seed in range(40):
            view = m / f"view/mode=cyclic,batch=10,seed={seed}"
            m.read(f"view/mode=cyclic,batch=10,seed={seed}/x/batch/0")
            assert len(list(os.scandir(view / "x/batch"))) == 100
            os.lstat(m / f"view/batch=10,seed={seed}")
        assert len(list((m / "view").iterdir())) == 40

        def gone() -> bool:
            drop_caches()
            return not list((m / "view").iterdir())

        wait_for(gone, "all views are forgotten")
        m.read("view/mode=cyclic,batch=10,seed=3/x/batch/0")
