"""Token streams from Parquet files of several writers, through the mount."""

import contextlib
import json
import os
import shutil
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import errno_of, needs_root, wait_for
from safetensors.numpy import load_file
from token_data import (
    AWKWARD,
    DAMAGES,
    Expected,
    by_duckdb,
    by_polars,
    by_pyarrow,
    check,
    damage,
    documents,
    meets,
    row_group_at,
    table,
)

SPEC = "lanes=6,window=3,seq_len=16,seed=7"


def mixed(folder) -> list[list]:
    """A folder of files by three writers; its row groups in the order of the dataset."""
    folder.mkdir(parents=True)
    groups = []
    groups += by_pyarrow(folder / "a.parquet", documents(1, 90))
    part, large = documents(2, 60, first=100), pa.large_list(pa.int32())
    groups += by_pyarrow(folder / "b/0.parquet", part, large, compression="zstd")
    groups += by_duckdb(folder / "c.parquet", documents(3, 50, first=200))
    groups += by_polars(folder / "d.parquet", documents(4, 70, first=300))
    part = documents(5, 40, first=400)
    options = {"data_page_version": "2.0", "use_dictionary": False, "compression": "gzip"}
    groups += by_pyarrow(folder / "e.parquet", part, **options)
    return groups


def test_rows_are_those_of_the_second_implementation(box, mode):
    groups = mixed(box.path / "data")
    expected = Expected(SPEC, groups)
    with box.mount(box.path / "data", spec=SPEC, mode=mode) as m:
        steps = len(os.listdir(m / "tokens/batch"))
        assert steps == m.config()["steps_per_cycle"]
        for step in [*range(steps + 3), 10_000_000, 2**42 + 1, 2**64 - 1]:
            want = expected.rows(step).astype(np.int32)
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(6, 16)
            np.testing.assert_array_equal(got, want, err_msg=f"step {step}")
        mapped = np.array(np.load(m / "tokens/batch/3.npy", mmap_mode="r"))
        np.testing.assert_array_equal(mapped, expected.rows(3))
        told = json.loads(m.read("tokens/batch/3.json"))
        assert told["format"] == "batchfs-tokens" and told["epoch"] == 0
        assert told["spec"] == SPEC and told["arrays"][0]["shape"] == [6, 16]
        table = pa.ipc.open_file(pa.py_buffer(m.read("tokens/batch/3.arrow"))).read_all()
        assert table.column(0).to_pylist() == expected.rows(3).tolist()


def test_each_step_says_where_its_tokens_come_from(box):
    groups = mixed(box.path / "data")
    expected = Expected(SPEC, groups)
    with box.mount(box.path / "data", spec=SPEC) as m:
        for step in (0, 5, 40, 12_345):
            pieces = [piece for row in expected.pieces(step) for piece in row]
            got = load_file(m / f"tokens/batch/{step}.safetensors")
            np.testing.assert_array_equal(got["tokens"], expected.rows(step))
            count = got["pieces"][0]
            assert count == len(pieces)
            ends = np.cumsum([0] + [n for _, _, n in pieces])
            np.testing.assert_array_equal(got["cu_seqlens"][: count + 1], ends)
            assert (got["cu_seqlens"][count:] == 6 * 16).all()
            for name, part in (("document_ids", 0), ("document_offsets", 1)):
                assert got[name][:count].tolist() == [piece[part] for piece in pieces]
                assert (got[name][count:] == -1).all()
            rows = expected.pieces(step)
            source = m.read(f"tokens/batch/{step}.arrow")
            size = os.stat(m / f"tokens/batch/{step + 1}.arrow").st_size
            assert len(source) == size, "the size is known before it is read"
            table = pa.ipc.open_file(pa.py_buffer(source)).read_all()
            table.validate(full=True)
            names = ["data", "cu_seqlens", "document_ids", "document_offsets"]
            assert table.column_names == names
            table = table.to_pydict()
            assert table["data"] == expected.rows(step).tolist()
            bounds = [np.cumsum([0] + [n for _, _, n in row]).tolist() for row in rows]
            assert table["cu_seqlens"] == bounds
            for name, part in (("document_ids", 0), ("document_offsets", 1)):
                assert table[name] == [[piece[part] for piece in row] for row in rows]
            told = json.loads(m.read(f"tokens/batch/{step}.json"))
            assert told["pieces"] == [[list(piece) for piece in row] for row in rows]
            assert told["piece"] == ["document", "offset", "length"]
            shown = box.run("cat", box.path / "data", f"tokens/batch/{step}.json", "--spec", SPEC)
            assert shown.stdout.encode() == m.read(f"tokens/batch/{step}.json")


