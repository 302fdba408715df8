"""`mount -t batchfs`, fstab, `umount`: mount.batchfs as mount(8) calls it.

In a mount namespace of its own, where /sbin has nothing but the helper, and /run is another one,
since mount(8) keeps a table there.
"""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from harness import REPO, need_fuse, needs_root, needs_tool, processes_about, wait_for

pytestmark = [needs_root, needs_tool("unshare", "nsenter", "setpriv", "findmnt")]


class Machine:
    """A mount namespace in which the helper is installed."""

    def __init__(self, box, fstab: str = ""):
        need_fuse()
        if "util-linux" not in box.tool("mount", "--version").stdout:
            pytest.skip("needs the mount of util-linux")
        self.box = box
        sbin = box.folder("sbin")
        (sbin / "mount.batchfs").symlink_to(box.program)
        (sbin / "mount.fuse.batchfs").symlink_to(box.program)
        self.fstab = box.path / "fstab"
        self.fstab.write_text(fstab)
        command = "echo ready; exec sleep 1000"
        # What others unmount meanwhile goes here, too, and is not kept busy.
        self.process = box.start("unshare", "-m", "--propagation", "slave", "sh", "-c", command)
        assert self.process.stdout.readline() == "ready\n"
        self.run("mount", "--bind", sbin, os.path.realpath("/sbin"))
        self.run("mount", "-t", "tmpfs", "none", "/run")
        if Path("/etc/fstab").exists():
            self.run("mount", "--bind", self.fstab, "/etc/fstab")

    def run(self, *command, check: bool = True, user=None):
        enter = ["nsenter", "-t", self.process.pid, "-m", f"--wd={self.box.path}"]
        if user:
            enter += ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
        return self.box.tool(*enter, *command, check=check)

    def fails(self, *command, code: int, names: tuple = ()) -> str:
        done = self.run(*command, check=False)
        assert done.returncode == code, f"exit {done.returncode}: {done.stdout}{done.stderr}"
        lines = [line for line in done.stderr.splitlines() if line.startswith("batchfs: ")]
        assert len(lines) == 1, done.stderr
        for name in names:
            assert str(name) in lines[0], f"{name} is not named: {done.stderr!r}"
        return lines[0]

    def read(self, path, user=None) -> str:
        return self.run("cat", path, user=user).stdout

    def config(self, at: Path) -> dict:
        return json.loads(self.read(at / ".batchfs/config.json"))

    def mounted(self) -> list[str]:
        """What is mounted in the test's folder."""
        command = ["findmnt", "-n", "-r", "-t", "fuse.batchfs", "-o", "TARGET"]
        found = self.run(*command, check=False).stdout.replace("\\x20", " ").splitlines()
        return [point for point in found if point.startswith(f"{self.box.path}/")]

    def umount(self, at: Path, user=None) -> None:
        self.run("umount", at, user=user)
        assert self.mounted() == []
        wait_for(lambda: not daemons(at), "the daemon ends")


def daemons(at: Path) -> list[int]:
    return [pid for pid, said in processes_about(at).items() if "--daemon" in said]


def test_mount_by_its_type(box, data):
    machine, at = Machine(box), box.folder()
    options = (
        "batch=64,seed=7,memory=64MiB,threads=1,verify=always,cached,allow_other,log=/dev/null"
    )
    for kind in ("batchfs", "fuse.batchfs"):
        done = machine.run("mount", "-t", kind, data, at, "-o", options)
        assert done.stdout == done.stderr == ""
        config = machine.config(at)
        assert config["spec"] == "mode=cyclic,batch=64,seed=7" and config["source"] == str(data)
        assert config["memory_limit"] == 64 << 20 and config["delivery_reason"] == "asked for"
        shown = machine.run("findmnt", "-n", "-o", "FSTYPE,OPTIONS", at).stdout
        assert "fuse.batchfs" in shown and "allow_other" in shown
        assert re.search(r"\bro,nosuid,nodev,noexec,noatime", shown)
        assert (
            machine.read(at / "index/0.txt")
            == box.run("cat", data, "index/0.txt", "--spec", "batch=64,seed=7").stdout
        )
        machine.umount(at)


