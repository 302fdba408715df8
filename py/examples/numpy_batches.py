#!/usr/bin/env python3
"""Trains a softmax regression on mounted batches, with NumPy and nothing else.

    batchfs create digits/images --from tools/data/digits-images.npy
    batchfs create digits/labels --from tools/data/digits-labels.npy
    batchfs mount digits /mnt/ds --spec batch=64,seed=42,remainder=carry
    python3 py/examples/numpy_batches.py /mnt/ds

The step is the whole state of the loader: a run that is resumed with --resume opens the next
number, and ends with the same weights as one that was never interrupted.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

CLASSES = 10
RATE = 0.5


def batch(mount: Path, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The images, one row each, and the labels of a step. The file is mapped, not read."""
    images = np.load(mount / f"images/batch/{step}.npy", mmap_mode="r")
    labels = np.load(mount / f"labels/batch/{step}.npy", mmap_mode="r")
    pixels = images.reshape(len(images), -1) / np.float32(16)
    return np.hstack([pixels, np.ones((len(pixels), 1), np.float32)]), labels


def probabilities(pixels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    scores = pixels @ weights
    scores -= scores.max(axis=1, keepdims=True)
    scores = np.exp(scores)
    return scores / scores.sum(axis=1, keepdims=True)


def train(mount: Path, weights: np.ndarray, first: int, steps: int) -> None:
    for step in range(first, steps):
        pixels, labels = batch(mount, step)
        guess = probabilities(pixels, weights)
        here = np.arange(len(labels))
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {-np.log(guess[here, labels] + 1e-9).mean():.4f}")
        guess[here, labels] -= 1
        weights -= RATE / len(labels) * pixels.T @ guess


def accuracy(mount: Path, weights: np.ndarray, steps: range) -> float:
    right = total = 0
    for step in steps:
        pixels, labels = batch(mount, step)
        right += int((probabilities(pixels, weights).argmax(axis=1) == labels).sum())
        total += len(labels)
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on mounted batches, with NumPy only.")
    parser.add_argument("mount", type=Path, help="where the data set is mounted")
    parser.add_argument("--steps", type=int, default=300, help="steps of the whole run")
    parser.add_argument("--save", type=Path, help="write weights and step to this .npz")
    parser.add_argument("--resume", type=Path, help="go on from such a file")
    args = parser.parse_args()
    if not (args.mount / ".batchfs/config.json").exists():
        sys.exit(f"{args.mount}: no batchfs mount is there; see `batchfs mount --help`")

    pixels, _ = batch(args.mount, 0)
    first, weights = 0, np.zeros((pixels.shape[1], CLASSES), np.float64)
    if args.resume:
        with np.load(args.resume) as saved:
            first, weights = int(saved["step"]), saved["weights"]
    train(args.mount, weights, first, args.steps)
    # Steps that were not trained on show the same images in other batches: this measures the fit.
    found = accuracy(args.mount, weights, range(args.steps, args.steps + 20))
    print(f"accuracy {found:.4f}")
    if args.save:
        np.savez(args.save, step=args.steps, weights=weights)


if __name__ == "__main__":
    main()
