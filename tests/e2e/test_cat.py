"""`batchfs cat` and `ls`: what the mount shows, without a mount."""

import json
import os
import subprocess

import numpy as np
import token_data

SPEC = "batch=32,seed=1"
NAMES = [
    "images/batch/3",
    "images/batch/3.npy",
    "x/batch/18446744073709551615.safetensors",
    "labels/batch/0.arrow",
    "x/batch/7.json",
    "x/batch/7.txt",
    "x/batch/7.sha256",
    "images/record/7",
    "images/record/7.png",
    "labels/record/999.txt",
    "index/5",
    "index/5.npy",
    "index/5.txt",
    "all/batch/0.safetensors",
    "all/batch/0.json",
    "view/batch=8/images/batch/0.json",
    "view/mode=iid,batch=8,seed=3/x/batch/9.npy",
    "x/schema.json",
    "README.txt",
]
FOLDERS = ["", "images", "images/batch/", "x/record", "index", "all", "all/batch", ".batchfs"]
FOLDERS += ["view/batch=64", "view/batch=64/labels/batch"]


def test_cat_prints_what_the_mount_holds(box, data):
    with box.mount(data, spec=SPEC) as m:
        wanted = {name: m.read(name) for name in NAMES}
        config = m.config()
    for name in NAMES:
        done = box.run("cat", data, name, "--spec", SPEC, text=False)
        assert done.stdout == wanted[name], name
        assert done.stderr == b""
    several = box.run("cat", data, *NAMES, "--spec", SPEC, text=False).stdout
    assert several == b"".join(wanted.values())
    found = json.loads(box.run("cat", data, ".batchfs/config.json", "--spec", SPEC).stdout)
    only = {"delivery": "none", "delivery_reason": "not mounted"}
    only |= dict.fromkeys(["memory_backing", "memory_limit", "pid", "service"])
    assert found == config | only


def test_ls_lists_what_the_mount_lists(box, data):
    with box.mount(data, spec=SPEC) as m:
        for folder in FOLDERS:
            entries = {e.name + "/" * e.is_dir() for e in os.scandir(m / folder)}
            listed = box.run("ls", data, folder, "--spec", SPEC).stdout.splitlines()
            assert len(listed) == len(entries) and set(listed) == entries, folder
    assert box.run("ls", data, "images/batch/0").stdout == "images/batch/0\n"
    assert "README.txt" in box.run("ls", data).stdout.splitlines()


def test_an_empty_record_is_empty(box):
    values, cu = (
        box.npy("values", np.arange(5, dtype=np.int16)),
        box.npy("cu", np.array([0, 2, 2, 5])),
    )
    box.run("create", "text", "--from", values, "--offsets", cu)
    sizes = [
        len(box.run("cat", "text", f"text/record/{i}", "--spec", "batch=1", text=False).stdout)
        for i in range(3)
    ]
    assert sizes == [4, 0, 6]


def test_names_that_are_not_there_are_refused(box, data):
    for command in ("cat", "ls"):
        there = "there are README.txt, .batchfs, view, index, all, images, labels, x"
        box.fails(command, data, "img/batch/0", names=["img/batch/0", there])
        box.fails(command, data, "x/bach/0", names=["x has schema.json, record, batch"])
        box.fails(command, data, "x/batch/00", names=["x/batch/00", "plain decimal numbers"])
        box.fails(command, data, "x/record/1000", names=["x/record/1000", "1000"])
        box.fails(command, data, "x/batch/0.png", names=["x/batch/0.png", "only single records"])
        box.fails(command, data, "view/batch=0/index/0", names=["view/batch=0", "at least 1"])
        box.fails(command, data, "view/batch=9999/index", names=["view/batch=9999"])
        box.fails(command, data, "README.txt/x", names=["README.txt: is a file"])
        box.fails(command, data, "x", "--spec", "batch=1001", names=["batch=1001"])
    box.fails("cat", data, "x/batch", names=["x/batch: is a folder"])
    for name in ("metrics", "errors", "service.sock"):
        box.fails("cat", data, f".batchfs/{name}", names=[f".batchfs/{name}", "only a mount"])


def test_a_damaged_record_is_an_error_and_not_bytes(box, data, arrays):
    store = box.store("s", arrays["images"], "--shards", "1")
    payload = store / "data-000.npy"
    raw = bytearray(payload.read_bytes())
    raw[-1] ^= 1
    payload.write_bytes(raw)
    box.fails("cat", store, "s/record/999", names=["record 999"])
    assert len(box.run("cat", store, "s/record/998", text=False).stdout) == 12 * 9 * 3


def terminal(box, *args) -> tuple[int, bytes, str]:
    """Runs batchfs on a terminal: exit code, what the terminal shows, what is said beside."""
    master, slave = os.openpty()
    child = box.start(box.program, *args, stdout=slave, stderr=subprocess.PIPE)
    os.close(slave)
    shown = b""
    try:
        while part := os.read(master, 4096):
            shown += part
    except OSError:
        pass  # Its other end is closed.
    os.close(master)
    said = child.stderr.read()
    return child.wait(60), shown, said


def test_bytes_do_not_go_to_a_terminal(box, data, arrays):
    code, shown, said = terminal(box, "cat", data, "images/batch/0")
    assert code == 1 and shown == b""
    assert "images/batch/0" in said and "--force" in said and said.count("\n") == 1
    code, shown, said = terminal(box, "cat", data, "images/batch/0.txt")
    assert code == 0 and b"uint8 (256, 12, 9, 3)" in shown and said == ""
    code, shown, said = terminal(box, "cat", data, "images/record/3", "--force")
    # The terminal makes two bytes of each newline.
    assert code == 0 and shown == arrays["images"][3].tobytes().replace(b"\n", b"\r\n")


def test_tokens(box):
    docs = token_data.documents(4, 300)
    assert [] in docs
    token_data.by_pyarrow(box.path / "text/a.parquet", docs)
    spec = "lanes=4,seq_len=32,window=3,seed=1"
    names = ["batch/0", "batch/9.npy", "batch/3.safetensors", "batch/7.txt", "batch/2.json"]
    names += [f"record/{docs.index([])}", "record/1", "record/1.txt", "schema.json"]
    names = [f"tokens/{name}" for name in names] + [
        "view/lanes=2,seq_len=16,window=2/tokens/batch/1"
    ]
    with box.mount(box.path / "text", spec=spec) as m:
        for name in names:
            found = box.run("cat", "text", name, "--spec", spec, text=False).stdout
            assert found == m.read(name), name
        listed = box.run("ls", "text", "tokens/batch", "--spec", spec).stdout.split()
        assert listed == sorted(os.listdir(m / "tokens/batch"), key=int)
    box.fails("cat", "text", "index/0", "--spec", spec, names=["index/0", "there are README.txt"])
    box.fails("cat", "text", "tokens/batch/0", "--spec", "batch=2", names=["lanes, window"])
