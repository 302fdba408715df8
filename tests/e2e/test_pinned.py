"""Pages that a reader holds by neither a descriptor nor a mapping: those in a pipe or a socket."""

import os
import socket

import numpy as np
import pytest

SIZE = 32 << 10


@pytest.fixture
def source(box):
    return box.npy("pinned", np.random.default_rng(3).integers(0, 256, (64, SIZE // 8), np.uint8))


def read_on(m, first: int) -> None:
    """Has the memory of earlier batches be wanted again and again."""
    for step in range(first, first + 300):
        m.read(f"pinned/batch/{step}")


def test_what_was_spliced_into_a_pipe_is_never_changed(box, source, mode):
    with box.mount(source, spec="batch=8,seed=1", mode=mode) as m:
        wanted = m.read("pinned/batch/500")
        out, into = os.pipe()
        fd = os.open(m / "pinned/batch/500", os.O_RDONLY)
        moved = os.splice(fd, into, SIZE)
        os.close(fd)
        read_on(m, 1000)
        assert os.read(out, moved) == wanted[:moved] and moved > 0
        os.close(out)
        os.close(into)


def test_what_was_sent_to_a_socket_is_never_changed(box, source, mode):
    with box.mount(source, spec="batch=8,seed=1", mode=mode) as m:
        wanted = m.read("pinned/batch/500")
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        fd = os.open(m / "pinned/batch/500", os.O_RDONLY)
        sent = os.sendfile(client.fileno(), fd, 0, SIZE)
        os.close(fd)
        read_on(m, 1000)
        client.close()
        got = b"".join(iter(lambda: peer.recv(SIZE), b""))
        assert got == wanted[:sent] and sent > 0
        peer.close()
        server.close()
