"""Containers, as far as mount namespaces make them (case 35)."""

import pytest
from harness import mounts_at, need_fuse, needs_root, needs_tool, wait_for

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


def become(user, *flags: str) -> list[str]:
    """A user in a user namespace of its own; without `-r` its numbers mean nothing there."""
    who = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    return [*who, "unshare", *flags]


def need_user_namespaces(box, user) -> None:
    done = box.tool(*become(user, "-Ur"), "true", check=False)
    if done.returncode:
        pytest.skip(f"needs user namespaces: {done.stderr.strip()}")


@needs_tool("setpriv")
def test_a_user_who_is_root_in_a_namespace_of_its_own(box, data, user):
    """Mounts without fusermount3; the kernel passes nothing through for it."""
    need_fuse()
    need_user_namespaces(box, user)
    target = box.folder()
    script = (
        f"PATH= {box.program} mount {data} {target} --spec batch=32,seed=1 || exit 1\n"
        f"sha256sum < {target}/images/batch/3 && cat {target}/.batchfs/config.json\n"
        f"{box.program} umount {target}"
    )
    done = box.tool(*become(user, "-Urm"), "/bin/sh", "-c", script)
    assert "cached replies" in done.stdout and "CAP_SYS_ADMIN" in done.stdout
    with box.mount(data) as m:
        assert box.tool("sha256sum", stdin=open(m / "images/batch/3", "rb")).stdout in done.stdout
    assert not mounts_at(target)


@needs_tool("setpriv")
@pytest.mark.parametrize("allowed", [False, True])
def test_seen_from_a_user_namespace_that_does_not_know_the_owner(box, data, user, mode, allowed):
    """It is closed to others there, too, unless they were let in; then it has the same bytes."""
    need_user_namespaces(box, user)
    with box.mount(data, *(["--allow-other"] if allowed else []), mode=mode) as m:
        for flags in (["-U"], ["-Ur"], ["-Um"], ["-Urm"]):
            file = m / "images/batch/3"
            done = box.tool(*become(user, *flags), "cat", file, check=False, text=False)
            if allowed:
                assert done.stdout == m.read("images/batch/3")
                stat = box.tool(*become(user, *flags), "stat", "-c", "%u %a %s", file).stdout
                assert stat == f"65534 444 {len(done.stdout)}\n"
                writes = box.tool(*become(user, *flags), "sh", "-c", f"> {file}", check=False)
                assert writes.returncode != 0 and "read-only" in writes.stderr.lower()
            else:
                assert done.returncode != 0 and b"denied" in done.stderr.lower()
