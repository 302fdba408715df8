"""`batchfs index`: what is said of files, row groups, tokens, documents and epochs."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
from token_data import by_duckdb, by_pyarrow, documents

SPEC = "lanes=6,window=3,seq_len=16,seed=7"


def files(folder, seed: int = 0) -> dict[str, list[list]]:
    """Files by name, in the order of the dataset, and their row groups."""
    (folder / "b").mkdir(parents=True)
    docs = documents(seed + 1, 90)
    docs[7] = docs[8] = None
    made = {"a.parquet": by_pyarrow(folder / "a.parquet", docs)}
    made["b/x.parquet"] = by_duckdb(folder / "b/x.parquet", documents(seed + 2, 50, first=100))
    # One without rows, one whose documents are all empty.
    empty = pa.table({"tokens": pa.array([], pa.list_(pa.int32()))})
    pq.write_table(empty, folder / "c.parquet")
    made["c.parquet"] = [[]] * pq.ParquetFile(folder / "c.parquet").metadata.num_row_groups
    made["d.parquet"] = by_pyarrow(folder / "d.parquet", [[]] * 30)
    made["e.parquet"] = by_pyarrow(folder / "e.parquet", documents(seed + 3, 61, first=300))
    return made


def counts(groups: list[list]) -> tuple[int, int, int]:
    """Row groups, tokens, documents."""
    docs = [doc or [] for group in groups for doc in group]
    return len(groups), sum(map(len, docs)), len(docs)


def first_steps(tokens: int, step: int, epochs: int = 4) -> list[int]:
    """The steps whose first token is the first of their epoch's steps: rounded up."""
    return [-(-epoch * tokens // step) for epoch in range(epochs)]


def test_counts_are_those_of_the_files(box):
    made = files(box.path / "data")
    told = json.loads(box.run("index", box.path / "data", "--json").stdout)
    keys = ("row_groups", "tokens", "documents")
    want = {name: dict(zip(keys, counts(groups), strict=True)) for name, groups in made.items()}
    assert told["files"] == [{"file": name, **want[name]} for name in sorted(made)]
    groups, tokens, docs = counts([group for own in made.values() for group in own])
    assert (told["row_groups"], told["tokens"], told["documents"]) == (groups, tokens, docs)
    assert docs == 90 + 50 + 30 + 61 and tokens > 0
    for key in keys:
        assert told[key] == sum(file[key] for file in told["files"])
    assert (told["format"], told["version"]) == ("batchfs-index", 1)
    assert (told["source"], told["column"]) == (str(box.path / "data"), "tokens")
    assert told["dtype"] == "int32" and len(told["fingerprint"]) == 32
    assert "first_steps_of_epochs" not in told and "windows_per_epoch" not in told
    text = box.run("index", box.path / "data").stdout.splitlines()
    lines = [(name, *counts(made[name])) for name in sorted(made)]
    whole = f"{box.path}/data: {groups} row groups, {tokens} tokens, {docs} documents"
    assert text == [
        *(f"{f}: {g} row groups, {t} tokens, {d} documents" for f, g, t, d in lines),
        f"{whole}, {tokens / docs:.1f} tokens each",
    ]


def test_epochs_begin_where_their_tokens_do(box):
    made = files(box.path / "data")
    groups, tokens, _ = counts([group for own in made.values() for group in own])
    for lanes, window, length in ((6, 3, 16), (1, 1, 7), (8, 64, 32), (4, groups, 5)):
        spec = f"lanes={lanes},window={window},seq_len={length},seed=7"
        args = ("index", box.path / "data", "--spec", spec)
        told = json.loads(box.run(*args, "--json").stdout)
        want = first_steps(tokens, lanes * length)
        assert told["first_steps_of_epochs"] == want and want[0] == 0
        assert told["windows_per_epoch"] == -(-groups // window)
        assert told["spec"] == spec
        last = box.run(*args).stdout.splitlines()[-1]
        steps = ", ".join(map(str, want))
        windows = f"{-(-groups // window)} windows an epoch"
        assert last == f"{spec}: {windows}; epochs begin at the steps {steps}, ..."
        # The mount counts its epochs in the same way.
        for epoch, step in enumerate(want[1:], 1):
            for at, number in ((step - 1, epoch - 1), (step, epoch)):
                name = f"tokens/batch/{at}.json"
                shown = box.run("cat", box.path / "data", name, "--spec", spec).stdout
                assert json.loads(shown)["epoch"] == number
    with box.mount(box.path / "data", spec=SPEC) as m:
        assert m.config()["steps_per_cycle"] == first_steps(tokens, 96)[1]
    # Ranks have the same steps.
    told = json.loads(
        box.run("index", box.path / "data", "--spec", f"{SPEC},rank=2,world=3", "--json").stdout
    )
    assert told["first_steps_of_epochs"] == first_steps(tokens, 96)


def test_an_index_of_a_mixture_has_each_source_and_all(box):
    sources = {name: files(box.path / name, 10 * n) for n, name in enumerate(("code", "web"))}
    source = f"web={box.path}/web,code={box.path}/code"
    args = ("index", source, "--mix", "web=0.7,code=0.3", "--spec", SPEC)
    told = json.loads(box.run(*args, "--json").stdout)
    assert [one["name"] for one in told["sources"]] == ["code", "web"]
    total, lines = 0, []
    for one, (name, made) in zip(told["sources"], sorted(sources.items()), strict=True):
        groups, tokens, docs = counts([group for own in made.values() for group in own])
        assert (one["row_groups"], one["tokens"], one["documents"]) == (groups, tokens, docs)
        assert one["source"] == str(box.path / name)
        alone = json.loads(box.run("index", box.path / name, "--json").stdout)
        assert one["files"] == alone["files"] and one["fingerprint"] == alone["fingerprint"]
        total += tokens
        for file in sorted(made):
            g, t, d = counts(made[file])
            lines.append(f"{name}: {file}: {g} row groups, {t} tokens, {d} documents")
        whole = f"{name}: {box.path}/{name}: {groups} row groups, {tokens} tokens"
        lines.append(f"{whole}, {docs} documents, {tokens / docs:.1f} tokens each")
    # An epoch of the mixture has the tokens of all sources; windows are each source's own.
    steps = first_steps(total, 96)
    assert told["first_steps_of_epochs"] == steps and "windows_per_epoch" not in told
    lines += ["of each 10 rows in order: 3 of code, 7 of web"]
    lines += [f"{SPEC}: epochs begin at the steps {', '.join(map(str, steps))}, ..."]
    assert box.run(*args).stdout.splitlines() == lines