def by_all_means(folder) -> list[list]:
    """Files of all codecs, pages and encodings that the writers have; their row groups in order."""
    import duckdb
    import polars as pl

    folder.mkdir(parents=True)
    made = {}

    def kept(name: str, kind, **options) -> None:
        docs = documents(len(made), 40, mean=12, first=100 * len(made))
        docs[3] = None
        if kind in (pa.int8(), pa.uint16()):
            docs = [doc and [token % 120 for token in doc] for doc in docs]
        made[f"{name}.parquet"] = by_pyarrow(
            folder / f"{name}.parquet", docs, pa.list_(kind), group=15, **options
        )

    for codec in ("none", "snappy", "gzip", "brotli", "lz4", "zstd"):
        for version in ("1.0", "2.0"):
            options = {"compression": codec, "data_page_version": version}
            kept(f"pa-{codec}-{version}", pa.int32(), data_page_size=64, **options)
    for encoding in ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"):
        for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()):
            options = {
                "use_dictionary": False,
                "column_encoding": {"tokens.list.element": encoding},
            }
            kept(f"pa-{encoding}-{kind}", kind, **options)
    kept("pa-dictionary-overflows", pa.int32(), data_page_size=32, dictionary_pagesize_limit=64)
    kept("pa-indexed", pa.int32(), write_page_index=True, write_statistics=False, version="1.0")

    def written(name: str, docs: list) -> None:
        path = folder / f"{name}.parquet"
        groups, at = [], 0
        meta = pq.ParquetFile(path).metadata
        for i in range(meta.num_row_groups):
            groups.append(docs[at : at + meta.row_group(i).num_rows])
            at += len(groups[-1])
        made[path.name] = groups

    with duckdb.connect() as connection:
        for codec in ("uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4_raw"):
            for version in ("V1", "V2"):
                docs = documents(len(made), 40, mean=12, first=100 * len(made))
                connection.register("source", table(docs))
                target = folder / f"duck-{codec}-{version}.parquet"
                options = f"FORMAT parquet, COMPRESSION {codec}, PARQUET_VERSION {version}"
                connection.execute(f"COPY (SELECT * FROM source) TO '{target}' ({options})")
                written(target.stem, docs)
    for codec in ("uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"):
        docs = documents(len(made), 40, mean=12, first=100 * len(made))
        frame = pl.DataFrame({"tokens": pl.Series(docs, dtype=pl.List(pl.Int32))})
        frame.write_parquet(folder / f"pl-{codec}.parquet", compression=codec, row_group_size=15)
        written(f"pl-{codec}", docs)
    docs = [[d * 100 + i for i in range(8)] for d in range(40)]
    frame = pl.DataFrame({"tokens": pl.Series(docs, dtype=pl.Array(pl.Int32, 8))})
    frame.write_parquet(folder / "pl-array.parquet")
    written("pl-array", docs)
    return [group for name in sorted(made) for group in made[name]]


def test_whatever_writers_make_is_read(box):
    groups = by_all_means(box.path / "data")
    spec = "lanes=4,window=40,seq_len=64,seed=3"
    expected = Expected(spec, groups)
    with box.mount(box.path / "data", spec=spec) as m:
        for step in range(m.config()["steps_per_cycle"]):
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(4, 64)
            np.testing.assert_array_equal(got, expected.rows(step), err_msg=f"step {step}")


