"""Whether anything can be mounted here."""

import os
import shutil

import pytest


def need_fuse() -> None:
    """Skips the test if not."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as e:
        pytest.skip(f"needs /dev/fuse: {e.strerror}")
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        pytest.skip("needs fusermount3 or root")
