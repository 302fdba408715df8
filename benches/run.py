#!/usr/bin/env python3
"""Measures batchfs and its peers side by side. See docs/benchmarks.md.

This file needs nothing but Python: it makes a virtual environment with the peers, builds the
release binaries, and starts the harness there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ["numpy==2.5.5", "ml-dtypes==0.6.0", "loaderx==2.8.19", "maturin==1.16.0"]
TORCH = ["torch==2.15.0"]
# The peers of the group tokens, and what they import.
TOKENS = [
    *("datasets==4.0.0", "pyarrow==26.0.1", "pillow==13.0.0", "catalogue==2.0.10", "boto3"),
    *("Brotli==1.2.1", "python-snappy==0.7.3", "zstd==1.5.7.2", "psutil==7.2.2"),
    *("regex==2026.11.19", "safetensors==0.8.0", "tokenizers==0.23.3", "torchvision==0.29.2"),
]
# These without their requirements, most of which are the libraries of clouds.
TOKENS_ALONE = ["mosaicml-streaming==0.13.0", "transformers==5.24.0"]
LEAST_PYTHON = (3, 12)
# Groups that measure the Python package.
IN_PYTHON = {"python", "loader", "loader-memory", "service"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure batchfs and its peers side by side.")
    parser.add_argument("--quick", action="store_true", help="small data, a few seconds")
    parser.add_argument("--work", type=Path, help="folder for datasets (default: a temporary one)")
    parser.add_argument("--only", help="comma-separated groups, such as gather,ids")
    parser.add_argument("--data", type=Path, help="Parquet files in a folder, for the group tokens")
    parser.add_argument("--column", help="the column with their tokens (default: tokens)")
    parser.add_argument("--rounds", type=int, help="turns that each contestant gets")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument(
        "--patience",
        type=float,
        help="seconds that may go into measuring turns again that other processes disturbed",
    )
    parser.add_argument("--venv", type=Path, help="the peers' environment (default: in target/)")
    parser.add_argument("--python", help="a Python 3.12 or newer")
    parser.add_argument(
        "--profile",
        default="release",
        help="the profile of cargo to build with, such as ci: to see that it runs (default: release)",
    )
    parser.add_argument(
        "--torch", action="store_true", help="install PyTorch, too (5 GB), as a peer"
    )
    args = parser.parse_args()

    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    target = cargo_target()
    venv = args.venv or target / "bench-venv"
    pins = REQUIREMENTS + (TORCH if args.torch else [])
    tokens = args.only is not None and "tokens" in args.only.split(",")
    if (args.data or args.column) and not tokens:
        parser.error("--data and --column are for --only tokens")
    if tokens:
        pins = [*pins, *TORCH, *TOKENS]
        venv = venv.with_name(f"{venv.name}-tokens")
    python = environment(venv, args.python, env, list(dict.fromkeys(pins)))
    if tokens:
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, *TOKENS_ALONE], env=env, check=True)
    print("building …", file=sys.stderr, flush=True)
    packages = ["-p", "batchfs", "-p", "batchfs-benches"]
    build = ["cargo", "build", "--profile", args.profile, "-q", *packages]
    subprocess.run(build, cwd=ROOT, env=env, check=True)

    if args.only is None or IN_PYTHON & set(args.only.split(",")):
        package(python, target, env, args.profile)

    command = [str(python), "-m", "harness", "--bin", str(target / args.profile)]
    command += ["--quick"] if args.quick else []
    for name in ("work", "only", "data", "column", "rounds", "json", "patience"):
        value = getattr(args, name)
        if value is not None:
            value = value.absolute() if isinstance(value, Path) else value
            command += [f"--{name}", str(value)]
    here = Path(__file__).resolve().parent
    return subprocess.run(command, cwd=here, env=env, check=False).returncode


def cargo_target() -> Path:
    if "CARGO_TARGET_DIR" in os.environ:
        return Path(os.environ["CARGO_TARGET_DIR"]).absolute()
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    out = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return Path(json.loads(out)["target_directory"])


def package(python: Path, target: Path, env: dict[str, str], profile: str) -> None:
    """Builds this package's wheel, and installs it beside the peers."""
    wheels = target / "bench-wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    build = [python, "-m", "maturin", "build", "--quiet", "--profile", profile, "--locked"]
    manifest = ["--manifest-path", ROOT / "py" / "Cargo.toml", "--interpreter", python]
    subprocess.run([*build, *manifest, "--out", wheels], cwd=ROOT, env=env, check=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    [wheel] = wheels.glob("*.whl")
    subprocess.run([*pip, "--force-reinstall", wheel], env=env, check=True)


def environment(venv: Path, wanted: str | None, env: dict[str, str], wants: list[str]) -> Path:
    """The Python of a virtual environment that has exactly the pinned peers."""
    python = venv / "bin" / "python"
    stamp = venv / "peers.txt"
    pins = "\n".join(wants)
    if stamp.is_file() and stamp.read_text() == pins and python.exists():
        return python
    base = find_python(wanted)
    print(f"installing {', '.join(wants)} …", file=sys.stderr, flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([base, "-m", "venv", str(venv)], env=env, check=True)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if subprocess.run([*pip, *wants], env=env, check=False).returncode != 0:
        sys.exit("benches: the peers could not be installed; is PyPI, or a mirror, reachable?")
    stamp.write_text(pins)
    return python


def find_python(wanted: str | None) -> str:
    names = [f"python3.{minor}" for minor in (14, 13, 12)] + ["python3", sys.executable]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted((str(p) for p in pyenv.glob("*/bin/python")), reverse=True)
    for name in [wanted] if wanted else [*names, *installed]:
        path = shutil.which(name)
        if path and version(path) >= LEAST_PYTHON:
            return path
    least = ".".join(map(str, LEAST_PYTHON))
    looked = wanted or f"PATH and {pyenv}"
    sys.exit(f"benches: loaderx needs Python {least} or newer, and there is none at {looked}")


def version(python: str) -> tuple[int, ...]:
    code = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return tuple(map(int, run.stdout.split())) if run.returncode == 0 else (0,)


if __name__ == "__main__":
    sys.exit(main())