def test_our_umount_leaves_no_line_in_the_table_of_mount(box, data):
    """mount(8) keeps what the kernel does not know, such as `_netdev`, in a table of its own."""
    machine, at, other = Machine(box), box.folder("a b"), box.folder("other")
    table = lambda: machine.run("cat", "/run/mount/utab", check=False).stdout  # noqa: E731
    options = "batch=64,_netdev,x-systemd.automount"
    machine.run("mount", "-t", "batchfs", data, other, "-o", options)
    kept = table()
    assert f"TARGET={other} " in kept and "_netdev" in kept
    for how in ([], ["--lazy"]):
        machine.run("mount", "-t", "batchfs", data, at, "-o", options)
        assert table().count("TARGET=") == 2
        machine.run(box.program, "umount", *how, at)
        wait_for(lambda: not daemons(at), "the daemon ends")
        assert table() == kept, "the lines of others stay, and none is left over"
    # The daemon unmounts by itself when it is told to end.
    machine.run("mount", "-t", "batchfs", data, at, "-o", options)
    [pid] = daemons(at)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not daemons(at), "the daemon ends")
    assert table() == kept
    # In use, it says so as ever.
    machine.run("mount", "-t", "batchfs", data, at, "-o", options)
    reader = machine.box.start(
        "nsenter", "-t", machine.process.pid, "-m", "sh", "-c", f"cd '{at}'; echo ready; read x"
    )
    assert reader.stdout.readline() == "ready\n"
    machine.fails(box.program, "umount", at, code=1, names=["in use"])
    reader.kill()
    reader.wait()
    machine.run(box.program, "umount", other)
    machine.umount(at)
    assert "TARGET=" not in table()


def test_the_keys_of_the_spec_and_relative_paths(box, data):
    machine, at = Machine(box), box.folder()
    keys = "mode=sequential,batch=64,rank=1,world=4"
    (box.path / "link").symlink_to(data)
    machine.run("mount", "-t", "batchfs", "link", "mnt", "-o", keys)
    assert machine.config(at)["spec"] == keys
    assert machine.read(at / "index/0.txt").endswith(
        "[16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]\n"
    )
    machine.umount(at)
    x = box.npy("x", np.zeros(5, np.uint16).view("V2"))
    machine.run("mount", "-t", "batchfs", x, at, "-o", "batch=2,dtype=x=bfloat16,remainder=carry")
    assert json.loads(machine.read(at / "x/schema.json"))["dtype"] == "bfloat16"
    machine.umount(at)


def test_fstab(box, data):
    one, two = box.folder("one"), box.folder("with space")
    generic = "noauto,nofail,_netdev,x-systemd.automount,x-other=1,comment=ours,user,dev,suid,exec"
    fstab = f"{data} {one} batchfs batch=8,seed=2,memory=64MiB,allow_other,{generic} 0 0\n"
    fstab += f"{data} {str(two).replace(' ', chr(92) + '040')} batchfs defaults,ro,batch=16 0 0\n"
    machine = Machine(box, fstab)
    mount = ["mount", "-T", machine.fstab]
    machine.run(*mount, one)
    assert machine.config(one)["spec"] == "mode=cyclic,batch=8,seed=2"
    machine.umount(one)
    # What is said on the command line comes later, and holds.
    machine.run(*mount, one, "-o", "batch=32")
    assert machine.config(one)["spec"] == "mode=cyclic,batch=32,seed=2"
    machine.umount(one)
    for _ in range(2):
        machine.run(*mount, "-a")
        assert machine.mounted() == [str(two)]
    assert len(daemons(two)) == 1
    assert machine.config(two)["spec"] == "mode=cyclic,batch=16,seed=0"
    machine.umount(two)
    # A dead one is replaced.
    machine.run(*mount, one)
    os.kill(daemons(one)[0], 9)
    wait_for(lambda: not daemons(one), "it is dead")
    assert "whose daemon had died" in machine.run("mount", "-t", "batchfs", data, one).stderr
    machine.umount(one)


def test_flags(box, data):
    machine, at = Machine(box), box.folder()
    mount = ["mount", "-t", "batchfs", data, at]
    assert machine.run(*mount, "-f").stdout == "" and machine.mounted() == []
    machine.fails(*mount, "-f", "-o", "batch=2000", code=32, names=["batch=2000"])
    machine.run(*mount, "-s", "-n", "-r", "-o", "batsh=3,batch=4")
    assert machine.config(at)["spec"] == "mode=cyclic,batch=4,seed=0"
    machine.umount(at)
    said = machine.run(*mount, "-v", "-o", "batch=4,nofail,_netdev").stdout
    assert "nothing to do for rw, nofail, _netdev" in said
    assert f"batchfs mount --spec=batch=4 -- {data} {at}" in said and "is mounted" in said
    machine.umount(at)
    helper = box.path / "sbin/mount.batchfs"
    assert "memory=SIZE" in box.tool(helper, "--help").stdout
    assert box.tool(helper, "-V").stdout == f"mount.{box.run('--version').stdout}"


