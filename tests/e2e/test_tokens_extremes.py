"""Token files that are huge, many, tiny or damaged in one place."""

import json
import os
import resource
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from token_data import Expected, by_pyarrow, check, documents, meets


def test_a_file_of_very_many_row_groups(box):
    count = 40_000
    path = box.path / "data/x.parquet"
    path.parent.mkdir()
    # One row, one token to a row group: more of them than 16 bits count.
    table = pa.table({"tokens": pa.array([[i] for i in range(count)], pa.list_(pa.int32()))})
    pq.write_table(table, path, row_group_size=1, compression="none", use_dictionary=False)
    told = json.loads(box.run("index", path.parent, "--json").stdout)
    assert (told["row_groups"], told["tokens"]) == (count, count)
    with box.mount(path.parent, spec="lanes=8,window=1000,seq_len=100") as m:
        seen = [np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4") for step in range(50)]
        assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(count))


def processor(box, *command) -> float:
    """Seconds of processor time that a command takes at least, of a few tries."""
    spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # noqa: E731
    took = []
    for _ in range(3):
        shutil.rmtree(box.path / "cache", ignore_errors=True)
        before = spent()
        box.run(*command)
        took.append(spent() - before)
    return min(took)


@pytest.mark.full
def test_an_index_takes_four_times_as_long_for_four_times_as_much(box):
    """Not sixteen times."""
    whole = pa.table({"tokens": pa.array([[i] for i in range(40_000)], pa.list_(pa.int32()))})
    options = {"row_group_size": 1, "compression": "none", "use_dictionary": False}
    for count in (10_000, 40_000):
        (box.path / f"{count}").mkdir()
        pq.write_table(whole.slice(0, count), box.path / f"{count}/x.parquet", **options)
    spec = ("--spec", "lanes=8,window=100,seq_len=10")
    for command in (("index",), ("index", *spec), ("plan", "--step", "10000000", *spec)):
        name, *rest = command
        few, many = (processor(box, name, box.path / f"{n}", *rest) for n in (10_000, 40_000))
        assert many < 8 * few + 0.1, f"{command}: {few} s, {many} s"


def test_many_shards_take_few_descriptors(box):
    folder = box.path / "data"
    by_pyarrow(folder / "0.parquet", documents(1, 4))
    for i in range(1, 3000):
        os.link(folder / "0.parquet", folder / f"{i}.parquet")
    spec = "lanes=8,window=64,seq_len=64"
    command = f"ulimit -n 256; {box.program} cat {folder} tokens/batch/9.sha256 --spec {spec}"
    few = box.tool("bash", "-c", command).stdout
    shutil.rmtree(box.path / "cache")
    assert few == box.run("cat", folder, "tokens/batch/9.sha256", "--spec", spec).stdout


def test_a_budget_below_the_largest_row_group_names_it(box):
    by_pyarrow(box.path / "data/a.parquet", [[1] * 10] * 40, group=10)
    by_pyarrow(box.path / "data/large.parquet", [[2] * 50_000])
    args = ("--spec", "lanes=1,window=1,seq_len=8", "--budget", "100KB")
    # 4 bytes a token and 48 a document.
    names = ["100000", "200048", "large.parquet", "row group 0"]
    box.fails("mount", box.path / "data", box.folder(), *args, names=names)


TINY = [
    ([[1, 2, 3, 4, 5, 6, 7, 8]], "lanes=8,window=9,seq_len=1"),
    ([[1] * 3, [], [2] * 5], "lanes=8,window=1,seq_len=1,rank=7,world=8"),
    ([[5]], "lanes=1,window=1,seq_len=1"),
]


@pytest.mark.parametrize(("docs", "spec"), TINY)
def test_tiny_data_make_endless_full_batches(box, docs, spec):
    groups = by_pyarrow(box.path / "data/x.parquet", docs)
    expected = Expected(spec, groups)
    with box.mount(box.path / "data", spec=spec) as m:
        for step in [*range(40), 2**64 - 1]:
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4")
            assert got.tolist() == expected.rows(step).ravel().tolist()


def test_too_few_tokens_are_refused_with_both_numbers(box):
    by_pyarrow(box.path / "data/x.parquet", [[1] * 60])
    for spec in ("lanes=8,seq_len=8,window=1", "lanes=64,seq_len=1,window=1,rank=3,world=8"):
        box.fails(
            "mount", box.path / "data", box.folder(), "--spec", spec, names=["64", "60", "fewer"]
        )
    # Two shards among eight ranks: shards and ranks have nothing to do with each other.
    by_pyarrow(box.path / "data/y.parquet", [[2] * 60])
    spec = "lanes=8,seq_len=15,window=2"
    with box.mount(box.path / "data", spec=spec) as m:
        parts = [
            m.read(f"view/{spec},seed=0,rank={rank},world=8/tokens/batch/0") for rank in range(8)
        ]
        assert b"".join(parts) == m.read("tokens/batch/0")


def page(path, group: int) -> int:
    """Where the first page of a row group's token column begins."""
    column = pq.ParquetFile(path).metadata.row_group(group).column(1)
    return column.dictionary_page_offset or column.data_page_offset


def grow_page(raw: bytearray, at: int) -> None:
    """Has a page's header say that it decompresses to two bytes more."""
    # Thrift's compact form: field 1, the type; field 2, the size, zigzag, least bits first.
    assert raw[at] == 0x15 and raw[at + 2] == 0x15
    assert raw[at + 3] & 0x7F < 0x7C, "it would carry into the next byte"
    raw[at + 3] += 4


def flip_levels(raw: bytearray, at: int) -> None:
    """Has the first value of a column go on with a list that never began."""
    header = raw.index(b"\x15\x00\x15", at)
    assert header == at, "a data page comes first"
    # Behind the header: the length of the levels, then their first run.
    levels = next(
        i
        for i in range(at + 8, at + 64)
        if 0 < int.from_bytes(raw[i : i + 4], "little") < 4096 and raw[i + 4] & 1
    )
    raw[levels + 5] ^= 0x01


@pytest.mark.parametrize("how", ["grow", "levels"])
def test_damage_that_checksums_do_not_see(box, how):
    path = box.path / "data/x.parquet"
    options = {"compression": "zstd" if how == "grow" else "none", "use_dictionary": how == "grow"}
    groups = by_pyarrow(path, documents(1, 300), group=100, **options)
    raw = bytearray(path.read_bytes())
    {"grow": grow_page, "levels": flip_levels}[how](raw, page(path, 1))
    path.write_bytes(raw)
    docs = documents(2, 300, first=400)
    # In the order of their names.
    groups = by_pyarrow(box.path / "data/good.parquet", docs, group=100) + groups
    spec = "lanes=2,window=1,seq_len=16,seed=0"
    expected = Expected(spec, groups)
    with box.mount(box.path / "data", spec=spec) as m:
        steps = range(len(os.listdir(m / "tokens/batch")) + 3)
        fail = [meets(expected, step, 3 + 1) for step in steps]
        assert any(fail) and not all(fail)
        for _ in range(2):
            for step in steps:
                check(m, step, expected, fail[step])
        for part in ("x.parquet", "row group 1", "column", "write the file again or remove it"):
            assert part in m.errors(), m.errors()
