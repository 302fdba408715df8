"""Mixtures of token sources, through the mount and the command line."""

import json
import os

import numpy as np
import pyarrow as pa
import pytest
import s3
from harness import errno_of
from token_data import (
    Expected,
    by_duckdb,
    by_pyarrow,
    check,
    documents,
    meets,
    reference,
    row_group_at,
)

SPEC = "lanes=6,window=3,seq_len=16,seed=7"
MIX = "code=0.3,web=0.7"


class Mixed:
    """The rows that a mixture should make: the second implementation, and each source alone."""

    def __init__(self, mix: str, spec: str, groups: dict[str, list]):
        self.mix, self.spec, self.groups = mix, spec, groups
        self.alone = {name: Expected(spec, own) for name, own in groups.items()}
        self.first, count = {}, 0
        for name in sorted(groups):
            self.first[name] = count
            count += sum(len(group) for group in groups[name])

    def places(self, step: int) -> list[tuple[str, int, int]]:
        rows = (row.split(":") for row in reference.mixed(self.mix, self.spec, step).split())
        return [(name, int(own), int(lane)) for name, own, lane in rows]

    def rows(self, step: int) -> np.ndarray:
        rows = [self.alone[name].rows(own)[lane] for name, own, lane in self.places(step)]
        return np.array(rows, np.int32)

    def pieces(self, step: int) -> list[list[int]]:
        return [
            [row, document + self.first[name], offset, length]
            for row, (name, own, lane) in enumerate(self.places(step))
            for document, offset, length in self.alone[name].pieces(own)[lane]
        ]


def sources(folder) -> dict[str, list]:
    web = by_pyarrow(folder / "web/0.parquet", documents(1, 150))
    web += by_pyarrow(folder / "web/1.parquet", documents(2, 90, first=200), compression="zstd")
    (folder / "code").mkdir()
    code = by_duckdb(folder / "code/x.parquet", documents(3, 80, first=400))
    return {"web": web, "code": code}


def test_rows_are_those_of_the_second_implementation(box, mode):
    expected = Mixed(MIX, SPEC, sources(box.path))
    # The order in which they are named, and how weights are spelled, has no influence.
    source = f"web={box.path}/web,code={box.path}/code"
    with box.mount(source, "--mix", "web=7.0,code=3", spec=SPEC, mode=mode) as m:
        config = m.config()
        assert config["mix"] == "code=3,web=7"
        assert config["sources"] == [str(box.path / "code"), str(box.path / "web")]
        steps = config["steps_per_cycle"]
        assert steps == len(os.listdir(m / "tokens/batch"))
        for step in [*range(steps + 3), 10_000_000, 2**42 + 1, 2**64 - 1]:
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(6, 16)
            np.testing.assert_array_equal(got, expected.rows(step), err_msg=f"step {step}")
        for step in (0, 9, 2**50):
            told = json.loads(m.read(f"tokens/batch/{step}.json"))
            assert told["mix"]["sources"] == [place[0] for place in expected.places(step)]
            index = np.load(m / f"index/{step}.npy")
            pieces = expected.pieces(step)
            assert index[: len(pieces)].tolist() == [piece[1:] for piece in pieces]
            lines = m.read(f"index/{step}.txt").decode().splitlines()[3:]
            assert [[int(n) for n in line.split()] for line in lines] == pieces
        # Documents of the first source come first.
        docs = [doc for name in ("code", "web") for group in expected.groups[name] for doc in group]
        for number in (0, 79, 80, 200, len(docs) - 1):
            assert np.load(m / f"tokens/record/{number}.npy").tolist() == docs[number]
        assert len(os.listdir(m / "tokens/record")) == 150 + 90 + 80
        view = m / "view/lanes=12,window=2,seq_len=8,seed=1"
        other = Mixed(MIX, "lanes=12,window=2,seq_len=8,seed=1", {})
        told = json.loads((view / "tokens/batch/5.json").read_bytes())
        assert told["mix"]["sources"] == [place[0] for place in other.places(5)]


def test_ranks_joined_are_the_global_step(box):
    sources(box.path)
    source = f"web={box.path}/web,code={box.path}/code"
    with box.mount(source, "--mix", MIX, spec=SPEC) as m:
        for step in (0, 7, 10**12):
            whole = m.read(f"tokens/batch/{step}")
            for world in (2, 3, 6):
                views = [f"view/{SPEC},rank={rank},world={world}" for rank in range(world)]
                parts = [m.read(f"{view}/tokens/batch/{step}") for view in views]
                assert b"".join(parts) == whole