def test_what_is_refused(box, data):
    machine, at = Machine(box), box.folder()

    def refused(options: str, code: int, *names, source=data, target=at):
        command = ["mount", "-t", "batchfs", source, target, "-o", options]
        machine.fails(*command, code=code, names=names)
        assert machine.mounted() == [] and not daemons(at)

    every = ["mode, batch, seed, remainder, rank, world", "memory", "allow_other", "nonempty"]
    refused("batsh=8", 1, "batsh=8", *every)
    refused("rw,nofial", 1, "nofial", *every)
    refused("batch", 1, "batch= needs a value")
    refused("cached=1", 1, "cached takes no value")
    refused("batch=0", 1, "batch=0")
    refused("mode=random", 1, "mode=random")
    refused("memory=2Gx", 1, "2Gx")
    refused("verify=often", 1, "often")
    refused("threads=many", 1, "many")
    refused("remount", 1, "umount it")
    refused("rank=1", 1, "rank=1")
    refused("batch=2000", 32, "batch=2000", data)
    refused("memory=4KiB", 32, "memory budget")
    refused("batch=8", 32, "nothing-here", source=box.path / "nothing-here")
    refused("batch=8", 32, "no-folder", target=box.path / "no-folder")
    done = box.tool(box.path / "sbin/mount.batchfs", data, check=False)
    assert done.returncode == 1 and "Usage: mount.batchfs" in done.stderr
    done = box.tool(box.path / "sbin/mount.batchfs", data, at, "-N", "/proc/1/ns/mnt", check=False)
    assert done.returncode == 1 and "nsenter -m" in done.stderr


def test_a_file_of_another_name_than_the_link(box, data):
    """A copy named mount.batchfs is the helper, and so is what it starts the daemon from."""
    machine, at = Machine(box), box.folder()
    helper = box.path / "sbin/mount.batchfs"
    helper.unlink()
    os.link(box.program, helper)
    machine.run("mount", "-t", "batchfs", data, at, "-o", "batch=4")
    assert machine.config(at)["local_batch"] == 4
    machine.umount(at)


def test_a_plain_user_mounts_and_unmounts(box, data, user):
    if not Path("/etc/fstab").exists():
        pytest.skip("needs /etc/fstab, to put another in its place")
    at = box.folder()
    os.chown(at, user.uid, user.gid)
    machine = Machine(box, f"{data} {at} batchfs batch=8,noauto,user 0 0\n")
    machine.run("mount", at, user=user)
    [pid] = daemons(at)
    assert Path(f"/proc/{pid}").stat().st_uid == user.uid
    config = json.loads(machine.read(at / ".batchfs/config.json", user))
    assert config["local_batch"] == 8 and config["delivery"] == "cached"
    machine.umount(at, user)


def units() -> dict[str, str]:
    """The units of the documentation, by their names."""
    text = (REPO / "docs/systemd.md").read_text()
    blocks = re.findall(r"^```ini\n# /etc/systemd/system/(\S+)\n(.*?)^```", text, re.M | re.S)
    return dict(blocks)


@needs_tool("systemd-analyze")
def test_the_units_of_the_documentation(box):
    found = units()
    assert {name.rsplit(".")[-1] for name in found} == {"mount", "automount", "service"}
    folder = box.folder("units")
    paths = []
    for name, text in found.items():
        paths.append(folder / name)
        # It looks whether programs are there.
        paths[-1].write_text(text.replace("/usr/local/bin/batchfs", str(box.program)))
    done = box.tool("systemd-analyze", "verify", "--man=no", *paths, check=False)
    said = [line for line in done.stderr.splitlines() if any(name in line for name in found)]
    assert done.returncode == 0 and said == [], done.stderr


def test_the_fstab_line_of_the_documentation(box, data):
    text = (REPO / "docs/systemd.md").read_text()
    [line] = re.findall(r"^/data/train /mnt/ds batchfs .*$", text, re.M)
    at = box.folder()
    line = line.replace("/data/train", str(data)).replace("/mnt/ds", str(at))
    machine = Machine(box, line + "\n")
    machine.run("mount", "-T", machine.fstab, "-a")
    assert machine.config(at)["spec"] == "mode=cyclic,batch=256,seed=42"
    machine.umount(at)
