"""Batches as descriptors: the protocol, and what a holder can do with what it got."""

import contextlib
import json
import os
import socket

import numpy as np
import pytest
from harness import as_user, descriptors, needs_root, rss_kib, wait_for
from service import Batch, Refused, Service, writes

SPEC = "batch=32,seed=1"


@pytest.fixture(params=["root", "user"])
def owner(request):
    """Who mounts: root has a private tmpfs by right, a plain user by a namespace."""
    return request.getfixturevalue("user") if request.param == "user" else None


@pytest.fixture
def served(box, data, mode):
    with box.mount(data, spec=SPEC, mode=mode) as m:
        yield m
        empty(m)


def empty(m) -> None:
    """Nothing of any client is left."""
    names = ["service_clients", "service_leases", "service_leased_bytes"]
    wait_for(lambda: not any(m.metrics()[n] for n in names), "gauges of the service at zero")
    m.settle()


def test_batches_are_those_of_the_files(served, arrays):
    with Service(served.dir) as service:
        about = service.ask("hello")
        assert about["streams"] == ["images", "labels", "x"] and "memfd" in about["kinds"]
        assert about["spec"] == served.config()["spec"] and about["pid"] == served.pid
        assert served.config()["service"]["protocol"] == about["version"] == 1
        for step in (0, 1, 2, 3, 17, 2**64 - 1):
            ids = served.ids(step)
            for name, whole in arrays.items():
                batch = service.export(name, step)
                assert np.array_equal(batch.array(), whole[ids])
                size = batch.about["size"]
                assert size == whole[ids].nbytes == os.fstat(batch.fd).st_size
                assert batch.about["kind"] == "memfd" and batch.about["shared"] is True
                assert batch.bytes() == served.read(f"{name}/batch/{step}")
                service.release(batch)
            index = service.export("index", step)
            assert np.array_equal(index.array("ids"), ids)
            service.release(index)


def test_faces_and_views(served, arrays):
    with Service(served.dir) as service:
        for stream, face in [("x", "npy"), ("images", "safetensors"), ("all", "arrow")]:
            batch = service.export(stream, 5, face=face)
            where = f"{stream}/batch/5.{face}"
            assert batch.bytes() == served.read(where)
            if stream != "all":
                assert np.array_equal(batch.array(), arrays[stream][served.ids(5)])
            service.release(batch)
        view = "mode=cyclic,batch=8,seed=9,rank=1,world=2"
        batch = service.export("labels", 3, view=view)
        assert batch.bytes() == served.read(f"view/{view}/labels/batch/3")
        for other in range(20):
            service.release(service.export("labels", 3, view=f"batch=8,seed={other}"))
        assert batch.about["tensors"][0]["shape"] == [4]


def test_refusals_say_why(served):
    with Service(served.dir) as service:
        for fields, errno, why in [
            ({"op": "export", "stream": "nope", "step": 0}, "ENOENT", "no stream"),
            ({"op": "export", "stream": "x", "step": 0, "face": "txt"}, "ENOENT", "no face"),
            ({"op": "export", "stream": "all", "step": 0}, "ENOENT", "all/batch/0"),
            ({"op": "export", "stream": "x"}, "EINVAL", "names a step"),
            ({"op": "export", "stream": "x", "step": 0, "view": "a=b"}, "ENOENT", "view/a=b"),
            ({"op": "export", "stream": "x", "step": 0, "view": "batch=2000"}, "ENOENT", "2000"),
            ({"op": "release", "release": [7]}, "EINVAL", "not this client's"),
            ({"op": "release", "release": list(range(500))}, "EINVAL", "not this client's"),
            ({"op": "dance"}, "EOPNOTSUPP", "hello, export, release and stats"),
            ({"op": "hello", "version": 2}, "EPROTONOSUPPORT", "version 1"),
            ({"op": "hello", "version": None}, "EPROTONOSUPPORT", "version is none"),
        ]:
            service.send(**fields)
            with pytest.raises(Refused, match=why) as refused:
                service.receive()
            assert refused.value.errno == errno, fields
        for packet in (b"\0", b"{", b"[]", b"null", b"x" * 4097, b"\xff" * 100_000, b"{}" * 2000):
            service.socket.send(packet)
            with pytest.raises(Refused):
                service.receive()
        # Descriptors that a client sends are nobody's business.
        before = descriptors(served.pid)
        with open("/dev/null") as null:
            for _ in range(50):
                socket.send_fds(service.socket, [b'{"version":1}'], [null.fileno()] * 20)
                with pytest.raises(Refused):
                    service.receive()
        assert descriptors(served.pid) <= before + 2
        assert service.ask("hello")["version"] == 1, "it is still served"
    assert served.metrics()["service_refusals_total"] >= 18