def test_row_groups_of_any_size_are_taken(box):
    """None of rows, one of one row, and a very large one, in any order."""
    docs = documents(1, 320, mean=8)
    path = box.path / "data/x.parquet"
    path.parent.mkdir()
    groups, at = [], 0
    with pq.ParquetWriter(path, table([[1]]).schema) as writer:
        for count in (0, 1, 0, 0, 280, 2, 37, 0):
            part = docs[at : at + count]
            whole = table(part).cast(table([[1]]).schema)
            writer.write_table(whole, row_group_size=max(count, 1))
            groups.append(part)
            at += count
    assert [pq.ParquetFile(path).metadata.row_group(i).num_rows for i in (0, 4, 7)] == [0, 280, 0]
    spec = "lanes=3,window=2,seq_len=16,seed=5"
    expected = Expected(spec, groups)
    told = json.loads(box.run("index", path, "--json").stdout)
    assert (told["row_groups"], told["documents"]) == (8, 320)
    with box.mount(path.parent, spec=spec) as m:
        for step in [*range(m.config()["steps_per_cycle"] + 2), 10**9]:
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(3, 16)
            np.testing.assert_array_equal(got, expected.rows(step), err_msg=f"step {step}")
        for number in (0, 1, 319):
            want = np.array(docs[number], "<i4").tobytes()
            assert m.read(f"tokens/record/{number}") == want


def test_documents_are_records(box):
    groups = mixed(box.path / "data")
    docs = [doc for group in groups for doc in group]
    with box.mount(box.path / "data", spec=SPEC) as m:
        assert len(os.listdir(m / "tokens/record")) == len(docs)
        for number in (0, 7, 89, 90, 150, 309):
            assert np.load(m / f"tokens/record/{number}.npy").tolist() == docs[number]
        empty = next(i for i, doc in enumerate(docs) if not doc)
        assert m.read(f"tokens/record/{empty}") == b""
        assert errno_of(os.stat, m / f"tokens/record/{len(docs)}") == "ENOENT"
        schema = json.loads(m.read("tokens/schema.json"))
        assert schema["dtype"] == "int32" and schema["records"] == len(docs)


