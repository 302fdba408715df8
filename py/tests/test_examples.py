"""The examples, as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from batchfs.store import DenseWriter

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "py" / "examples"


def run(name, *args):
    command = [sys.executable, EXAMPLES / name, *args]
    # More threads than cores are slow, where others are at work, too.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits") / "digits"
    for name in ("images", "labels"):
        records = np.load(ROOT / f"tools/data/digits-{name}.npy")
        with DenseWriter(root / name, records.dtype, records.shape[1:], codec="zstd") as w:
            w.append(records)
    return root


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_help(path):
    if "import torch\n" in path.read_text():
        pytest.importorskip("torch")
    assert "usage" in run(path.name, "--help")


def test_the_package_in_the_readme(digits, fuse):
    pytest.importorskip("torch")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    [code] = [block for block in blocks if "import batchfs" in block]
    world = {}
    exec(code.replace('"train"', repr(str(digits))), world)
    assert world["images"].shape == (256, 8, 8)


def test_image_training(digits, tmp_path, fuse):
    torch = pytest.importorskip("torch")
    said = run("train_images.py", digits, "--steps", 100, "--save", tmp_path / "whole")
    assert float(re.search(r"accuracy (\S+)", said)[1]) > 0.85
    assert run("train_images.py", digits, "--steps", 100, "--mount") == said, "through the mount"
    run("train_images.py", digits, "--steps", 60, "--save", tmp_path / "part")
    resume = ["--resume", tmp_path / "part", "--save", tmp_path / "rest"]
    run("train_images.py", digits, "--steps", 100, *resume)
    whole, rest = (torch.load(tmp_path / name)["model"] for name in ("whole", "rest"))
    assert all(torch.equal(whole[key], rest[key]) for key in whole), "as if never interrupted"


def test_token_training(tmp_path):
    torch = pytest.importorskip("torch")
    data = tmp_path / "tokens"
    run(
        "train_tokens.py", data, "--make", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))
    )
    whole, part, rest = (tmp_path / name for name in ("whole", "part", "rest"))
    said = run("train_tokens.py", data, "--steps", 60, "--save", whole)
    first, last = (
        re.search(r"step 0, .* loss (\S+)", said)[1],
        re.search(r"final loss (\S+)", said)[1],
    )
    assert float(last) < 0.8 * float(first)
    run("train_tokens.py", data, "--steps", 25, "--save", part)
    run("train_tokens.py", data, "--steps", 60, "--resume", part, "--save", rest)
    whole, rest = (torch.load(path) for path in (whole, rest))
    assert whole["data"] == rest["data"]
    same = (torch.equal(whole["model"][key], rest["model"][key]) for key in whole["model"])
    assert all(same), "as if never interrupted"


def test_word2vec():
    pytest.importorskip("torch")
    texts = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    said = run("word2vec.py", *texts, "--steps", 60)
    losses = [float(x) for x in re.findall(r"loss (\S+),", said)]
    assert losses[-1] < 0.9 * losses[0], said


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_dlpack_round_trip(framework):
    pytest.importorskip(framework)
    assert "the same" in run("dlpack_roundtrip.py", "--framework", framework)


def test_numpy_alone(digits, fuse):
    import batchfs

    with batchfs.mount(digits, spec="batch=64,seed=42,remainder=carry") as ds:
        said = run("numpy_batches.py", ds.path, "--steps", 60)
    assert float(re.search(r"accuracy (\S+)", said)[1]) > 0.8
    assert "import batchfs" not in (EXAMPLES / "numpy_batches.py").read_text()
