from __future__ import annotations

from pathlib import Path


class StoreError(RuntimeError):
    """What is stored is damaged, incomplete, or of an unknown version.

    ``path`` is the store or file, ``record`` the id of the damaged record if it is known.
    """

    def __init__(self, message: str, path: Path | None = None, record: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.record = record

    def __reduce__(self) -> tuple:
        return type(self), (self.args[0], self.path, self.record)
