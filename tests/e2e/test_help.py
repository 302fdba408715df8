"""What the program says of itself: every example of every --help runs; completions complete; man
pages render."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import token_data
from harness import mounts_under, need_fuse, needs_tool

COMMANDS = ["create", "export", "train-dict", "info", "index", "plan", "verify", "ids", "ls", "cat"]
COMMANDS += ["mount", "umount", "doctor", "demo", "completions", "man"]


def help_of(box, *command: str) -> str:
    # Wide enough that no line is broken.
    return box.run(*command, "--help", env={"COLUMNS": "300"}).stdout


def examples(text: str) -> list[str]:
    """The commands of a help text, without the remarks behind them."""
    block = re.split(r"^(?:Examples|Start here):\n", text, flags=re.M)[1].split("\n\n")[0]
    return [re.split(r"\s{2,}", line.strip())[0] for line in block.splitlines()]


@pytest.fixture
def world(box) -> Path:
    """What the examples speak of."""
    rng = np.random.default_rng(5)
    here = box.path / "world"
    here.mkdir()
    words = rng.integers(0, 1000, (64, 16), np.int32)
    tokens = words[rng.integers(0, 64, (2000, 8))].reshape(2000, 128)
    files = {
        "images": rng.integers(0, 256, (300, 8, 8), np.uint8),
        "labels": np.arange(300),
        "2024/labels": np.arange(300),
        "arrays/a": np.arange(300),
        "arrays/b": np.arange(300.0),
        "x": np.arange(300, dtype=np.uint16).view("V2"),
        "values": np.arange(50, dtype=np.uint8),
        "cu": np.array([0, 20, 20, 50]),
        "tokens": tokens[:300],
        "all-tokens": tokens,
    }
    for name, array in files.items():
        box.npy(f"world/{name}", array)

    def run(*args):
        box.run(*args, cwd=here)

    run("create", "sample/tokens", "--from", "all-tokens.npy")
    run("train-dict", "sample/tokens", "-o", "tokens.dict")
    for name in ("images", "labels", "tokens"):
        run("create", f"train/{name}", "--from", f"{name}.npy")
    run("export", "train", "loaderx/train", "--format", "zrecord")
    token_data.by_pyarrow(here / "fineweb/a.parquet", token_data.documents(1, 2000))
    # What is in a bucket there is in a folder here; a step of it has a million tokens.
    offsets = np.arange(0, 1_200_001, 600, np.int32)
    values = np.arange(offsets[-1], dtype=np.int32) % 1000
    column = pa.ListArray.from_arrays(offsets, values)
    token_data.by_pyarrow(here / "bucket/stack/a.parquet", token_data.documents(2, 2000))
    (here / "bucket/fineweb").mkdir(parents=True)
    data = pa.table({"tokens": column, "input_ids": column})
    pq.write_table(data, here / "bucket/fineweb/a.parquet", row_group_size=20)
    return here


def made_by(words: list[str]) -> list[str]:
    """What a command makes, and so must not be there before."""
    command, *args = words[1:]
    if command == "create":
        return args[:1]
    if command == "export":
        return args[1:2]
    return [args[args.index("-o") + 1]] if command == "train-dict" else []


def run_example(box, world: Path, line: str, number: int) -> str:
    here = box.path / f"scratch-{number}"
    shutil.copytree(world, here, copy_function=os.link)
    at = box.folder(f"mnt-{number}")
    env = {"PATH": f"{box.program.parent}:{os.environ['PATH']}"}
    words = shlex.split(line)
    uses = "/mnt/ds" in line
    line = line.replace("/mnt/ds", str(at)).replace("python3", sys.executable)
    line = line.replace("s3://bucket/", f"{here}/bucket/")
    made = made_by(words)
    for path in (here / name for name in made):
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    if uses and words[1] != "mount":
        box.run("mount", "train", at, cwd=here)
    if "-f" in words:
        child = box.start("sh", "-c", f"cd {here} && exec {line}", env=env)
        assert "is mounted" in child.stdout.readline()
        child.terminate()
        assert child.wait(60) == 0
        return ""
    done = box.tool("sh", "-c", line, cwd=here, env=env)
    assert done.stderr == ""
    for name in made:
        assert (here / name).exists(), line
    for redirected in re.findall(r"> (\S+)", line):
        assert (here / redirected).stat().st_size > 0, line
    if uses and words[1] == "mount":
        assert "is mounted" in done.stdout
    for point in mounts_under(at) + mounts_under(box.tmp):
        box.run("umount", point)
    assert not mounts_under(box.path)
    return done.stdout


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_example_runs(box, world, command):
    text = help_of(box, *[command] * bool(command))
    found = examples(text)
    assert any(line.startswith(f"batchfs {command}") for line in found), text
    if any("mount" in line or "demo" in line or "/mnt" in line for line in found):
        need_fuse()
    for number, line in enumerate(found):
        assert line.startswith(("batchfs ", "python3 -c ")), line
        run_example(box, world, line, number)
    for left in box.tmp.iterdir():
        shutil.rmtree(left)


def test_folders_on_the_way_are_made_and_go_again(box, world):
    """By all that writes, as `create` does it."""
    new = {
        "create": ["create", "a/b/store", "--from", "images.npy"],
        "export": ["export", "train/images", "a/b/x.npy", "--format", "npy"],
        "train-dict": ["train-dict", "sample/tokens", "-o", "a/b/dict"],
    }
    for command in new.values():
        box.run(*command, cwd=world)
        assert len(list((world / "a/b").iterdir())) == 1
        shutil.rmtree(world / "a")
    fails = [
        ["export", "train", "a/b/out", "--format", "zrecord", "--codec", "zstd_dict"],
        ["create", "a/b/store", "--from", "images.npy", "--codec", "zstd_dict"],
    ]
    for command in fails:
        box.fails(*command, cwd=world)
        assert not (world / "a").exists(), command


def test_the_list_of_commands_is_this(box):
    block = help_of(box).split("Commands:\n")[1].split("\n\n")[0]
    found = [line.split()[0] for line in block.splitlines()]
    assert sorted(found) == sorted([*COMMANDS, "help"])


def complete(box, script: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    code = f"""
        source {script}
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        function=$(complete -p batchfs | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        "$function" batchfs "${{@: -1}}" "${{@: -2:1}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    command = ["bash", "--norc", "-c", code, "-", *words]
    return box.tool(*command).stdout.split()


@needs_tool("bash")
def test_bash_completes(box):
    script = box.path / "batchfs.bash"
    script.write_text(box.run("completions", "bash").stdout)
    assert complete(box, script, "batchfs", "mo") == ["mount"]
    assert complete(box, script, "batchfs", "c") == ["create", "cat", "completions"]
    assert set(COMMANDS) <= set(complete(box, script, "batchfs", ""))
    assert complete(box, script, "batchfs", "mount", "--me") == ["--memory"]
    assert complete(box, script, "batchfs", "mount", "--verify", "") == ["first", "always", "never"]
    assert complete(box, script, "batchfs", "export", "--format", "n") == ["npy"]
    assert "--daemon" not in complete(box, script, "batchfs", "mount", "--")
    assert "bash" in complete(box, script, "batchfs", "completions", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(box, shell):
    script = box.path / "script"
    script.write_text(box.run("completions", shell).stdout)
    assert "mount" in script.read_text() and "batchfs" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    box.tool(shell, "-n", script)


def pages(box) -> list[Path]:
    box.run("man", "--dir", "man/deep")
    return sorted((box.path / "man/deep").iterdir())


def test_there_is_a_page_for_every_command(box):
    names = {f"batchfs-{command}.1" for command in COMMANDS} | {"batchfs.1", "mount.batchfs.8"}
    assert {page.name for page in pages(box)} == names
    assert (box.path / "man/deep/batchfs.1").read_text() == box.run("man").stdout
    box.fails("man", "--dir", "man/deep/batchfs.1", names=["man/deep/batchfs.1"])


@needs_tool("man", "groff")
def test_pages_render(box):
    for page in pages(box):
        env = {"MANWIDTH": "200", "MAN_KEEP_FORMATTING": ""}
        done = box.tool("man", "--warnings", "-l", page, env=env)
        text = re.sub(".\b", "", done.stdout)
        assert done.stderr == "", f"{page.name}: {done.stderr}"
        assert text.startswith(page.name.rsplit(".", 1)[0]) and "SYNOPSIS" in text
        if page.name.startswith("batchfs-"):
            # Examples keep their lines.
            command = page.name.removeprefix("batchfs-").removesuffix(".1")
            for line in examples(help_of(box, command)):
                assert f" {line}" in text, f"{page.name}: {line}"
        assert "--daemon" not in text


@needs_tool("mandoc")
def test_pages_have_no_errors(box):
    for page in pages(box):
        box.tool("mandoc", "-Tlint", "-Werror", page)
