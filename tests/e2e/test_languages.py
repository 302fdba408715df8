"""A batch read by programs in other languages, and by the tools of a shell."""

import numpy as np
import pytest
from harness import REPO, needs_tool

LANG = REPO / "tests/lang"
TOOLS = {
    "cat": 'cat "$1" > "$2"',
    "cp": 'cp "$1" "$2"',
    "cp-sparse": 'cp --sparse=always "$1" "$2"',
    "dd": 'dd if="$1" of="$2" bs=4097 status=none',
    "dd-direct": 'dd if="$1" of="$2" bs=64K iflag=direct,fullblock status=none',
    "head-tail": '(head -c 1000 "$1"; tail -c +1001 "$1") > "$2"',
    "tar": 'tar -C "$(dirname "$1")" -cf - "$(basename "$1")" | tar -xOf - > "$2"',
    "rsync": 'rsync "$1" "$2"',
    "rsync-inplace": 'rsync --inplace --checksum "$1" "$2"',
    "busybox": 'busybox cat "$1" > "$2"',
}
NEEDS = {"tar": "tar", "rsync": "rsync", "rsync-inplace": "rsync", "busybox": "busybox"}
FACES = ["", ".npy", ".safetensors", ".arrow", ".txt"]


@pytest.fixture
def batches(box):
    """A dataset with a batch of an odd length, with holes that sparse copies may find."""
    rng = np.random.default_rng(2)
    array = rng.integers(0, 256, (50, 20_011), np.uint8)
    array[::2] = 0
    box.npy("data/x", array)
    return box.path / "data", array


def expected(box, m, array, step: int):
    path = box.path / f"expected-{step}"
    path.write_bytes(array[m.ids(step)].tobytes())
    return path


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["node", LANG / "reader.js"], marks=needs_tool("node"), id="node"),
        pytest.param(["java", LANG / "Reader.java"], marks=needs_tool("javac"), id="java"),
        pytest.param(["perl", LANG / "reader.pl"], marks=needs_tool("perl"), id="perl"),
    ],
)
def test_a_language_reads_a_batch(box, batches, mode, command):
    source, array = batches
    with box.mount(source, spec="batch=16,seed=4", mode=mode) as m:
        for step in (0, 1):
            done = box.tool(*command, m / f"x/batch/{step}", expected(box, m, array, step))
            assert done.stdout == f"ok {16 * 20_011}\n"


def test_c_reads_a_batch(box, batches, mode, compiled):
    source, array = batches
    reader = compiled("reader")
    with box.mount(source, spec="batch=16,seed=4", mode=mode) as m:
        for step in (0, 1):
            done = box.tool(reader, m / f"x/batch/{step}", expected(box, m, array, step))
            assert done.stdout == f"ok {16 * 20_011}\n"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=needs_tool(NEEDS.get(n, "cp"))) for n in TOOLS]
)
def test_a_tool_copies_a_batch(box, batches, mode, name):
    """Each file is first seen by the tool itself."""
    source, array = batches
    with box.mount(source, spec="batch=16,seed=4", mode=mode) as m:
        for step, face in enumerate(FACES):
            file, copy = m / f"x/batch/{step}{face}", box.path / f"copy{step}"
            box.tool("sh", "-ec", TOOLS[name], "sh", file, copy)
            box.tool("cmp", file, copy)
            assert copy.stat().st_size == file.stat().st_size
        assert (box.path / "copy0").read_bytes() == array[m.ids(0)].tobytes()
