"""The command line: ``batchfs …`` and ``python -m batchfs …``."""

from __future__ import annotations

import signal
import sys

from ._native import command_line


def program() -> list[str]:
    """What starts it again as a process of its own: a mount in the background is one."""
    # It must not find what lies in the folder that the user happens to be in.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", "batchfs"]


def main() -> int:
    # Ctrl-C ends it as it ends any program; the daemon of a mount has its own way.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return command_line(program(), sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
