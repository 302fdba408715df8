#!/usr/bin/env python3
"""Trains a small convolutional network on the digits that come with batchfs, with PyTorch.

    batchfs create digits/images --from tools/data/digits-images.npy
    batchfs create digits/labels --from tools/data/digits-labels.npy
    python3 py/examples/train_images.py digits

The batches come from a Loader in this process, or with --mount through a mount: the same ones. With
--save and --resume a run goes on where it was, to the weights that it would have had.
"""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import batchfs
import torch
from batchfs import Allocator, Loader
from batchfs.sampler import Sampler
from batchfs.store import DenseStore
from torch import nn

BATCH, SEED = 64, 42
Batch = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def prepared(images: torch.Tensor, labels: torch.Tensor) -> Batch:
    return images[:, None].float() / 16, labels.long()


@contextmanager
def in_process(data: Path, start: int) -> Iterator[Iterator[Batch]]:
    with ExitStack() as stack:
        allocator = stack.enter_context(Allocator("cpu"))
        streams = {
            name: [stack.enter_context(DenseStore(data / name)).bind(allocator)]
            for name in ("images", "labels")
        }
        sampler = Sampler(len(streams["images"][0]), BATCH, Sampler.Mode.CYCLIC, SEED)
        sampler.seek(start)
        loader = Loader(streams, sampler, workers=1, prefetch=2)
        stack.callback(loader.close)
        yield (prepared(s["images"].torch(), s["labels"].torch()) for [s] in loader)


@contextmanager
def through_a_mount(data: Path, start: int) -> Iterator[Iterator[Batch]]:
    with batchfs.mount(data, batch=BATCH, seed=SEED) as ds:
        yield (prepared(b["images"].torch(), b["labels"].torch()) for b in ds.batches(start))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits, with PyTorch.")
    parser.add_argument("data", type=Path, help="a folder with the stores images and labels")
    parser.add_argument("--mount", action="store_true", help="read through a mount")
    parser.add_argument("--steps", type=int, default=300, help="steps of the whole run")
    parser.add_argument("--save", type=Path, help="write weights, optimizer and step to this file")
    parser.add_argument("--resume", type=Path, help="go on from such a file")
    args = parser.parse_args()

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    first = 0
    if args.resume:
        saved = torch.load(args.resume)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    door = through_a_mount if args.mount else in_process
    with door(args.data, first) as batches:
        for step in range(first, args.steps):
            images, labels = next(batches)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
        found = [next(batches) for _ in range(10)]
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in found)
    print(f"accuracy {right / (10 * BATCH):.4f}")
    if args.save:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "step": args.steps}, args.save)


if __name__ == "__main__":
    main()
