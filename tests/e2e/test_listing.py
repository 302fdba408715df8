"""What listings cost: requests to the daemon."""

import os
from pathlib import Path

import numpy as np
from harness import errno_of, needs_root


def requests(pid: int) -> int:
    """Reads of the daemon, each of which is a request or waits for one."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("syscr:"))


@needs_root
def test_attributes_of_many_files_come_with_their_listing(box, mode):
    source = box.store("data/x", np.arange(5000, dtype=np.int64))
    with box.mount(source, spec="batch=5", mode=mode) as m:
        before = requests(m.pid)
        shown = box.tool("ls", "-l", m / "x/record").stdout.splitlines()
        assert len(shown) == 5001
        for number in range(5000):
            # As for labels, capabilities and access lists: the kernel answers by itself.
            for name in ("security.capability", "system.posix_acl_access", "user.x"):
                path = m / f"x/record/{number}"
                assert errno_of(os.getxattr, path, name) in ("EOPNOTSUPP", "ENOTSUP", "ENODATA")
        assert requests(m.pid) - before < 1000, "files are asked for one by one"
