"""What is wrong with a mount is said in one line, with the way out (case 34)."""

import contextlib
import os

import numpy as np
import pytest
from harness import REPO, mounts_at, mounts_under, needs_root, needs_tool

inside = needs_tool("unshare", "setpriv")


@pytest.fixture
def source(box):
    """A store in a folder of its own."""
    return box.store("data/x", np.zeros((300, 4), np.float32)).parent


@pytest.fixture(autouse=True)
def nothing_half_made(box):
    yield
    assert not mounts_under(box.path)


def test_the_target_is_missing(box, source):
    said = box.fails("mount", source, box.path / "no/such", names=[box.path / "no/such"])
    assert "mkdir" in said
    assert not (box.path / "no").exists()


def test_the_target_is_a_file(box, source):
    path = box.path / "file"
    path.write_text("precious")
    box.fails("mount", source, path, names=[path, "not a folder"])
    assert path.read_text() == "precious"


def test_the_target_is_not_empty(box, source):
    target = box.folder()
    (target / ".hidden").write_text("precious")
    said = box.fails("mount", source, target, names=[target, "not empty"])
    assert "--nonempty" in said
    with box.mount(source, "--nonempty") as m:
        assert not (m / ".hidden").exists() and (m / "README.txt").exists()
    assert (target / ".hidden").read_text() == "precious"


def test_it_is_mounted_already(box, source):
    with box.mount(source) as m:
        said = box.fails("mount", source, m.dir, names=[m.dir, "already"])
        assert f"batchfs umount {m.dir}" in said
        said = box.fails("mount", source, m.dir, "--nonempty", names=[m.dir, "already"])
        assert len(mounts_at(m.dir)) == 1 and (m / "x/batch/0").exists()


def test_inside_its_source(box, source):
    (source / ".mnt").mkdir()
    link = box.path / "link"
    link.symlink_to(source)
    for target in (source, source / "x", source / ".mnt", link / ".mnt"):
        box.fails("mount", source, target, "--nonempty", names=[target, "inside one another"])
    box.fails("mount", source / "x", source / "x", names=["inside one another"])


def test_around_its_source(box):
    target = box.folder()
    store = box.store("mnt/x", np.zeros((300, 4), np.float32))
    box.fails("mount", store, target, "--nonempty", names=[target, "inside one another"])


def test_a_file_beside_the_target(box):
    """`batchfs mount images.npy mnt` in one folder hides nothing."""
    path = box.npy("images", np.arange(1000))
    with box.mount(path) as m:
        assert m.read("images/batch/0")


def test_the_source_is_missing(box):
    box.fails("mount", box.path / "nothing", box.folder(), names=[box.path / "nothing"])
    empty = box.folder("empty")
    box.fails("mount", empty, box.folder(), names=[empty, "neither stores nor containers nor .npy"])


def test_relative_paths_and_links(box, source):
    """Paths are those of the shell that asks, though the daemon works elsewhere."""
    box.folder()
    box.run("mount", "data/x", "mnt", cwd=box.path)
    assert mounts_at(box.path / "mnt") == ["fuse.batchfs"]
    assert (box.path / "mnt/x/batch/0").stat().st_size == 256 * 16
    box.run("umount", "mnt", cwd=box.path)
    (box.path / "link").symlink_to("mnt")
    box.run("mount", "data/x", "link", cwd=box.path)
    box.run("umount", "link", cwd=box.path)


def test_a_name_with_blanks_and_commas(box):
    store = box.store("my data, all/the x", np.arange(500))
    with box.mount(store.parent, at="a mount\\point,ro") as m:
        assert (m / "the x/batch/0").read_bytes()


def test_a_source_behind_a_link_of_another_name(box):
    """As in caches that name files after their contents: the link's name counts."""
    array = np.arange(4000, dtype=np.int32)
    blob = box.npy("blobs/0123", array).rename(box.path / "blobs/0123")
    (box.path / "images.npy").symlink_to(blob)
    (box.path / "data").mkdir()
    (box.path / "data/images.npy").symlink_to(blob)
    (box.path / "folder").symlink_to("data")
    for source in ("images.npy", "data", "folder"):
        assert "images " in box.run("info", source).stdout
        with box.mount(source) as m:
            assert m.read("images/batch/0") == array[m.ids(0)].tobytes()


@pytest.mark.parametrize(
    "target", ["/", "/proc", "/proc/self", "/sys/kernel", "/dev", "/etc", "/usr", "/tmp"]
)
def test_a_target_that_makes_no_sense(box, source, target):
    """Not even with --nonempty."""
    said = box.fails("mount", source, target, "--nonempty", names=[target])
    assert "choose a folder of your own" in said
    link = box.path / "link"
    link.symlink_to(target)
    box.fails("mount", source, link, "--nonempty", names=[link, "choose a folder"])
    folder = box.program.parent
    box.fails("mount", source, folder, "--nonempty", names=[folder, "this program"])


def read_only(box, path):
    """A read-only disk of its own with what is in `path`."""
    disk = box.folder("disk")
    box.tool("mount", "-t", "tmpfs", "-o", "size=16m", "none", disk)
    try:
        box.tool("cp", "-r", path, disk / "data")
        (disk / "mnt").mkdir()
        box.tool("mount", "-o", "remount,ro", disk)
        yield disk
    finally:
        box.tool("umount", disk)


