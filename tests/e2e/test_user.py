"""A plain user, with fusermount3 and nothing else."""

import json
import os
import shutil

import numpy as np
from harness import REPO, as_user, mounts_under

DIGITS = REPO / "tools/data/digits-images.npy"


def own(box, user):
    """The test's folder, given to the user."""
    os.chown(box.path, user.uid, user.gid)
    return box


def test_demo(box, user):
    done = own(box, user).run("demo", user=user)
    assert "every byte is that of the source" in done.stdout
    assert "cu_seqlens" in done.stdout and "every byte as it was" in done.stdout
    assert "nothing is left" in done.stdout and done.stderr == ""
    assert not mounts_under(box.tmp) and os.listdir(box.tmp) == []


def test_demo_as_it_is(box):
    done = box.run("demo")
    assert "every byte is that of the source" in done.stdout and done.stderr == ""
    assert os.listdir(box.tmp) == []


def test_demo_keep(box):
    done = box.run("demo", "--keep")
    points = mounts_under(box.tmp)
    assert len(points) == 2 and all(point in done.stdout for point in points)
    command = next(line for line in done.stdout.splitlines() if "umount" in line)
    # The line is meant to be pasted.
    box.tool("sh", "-c", command.replace("batchfs umount", f"{box.program} umount"))
    assert os.listdir(box.tmp) == []


def test_create_mount_read_umount(box, user):
    own(box, user)
    shutil.copy(DIGITS, box.path / "digits.npy")
    box.run("create", "train/digits", "--from", "digits.npy", user=user)
    array = np.load(DIGITS)
    with box.mount(box.path / "train", spec="batch=64,seed=2", user=user) as m:
        config = json.loads(as_user(user, m.read, ".batchfs/config.json"))
        assert config["delivery"] == "cached"
        for step in (0, 5, 2**64 - 1):
            ids = as_user(user, m.ids, step)
            assert as_user(user, m.read, f"digits/batch/{step}") == array[ids].tobytes()
            npy = as_user(user, np.load, m / f"digits/batch/{step}.npy")
            assert np.array_equal(npy, array[ids])


def test_mount_says_why_it_is_not_passthrough(box, user):
    own(box, user)
    folder = box.folder("data")
    shutil.copy(DIGITS, folder / "digits.npy")
    with box.mount(folder, mode="", user=user) as m:
        assert "cached replies" in m.said
        config = json.loads(as_user(user, m.read, ".batchfs/config.json"))
        assert "CAP_SYS_ADMIN" in config["delivery_reason"]


def check_doctor(told: dict, text: str) -> None:
    assert told["format"] == "batchfs-doctor" and told["version"] == 1
    for finding in told["findings"]:
        assert finding["state"] in ("ok", "less", "missing") and finding["found"]
        assert (finding["advice"] is None) == (finding["state"] == "ok")
        assert f" {finding['what']}" in text
    states = {f["what"]: f["state"] for f in told["findings"]}
    assert {"kernel", "fuse", "rights", "mount", "huge pages", "memory", "udmabuf"} <= set(states)
    assert states["mount"] in ("ok", "less")


def test_doctor(box, user):
    own(box, user)
    for who in (None, user):
        text = box.run("doctor", user=who).stdout
        check_doctor(json.loads(box.run("doctor", "--json", user=who).stdout), text)
        assert not mounts_under(box.tmp) and os.listdir(box.tmp) == []
