#!/usr/bin/env python3
"""Trains a small language model on token ids in Parquet, with PyTorch, in one process or several.

    python3 py/examples/train_tokens.py tokens --make README.md docs/*.md
    python3 py/examples/train_tokens.py tokens --steps 100 --save run.pt
    torchrun --nproc-per-node 2 py/examples/train_tokens.py tokens --steps 200 --resume run.pt

The tokens of --make are the bytes of texts, a paragraph to a document; any Parquet with a column
of token ids will do, also at an address such as s3://bucket/prefix. A run goes on where it was
saved, on any number of processes that divides the lanes. Needs pyarrow for --make.
"""

import argparse
import os
from pathlib import Path

import torch
from batchfs.torch import TokenDataset, TokenStep
from torch import distributed, nn
from torch.utils.data import DataLoader

VOCABULARY = 256


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.remember = nn.GRU(64, 64, batch_first=True)
        self.guess = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.guess(self.remember(self.embed(tokens))[0])


def targets(batch: TokenStep) -> torch.Tensor:
    """The token after each one; none where its piece of a document ends."""
    flat = batch.tokens.flatten().long()
    after = torch.cat([flat[1:], flat[:1]])
    after[batch.cu_seqlens[1:].long() - 1] = -100
    return after


def make(folder: Path, texts: list[Path]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    documents = [part.encode() for text in texts for part in text.read_text().split("\n\n")]
    column = pa.array([list(document) for document in documents], pa.list_(pa.int32()))
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"tokens": column}), folder / "texts.parquet", row_group_size=50)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on tokens in Parquet, with PyTorch.")
    parser.add_argument("data", help="a Parquet file, a folder of them, or an address")
    parser.add_argument("--make", type=Path, nargs="+", metavar="TEXT", help="write it from texts")
    parser.add_argument("--steps", type=int, default=200, help="steps of the whole run")
    parser.add_argument("--lanes", type=int, default=16, help="rows of a step, of all processes")
    parser.add_argument("--save", type=Path, help="write weights, optimizer and state to this file")
    parser.add_argument("--resume", type=Path, help="go on from such a file")
    args = parser.parse_args()
    if args.make:
        return make(Path(args.data), args.make)

    together = "RANK" in os.environ
    if together:
        distributed.init_process_group("gloo")
    data = TokenDataset(args.data, lanes=args.lanes, window=4, seq_len=128, seed=42)
    first = data.loader.rank == 0
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    if args.resume:
        saved = torch.load(args.resume)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load_state_dict(saved["data"])
    loader = DataLoader(data, batch_size=None, num_workers=0)
    while data.step < args.steps:
        for batch in loader:  # to the end of the epoch
            guesses = model(batch.tokens.long()).flatten(0, 1)
            loss = nn.functional.cross_entropy(guesses, targets(batch))
            optimizer.zero_grad()
            loss.backward()
            if together:
                for weights in model.parameters():
                    distributed.all_reduce(weights.grad)
                    weights.grad /= distributed.get_world_size()
            optimizer.step()
            if first and batch.step % 50 == 0:
                print(f"step {batch.step}, epoch {batch.epoch}: loss {loss.item():.4f}")
            if data.step >= args.steps:
                break
    if args.save:
        state = data.state_dict()  # on every process
        if first:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**parts, "data": state}, args.save)
    if first:
        print(f"final loss {loss.item():.4f}")
    data.close()
    if together:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
