"""Containers, as far as mount namespaces make them (case 35)."""

import pytest
from harness import needs_root, needs_tool, wait_for

pytestmark = [needs_root, needs_tool("unshare", "nsenter")]


class Container:
    """A process in a mount namespace of its own."""

    def __init__(self, box, propagation: str):
        self.box = box
        command = "echo ready; exec sleep 1000"
        self.process = box.start("unshare", "-m", "--propagation", propagation, "sh", "-c", command)
        assert self.process.stdout.readline() == "ready\n"

    def run(self, *command, check: bool = True):
        return self.box.tool("nsenter", "-t", self.process.pid, "-m", *command, check=check)

    def sees(self, path) -> bool:
        return self.run("cmp", "-n", "1", path, path, check=False).returncode == 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def shared(box):
    """A folder whose mounts go to namespaces that ask for them."""
    path = box.folder("shared")
    box.tool("mount", "-t", "tmpfs", "-o", "size=1m", "none", path)
    box.tool("mount", "--make-shared", path)
    (path / "mnt").mkdir()
    yield path
    box.tool("umount", path)


def test_what_containers_see(box, data, shared):
    before = {kind: Container(box, kind) for kind in ("private", "slave")}
    with box.mount(data, at="shared/mnt") as m:
        marker = m / ".batchfs/config.json"
        after = {kind: Container(box, kind) for kind in ("private", "slave")}
        assert not before["private"].sees(marker)
        assert before["private"].run("ls", "-A", m.dir).stdout == ""
        for container in (before["slave"], after["private"], after["slave"]):
            assert container.sees(marker) and container.sees(m / "images/batch/3")
        # That one has the mount for itself, and would keep it alive.
        after["private"].end()
        m.kill()
        assert not before["slave"].sees(marker)
        box.run("mount", data, m.dir)
        m.pid = box.daemon(m.dir)
        for container in (before["slave"], after["slave"]):
            wait_for(lambda c=container: c.sees(marker), "a propagated view recovers", 10)
    for container in (*before.values(), after["slave"]):
        assert not container.sees(marker)
        container.end()
