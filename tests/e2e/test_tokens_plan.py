"""`batchfs plan`: which bytes a step reads, told without reading them."""

import json
import os
import shutil

import pyarrow.parquet as pq
import pytest
from token_data import by_duckdb, by_polars, by_pyarrow, documents, reference

SPEC = "lanes=6,window=3,seq_len=16,seed=7"


def files(folder, seed: int = 0) -> None:
    """14 row groups of several sizes in three files."""
    by_pyarrow(folder / "a.parquet", documents(seed + 1, 100), group=20)
    by_pyarrow(folder / "b/x.parquet", documents(seed + 2, 90, mean=12), compression="zstd")
    options = {"use_dictionary": False, "compression": "none"}
    by_pyarrow(folder / "c.parquet", documents(seed + 3, 70, mean=50), **options)


class Planned:
    """What the steps of a dataset should read, by its footers and the second implementation."""

    def __init__(self, folder, spec: str):
        paths = sorted(folder.rglob("*.parquet"), key=lambda path: os.fsencode(path))
        lengths, self.places = [], []
        for path in paths:
            file = pq.ParquetFile(path)
            leaf = file.schema_arrow.get_field_index("tokens")
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number, columns=["tokens"])["tokens"].to_pylist()
                lengths.append([len(row or []) for row in rows])
                chunk = file.metadata.row_group(number).column(leaf)
                begin = chunk.dictionary_page_offset or chunk.data_page_offset
                end = begin + chunk.total_compressed_size
                self.places.append((str(path.relative_to(folder)), number, begin, end))
        self.run = reference.Run(spec, lengths)
        self.tokens = [sum(group) for group in lengths]
        # 4 bytes a token and 48 a document.
        self.decoded = [4 * sum(group) + 48 * len(group) for group in lengths]

    def needed(self, window, rank: int, world: int) -> list[int]:
        """The row groups of a window that a rank has tokens of."""
        _, _, before, after, members = window
        lanes = self.run.lanes
        share = [(after + b) // lanes - (before + b) // lanes for b in range(lanes)]
        each = lanes // world
        begin, end = sum(share[: rank * each]), sum(share[: (rank + 1) * each])
        found, at = [], 0
        for group in members:
            if max(at, begin) < min(at + self.tokens[group], end):
                found.append(group)
            at += self.tokens[group]
        return found

    def windows(self, first: int, last: int) -> list:
        met = []
        for step in range(first, last + 1):
            met += [window for window in self.run.windows(step) if window not in met]
        return met

    def reads(self, first: int, last: int | None = None, source=None, world=None) -> list[dict]:
        rank, world = (self.run.rank, self.run.world) if world is None else (0, world)
        out = []
        for window in self.windows(first, first if last is None else last):
            for group in self.needed(window, rank, world):
                name, number, begin, end = self.places[group]
                said = {"source": source, "epoch": window[0], "window": window[1], "file": name}
                out.append({**said, "row_group": number, "begin": begin, "end": end})
        return out

    def amplification(self, epoch: int) -> float:
        lanes, length, total = self.run.lanes, self.run.length, self.run.total
        first, last = epoch * total // (lanes * length), (epoch + 1) * total // (lanes * length)
        windows = [w for w in self.windows(first, last) if w[0] == epoch]
        size = lambda group: self.places[group][3] - self.places[group][2]  # noqa: E731
        once = sum(size(group) for group in range(len(self.places)))
        ranks = range(self.run.world)
        each = (self.needed(window, rank, self.run.world) for window in windows for rank in ranks)
        return sum(size(group) for groups in each for group in groups) / once


def unlike(reads: list[dict]) -> int:
    """Bytes of the row groups, each once."""
    places = {(r["source"], r["file"], r["row_group"]): r["end"] - r["begin"] for r in reads}
    return sum(places.values())


def plan(box, source, spec: str, step: int, *args) -> dict:
    command = ("plan", source, "--spec", spec, "--step", step, "--json", *args)
    return json.loads(box.run(*command).stdout)


def test_a_plan_says_what_the_footers_say(box):
    folder = box.path / "data"
    files(folder)
    want = Planned(folder, SPEC)
    tokens, step_tokens = want.run.total, 6 * 16
    ends = [epoch * tokens // step_tokens for epoch in range(1, 30)]
    window = sum(sorted(want.decoded)[-3:])
    twice = 0
    for step in [0, 1, 9, 40, *ends, 10_000_000, 2**40 + 3]:
        told = plan(box, folder, SPEC, step)
        reads = want.reads(step)
        assert told["reads"] == reads, f"step {step}"
        assert told["bytes"] == unlike(reads)
        twice += told["bytes"] < sum(read["end"] - read["begin"] for read in reads)
        assert told["epoch"] == step * step_tokens // tokens
        assert (told["step"], told["spec"], told["mix"]) == (step, SPEC, None)
        assert (told["format"], told["version"]) == ("batchfs-plan", 1)
        assert told["read_amplification"] == 1.0
        # The windows that a step begins and ends in, and one to read ahead.
        assert told["budget"] == 3 * window
    assert twice, "a row group can be in the last window of an epoch and the first of the next one"
    assert plan(box, folder, SPEC, 0, "--budget", "100MB")["budget"] == 100_000_000
    text = box.run("plan", folder, "--spec", SPEC, "--step", 9).stdout.splitlines()
    reads = want.reads(9)
    assert text[0] == f"{SPEC}: step 9 is in epoch 0"
    for line, read in zip(text[1:-1], reads, strict=True):
        assert line == (
            f"  epoch {read['epoch']} window {read['window']}: {read['file']} row group"
            f" {read['row_group']}, bytes {read['begin']} to {read['end']}"
        )
    assert text[-1].startswith(f"{len(reads)} row groups, ") and "1.0000 times" in text[-1]


@pytest.mark.parametrize("world", [2, 3, 6])
def test_a_plan_of_a_rank(box, world):
    folder = box.path / "data"
    files(folder)
    step_tokens, fewer = 6 * 16, 0
    for rank in range(world):
        spec = f"{SPEC},rank={rank},world={world}"
        want = Planned(folder, spec)
        for step in (0, 11, want.run.total // step_tokens, 10_000_001):
            told = plan(box, folder, spec, step)
            assert told["reads"] == want.reads(step), f"step {step} of rank {rank}"
            assert told["bytes"] == unlike(told["reads"])
            epoch = step * step_tokens // want.run.total
            assert told["epoch"] == epoch
            if rank == 0:
                read = told["read_amplification"]
                assert read == pytest.approx(want.amplification(epoch), rel=1e-12)
                assert 1 < read
            fewer += len(told["reads"]) < len(plan(box, folder, SPEC, step)["reads"])
    assert fewer >= world, "a rank reads less than all of them"


def test_the_read_amplification_is_within_its_bound(box):
    """Of row groups of one size, whose bytes are those of their tokens."""
    options = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    docs = [[1000 * d + i for i in range(11)] for d in range(480)]
    by_pyarrow(box.path / "data/x.parquet", docs, group=20, **options)
    count, window = 24, 3
    for world in (2, 4, 8):
        spec = f"lanes=8,window={window},seq_len=16,world={world}"
        told = plan(box, box.path / "data", spec, 3)["read_amplification"]
        assert 1 < told <= 1 + (world - 1) * -(-count // window) / count + 1e-9


def test_a_plan_of_a_mixture(box):
    for number, name in enumerate(("code", "web")):
        files(box.path / name, 10 * number)
    source = f"web={box.path}/web,code={box.path}/code"
    mix = ("--mix", "web=0.7,code=0.3")
    alone = {name: Planned(box.path / name, SPEC) for name in ("code", "web")}
    total = sum(one.run.total for one in alone.values())
    for world, rank in ((1, 0), (3, 2)):
        spec = SPEC if world == 1 else f"{SPEC},rank={rank},world={world}"
        for step in (0, 1, 17, 60, total // 96, 10_000_000):
            rows = [row.split(":") for row in reference.mixed("code=3,web=7", spec, step).split()]
            reads = []
            for name in ("code", "web"):
                own = [int(step) for source, step, _ in rows if source == name]
                # A rank has rows of all lanes of a source sooner or later, and reads whole windows.
                if own:
                    reads += alone[name].reads(min(own), max(own), name, world=1)
            told = plan(box, source, spec, step, *mix)
            assert told["reads"] == reads, f"step {step}"
            assert told["bytes"] == unlike(reads)
            assert told["epoch"] == step * 96 // total
            assert told["mix"] == "code=3,web=7"
            assert told["read_amplification"] == world
            text = box.run("plan", source, "--spec", spec, "--step", step, *mix).stdout
            for line, read in zip(text.splitlines()[1:-1], reads, strict=True):
                place = f"{read['source']}/{read['file']} row group {read['row_group']}, "
                assert line.startswith(f"  epoch {read['epoch']} window ") and place in line, line


def spoil(path) -> None:
    """Nothing but the footer is left of a file, which looks as old as before."""
    before, raw = path.stat(), path.read_bytes()
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    path.write_bytes(raw[:4] + b"\xff" * (footer - 4) + raw[footer:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("writer", ["pyarrow", "duckdb", "polars"])
def test_a_plan_reads_the_index_alone(box, writer):
    """The first step's bytes could not be read, and are not."""
    folder = box.path / "data"
    folder.mkdir()
    by = {"pyarrow": by_pyarrow, "duckdb": by_duckdb, "polars": by_polars}[writer]
    for i in range(3):
        by(folder / f"{i}.parquet", documents(i, 120, first=200 * i))
    spec, mix = "lanes=4,window=2,seq_len=16,seed=1", ("--mix", "a=1,b=3")
    both = f"a={folder}/0.parquet,b={folder}/1.parquet"
    asked = [(folder, spec, 0), (folder, f"{spec},rank=1,world=4", 7), (both, spec, 5, *mix)]
    want = [plan(box, *args) for args in asked]
    for path in folder.iterdir():
        spoil(path)
    if writer == "pyarrow":
        # Footers that prove how many tokens there are need nothing else, even the first time.
        shutil.rmtree(box.path / "cache")
    assert [plan(box, *args) for args in asked] == want
    box.fails("cat", folder, "tokens/batch/0", "--spec", spec, names=["row group"])