def test_a_seek_decodes_the_windows_of_its_rows_alone(box):
    """Of each source those of the source's own step, however far away it is."""
    groups = {}
    for number, (name, count) in enumerate((("code", 400), ("web", 800))):
        docs = documents(number, count, first=1000 * number)
        groups[name] = by_pyarrow(box.path / f"{name}/x.parquet", docs)
    spec = "lanes=4,window=4,seq_len=8,seed=2"
    expected = Mixed(MIX, spec, groups)

    def needed(step: int) -> set[tuple[str, int]]:
        return {
            (name, group)
            for name, own, _ in expected.places(step)
            for window in expected.alone[name].run.windows(own)
            for group in window[4]
        }

    def usual(step: int) -> bool:
        """Whether steps that may be made ahead of their readers need nothing else."""
        return all(needed(step + more) <= needed(step) for more in range(20))

    source = f"web={box.path}/web,code={box.path}/code"
    # A window of each source, or two of one of them.
    for far, count in ((0, 8), (10_000_000, 8), (10_000_000, 12), (2**40, 8)):
        steps = range(far, far + 500)
        step = next(step for step in steps if usual(step) and len(needed(step)) == count)
        with box.mount(source, "--mix", MIX, spec=spec) as m:
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(4, 8)
            np.testing.assert_array_equal(got, expected.rows(step))
            m.decodes(count)


def test_the_commands_know_mixtures(box):
    expected = Mixed(MIX, SPEC, sources(box.path))
    source = f"web={box.path}/web,code={box.path}/code"
    mixed = ("--mix", MIX, "--spec", SPEC)
    told = json.loads(box.run("index", source, "--json", *mixed).stdout)
    assert [one["name"] for one in told["sources"]] == ["code", "web"]
    assert told["mix"] == "code=3,web=7" and told["first_steps_of_epochs"][0] == 0
    assert "3 of code, 7 of web" in box.run("index", source, *mixed).stdout
    lines = box.run("ids", source, "--step", 11, *mixed).stdout.splitlines()
    names = [place[0] for place in expected.places(11)]
    want = [[names[piece[0]], *map(str, piece)] for piece in expected.pieces(11)]
    assert [line.split() for line in lines] == want
    plan = json.loads(box.run("plan", source, "--step", 11, "--json", *mixed).stdout)
    assert {read["source"] for read in plan["reads"]} == set(names)
    assert plan["mix"] == "code=3,web=7"
    text = box.run("cat", source, "tokens/batch/11.txt", *mixed).stdout
    assert str(expected.rows(11)[0][0]) in text
    assert "3 of code, 7 of web" in box.run("cat", source, "README.txt", *mixed).stdout


def test_refusals_say_what_to_do(box, data):
    sources(box.path)
    web, code, mnt = box.path / "web", box.path / "code", box.folder()
    fails = lambda *args, names: box.fails("mount", *args, names=names)  # noqa: E731
    fails(web, mnt, "--mix", MIX, names=["code=PLACE,web=PLACE"])
    fails(f"web={web}", mnt, "--mix", MIX, names=["where code is"])
    fails(f"web={web},code={code}", mnt, "--mix", "web=1,code=0", names=["code", "above 0"])
    fails(f"web={web},code={code}", mnt, "--mix", "web", names=["web", "NAME=WEIGHT"])
    fails(f"web={web},code={box.path}/none", mnt, "--mix", MIX, names=["code", "none"])
    fails(f"web={web},code={data}", mnt, "--mix", MIX, names=["code", ".parquet"])
    inside = ("--spec", SPEC)
    fails(f"web={web},code={code}", web, "--mix", MIX, *inside, names=[web, "inside one another"])
    large = ("--spec", "lanes=100,seq_len=100")
    by_pyarrow(box.path / "large/0.parquet", [[1] * 20_000])
    fails(f"web={box.path}/large,code={code}", mnt, "--mix", MIX, *large, names=["code", "10000"])
    budget = ("--spec", SPEC, "--budget", "1KB")
    fails(f"web={web},code={code}", mnt, "--mix", MIX, *budget, names=["1000", "--budget"])


