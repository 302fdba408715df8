"""Clients of the descriptor service that misbehave: many, slow, dying; nobody else notices."""

import contextlib
import os
import random
import resource
import signal
import socket

import numpy as np
import pytest
from harness import as_user, descriptors, wait_for
from service import Batch, Refused, Service
from test_service import empty

SPEC = "batch=32,seed=1"


@pytest.fixture
def served(box, data, mode):
    with box.mount(data, spec=SPEC, mode=mode) as m:
        yield m
        empty(m)


def test_a_thousand_clients(served, arrays):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    before = descriptors(served.pid)
    try:
        crowd = [Service(served.dir) for _ in range(1000)]
        for i, client in enumerate(crowd):
            client.send(op="export", stream="x", step=i % 20)
        batches = [client.receive() for client in crowd]
        assert served.metrics()["service_clients"] == 1000
        assert served.metrics()["service_leases"] == 1000
        for i in (0, 7, 999):
            assert np.array_equal(batches[i].array(), arrays["x"][served.ids(i % 20)])
        # Each third one dies as it is, each third one gives back first.
        for i, (client, batch) in enumerate(zip(crowd, batches, strict=True)):
            if i % 3 == 0:
                client.release(batch)
            batch.close()
            client.close()
        empty(served)
        wait_for(lambda: descriptors(served.pid) <= before + 40, "descriptors are closed")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_clients_that_are_killed_anywhere(served, arrays):
    """In each state that a client can be in, many times, while another one reads on."""
    randomly = random.Random(5)

    def client(stage: int) -> None:
        service = Service(served.dir)
        if stage == 1:
            for _ in range(20):
                service.send(op="export", stream="images", step=randomly.randrange(1000))
        if stage == 2:
            service.socket.send(b'{"version":1,"op":"export","stre')
        if stage >= 3:
            batch = service.export("images", randomly.randrange(50))
            if stage == 4:
                os.dup(batch.fd)
                batch.close()
            if stage == 5:
                service.send(op="release", release=[batch.lease])
        os.kill(os.getpid(), signal.SIGKILL)

    good = Service(served.dir)
    for round_ in range(60):
        pid = os.fork()
        if pid == 0:
            # Nothing of this process is to be run in the child.
            with contextlib.suppress(BaseException):
                client(round_ % 6)
            os._exit(1)
        batch = good.export("images", round_)
        want = arrays["images"][served.ids(round_)]
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        assert np.array_equal(batch.array(), want)
        good.release(batch)
    good.close()


def test_a_client_that_does_not_read(served, arrays):
    lazy = Service(served.dir)
    lazy.socket.setblocking(False)
    asked = 0
    with contextlib.suppress(BlockingIOError):
        while asked < 10_000:
            lazy.send(op="export", stream="x", step=asked % 50)
            asked += 1
    assert 32 < asked < 10_000, "its requests are not taken while it reads no replies"
    with Service(served.dir) as other:
        limit = other.ask("hello")["limits"]["in_flight"]
        wait_for(lambda: served.metrics()["service_leases"] >= limit, "as much as it may have")
        for step in range(30):
            batch = other.export("images", step)
            assert np.array_equal(batch.array(), arrays["images"][served.ids(step)])
            other.release(batch)
        assert len(served.read("x/batch/3")) == 32 * 33 * 4
    lazy.socket.setblocking(True)
    got = [lazy.receive() for _ in range(asked)]
    assert sorted(b.about["id"] for b in got) == list(range(1, asked + 1))
    for batch in got:
        batch.close()
    lazy.close()


def test_a_client_that_sends_and_never_listens(served):
    for _ in range(20):
        mute = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mute.connect(os.readlink(served / ".batchfs/service.sock"))
        mute.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                mute.send(b'{"version":1,"id":1,"op":"stats"}')
        mute.close()
    with Service(served.dir) as service:
        assert service.ask("stats")["client"]["leases"] == 0


def test_half_closed_and_empty(served):
    for _ in range(50):
        with Service(served.dir) as one:
            one.send(op="export", stream="x", step=3)
            one.socket.shutdown(socket.SHUT_WR)
            with contextlib.suppress(EOFError):
                while True:
                    got = one.receive()
                    assert isinstance(got, Batch)
                    got.close()


def test_no_descriptor_left(box, data):
    """A daemon that may have few descriptors answers with words, and goes on afterwards."""
    env_limit = 200
    program = ["sh", "-c", f'ulimit -n {env_limit}; exec "$@"', "sh", box.program]
    target = box.folder()
    box.tool(*program, *box.mount_args(data, target, SPEC, "cached", "64MiB"))
    try:
        crowd: list[Service] = []
        refused = 0
        for _ in range(env_limit + 50):
            one = Service(target)
            crowd.append(one)
            with contextlib.suppress(Refused, EOFError, ConnectionError):
                one.ask("hello")
                continue
            refused += 1
        assert refused >= 50
        for one in crowd:
            one.close()
        with contextlib.ExitStack() as stack:
            service = wait_for(lambda: alive(target), "it serves again")
            stack.enter_context(service)
            held, failed = [], set()
            for step in range(500):
                try:
                    held.append(service.export("labels", step))
                except Refused as e:
                    failed.add(e.errno)
            assert failed <= {"EMFILE", "ENOMEM", "EDQUOT"} and failed
            for batch in held:
                batch.close()
        wait_for(lambda: alive(target, 600), "descriptors are there again")
    finally:
        box.run("umount", target)


def alive(target, step: int = 0) -> Service | None:
    try:
        service = Service(target)
    except OSError:
        return None
    try:
        batch = service.export("labels", step)
    except (Refused, EOFError, ConnectionError):
        service.close()
        return None
    service.release(batch)
    return service


def test_a_stopped_client_holds_up_nobody(served, arrays):
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            service = Service(served.dir)
            for step in range(30):
                service.send(op="export", stream="images", step=step)
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    with Service(served.dir) as service:
        for step in range(40):
            batch = service.export("images", step)
            assert np.array_equal(batch.array(), arrays["images"][served.ids(step)])
            service.release(batch)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_unmounted_under_clients(box, data, mode):
    """The end does not wait for them."""
    with box.mount(data, spec=SPEC, mode=mode, memory="64MiB") as m:
        crowd = [Service(m.dir) for _ in range(20)]
        for i, client in enumerate(crowd):
            for step in range(20):
                client.send(op="export", stream="images", step=i * 1000 + step)
        m.unmount()
    for client in crowd:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                got = client.receive()
                assert isinstance(got, Batch)
                got.close()
        client.close()


def test_a_daemon_that_was_started_again(box, data, user):
    os.chown(box.path, user.uid, user.gid)
    for _ in range(3):
        with box.mount(data, spec=SPEC, user=user) as m:

            def read():
                with Service(m.dir) as service:
                    return service.export("labels", 0).bytes()

            assert as_user(user, read) == as_user(user, m.read, "labels/batch/0")
