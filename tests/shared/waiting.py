"""Waiting for what happens in other processes."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60):
    """Waits until `condition` gives something true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"waited {seconds} s in vain: {what}"
        time.sleep(0.01)
