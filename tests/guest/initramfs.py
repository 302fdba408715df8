"""What the guest boots: programs of this machine with their libraries, modules, and a script."""

import os
import stat
import subprocess
from pathlib import Path


class Archive:
    """An archive of files in the `newc` format of cpio, which the kernel unpacks."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.names: set[str] = set()

    def _entry(self, name: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> None:
        path = name.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device, node's device, length of the name, sum
        fields = [len(self.names) + 1, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0]
        head = b"070701" + b"".join(b"%08X" % f for f in fields) + path
        for part in (head, data):
            self.parts.append(part + bytes(-len(part) % 4))
        self.names.add(name)

    def folder(self, name: str) -> None:
        name = name.strip("/")
        if name and name not in self.names:
            self.folder(os.path.dirname(name))
            self._entry(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, data: bytes, mode: int = 0o755) -> None:
        name = name.strip("/")
        if name not in self.names:
            self.folder(os.path.dirname(name))
            self._entry(name, stat.S_IFREG | mode, data)

    def node(self, name: str, major: int, minor: int) -> None:
        self.folder(os.path.dirname(name))
        self._entry(name.strip("/"), stat.S_IFCHR | 0o600, b"", (major, minor))

    def program(self, name: str, source: Path) -> None:
        """A program, with the libraries that its loader would look for."""
        self.file(name, source.read_bytes())
        for library in libraries(source):
            self.file(str(library), library.read_bytes())

    def write(self, path: Path) -> None:
        self._entry("TRAILER!!!", 0, b"")
        path.write_bytes(b"".join(self.parts))


def libraries(program: Path) -> list[Path]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True)
    words = [word for line in said.stdout.splitlines() for word in line.split()]
    return [Path(word) for word in words if word.startswith("/") and Path(word).is_file()]