def test_damage_of_one_source_spoils_its_rows_alone(box):
    groups = sources(box.path)
    path = box.path / "bad/x.parquet"
    options = {"write_page_checksum": True, "compression": "none"}
    groups["bad"] = by_pyarrow(path, documents(5, 200, first=900), group=50, **options)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0x10
    bad = row_group_at(path, len(raw) // 3)
    path.write_bytes(raw)
    source = f"web={box.path}/web,bad={box.path}/bad"
    spec, mix = "lanes=1,window=1,seq_len=16,seed=0", "bad=1,web=9"
    expected = Mixed(mix, spec, {name: groups[name] for name in ("bad", "web")})
    # Those with a row of a window that has the damaged row group.
    places = [expected.places(step)[0] for step in range(6000)]
    fails = lambda name, own: name == "bad" and meets(expected.alone["bad"], own, bad)  # noqa: E731
    fail = [fails(name, own) for name, own, _ in places]
    steps = [step for step, place in enumerate(places) if place[0] == "bad" or step < 150]
    assert {fail[step] for step in steps if places[step][0] == "bad"} == {False, True}
    with box.mount(source, "--mix", mix, spec=spec) as m:
        for step in steps:
            check(m, step, expected, fail[step])
        assert "x.parquet" in m.errors() and f"row group {bad}" in m.errors()


def test_a_source_in_a_bucket_and_one_on_this_machine(box):
    groups = sources(box.path)
    expected = Mixed(MIX, SPEC, groups)
    root = box.path / "s3"
    (root / "bucket").mkdir(parents=True)
    os.rename(box.path / "web", root / "bucket/web")
    with s3.server(root) as port:
        env = s3.environment(port)
        source = f"web=s3://bucket/web,code={box.path}/code"
        with box.mount(source, "--mix", MIX, spec=SPEC, env=env) as m:
            for step in [*range(40), 10**9]:
                got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(6, 16)
                np.testing.assert_array_equal(got, expected.rows(step))
            assert s3.SECRET not in (m / ".batchfs/config.json").read_text()


INDEX_SPEC = "lanes=3,window=2,seq_len=10,seed=5"


def test_the_index_of_a_step_is_its_pieces(box, mode):
    groups = by_pyarrow(box.path / "data/x.parquet", documents(6, 120))
    expected = Expected(INDEX_SPEC, groups)
    with box.mount(box.path / "data", spec=INDEX_SPEC, mode=mode) as m:
        assert sorted(os.listdir(m / "index")) == sorted(os.listdir(m / "tokens/batch"))
        for step in (0, 3, 40, 10**10):
            pieces = [list(piece) for row in expected.pieces(step) for piece in row]
            # Room for ten pieces a row, the default where rows are short.
            want = pieces + [[-1, -1, -1]] * (30 - len(pieces))
            raw = m.read(f"index/{step}")
            assert len(raw) == (m / f"index/{step}").stat().st_size
            assert np.frombuffer(raw, "<i8").reshape(30, 3).tolist() == want
            mapped = np.load(m / f"index/{step}.npy", mmap_mode="r")
            assert mapped.dtype == np.int64 and mapped.tolist() == want
            # It keeps the file open.
            del mapped
            ids = box.run("ids", box.path / "data", "--spec", INDEX_SPEC, "--step", step).stdout
            assert [[int(n) for n in line.split()][1:] for line in ids.splitlines()] == pieces
            text = m.read(f"index/{step}.txt").decode()
            assert text.splitlines()[3:] == ids.splitlines()
            assert len(m.read(f"index/{step}.sha256")) > 64
        assert errno_of(os.stat, m / "index/0.json") == "ENOENT"
        assert not (m / "all").exists()
        view = m / f"view/{INDEX_SPEC},pieces=1,rank=1,world=3/index/40"
        assert view.stat().st_size == 24
        assert errno_of(view.read_bytes) in (None, "EOVERFLOW")


@pytest.mark.parametrize("kind", ["int32", "uint32"])
def test_tokens_come_out_as_the_spec_says(box, kind):
    values = [0, 5, 2**31 - 1, *([2**31, 2**32 - 1] if kind == "uint32" else [-(2**31), -1])]
    by_pyarrow(box.path / "data/x.parquet", [values], pa.list_(getattr(pa, kind)()))
    spec = "lanes=1,window=1,seq_len=5"
    with box.mount(box.path / "data", spec=spec) as m:
        for out in ("int32", "uint32"):
            folder = m / f"view/{spec},seed=0{',out=uint32' if out == 'uint32' else ''}"
            batch = np.load(folder / "tokens/batch/0.npy")
            assert batch.dtype == out
            assert batch.view("u4")[0].tolist() == [value % 2**32 for value in values]
            schema = json.loads((folder / "tokens/schema.json").read_bytes())
            # The document as the file has it, and the batch under this spec.
            assert schema["dtype"] == kind
            assert schema["batch"] == {"dtype": out, "bits": kind, "shape": [1, 5]}
        assert os.readlink(m / f"view/{spec},seed=0,out=int32") == f"{spec},seed=0"
        assert np.load(m / "tokens/record/0.npy").dtype == kind
