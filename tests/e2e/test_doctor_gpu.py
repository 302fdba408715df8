"""What `batchfs doctor` says of AMD's GPUs (cases 53 and 56)."""

import json
import os
import shutil
import subprocess

import pytest
from harness import REPO, needs_root, needs_tool

OWN_DEV = (
    "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 "
)


@pytest.fixture(scope="module")
def standin(tmp_path_factory):
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc, to build the stand-in for HIP")
    root = tmp_path_factory.mktemp("hip")

    def made(name, *flags):
        path = root / name
        if not path.exists():
            source = REPO / "tests/rocm/standin_hip.c"
            label = f'-DLABEL="{name}"'
            command = [gcc, "-O1", "-shared", "-fPIC", "-pthread", label, *flags]
            subprocess.run([*command, "-o", path, source], check=True)
        return path

    return made


def findings(box, **env):
    given = {"VIRTUAL_ENV": "", "ROCM_PATH": "", **{k: str(v) for k, v in env.items()}}
    told = json.loads(box.run("doctor", "--json", env=given, check=False).stdout)
    return {f["what"]: f for f in told["findings"]}


def test_runtime_and_devices(box, standin):
    found = findings(box, BATCHFS_HIP_LIBRARY=standin("a.so"))
    assert found["hip"]["state"] == "ok" and found["hip"]["advice"] is None
    assert "a.so (BATCHFS_HIP_LIBRARY), version 6.2.41134" in found["hip"]["found"]
    # The stand-in's devices have no nodes.
    assert found["gpus"]["state"] == "less" and "--device /dev/dri" in found["gpus"]["advice"]
    assert "0 at 0000:c0:00.0 (no render node); 1 at 0000:c1:00.0" in found["gpus"]["found"]

    found = findings(box, BATCHFS_HIP_LIBRARY=standin("b.so", "-DNO_EXPORT"))
    assert found["hip"]["state"] == "less"
    assert "without hipMemGetAddressRange" in found["hip"]["found"]

    found = findings(box, BATCHFS_HIP_LIBRARY=standin("c.so", "-DOLD"))
    assert found["hip"]["state"] == "missing" and "gpus" not in found
    assert "c.so lacks hipImportExternalMemory" in found["hip"]["found"]

    found = findings(box, BATCHFS_HIP_LIBRARY=standin("d.so", "-DDEVICES=0"))
    assert found["gpus"]["state"] == "missing" and "HIP error 101" in found["gpus"]["found"]


def test_two_runtimes_and_a_wrong_override(box, standin):
    site = box.path / "venv/lib/python3.12/site-packages"
    (site / "torch/lib").mkdir(parents=True)
    shutil.copy(standin("a.so"), site / "torch/lib/libamdhip64.so")
    rocm = box.path / "rocm/lib"
    rocm.mkdir(parents=True)
    shutil.copy(standin("a.so"), rocm / "libamdhip64.so.6")
    found = findings(box, VIRTUAL_ENV=box.path / "venv", ROCM_PATH=rocm.parent)["hip"]
    assert (
        found["state"] == "missing"
        and "2 different HIP runtimes" in found["found"] + found["advice"]
    )
    for path in (site / "torch/lib/libamdhip64.so", rocm / "libamdhip64.so.6"):
        assert str(path) in found["found"] + found["advice"]
    found = findings(box, ROCM_PATH=rocm.parent)["hip"]
    assert found["state"] == "ok" and "(ROCM_PATH)" in found["found"]
    found = findings(box, BATCHFS_HIP_LIBRARY=box.path / "missing.so")["hip"]
    assert found["state"] == "missing" and str(box.path / "missing.so") in found["found"]


def test_the_real_runtime(box):
    real = os.environ.get("BATCHFS_HIP_REAL")
    if not real:
        pytest.skip("needs BATCHFS_HIP_REAL, a real libamdhip64, which tests/run.sh fetches")
    libs = os.environ["BATCHFS_HIP_REAL_LIBS"]
    found = findings(box, BATCHFS_HIP_LIBRARY=real, LD_LIBRARY_PATH=libs)
    assert real in found["hip"]["found"]
    if found["kfd"]["state"] == "missing":
        assert found["gpus"]["state"] == "missing" and "HIP error" in found["gpus"]["found"]


@needs_root
@needs_tool("unshare", "setpriv")
def test_the_compute_node_is_of_a_group_with_another_number(box, user):
    become = f"setpriv --reuid={user.uid} --regid={user.gid} --clear-groups"
    make = "mknod -m 660 /dev/kfd c 1 3 && chgrp 54321 /dev/kfd"

    def doctor(script):
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
        told = box.tool(*command, box.program, "doctor", "--json", check=False).stdout
        return {f["what"]: f for f in json.loads(told)["findings"]}["kfd"]

    found = doctor(f'{OWN_DEV} && {make} && exec {become} "$@"')
    assert found["state"] == "missing"
    assert "group number 54321" in found["found"] and f"groups {user.gid}" in found["found"]
    assert "--group-add 54321" in found["advice"]
    found = doctor(f'{OWN_DEV} && {make} && chmod 000 /dev/kfd && exec {become} "$@"')
    assert "mode 000" in found["found"] and "chmod g+rw /dev/kfd" in found["advice"]
    # Reading alone is not enough for the runtime.
    found = doctor(f'{OWN_DEV} && {make} && chmod 444 /dev/kfd && exec {become} "$@"')
    assert found["state"] == "missing" and "mode 444" in found["found"]
    found = doctor(
        f'{OWN_DEV} && {make} && exec {become.replace("--clear-groups", "--groups=54321")} "$@"'
    )
    assert found["state"] == "ok"
    found = doctor(f'{OWN_DEV} && exec "$@"')
    assert found["state"] == "missing" and "--device /dev/kfd" in found["advice"]
