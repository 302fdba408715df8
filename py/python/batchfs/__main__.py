"""The command line: ``batchfs …`` and ``python -m batchfs …``."""

from __future__ import annotations

import signal
import sys

from ._native import command_line


def main() -> int:
    # Ctrl-C ends it as it ends any program; the daemon of a mount has its own way.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return command_line([sys.executable, "-m", "batchfs"], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
