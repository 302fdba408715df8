"""What is secret of object storage: who could see it, and where it must not be written."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
import s3
from harness import errno_of, mounts_at, need_fuse, wait_for
from token_data import by_duckdb, by_pyarrow, documents

SPEC = "lanes=4,window=3,seq_len=16,seed=7"
TOKEN = "FwoGZXIvYXdzEJr//////////wEaDEXAMPLETOKEN+/=="
SECRETS = [s3.KEY, s3.SECRET, TOKEN]


@pytest.fixture(scope="module")
def bucket(session_box):
    """A bucket, the port that serves it, and its folder."""
    # Not the folder of the bucket that other tests share: files of its dataset would become theirs.
    root = session_box.path / "secrets"
    folder = root / "bucket/data"
    for i in range(3):
        by_pyarrow(folder / f"{i}.parquet", documents(i, 80, first=100 * i))
    # Its footer does not prove how many tokens there are.
    by_duckdb(folder / "duck.parquet", documents(9, 80, first=900))
    with s3.server(root) as port:
        yield port, folder


def options(port: int, **more: str) -> list[str]:
    given = {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "access_key_id": s3.KEY,
        "secret_access_key": s3.SECRET,
        "session_token": TOKEN,
        **more,
    }
    return [f"{key}={value}" for key, value in given.items()]


def family(pid: int) -> list[int]:
    """The process and all below it."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def tells_nothing(pid: int) -> None:
    for one in family(pid):
        for name in ("cmdline", "environ"):
            shown = Path(f"/proc/{one}/{name}").read_bytes().decode()
            assert shown or one != pid
            for secret in SECRETS:
                assert secret not in shown, f"{name} of {one} under {pid}"
            assert "storage-option" not in shown


def serves(daemon: int, target: Path, folder: Path, box) -> None:
    """What the bucket has, by the secrets that were given."""
    command = Path(f"/proc/{daemon}/cmdline").read_bytes().split(b"\0")
    assert b"mount" in command and os.fsencode(target) in command
    tells_nothing(daemon)
    want = box.run("cat", folder, "tokens/batch/5", "--spec", SPEC, text=False).stdout
    assert (target / "tokens/batch/5").read_bytes() == want
    tells_nothing(daemon)
    assert os.readlink(f"/proc/{daemon}/fd/0") == "/dev/null"


SPELLED = {
    "apart": lambda given: [part for one in given for part in ("--storage-option", one)],
    "joined": lambda given: [f"--storage-option={one}" for one in given],
}


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_daemon_has_no_secret_on_its_command_line(box, bucket, spelled):
    port, folder = bucket
    args = SPELLED[spelled](options(port))
    with box.mount("s3://bucket/data", *args, "--memory=1GiB", spec=SPEC) as m:
        serves(m.pid, m.dir, folder, box)
        assert m.config()["spec"] == SPEC


def test_nor_has_that_of_another_user(box, bucket, user):
    port, folder = bucket
    box.folder("cache").chmod(0o777)
    args = SPELLED["apart"](options(port))
    with box.mount("s3://bucket/data", *args, spec=SPEC, user=user) as m:
        command = Path(f"/proc/{m.pid}/cmdline").read_bytes()
        assert b"s3://bucket/data" in command
        tells_nothing(m.pid)


def test_a_mount_in_front_has_no_secret_on_its_command_line(box, bucket):
    need_fuse()
    port, folder = bucket
    target = box.folder()
    args = [*SPELLED["apart"](options(port)), "--spec", SPEC, "-f"]
    front = box.start(box.program, "mount", "s3://bucket/data", target, *args)
    wait_for(lambda: mounts_at(target), "it is mounted")
    serves(front.pid, target, folder, box)
    front.send_signal(signal.SIGTERM)
    assert front.wait(60) == 0 and not mounts_at(target)


def test_a_mount_by_its_type_has_no_secret_on_its_command_line(box, bucket):
    need_fuse()
    port, folder = bucket
    helper, target = box.path / "mount.batchfs", box.folder()
    helper.symlink_to(box.program)
    listed = [f"storage_option={one}" for one in options(port)]
    args = ("s3://bucket/data", target, "-v", "-o", ",".join([SPEC, *listed]))
    said = box.tool(helper, *args).stdout
    assert "is mounted" in said
    for secret in SECRETS:
        assert secret not in said
    serves(box.daemon(target), target, folder, box)
    box.run("umount", target)


