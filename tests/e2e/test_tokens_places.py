"""What is wrong with files of tokens is the same, and told in the same words, wherever they lie."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import s3
from harness import errno_of, wait_for
from token_data import DAMAGES, batches, by_pyarrow, damage, documents


@dataclass
class Place:
    """A folder, and how the program is told of it."""

    folder: Path
    source: str
    env: dict[str, str]

    def told(self, said: str) -> str:
        """What was said, as if of the folder."""
        return said.replace(self.source, str(self.folder))


@contextlib.contextmanager
def places(box) -> Iterator[list[Place]]:
    """The same folder, by its path and as a bucket's prefix."""
    folder = box.folder("s3/bucket/data")
    with s3.server(box.path / "s3") as port:
        far = Place(folder, "s3://bucket/data", s3.environment(port))
        yield [Place(folder, str(folder), {}), far]


def test_helper_files_are_data_nowhere(box):
    with places(box) as both:
        folder = both[0].folder
        by_pyarrow(folder / "part-0.parquet", documents(1, 40))
        by_pyarrow(folder / "_temporary/0/x.parquet", documents(2, 40))
        by_pyarrow(folder / ".hidden.parquet", documents(3, 40))
        for name in ("_metadata", "_common_metadata"):
            shutil.copy(folder / "part-0.parquet", folder / name)
        for name in ("_SUCCESS", ".part-0.parquet.crc", "README.md"):
            (folder / name).write_bytes(b"")
        told = [
            json.loads(box.run("index", place.source, "--json", env=place.env).stdout)
            for place in both
        ]
        assert [file["file"] for file in told[0]["files"]] == ["part-0.parquet"]
        assert told[0]["files"] == told[1]["files"]
        assert told[0]["fingerprint"] == told[1]["fingerprint"]


def null_item(path: Path) -> None:
    by_pyarrow(path, [[1], None, [2, None, 3]])


def no_list(path: Path) -> None:
    by_pyarrow(path, [["a"]], pa.list_(pa.string()))


BAD = {
    **{how: (lambda path, how=how: damage(path, how), way) for how, way in DAMAGES.items()},
    "null item": (null_item, "drop the item or the row"),
    "no integers": (no_list, "name another column with --column"),
}
"""What is done to a file, and what is said that can be done about it."""


@pytest.mark.parametrize("bad", BAD)
def test_files_that_are_refused_are_so_everywhere(box, bad):
    spoil, way_out = BAD[bad]
    with places(box) as both:
        by_pyarrow(both[0].folder / "a.parquet", documents(1, 40))
        path = both[0].folder / "part-9.parquet"
        by_pyarrow(path, documents(2, 40))
        spoil(path)
        said = []
        for place in both:
            name = f"{place.source}/part-9.parquet"
            told = box.fails("index", place.source, env=place.env, names=[name, way_out])
            said.append(place.told(told))
        assert said[0] == said[1]


def test_a_dataset_without_tokens_is_refused_everywhere(box):
    with places(box) as both:
        by_pyarrow(both[0].folder / "a.parquet", [[], None])
        names = ["no tokens at all", '"tokens"', "name another column with --column"]
        said = [
            place.told(box.fails("index", place.source, env=place.env, names=names))
            for place in both
        ]
        assert said[0] == said[1]


def causes(m, place: Place) -> set[str]:
    """The errors of steps, without when each was."""
    lines = place.told(m.errors()).splitlines()
    return {line.split(": ", 1)[1] for line in lines if "tokens/batch/" in line}


def test_a_damaged_page_spoils_the_same_steps_everywhere(box):
    with places(box) as both:
        folder = both[0].folder
        by_pyarrow(folder / "a.parquet", documents(1, 200, first=0), group=100)
        options = {"write_page_checksum": True, "compression": "none"}
        by_pyarrow(folder / "b.parquet", documents(2, 200, first=500), group=100, **options)
        damage(folder / "b.parquet", "flipped")
        seen, said = [], []
        for place in both:
            with box.mount(place.source, spec="lanes=2,window=1,seq_len=16", env=place.env) as m:
                steps = range(m.config()["steps_per_cycle"])
                paths = [m / f"tokens/batch/{step}" for step in steps]
                seen.append([errno_of(path.read_bytes) or path.read_bytes() for path in paths])
                said.append(causes(m, place))
        assert "EIO" in seen[0] and seen[0] == seen[1]
        assert len(said[0]) == 1 and said[0] == said[1]
        [cause] = said[0]
        assert cause.startswith(f"{folder}/b.parquet: row group 0: the token column is damaged")
        assert cause.endswith("; write the file again or remove it, then mount again")


@pytest.mark.parametrize("far", [False, True], ids=["local", "s3"])
def test_a_file_that_vanishes_fails_the_steps_that_need_it_alone(box, far):
    """And those steps no longer than it is away."""
    spec = "lanes=2,window=1,seq_len=16"
    with places(box) as both:
        place = both[far]
        names = [f"{name}.parquet" for name in "abcd"]
        for number, name in enumerate(names):
            by_pyarrow(place.folder / name, documents(number, 100, first=200 * number), group=50)
        with box.mount(place.folder, spec=spec) as m:
            steps = range(m.config()["steps_per_cycle"])
            want = batches(m, steps)
        plan = ("plan", place.folder, "--spec", spec, "--json", "--step")
        told = [json.loads(box.run(*plan, step).stdout) for step in steps]
        needs = [{read["file"] for read in one["reads"]} for one in told]
        # The one that is needed last, so that nothing of it is read ahead of the first steps.
        first = {name: next(step for step in steps if name in needs[step]) for name in names}
        gone, away = max(first, key=first.get), box.path / "away"
        # Room for few row groups.
        with box.mount(place.source, "--budget", "30KB", spec=spec, env=place.env) as m:
            assert batches(m, range(3)) == want[:3]
            os.rename(place.folder / gone, away)
            failures = m.metrics()["failures_total"]
            seen = [errno_of((m / f"tokens/batch/{step}").read_bytes) for step in steps]
            assert {step for step in steps if seen[step]} == {
                step for step in steps if gone in needs[step]
            }
            assert set(seen) == {None, "EIO"}
            whole = [step for step in steps if not seen[step]]
            assert batches(m, whole) == [want[step] for step in whole]
            assert m.metrics()["failures_total"] - failures >= len(steps) - len(whole)
            for cause in causes(m, place):
                assert cause.startswith(f"{place.folder}/{gone}: cannot "), cause
                assert ("NoSuchKey" if far else "No such file") in cause
                way_out = "put the file back, or mount again without it"
                assert cause.endswith(f"; a dataset must not change while it is used: {way_out}")
            os.rename(away, place.folder / gone)
            for step in steps:
                path = m / f"tokens/batch/{step}"
                wait_for(lambda path=path: errno_of(path.read_bytes) is None, "it is back")
                assert path.read_bytes() == want[step]
