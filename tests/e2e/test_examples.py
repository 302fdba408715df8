"""The examples of the documentation run as they stand."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import REPO

DATA = REPO / "tools/data"
EXAMPLES = REPO / "py/examples"


@pytest.fixture
def digits(box) -> Path:
    for name in ("images", "labels"):
        box.path.joinpath("digits").mkdir(exist_ok=True)
        box.run("create", f"digits/{name}", "--from", DATA / f"digits-{name}.npy")
    return box.path / "digits"


def test_training_with_numpy(box, digits, mode):
    with box.mount(digits, spec="batch=64,seed=42,remainder=carry", mode=mode) as m:
        done = box.tool(sys.executable, EXAMPLES / "numpy_batches.py", m.dir)
        accuracy = float(re.findall(r"accuracy ([0-9.]+)", done.stdout)[-1])
        assert accuracy > 0.9, done.stdout
        # The same spec and steps: the same run, to the last digit.
        assert box.tool(sys.executable, EXAMPLES / "numpy_batches.py", m.dir).stdout == done.stdout


def test_a_run_that_is_resumed(box, digits):
    example = EXAMPLES / "numpy_batches.py"
    whole, first = box.path / "whole.npz", box.path / "first.npz"
    with box.mount(digits, spec="batch=64,seed=42,remainder=carry") as m:
        box.tool(sys.executable, example, m.dir, "--steps", "60", "--save", whole)
        box.tool(sys.executable, example, m.dir, "--steps", "25", "--save", first)
    with box.mount(digits, spec="batch=64,seed=42,remainder=carry") as m:
        command = [sys.executable, example, m.dir, "--steps", "60", "--save", first]
        box.tool(*command, "--resume", first)
    with np.load(whole) as a, np.load(first) as b:
        assert a["step"] == b["step"] == 60
        assert np.array_equal(a["weights"], b["weights"])


def test_examples_say_what_is_wrong(box):
    done = box.tool(sys.executable, EXAMPLES / "numpy_batches.py", box.path, check=False)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1 and str(box.path) in done.stderr


def needs_package(code: str) -> bool:
    """Whether it is for the tests of the Python package, in py/tests."""
    return re.search(r"^\s*(import|from) batchfs\b", code, re.M) is not None


ALONE = [path for path in sorted(EXAMPLES.glob("*.py")) if not needs_package(path.read_text())]


@pytest.mark.parametrize("path", ALONE, ids=lambda p: p.name)
def test_examples_have_help(box, path):
    assert "usage" in box.tool(sys.executable, path, "--help").stdout


def readme_blocks(language: str) -> list[str]:
    path = REPO / "README.md"
    text = path.read_text() if path.exists() else ""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def test_the_python_of_the_readme(box, digits):
    blocks = [block for block in readme_blocks("python") if not needs_package(block)]
    if not blocks:
        pytest.skip("README.md has no Python")
    with box.mount(digits, spec="batch=256,seed=42") as m:
        code = "\n".join(blocks).replace("/mnt/ds", str(m.dir))
        done = box.tool(sys.executable, "-c", code, check=False)
        assert done.returncode == 0, f"{code}\n{done.stderr}"


def test_the_python_of_the_mounts_own_readme(box, digits):
    with box.mount(digits) as m:
        text = m.read("README.txt").decode()
        code = "".join(
            f"{line.strip()}\n"
            for line in text.splitlines()
            if re.match(r"  (import|[a-z]+ = np\.)", line)
        )
        assert "np.load" in code
        box.tool(sys.executable, "-c", code + "assert x.shape == (32, 8, 8), x.shape", cwd=m.dir)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_benchmarks_run(box):
    """On small data, built as the tests are; installs the peers. Needs what benches/run.py says."""
    scripts = sorted((REPO / "benches").glob("run.*"))
    if not scripts:
        pytest.skip("there is no benches/run.*")
    [script] = scripts
    runner = [sys.executable] if script.suffix == ".py" else ["bash"]
    options = ["--quick", "--profile", "ci"]
    done = box.tool(*runner, script, *options, check=False, timeout=1700)
    if done.returncode != 0 and "loaderx needs Python" in done.stderr:
        pytest.skip("needs Python 3.12 or newer")
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