def test_each_token_comes_once_an_epoch(box):
    """Rows cut from documents around the length of a row; documents are put together again."""
    lengths = [1, 63, 64, 65, 3 * 64 + 7, 10_000, 0, 200]
    docs = [[d * 1_000_000 + i for i in range(n)] for d, n in enumerate(lengths)]
    by_pyarrow(box.path / "data/x.parquet", docs, group=3)
    spec = "lanes=4,window=2,seq_len=64,seed=3"
    total = sum(lengths)
    # After `total` steps of 256 tokens, 256 epochs are done; one token more or less of a lane ends
    # the first epoch.
    with box.mount(box.path / "data", spec=spec) as m:
        lanes = np.concatenate(
            [
                np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(4, 64)
                for step in range(2 * total // 256 + 2)
            ],
            axis=1,
        )
        for epoch in (0, 1):
            had = [[(n * total + b) // 4 for b in range(4)] for n in (epoch, epoch + 1)]
            seen = np.concatenate([lanes[b, had[0][b] : had[1][b]] for b in range(4)])
            assert sorted(seen.tolist()) == sorted(token for doc in docs for token in doc)


def test_ranks_joined_are_the_global_step(box):
    mixed(box.path / "data")
    spec = "lanes=12,window=2,seq_len=8,seed=1"
    with contextlib.ExitStack() as stack:
        mount = lambda spec, at: stack.enter_context(  # noqa: E731
            box.mount(box.path / "data", spec=spec, at=at)
        )
        whole = mount(spec, "whole")
        for world in (2, 3, 12):
            ranks = [mount(f"{spec},rank={r},world={world}", f"{world}-{r}") for r in range(world)]
            for step in (0, 9, 60, 10**9):
                joined = b"".join(m.read(f"tokens/batch/{step}") for m in ranks)
                assert joined == whole.read(f"tokens/batch/{step}")
            for m in ranks:
                m.unmount()
        view = whole / f"view/{spec},rank=1,world=4/tokens/batch/3"
        assert view.read_bytes() == whole.read("tokens/batch/3")[3 * 32 : 6 * 32]
        assert os.readlink(whole / "view/lanes=12,seed=1,seq_len=8,window=2") == spec
    box.fails("mount", box.path / "data", box.folder(), "--spec", f"{spec},world=5", names=["5"])


def test_a_seek_decodes_the_windows_of_its_step_alone(box):
    """40 row groups in windows of 4: 10 an epoch."""
    spec = "lanes=4,window=4,seq_len=8,seed=2"
    expected = Expected(spec, by_pyarrow(box.path / "data/x.parquet", documents(9, 800)))
    # In the middle of a window, and across the end of one, in the first epoch and far from it.
    windows = lambda step: list(expected.run.windows(step))  # noqa: E731
    far = 10_000_000
    two = [next(step for step in range(at, at + 500) if len(windows(step)) == 2) for at in (1, far)]
    # Steps that follow are made ahead, and are not to meet another window.
    one = next(step for step in range(far, far + 500) if windows(step) == windows(step + 40))
    assert windows(0) == windows(40)
    for step in (0, one, *two):
        groups = {group for window in windows(step) for group in window[4]}
        assert len(groups) == 4 * len(windows(step))
        with box.mount(box.path / "data", spec=spec) as m:
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(4, 8)
            np.testing.assert_array_equal(got, expected.rows(step))
            m.decodes(len(groups))


FLAVOURS = {
    "list": pa.list_(pa.int32()),
    "large": pa.large_list(pa.int32()),
    "fixed": pa.list_(pa.int32(), 8),
    "required": pa.list_(pa.field("item", pa.int32(), nullable=False)),
}


def test_all_kinds_of_lists_are_one(box):
    folder = box.path / "data"
    folder.mkdir()
    docs = [[d * 100 + i for i in range(8)] for d in range(10)]
    for name, kind in FLAVOURS.items():
        field = pa.field("tokens", kind, nullable=name != "required")
        array = pa.table([pa.array(docs, kind)], schema=pa.schema([field]))
        pq.write_table(array, folder / f"{name}.parquet")
    old = pq.ParquetWriter(
        folder / "old.parquet", table(docs).schema, use_compliant_nested_type=False
    )
    with old as writer:
        writer.write_table(table(docs))
    spec = "lanes=2,window=8,seq_len=10,seed=0"
    expected = Expected(spec, [docs] * 5)
    with box.mount(folder, spec=spec) as m:
        for step in range(40):
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4").reshape(2, 10)
            np.testing.assert_array_equal(got, expected.rows(step))
    nested = box.path / "nested/x.parquet"
    nested.parent.mkdir()
    inner = pa.array([{"tokens": doc, "n": 1} for doc in docs])
    pq.write_table(pa.table({"rec": inner}), nested)
    with box.mount(nested.parent, "--column", "rec.tokens", spec="lanes=1,seq_len=8,window=1") as m:
        assert len(m.read("tokens/batch/0")) == 32
        assert np.load(m / "tokens/record/3.npy").tolist() == docs[3]
    said = box.fails("index", nested.parent, names=[nested, "'tokens'".replace("'", '"'), "rec"])
    assert "--column" in said
    box.fails("index", nested.parent, "--column", "rec", names=["struct", "name another one"])
    # Nothing is decoded for the index.
    box.fails("index", nested.parent, "--column", "rec.n", "--budget", "1GB", names=["--budget"])
    box.fails("index", nested.parent, "--column", "rec.n", names=["rec.n", "plain value"])
    shutil.copy(nested, folder / "zz.parquet")
    box.fails("mount", folder, box.folder(), names=["zz.parquet", "tokens"])


WIDTHS = [
    ("int8", [0, 127, -128], [0, 127, -128]),
    ("int16", [0, 32767, -5], [0, 32767, -5]),
    ("uint8", [0, 255], [0, 255]),
    ("uint16", [0, 65535], [0, 65535]),
    ("uint32", [65536, 2**31, 2**32 - 1], [65536, -(2**31), -1]),
    ("int64", [65536, 2**31 - 1, -1], [65536, 2**31 - 1, -1]),
    ("uint64", [65536, 2**31 - 1], [65536, 2**31 - 1]),
]


@pytest.mark.parametrize(("kind", "values", "want"), WIDTHS, ids=[w[0] for w in WIDTHS])
def test_token_widths_are_kept_exactly(box, kind, values, want):
    docs = [values, [1] * 9, values]
    by_pyarrow(box.path / "data/x.parquet", docs, pa.list_(getattr(pa, kind)()))
    with box.mount(box.path / "data", spec="lanes=1,window=1,seq_len=4") as m:
        raw = np.frombuffer(m.read("tokens/record/2"), "<i4")
        assert raw.tolist() == want
        schema = json.loads(m.read("tokens/schema.json"))
        assert schema["dtype"] == ("uint32" if kind == "uint32" else "int32")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int64", 2**31),
        ("int64", 2**32 - 1),
        ("int64", -(2**31) - 1),
        # Of 64 bits, though 32 without a sign would hold them.
        ("uint64", 2**31),
        ("uint64", 2**32 - 1),
        ("uint64", 2**63),
    ],
)
def test_what_does_not_fit_is_named(box, kind, value):
    docs = [[1] * 5, [2, 3], [4, value, 5]]
    by_pyarrow(box.path / "data/a.parquet", [[7] * 100])
    by_pyarrow(box.path / "data/x.parquet", docs, pa.list_(getattr(pa, kind)()))
    with box.mount(box.path / "data", spec="lanes=1,window=1,seq_len=100") as m:
        seen = {errno_of((m / f"tokens/batch/{step}").read_bytes) for step in range(4)}
        assert seen <= {"EIO", None} and "EIO" in seen
        for part in (
            "x.parquet",
            "row group 0",
            "row 2",
            str(value),
            "drop the row or map its ids",
        ):
            assert part in m.errors(), m.errors()


def test_other_types_are_refused(box):
    for kind, name in [(pa.float32(), "float"), (pa.string(), "byte_array"), (pa.date32(), "date")]:
        path = box.path / f"{name}/x.parquet"
        values = pa.array([[None]], pa.list_(kind))
        path.parent.mkdir()
        pq.write_table(pa.table({"tokens": values}), path)
        names = [path, "tokens", name, "integers", "cast it, or name another column with --column"]
        box.fails("index", path.parent, names=names)


def test_null_and_empty_documents_have_no_tokens(box):
    docs = [[1, 2], None, [], [3, 4, 5], None]
    path = box.path / "data/x.parquet"
    groups = by_pyarrow(path, docs + [None] * 349_525 + [[6, 7]], group=1 << 20)
    by_pyarrow(box.path / "data/nothing.parquet", [[], None])
    pq.write_table(pa.table({"tokens": pa.array([[], None])}), box.path / "data/null.parquet")
    told = json.loads(box.run("index", box.path / "data", "--json").stdout)
    assert (told["tokens"], told["documents"]) == (7, 5 + 349_526 + 4 - 0)
    spec = "lanes=1,window=9,seq_len=7,seed=4"
    expected = Expected(spec, [[[], None], [[], None], *groups])
    with box.mount(box.path / "data", spec=spec) as m:
        for step in range(3):
            got = np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4")
            assert got.tolist() == expected.rows(step)[0].tolist()
    by_pyarrow(box.path / "none/x.parquet", [[], None])
    names = [box.path / "none", "no tokens", '"tokens"', "name another column with --column"]
    box.fails("mount", box.path / "none", box.folder(), names=names)
    by_pyarrow(box.path / "bad/x.parquet", [[1], None, [2, None, 3]])
    names = [box.path / "bad/x.parquet", "row group 0", "row 2", "null item", "drop the item"]
    box.fails("mount", box.path / "bad", box.folder(), names=names)
    # Lists of nothing but nulls have an item all the same.
    for name, docs in (("some", [[], None, [None]]), ("more", [[None, None], []])):
        path = box.path / name / "x.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"tokens": pa.array(docs, pa.list_(pa.null()))}), path)
        row = next(row for row, doc in enumerate(docs) if doc)
        names = [path, "row group 0", f"row {row}", "null item"]
        box.fails("index", path.parent, names=names)
        box.fails("mount", path.parent, box.folder(), names=names)


def test_helper_files_are_no_data(box):
    folder = box.path / "data"
    groups = by_pyarrow(folder / "part-0.parquet", documents(1, 40))
    by_pyarrow(folder / "_temporary/0/x.parquet", documents(2, 40))
    by_pyarrow(folder / ".hidden.parquet", documents(3, 40))
    shutil.copy(folder / "part-0.parquet", folder / "_metadata")
    for name in ("_SUCCESS", ".part-0.parquet.crc", "README.md"):
        (folder / name).write_bytes(b"")
    told = json.loads(box.run("index", folder, "--json").stdout)
    assert [f["file"] for f in told["files"]] == ["part-0.parquet"]
    assert told["tokens"] == sum(len(doc) for group in groups for doc in group)
    (folder / "part-9.parquet").write_bytes(b"")
    box.fails("index", folder, names=[folder / "part-9.parquet", "0 bytes", "remove it"])


def test_names_are_ordered_by_their_bytes(box):
    folder = box.path / "data"
    names = [*AWKWARD, "a.parquet", "a/x.parquet", "Z.PARQUET"]
    for number, name in enumerate(names):
        by_pyarrow(folder / name, [[number] * 5])
    want = sorted(names, key=os.fsencode)
    told = json.loads(box.run("index", folder, "--json").stdout)
    assert [f["file"] for f in told["files"]] == want
    with box.mount(folder, spec="lanes=1,window=1,seq_len=5") as m:
        first = [int(np.load(m / f"tokens/record/{i}.npy")[0]) for i in range(len(names))]
    assert first == [names.index(name) for name in want]
    elsewhere = box.path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    again = json.loads(box.run("index", elsewhere, "--json").stdout)
    assert again["fingerprint"] == told["fingerprint"], "moving a dataset does not change it"
    # What is no UTF-8 is shown in its place.
    bad = elsewhere / os.fsdecode(b"a/\xff.parquet")
    bad.write_bytes(b"x")
    names = [elsewhere / "a/\ufffd.parquet", "UTF-8", "rename it"]
    box.fails("index", elsewhere, names=names)
    box.fails("mount", elsewhere, box.folder(), names=names)
    bad.unlink()
    moved = elsewhere.rename(box.path / os.fsdecode(b"\xff-data"))
    for source in (moved, moved / "10.parquet"):
        shown = str(source).encode(errors="surrogateescape").decode(errors="replace")
        for command in (("index", source), ("plan", source, "--step", 0), ("ls", source)):
            box.fails(*command, names=[f"{shown}: the path", "UTF-8", "rename it"])
        box.fails("mount", source, box.folder(), names=[f"{shown}: the path", "UTF-8"])


@pytest.mark.parametrize("how", DAMAGES)
def test_files_that_are_not_whole_are_refused(box, how):
    by_pyarrow(box.path / "data/a.parquet", documents(1, 40))
    by_pyarrow(box.path / "data/b.parquet", documents(2, 40))
    damage(box.path / "data/b.parquet", how)
    names = [box.path / "data/b.parquet", DAMAGES[how]]
    box.fails("mount", box.path / "data", box.folder(), names=names)


def test_a_damaged_page_spoils_its_row_group_alone(box):
    groups = by_pyarrow(box.path / "data/a.parquet", documents(1, 200, first=0), group=100)
    options = {"write_page_checksum": True, "compression": "none"}
    docs = documents(2, 200, first=500)
    groups += by_pyarrow(box.path / "data/b.parquet", docs, group=100, **options)
    damage(box.path / "data/b.parquet", "flipped")
    bad = row_group_at(
        box.path / "data/b.parquet", (box.path / "data/b.parquet").stat().st_size // 3
    )
    spec = "lanes=2,window=1,seq_len=16,seed=0"
    expected = Expected(spec, groups)
    with box.mount(box.path / "data", spec=spec) as m:
        steps = range(len(os.listdir(m / "tokens/batch")) + 3)
        # Those that need it, and no others.
        fail = [meets(expected, step, 2 + bad) for step in steps]
        assert any(fail) and not all(fail)
        for _ in range(2):
            for step in steps:
                check(m, step, expected, fail[step])
        way_out = "write the file again or remove it"
        for part in (box.path / "data/b.parquet", f"row group {bad}", way_out):
            assert str(part) in m.errors(), m.errors()


def test_a_file_that_changes_is_an_error_never_a_mix(box):
    by_pyarrow(box.path / "data/a.parquet", documents(1, 400), group=20)
    with box.mount(box.path / "data", spec="lanes=1,window=2,seq_len=8") as m:
        m.read("tokens/batch/0")
        by_pyarrow(box.path / "data/a.parquet", documents(8, 400), group=20)
        step = m.config()["steps_per_cycle"] // 2
        assert errno_of((m / f"tokens/batch/{step}").read_bytes) == "EIO"
        assert "a.parquet" in m.errors() and "has changed" in m.errors()
        (box.path / "data/a.parquet").unlink()
        assert errno_of((m / f"tokens/batch/{step + 1}").read_bytes) == "EIO"


def test_what_tells_one_version_of_a_file_from_another(box):
    """Size and time while it is mounted, the footer from mount to mount; nothing sees more."""
    path = box.path / "data/a.parquet"
    options = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    first = [[10 * d + i for i in range(9)] for d in range(100)]
    second = [[token + 5000 for token in doc] for doc in first]
    by_pyarrow(path, first, group=10, **options)
    before, footer = path.stat(), path.read_bytes()[-200:]
    spec = "lanes=1,window=1,seq_len=9"
    with box.mount(box.path / "data", spec=spec) as m:
        assert max(np.frombuffer(m.read("tokens/batch/0"), "<i4")) < 5000
        step = m.config()["steps_per_cycle"] // 2
        by_pyarrow(path, second, group=10, **options)
        assert path.read_bytes()[-200:] == footer and path.stat().st_size == before.st_size
        assert errno_of((m / f"tokens/batch/{step}").read_bytes) == "EIO"
        # With its old time it counts as the file that it was.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert min(np.frombuffer(m.read(f"tokens/batch/{step}"), "<i4")) >= 5000
    prints = set()
    for docs in (first, second):
        by_pyarrow(path, docs, group=10, **options)
        prints.add(json.loads(box.run("index", path.parent, "--json").stdout)["fingerprint"])
    assert len(prints) == 1, "its footer is the same"
    by_pyarrow(path, second, group=10, **{**options, "write_statistics": True})
    told = json.loads(box.run("index", path.parent, "--json").stdout)
    assert told["fingerprint"] not in prints, "the least and the largest values are in the footer"


def test_the_index_is_kept_and_remade(box):
    folder = box.path / "data"
    by_pyarrow(folder / "a.parquet", documents(1, 40))
    by_duckdb(folder / "b.parquet", documents(2, 40))
    first = box.run("index", folder, "--json").stdout
    kept = list((box.path / "cache").iterdir())
    assert len(kept) == 1
    assert box.run("index", folder, "--json").stdout == first
    for junk in (b"", b"junk\n{}", kept[0].read_bytes()[:-20]):
        kept[0].write_bytes(junk)
        assert box.run("index", folder, "--json").stdout == first
    by_pyarrow(folder / "a.parquet", documents(3, 41))
    assert json.loads(box.run("index", folder, "--json").stdout)["documents"] == 81
    # Nowhere to keep it: nothing but slower.
    shutil.rmtree(box.path / "cache")
    (box.path / "cache").write_bytes(b"")
    assert json.loads(box.run("index", folder, "--json").stdout)["documents"] == 81


def test_many_files_take_few_descriptors(box):
    folder = box.path / "data"
    by_pyarrow(folder / "0.parquet", documents(1, 20))
    for i in range(1, 600):
        shutil.copy(folder / "0.parquet", folder / f"{i}.parquet")
    command = f"ulimit -n 64; {box.program} index {folder} --json"
    told = json.loads(box.tool("bash", "-c", command).stdout)
    assert len(told["files"]) == 600


def test_refusals_say_what_to_do(box, data):
    folder = box.path / "data"
    by_pyarrow(folder / "a.parquet", documents(1, 400), group=20)
    mnt = box.folder()
    refused = lambda *args, names: box.fails("mount", folder, mnt, *args, names=names)  # noqa: E731
    refused("--spec", "lanes=100000,seq_len=1000", names=[folder, "100000000", "fewer lanes"])
    refused("--spec", "batch=3", names=["batch=3", "lanes, window, seq_len"])
    refused("--spec", "lanes=4,seq_len=8", "--budget", "1KB", names=["1000", "--budget", "window"])
    box.fails("mount", data, mnt, "--spec", "lanes=4", names=["lanes=4", "records"])
    box.fails("mount", box.path / "nowhere.parquet", mnt, names=["nowhere.parquet"])
    (box.path / "empty").mkdir()
    box.fails("index", box.path / "empty", names=["empty", ".parquet"])
    shutil.copytree(data, box.path / "both")
    shutil.copy(folder / "a.parquet", box.path / "both")
    box.fails("mount", box.path / "both", mnt, names=["both", "tokens are mounted alone"])


def test_pieces_beyond_their_room_are_an_error_of_that_file_alone(box):
    by_pyarrow(box.path / "data/a.parquet", [[i] for i in range(400)], group=100)
    with box.mount(box.path / "data", spec="lanes=2,window=1,seq_len=32,pieces=8") as m:
        assert len(m.read("tokens/batch/0")) == 256
        for face in ("safetensors", "arrow"):
            assert errno_of((m / f"tokens/batch/0.{face}").read_bytes) == "EOVERFLOW"
        assert len(json.loads(m.read("tokens/batch/0.json"))["pieces"][1]) == 32
        assert "64 pieces" in m.errors() and "pieces=" in m.errors()


TRAIN = """
import sys, time
root, spec, rank, world, log, until = sys.argv[1:7]
step = len(open(log).read().splitlines())
with open(log, "a") as out:
    print("ready", flush=True)
    while step < int(until):
        time.sleep(0.001)
        path = f"{root}/view/{spec},rank={rank},world={world}/tokens/batch/{step}"
        if world == "1":
            path = f"{root}/view/{spec}/tokens/batch/{step}"
        rows = open(path, "rb").read()
        # What was trained on is written down; the mount may be some steps ahead.
        out.write(rows.hex() + "\\n")
        out.flush()
        step += 1
    if step < 400:
        # It is killed here at the latest: no machine is so fast that it is through before.
        time.sleep(3600)
"""


def done_by_all(logs: list) -> list[str]:
    """A checkpoint is what all ranks have done; lines cut by a kill do not count."""
    parts = [
        [line[:-1] for line in log.read_text().splitlines(True) if line.endswith("\n")]
        for log in logs
    ]
    return ["".join(step) for step in zip(*parts, strict=False)]


def test_a_run_that_is_killed_goes_on_with_other_ranks(box):
    """The rows of all ranks, step by step, are those of a run that was never broken."""
    mixed(box.path / "data")
    spec = "lanes=12,window=2,seq_len=8,seed=1"
    random = np.random.default_rng()
    with box.mount(box.path / "data", spec="lanes=1,window=1,seq_len=8") as m:
        want = [(m / f"view/{spec}/tokens/batch/{step}").read_bytes().hex() for step in range(400)]
        done: list[str] = []
        reached = [0]
        for attempt, world in enumerate([3, 1, 12, 4, 2, 6, 1]):
            logs = [box.path / f"log-{attempt}-{rank}" for rank in range(world)]
            each = 2 * 4 * 8 * (12 // world)
            for rank, log in enumerate(logs):
                part = [line[rank * each : (rank + 1) * each] for line in done]
                log.write_text("".join(f"{line}\n" for line in part))
            last = attempt == 6
            until = 400 if last else reached[-1] + 60
            trainers = [
                box.python(TRAIN, m.dir, spec, rank, world, log, until)
                for rank, log in enumerate(logs)
            ]
            if last:
                assert all(trainer.wait(120) == 0 for trainer in trainers)
            else:
                goal = reached[-1] + int(random.integers(1, 50))
                wait_for(lambda: len(done_by_all(logs)) >= goal, "it gets somewhere")  # noqa: B023
                for trainer in trainers:
                    assert trainer.poll() is None, "nothing was interrupted"
                    trainer.kill()
                    assert trainer.wait(30) == -signal.SIGKILL
            done = done_by_all(logs)
            assert done == want[: len(done)], f"attempt {attempt}, {world} ranks"
            reached.append(len(done))
        assert done == want
        assert reached == sorted(set(reached)) and max(reached[:-1]) < 400, reached


def test_data_at_any_depth_are_found(box):
    """As by hive's folders, and with links that lead up."""
    folder = box.path / "data"
    by_pyarrow(folder / "y=1/m=2/d=3/h=4/zone=5/part=6/a.parquet", documents(1, 400))
    (folder / "y=1/up").symlink_to(folder)
    assert "is there a link to a folder above?" in box.fails("ls", folder, "--spec", SPEC)
    (folder / "y=1/up").unlink()
    (folder / "y=1/_up").symlink_to(folder)
    with box.mount(folder, spec=SPEC) as m:
        assert len(m.read("tokens/batch/0")) == 6 * 16 * 4
    assert box.run("cat", folder, "tokens/batch/0", "--spec", SPEC, text=False).stdout


@needs_root
def test_a_full_disk_of_the_index_gets_nothing_that_stays(box):
    folder, disk = box.path / "data", box.folder("disk")
    for i in range(80):
        by_pyarrow(folder / f"{i}.parquet", documents(i, 4))
    box.tool("mount", "-t", "tmpfs", "-o", "size=4k", "none", disk)
    try:
        told = box.run("index", folder, "--json", env={"BATCHFS_CACHE_DIR": str(disk)})
        assert json.loads(told.stdout)["documents"] == 320
        assert not list(disk.iterdir())
    finally:
        box.tool("umount", disk)