def test_no_number_no_answer(served):
    with Service(served.dir) as service:
        batch = service.export("x", 0)
        batch.close()
        service.socket.send(json.dumps({"version": 1, "op": "hello"}).encode())
        release = {"version": 1, "op": "release", "release": [batch.lease]}
        service.socket.send(json.dumps(release).encode())
        assert service.quiet()
        assert service.ask("stats")["client"] == {"bytes": 0, "in_flight": 0, "leases": 0}
        # An export gives back, too.
        first = service.export("x", 1)
        first.close()
        second = service.export("x", 2, release=[first.lease])
        assert service.ask("stats")["client"]["leases"] == 1
        service.release(second)
        service.socket.send(b"")
        with pytest.raises(EOFError):
            service.receive()


def test_steps_in_order_are_filled_ahead(served):
    with Service(served.dir) as service:
        for step in range(100, 130):
            service.release(service.export("images", step))
    metrics = served.metrics()
    assert metrics["hits_total"] + metrics["joined_total"] >= 20, metrics
    assert metrics["misses_total"] < 10, metrics


def test_what_is_held_never_changes(served, arrays):
    """Whatever is released, closed, or given on: bytes that somebody has do not change."""
    expected = {step: arrays["images"][served.ids(step)].tobytes() for step in range(40)}
    with Service(served.dir) as service:
        held = service.export("images", 0)
        # Released, with a copy of the descriptor left, and with a mapping left.
        copied = service.export("images", 1)
        copy = os.dup(copied.fd)
        service.release(copied)
        mapped = service.export("images", 2)
        keep = np.memmap(f"/proc/self/fd/{mapped.fd}", np.uint8, "r")
        service.release(mapped)
        for step in range(3, 40):
            batch = service.export("images", step)
            assert batch.bytes() == expected[step]
            service.release(batch)
        assert held.bytes() == expected[0]
        assert os.pread(copy, len(expected[1]), 0) == expected[1]
        assert keep.tobytes() == expected[2]
        os.close(copy)
        held.close()


def test_memory_is_used_again_only_when_it_was_given_back(box, data):
    with box.mount(data, spec=SPEC, mode="cached", memory="8MiB") as m, Service(m.dir) as service:
        inodes = set()
        for step in range(300, 340):
            batch = service.export("images", step)
            inodes.add(os.fstat(batch.fd).st_ino)
            service.release(batch)
        assert len(inodes) < 20, "released memory is filled again"
        dead = set()
        for step in range(400, 430):
            with Service(m.dir) as dying:
                batch = dying.export("images", 100 * step)
                assert os.fstat(batch.fd).st_ino not in dead, "it was never given back"
                dead.add(os.fstat(batch.fd).st_ino)
                batch.close()


def try_to_write(m) -> list[str]:
    with Service(m.dir) as service:
        batch = service.export("images", 3)
        before = batch.bytes()
        done = writes(batch.fd, batch.about["size"])
        assert batch.bytes() == before and os.fstat(batch.fd).st_size == len(before)
        return done


@needs_root
def test_no_holder_can_write(box, data, mode, owner, user, arrays):
    """Not another user, not the daemon's own, not even root."""
    if mode == "passthrough" and owner:
        pytest.skip("plain users have no passthrough")
    others = owner is None
    args = ["--allow-other"] if others else []
    with box.mount(data, *args, spec=SPEC, mode=mode, user=owner) as m:
        assert as_user(user, try_to_write, m) == []
        if others:
            assert try_to_write(m) == []

        def check():
            with Service(m.dir) as service:
                batch = service.export("images", 3)
                ids = service.export("index", 3).array("ids")
                assert np.array_equal(batch.array(), arrays["images"][ids])

        as_user(user, check)


@needs_root
def test_strangers_are_turned_away(box, data, user):
    with box.mount(data, spec=SPEC) as m:
        target = os.readlink(m / ".batchfs/service.sock")
        assert os.stat(target).st_mode & 0o777 == 0o600
        assert os.stat(os.path.dirname(target)).st_mode & 0o777 == 0o700

        def connect():
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(target)

        with pytest.raises(PermissionError):
            as_user(user, connect)
        # A descriptor of the folder gets past its mode, and not past the credentials.
        os.chmod(os.path.dirname(target), 0o755)
        os.chmod(target, 0o666)

        def ask():
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(target)
            said = json.loads(s.recv(4096))
            assert s.recv(1) == b""
            return said["error"]["errno"]

        assert as_user(user, ask) == "EACCES"
        empty(m)


def test_a_client_in_c(served, compiled, arrays, box):
    client = compiled("client")
    done = box.tool(client, served.dir, "images", 7, 20).stdout.splitlines()
    for step, line in zip(range(7, 27), done, strict=True):
        want = arrays["images"][served.ids(step)]
        total = int(want.sum(dtype=np.uint64))
        tensor = "data:uint8[32/324,12/27,9/3,3/1]@0"
        assert line == f"{step} memfd {want.nbytes} shared=1 sum={total} {tensor}"
    failed = box.tool(client, served.dir, "nope", 7, 1, check=False)
    assert failed.returncode == 1 and 'ENOENT: there is no stream "nope"' in failed.stderr
    # A descriptor that the kernel cannot give is no batch without one, and no error without a name.
    few = ["sh", "-c", 'ulimit -n 4; exec "$@"', "sh"]
    failed = box.tool(*few, client, served.dir, "images", 7, 1, check=False)
    assert failed.returncode == 1 and failed.stderr.startswith("EMFILE: "), failed.stderr
    failed = box.tool(client, box.path, "images", 7, 1, check=False)
    assert failed.returncode == 1 and "No such file" in failed.stderr


