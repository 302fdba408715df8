#!/usr/bin/env python3
"""Learns word vectors from text with PyTorch, on ragged records: one per paragraph, never padded.

    python3 py/examples/word2vec.py README.md docs/*.md

A batch is all tokens of its paragraphs back to back, and where each paragraph starts. Every token
is guessed from those beside it (CBOW); what lies in another paragraph does not count.
"""

import argparse
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from batchfs import Allocator, Loader, dtypes
from batchfs.sampler import Sampler
from batchfs.store import RaggedBatch, RaggedStore, RaggedWriter
from torch import nn

WINDOW, SIZE, BATCH, LEAST = 3, 32, 64, 3


def paragraphs(files: list[Path]) -> tuple[list[np.ndarray], list[str]]:
    """The paragraphs as token ids, and the word of each id; 0 is for rare words."""
    texts = [p for f in files for p in f.read_text(encoding="utf-8").split("\n\n")]
    words = [re.findall(r"[a-z']+", text.lower()) for text in texts]
    counts = Counter(word for paragraph in words for word in paragraph)
    names = ["?", *sorted(word for word, n in counts.items() if n >= LEAST)]
    ids = {word: i for i, word in enumerate(names)}
    found = [np.array([ids.get(w, 0) for w in p], dtypes.int32) for p in words if len(p) > 1]
    return found, names


class Cbow(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.inner = nn.Embedding(words, SIZE)
        self.outer = nn.Linear(SIZE, words)

    def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The loss over a packed batch: tokens (N,), offsets (paragraphs + 1,)."""
        place = torch.arange(len(tokens))
        paragraph = torch.bucketize(place, offsets[1:], right=True)
        beside = torch.tensor([d for d in range(-WINDOW, WINDOW + 1) if d])
        at = (place[:, None] + beside).clamp(0, len(tokens) - 1)
        inside = (place[:, None] + beside == at) & (paragraph[at] == paragraph[:, None])
        vectors = self.inner(tokens[at]) * inside[..., None]
        mean = vectors.sum(1) / inside.sum(1, keepdim=True).clamp(min=1)
        return nn.functional.cross_entropy(self.outer(mean), tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn word vectors from text.")
    parser.add_argument("texts", type=Path, nargs="+", help="text files")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    records, names = paragraphs(args.texts)
    torch.manual_seed(0)
    model = Cbow(len(names))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with tempfile.TemporaryDirectory() as folder:
        with RaggedWriter(f"{folder}/tokens", dtypes.int32, 1, codec="zstd") as writer:
            writer.append(RaggedBatch.from_records(records))
        with RaggedStore(f"{folder}/tokens") as store, Allocator("cpu") as allocator:
            view = store.bind(allocator)
            sampler = Sampler(len(view), min(BATCH, len(view)), Sampler.Mode.CYCLIC, seed=1)
            with Loader({"tokens": [view]}, sampler, workers=1) as loader:
                for step in range(args.steps):
                    [shard] = next(loader)
                    batch = shard["tokens"]
                    tokens = torch.from_dlpack(batch.values).long()
                    loss = model(tokens, torch.from_dlpack(batch.cu_seqlens).long())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if step % 20 == 0 or step == args.steps - 1:
                        print(f"step {step}: loss {loss.item():.4f}, {len(tokens)} tokens")
    print(f"{len(records)} paragraphs, {len(names)} words")


if __name__ == "__main__":
    main()
