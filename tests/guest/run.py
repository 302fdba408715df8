#!/usr/bin/env python3
"""Runs tests of dma-bufs on a kernel that has them: a Debian kernel in qemu, emulated.

    tests/guest/run.py [--only NAME]... [--timeout SECONDS] [--quick]

The tests are those of the crate batchfs-dmabuf and those in fs/mount/tests, built as everything
else is, with the program batchfs beside them. qemu and the kernel are kept in the folder `guest`
of the target folder.
Exits with 0 if all passed, 77 if the machine cannot be had (the last line says why), else 1.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from fetch import MODULES, Missing, machine
from initramfs import Archive

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
SKIPPED = 77
# A kernel that ends before it runs a test says nothing of what is tested, so it is booted again.
BOOTS = 3
# Crates, and which kinds of their tests.
TESTS = {("dmabuf/deliver", "lib"), ("dmabuf/deliver", "test"), ("fs/mount", "test")}


def build(*which: str) -> list[str]:
    command = ["cargo", "build", *which, "--locked", "--profile", "ci"]
    command += ["--quiet", "--message-format=json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def executables(quick: bool) -> tuple[Path, dict[str, Path]]:
    """The program, and the tests by name."""
    if quick:
        said = build("-p", "batchfs", "--bin", "batchfs")
        said += build("-p", "batchfs-dmabuf", "-p", "batchfs-mount", "--tests")
    else:
        # As tests/run.sh does it, so that nothing is built twice.
        said = build("--workspace", "--bins", "--tests", "--examples")
    program, tests = None, {}
    for line in said:
        made = json.loads(line)
        if not made.get("executable"):
            continue
        target, path = made["target"], Path(made["executable"])
        if target["kind"] == ["bin"] and target["name"] == "batchfs":
            program = program if made["profile"]["test"] else path
        elif made["profile"]["test"]:
            folder = Path(made["manifest_path"]).parent.relative_to(ROOT).as_posix()
            if (folder, target["kind"][0]) in TESTS:
                tests[f"{folder}/{target['name']}".replace("/", "-")] = path
    if program is None:
        sys.exit("the build gave no program batchfs")
    return program, tests


def initramfs(place: Path, kernel: Path, program: Path, tests: dict[str, Path]) -> None:
    archive = Archive()
    for name in ("proc", "sys", "dev", "tmp", "bin", "run", "mnt"):
        archive.folder(name)
    archive.node("dev/console", 5, 1)
    archive.program("bin/busybox", Path(shutil.which("busybox")))
    archive.program("bin/batchfs", program)
    for name, path in sorted(tests.items()):
        archive.program(f"tests/{name}", path)
    for module in MODULES:
        archive.file(f"modules/{module}.ko", (kernel / f"{module}.ko").read_bytes())
    archive.file("modules/order", " ".join(MODULES).encode())
    archive.file("init", (Path(__file__).parent / "init.sh").read_bytes())
    archive.write(place)


def boot(command: list[str], environment: dict[str, str], kernel: Path, image: Path, timeout: int):
    """Boots and prints what the guest says. Returns its lines."""
    # One thread for both processors: with one each, code that one of them patches may be run as it
    # was by the other, and a kernel patches itself while it boots ("Oops: int3").
    command = [*command, "-machine", "q35", "-accel", "tcg,thread=single"]
    command += ["-cpu", "qemu64", "-m", "1536"]
    command += ["-smp", "2", "-kernel", str(kernel / "vmlinuz"), "-initrd", str(image)]
    # `iomem=relaxed` lets a test look into the memory of the display.
    command += ["-append", "console=ttyS0 quiet panic=-1 iomem=relaxed"]
    command += ["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]
    command += ["-device", "cirrus-vga"]
    qemu = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    ends = time.monotonic() + timeout
    lines, rest = [], b""
    try:
        os.set_blocking(qemu.stdout.fileno(), False)
        while True:
            got = qemu.stdout.read()
            if got == b"":
                break
            if got is None:
                if time.monotonic() > ends:
                    lines.append(f"guest: did not end within {timeout} s")
                    break
                time.sleep(0.05)
                continue
            *whole, rest = (rest + got).replace(b"\0", b"").split(b"\n")
            for line in whole:
                text = re.sub(r"\x1b[\[\]()=>?;0-9]*[A-Za-z]?", "", line.decode(errors="replace"))
                text = text.rstrip("\r")
                lines.append(text)
                print(text, flush=True)
    finally:
        qemu.kill()
        qemu.wait()
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="of these test programs only")
    parser.add_argument("--quick", action="store_true", help="build only what the guest needs")
    parser.add_argument("--timeout", type=int, default=600)
    args = parser.parse_args()
    cache = TARGET / "guest"
    try:
        command, environment, kernel = machine(cache)
    except Missing as e:
        print(f"guest: cannot be had: {e}")
        return SKIPPED
    program, tests = executables(args.quick)
    if args.only:
        tests = {name: path for name, path in tests.items() if name in args.only}
    image = cache / "initramfs"
    initramfs(image, kernel, program, tests)
    print(f"guest: Linux {(kernel / 'version').read_text().strip()}")
    for attempt in range(BOOTS):
        if attempt > 0:
            print(f"guest: ended before its first test; boot {attempt + 1} of {BOOTS}", flush=True)
        lines = boot(command, environment, kernel, image, args.timeout)
        if lines and lines[-1].startswith("guest: did not end"):
            print(lines[-1])
            break
        if any(line.startswith("guest: begin ") for line in lines):
            break
    ended = [line for line in lines if re.fullmatch(r"guest: end \S+ 0", line)]
    whole = "guest: passed" in lines and len(ended) == len(tests) > 0
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