SEQUENTIAL = "batch=4,mode=sequential"


def test_names_with_quotes_and_backslashes(compiled, box):
    """Names are escaped, in requests and in replies, and nothing is cut off in a reply."""
    odd = ['a"b\\c', "é 猫", '","step":7,"x":"']
    for i, name in enumerate(odd):
        np.save(box.folder("odd") / f"{name}.npy", np.arange(20) + 100 * i)
    client = compiled("client")
    with box.mount(box.path / "odd", spec=SEQUENTIAL) as m, Service(m.dir) as service:
        assert sorted(service.ask("hello")["streams"]) == sorted(odd)
        for i, name in enumerate(odd):
            batch = service.export(name, 1)
            total = sum(batch.bytes())
            assert batch.array().tolist() == [100 * i + n for n in range(4, 8)]
            service.release(batch)
            line = box.tool(client, m.dir, name, 1, 1).stdout
            assert line.startswith(f"1 memfd 32 shared=1 sum={total} "), line


def test_so_many_streams_that_no_reply_holds_them(box):
    names = [f"{i:04}-{'x' * 200}" for i in range(400)]
    folder = box.folder("many")
    for name in names:
        np.save(folder / f"{name}.npy", np.arange(8))
    with box.mount(folder, spec=SEQUENTIAL) as m, Service(m.dir) as service:
        for call in (lambda: service.ask("hello"), lambda: service.export("all", 0, face="arrow")):
            with pytest.raises(Refused, match="at most 65536") as e:
                call()
            assert e.value.errno == "EMSGSIZE"
        with pytest.raises(Refused, match='no stream "nope".*…$') as e:
            service.export("nope", 0)
        assert e.value.errno == "ENOENT"
        batch = service.export(names[399], 1)
        assert batch.array().tolist() == [4, 5, 6, 7]
        service.release(batch)
        assert service.ask("stats")["client"] == {"leases": 0, "bytes": 0, "in_flight": 0}


def test_the_socket_goes_with_the_mount(box, data):
    with box.mount(data) as m:
        target = os.readlink(m / ".batchfs/service.sock")
        assert os.path.lexists(target) and (m / ".batchfs/service.sock").is_symlink()
        service = Service(m.dir)
        batch = service.export("x", 0)
        want = batch.bytes()
    assert not os.path.lexists(os.path.dirname(target))
    with pytest.raises((EOFError, ConnectionError)):
        service.receive()
    assert batch.bytes() == want, "what is held outlives the daemon"
    service.close()


def test_after_a_kill(box, data):
    with box.mount(data) as m:
        target = os.readlink(m / ".batchfs/service.sock")
        with Service(m.dir) as service:
            batch = service.export("x", 0)
            want = batch.bytes()
            m.kill()
            with pytest.raises((EOFError, ConnectionError)):
                service.receive()
            assert batch.bytes() == want
        box.force(m.dir)
    os.utime(target, (0, 0))
    with box.mount(data, at="second"):
        assert not os.path.lexists(os.path.dirname(target)), "the next one tidies up"


def test_half_a_gibibyte_of_exports_leaves_nothing(served):
    with Service(served.dir) as service:
        for step in range(50):
            service.release(service.export("images", step))
        before = descriptors(served.pid), rss_kib(served.pid)
        for step in range(3000):
            service.release(service.export("images", step % 700))
        assert descriptors(served.pid) <= before[0] + 40
        assert rss_kib(served.pid) <= before[1] + 4096


def test_all_that_one_client_may_have(box, data):
    with box.mount(data, memory="4MiB") as m, Service(m.dir) as service:
        limits = service.ask("hello")["limits"]
        assert limits["bytes"] == 2 << 20
        held: list[Batch] = []
        with pytest.raises(Refused, match="release some") as refused:
            for step in range(1000):
                held.append(service.export("x", step))
        assert refused.value.errno == "EDQUOT"
        stats = service.ask("stats")["client"]
        assert stats["leases"] == len(held) and stats["bytes"] >= limits["bytes"]
        # Others are not kept from theirs.
        assert len(m.read("labels/batch/0")) == 256
        with Service(m.dir) as other:
            other.release(other.export("x", 0))
        service.release(held.pop())
        held.append(service.export("x", 0))
        service.release(*held)
        for batch in held:
            with contextlib.suppress(OSError):
                os.close(batch.fd)
        assert service.ask("stats")["client"]["leases"] == 0