def test_wrong_options_are_refused_as_ever(box, bucket):
    """Though they reach the daemon in another way."""
    port, _ = bucket
    target = box.folder()
    args = SPELLED["apart"](options(port, secret_access_key="wrong/secret+value"))
    for more in ((), ("-f",)):
        said = box.fails("mount", "s3://bucket/data", target, *args, *more, names=["403"])
        assert "wrong/secret" not in said and TOKEN not in said
        unknown = [*args, "--storage-option=regoin=x"]
        box.fails("mount", "s3://bucket/data", target, *unknown, *more, names=["regoin", "region"])
    done = box.run("mount", "s3://b/x", target, "--storage-stdin", input="secret", check=False)
    assert done.returncode == 1 and "storage options" in done.stderr
    assert "secret" not in done.stderr
    assert not mounts_at(target)


def written(box, *folders: Path) -> dict[Path, bytes]:
    """Everything below these folders."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                found[path] = path.read_bytes()
    assert found
    return found


def outputs(run: subprocess.CompletedProcess) -> bytes:
    return f"{run.stdout}{run.stderr}".encode()


@pytest.mark.parametrize("way", ["environment", "options"])
def test_no_secret_is_written_or_said(box, bucket, way):
    """In the most talkative log of a mount whose server does everything wrong, or anywhere else."""
    port, _ = bucket
    log, seen = box.path / "log", {}
    with s3.proxy(port) as front:
        env, args = {"BATCHFS_LOG": "trace"}, []
        if way == "environment":
            env |= s3.environment(front.port, AWS_SESSION_TOKEN=TOKEN)
        else:
            args = SPELLED["apart"](options(front.port))
        # The requests have them.
        signed = []
        front.refuse = lambda headers: signed.append(
            (headers.get("Authorization", ""), headers.get("X-Amz-Security-Token"))
        )
        with box.mount("s3://bucket/data", "--log", log, *args, spec=SPEC, env=env) as m:
            assert s3.KEY in signed[0][0] and signed[0][1] == TOKEN
            m.read("tokens/batch/0")
            wrong = m.config()["steps_per_cycle"] // 2
            echo = f"{s3.KEY} {s3.SECRET} {TOKEN}"
            # Those that are soon given up.
            for fault in (403, "short", "echo"):
                front.fault = (
                    lambda method, path, n, fault=fault: fault if fault != "echo" else None
                )
                # A server that says in its answer what it was sent.
                said = (400, echo) if fault == "echo" else None
                front.refuse = lambda headers, said=said: said
                assert errno_of((m / f"tokens/batch/{wrong}").read_bytes) in (
                    "EIO",
                    "EACCES",
                    "ETIMEDOUT",
                )
                wrong += 1
                seen[f"errors after {fault}"] = m.errors().encode()
            for name in ("config.json", "metrics"):
                seen[name] = m.read(f".batchfs/{name}")
            for name in ("README.txt", "tokens/schema.json", "tokens/batch/0.json"):
                seen[name] = m.read(name)
            seen["mount"] = m.said.encode()
            seen["mount table"] = Path("/proc/self/mountinfo").read_bytes()
            front.fault = lambda method, path, n: 403
            front.refuse = lambda headers: None
            inside = ("--spec", SPEC)
            for command in (
                ("index", "s3://bucket/data", "--json"),
                ("plan", "s3://bucket/data", "--step", "3", *inside),
                ("ids", "s3://bucket/data", "--step", "3", *inside),
                ("cat", "s3://bucket/data", "tokens/batch/3.txt", *inside),
                ("cat", "s3://bucket/data", "README.txt", *inside),
                ("ls", "s3://bucket/data", *inside),
                ("mount", "s3://bucket/data", box.folder("other"), *inside),
            ):
                for fault in (403, None):
                    if fault is None and command[0] == "mount":
                        continue
                    front.fault = lambda method, path, n, fault=fault: fault
                    done = box.run(*command, *args, check=False, env=env)
                    assert (done.returncode == 0) == (fault is None), done
                    seen[f"{command}, {fault}"] = outputs(done)
    assert log.stat().st_size > 1000 and b"TRACE" in log.read_bytes()
    assert any((box.path / "cache").iterdir())
    seen |= written(box, box.path)
    for name, text in seen.items():
        if name == box.program:
            continue
        for secret in SECRETS:
            for shape in (secret, quote(secret, safe="")):
                assert shape.encode() not in text, name