@needs_root
def test_everything_on_a_read_only_disk(box, source, mode):
    """The source, and even the folder that it is mounted on: nothing is written to either."""
    array = np.arange(1200, dtype=np.float32).reshape(300, 4)
    box.npy("data/y", array)
    with contextlib.contextmanager(read_only)(box, source) as disk:
        box.run("verify", disk / "data")
        with box.mount(disk / "data", at="disk/mnt", mode=mode) as m:
            assert m.read("x/batch/0") == bytes(32 * 16)
            assert m.read("y/batch/1") == array[m.ids(1)].tobytes()


def test_umount_of_what_is_not_there(box):
    box.fails("umount", box.folder(), names=[box.folder(), "no batchfs mount"])
    box.fails("umount", box.path / "no", names=[box.path / "no"])
    box.fails("umount", "/proc", names=["/proc"])
    assert mounts_at("/proc")


# In a mount namespace of its own, `/dev` holds nothing but what the script puts there.
OWN_DEV = (
    "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 "
)


def in_namespace(box, script: str, *args):
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
    return box.tool(*command, *args, check=False)


@needs_root
@inside
def test_no_dev_fuse(box, source):
    args = [box.program, "mount", source, box.folder()]
    done = in_namespace(box, f'{OWN_DEV} && exec "$@"', *args)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "/dev/fuse is not there" in done.stderr and "--device /dev/fuse" in done.stderr
    doctor = in_namespace(box, f'{OWN_DEV} && exec "$@"', box.program, "doctor")
    assert doctor.returncode == 1 and "/dev/fuse is not there" in doctor.stdout


def become(user) -> str:
    return f"setpriv --reuid={user.uid} --regid={user.gid} --clear-groups"


@needs_root
@inside
def test_dev_fuse_is_closed_to_the_user(box, source, user):
    script = f'{OWN_DEV} && mknod -m 600 /dev/fuse c 10 229 && exec {become(user)} "$@"'
    args = [box.program, "mount", source, box.folder()]
    done = in_namespace(box, script, *args)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "/dev/fuse" in done.stderr and "chmod 666" in done.stderr
    done = in_namespace(box, script, box.program, "doctor")
    assert done.returncode == 1 and "chmod 666" in done.stdout


@needs_root
def test_no_helper_on_the_path(box, source, user):
    target = box.folder()
    os.chown(target, user.uid, user.gid)
    said = box.fails("mount", source, target, user=user, env={"PATH": "/nowhere"})
    assert "fusermount3" in said and "fuse3" in said


@needs_root
def test_a_target_of_somebody_else(box, source, user):
    target = box.folder()
    target.chmod(0o755)
    box.fails("mount", source, target, user=user, names=[target])


@needs_root
@inside
@pytest.mark.parametrize("allowed", [False, True])
def test_allow_other_as_a_user(box, source, user, allowed):
    """Needs a line in /etc/fuse.conf, and says so."""
    if not os.path.exists("/etc/fuse.conf"):
        pytest.skip("needs /etc/fuse.conf")
    target, conf = box.folder(), box.path / "fuse.conf"
    os.chown(target, user.uid, user.gid)
    conf.write_text("user_allow_other\n" if allowed else "# user_allow_other\n")
    script = (
        f"mount --bind {conf} /etc/fuse.conf && "
        f"{become(user)} {box.program} mount {source} {target} --allow-other || exit 1\n"
        f"cat {target}/x/record/0 | wc -c; ls {target}/x/batch\n"
        f"{become(user)} {box.program} umount {target}"
    )
    done = in_namespace(box, script)
    if allowed:
        assert done.returncode == 0, done.stderr
        assert "\n16\n0\n" in done.stdout
    else:
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert "user_allow_other" in done.stderr and "/etc/fuse.conf" in done.stderr


def test_a_budget_that_is_too_small(box, source):
    said = box.fails("mount", source, box.folder(), "--memory", "1KiB", names=["x", "4096", "1024"])
    assert "--memory" in said


def test_the_log_goes_to_its_file(box, source):
    log = box.path / "log"
    with box.mount(source, "--log", log) as m:
        m.read("x/batch/0")
        assert not (m / "x/record/999").exists()
    assert "delivery" in log.read_text() and "x/record/999" in log.read_text()
    box.fails("mount", source, box.folder(), "--log", box.path / "no/log", names=["no/log"])


def test_the_terminal_is_let_go(box, source):
    """A pipe that reads what `batchfs mount` says ends when it has said it."""
    done = box.run("mount", source, box.folder())
    assert "is mounted" in done.stdout and done.stderr == ""
    pid = box.daemon(box.folder())
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    fds = {os.readlink(f"/proc/{pid}/fd/{n}") for n in (0, 1, 2)}
    assert fds == {"/dev/null"}
    # A terminal that closes is none of its business.
    assert os.getsid(pid) == pid
    box.run("umount", box.folder())


def test_help_is_there_for_every_command(box):
    top = box.run("--help").stdout
    commands = ["create", "info", "verify", "ids", "ls", "cat", "mount", "umount", "doctor", "demo"]
    for command in commands:
        assert f"\n  {command} " in top
        text = box.run(command, "--help").stdout
        assert "Examples:" in text and f"batchfs {command}" in text
    version = box.run("--version").stdout.split()[1]
    assert f'version = "{version}"' in (REPO / "Cargo.toml").read_text()
    assert box.run(check=False).returncode == 2
