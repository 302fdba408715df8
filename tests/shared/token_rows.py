"""Documents of tokens, and the rows they should make by the second implementation."""

import importlib.util
from pathlib import Path

import numpy as np

_spec = importlib.util.spec_from_file_location(
    "order_reference", Path(__file__).resolve().parents[2] / "sampler/tests/order_reference.py"
)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


def documents(seed: int, count: int, mean: int = 30, first: int = 0) -> list[list[int]]:
    """Documents of log-normal lengths, a few of them empty. Every token says where it belongs."""
    random = np.random.default_rng(seed)
    lengths = random.lognormal(np.log(mean), 0.9, count).astype(int)
    lengths[random.random(count) < 0.05] = 0
    return [[(first + d) * 10_000 + i for i in range(n)] for d, n in enumerate(lengths)]


class Expected:
    """The rows that a dataset of these row groups should make."""

    def __init__(self, spec: str, groups: list[list]):
        self.documents = [doc or [] for group in groups for doc in group]
        lengths = [[len(doc or []) for doc in group] for group in groups]
        self.run = reference.Run(spec, lengths)

    def pieces(self, step: int) -> list[list[tuple[int, int, int]]]:
        rows = self.run.rows(step).split("; ")
        return [[tuple(map(int, p.split(":"))) for p in row.split()] for row in rows]

    def rows(self, step: int) -> np.ndarray:
        rows = [
            [token for d, at, n in row for token in self.documents[d][at : at + n]]
            for row in self.pieces(step)
        ]
        return np.array(rows, np.int32)
