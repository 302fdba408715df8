"""Makes the datasets, runs the rows, prints the tables."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from . import data, inprocess, mounted, packed, report, service, write
from .figures import Figures
from .process import Process
from .quiet import Watch
from .turns import Context

GROUPS = {
    "gather": inprocess.gather,
    "packed": packed.gather,
    "one": inprocess.one,
    "ids": inprocess.ids,
    "write": write.write,
    "mount": mounted.in_order,
    "latency": mounted.latency,
    "service": service.service,
    "python": lambda ctx: package().calls(ctx),
    "loader": lambda ctx: package().loaders(ctx),
    "loader-memory": lambda ctx: package().memory(ctx),
    "tokens": lambda ctx: importlib.import_module(".tokens", __package__).rows(ctx),
}
# Those that need none of the datasets of records.
ALONE = {"tokens"}


def package() -> ModuleType:
    """The rows of the Python package, which is there only if one of them is wanted."""
    return importlib.import_module(".python", __package__)


def main() -> int:
    parser = argparse.ArgumentParser(prog="harness")
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--column", default="tokens")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--patience", type=float, default=0)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else [name for name in GROUPS if name not in ALONE]
    unknown = [name for name in wanted if name not in GROUPS]
    if unknown:
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    with tempfile.TemporaryDirectory(prefix="batchfs-bench-", dir=args.work) as temp:
        # Datasets in a folder that was named are kept for the next run.
        folder = (args.work or Path(temp)) / ("quick" if args.quick else "full")
        run(args, wanted, folder, Path(temp))
    return 0


def run(args: argparse.Namespace, wanted: list[str], folder: Path, temp: Path) -> None:
    bench = Process(args.bin / "batchfs-bench")
    figures = Figures()
    work = [] if set(wanted) <= ALONE else data.workloads(folder, args.quick)
    say("making the datasets")
    for one in work:
        data.make(one, bench, args.bin / "batchfs")
    rounds = args.rounds or (2 if args.quick else 9)
    watch = Watch(args.patience)
    ctx = Context(bench, args.bin, temp, work, figures, rounds, args.quick, watch, args.work)
    ctx.data, ctx.column = args.data, args.column
    for name in wanted:
        say(name)
        GROUPS[name](ctx)
    bench.close()
    if watch.noisy:
        say(f"{watch.noisy} turns were disturbed by other processes and are counted all the same")
    print(report.table(figures))
    print()
    print(report.goals(figures))
    if args.json:
        whole = {
            "machine": report.machine(),
            "quick": args.quick,
            "disturbed": watch.noisy,
            "figures": figures.as_json(),
        }
        args.json.write_text(json.dumps(whole, indent=1) + "\n")


def say(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
