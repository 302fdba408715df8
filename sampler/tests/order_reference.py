#!/usr/bin/env python3
"""A second implementation of docs/order.md, from its text alone.

It checks the golden files and the document's examples. Run: python3 order_reference.py [FILE ...];
without arguments it takes golden/*.txt beside this file and docs/order.md.
"""

import struct
import sys
from math import isqrt
from pathlib import Path

M32 = 0xFFFFFFFF


def block(key, counter, stream):
    """One ChaCha8 block: 16 words, 64-bit counter and 64-bit nonce (the stream)."""
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8L", key)]
    start += [counter & M32, counter >> 32, stream & M32, stream >> 32]
    x = start[:]

    def quarter(a, b, c, d):
        for to, by, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[to] = (x[to] + x[by]) & M32
            v = x[turned] ^ x[to]
            x[turned] = (v << bits | v >> 32 - bits) & M32

    for _ in range(4):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(a + b) & M32 for a, b in zip(x, start, strict=True)]


class Words:
    """The words of one stream, by position."""

    def __init__(self, seed, purpose, stream):
        self.key = struct.pack("<Q24s", seed, purpose.encode())
        self.stream = stream
        self.blocks = {}

    def word(self, position):
        index = position // 16
        if index not in self.blocks:
            self.blocks[index] = block(self.key, index, self.stream)
        return self.blocks[index][position % 16]

    def draw_word(self, index, width):
        """Word number `index` of `width` times 32 bits, the low one first."""
        return sum(self.word(index * width + i) << 32 * i for i in range(width))


def draw(words, redraws, slot, bound, width):
    bits = 32 * width
    least = 2**bits % bound
    product = words.draw_word(slot, width) * bound
    attempt = 0
    while product % 2**bits < least and attempt < 64:
        product = redraws.draw_word(slot * 64 + attempt, width) * bound
        attempt += 1
    return product >> bits


def iid(seed, step, n, slots):
    words, redraws = Words(seed, "order-1 iid", step), Words(seed, "order-1 iid redraw", step)
    return [draw(words, redraws, slot, n, 1 if n <= 2**24 else 2) for slot in slots]


def shuffled(seed, cycle, n, positions):
    words, redraws = (
        Words(seed, "order-1 shuffle", cycle),
        Words(seed, "order-1 shuffle redraw", cycle),
    )
    table = list(range(n))
    for i in range(n):
        j = i + draw(words, redraws, i, n - i, 1)
        table[i], table[j] = table[j], table[i]
    return [table[p] for p in positions]


def feistel(seed, cycle, n, positions):
    a = isqrt(n - 1) + 1
    b = -(-n // a)
    words = Words(seed, "order-1 feistel", cycle)
    if n <= 2**30:
        bits, keys = 16, [((w & 0xFFFF) | 1, w >> 16) for w in map(words.word, range(12))]
    else:
        bits, keys = 32, [(words.word(2 * r) | 1, words.word(2 * r + 1)) for r in range(8)]

    def once(value):
        left, right = divmod(value, b)
        for r, (multiplier, offset) in enumerate(keys):
            t = ((left if r % 2 else right) * multiplier + offset) % 2**bits
            h = (t * t // 2**bits + t * t) % 2**bits
            if r % 2 == 0:
                left = (left + h * a // 2**bits) % a
            else:
                right = (right + h * b // 2**bits) % b
        return left * b + right

    def walk(value):
        value = once(value)
        while value >= n:
            value = once(value)
        return value

    return [walk(p) for p in positions]


def permuted(seed, cycle, n, positions):
    return (shuffled if n <= 512 else feistel)(seed, cycle, n, positions)


def ids(text, n, step):
    spec = {
        "mode": "cyclic",
        "batch": "256",
        "seed": "0",
        "remainder": "drop",
        "rank": "0",
        "world": "1",
    }
    spec.update(item.split("=") for item in text.split(","))
    batch, seed, rank, world = (int(spec[key]) for key in ("batch", "seed", "rank", "world"))
    share = batch // world
    slots = range(rank * share, (rank + 1) * share)
    if spec["mode"] == "iid":
        return iid(seed, step, n, slots)
    if spec["mode"] == "sequential":
        return [(step * batch + slot) % n for slot in slots]
    if spec["remainder"] == "drop":
        per_cycle = n // batch
        return permuted(
            seed, step // per_cycle, n, [step % per_cycle * batch + slot for slot in slots]
        )
    places = [divmod(step * batch + slot, n) for slot in slots]
    cycles = sorted({cycle for cycle, _ in places})
    return [
        i for c in cycles for i in permuted(seed, c, n, [p for cycle, p in places if cycle == c])
    ]


def check(path):
    count = 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.startswith("mode=") or line.count(" | ") != 3:
            continue
        spec, n, step, expected = line.split(" | ")
        if ids(spec, int(n), int(step)) != [int(i) for i in expected.split()]:
            sys.exit(f"{path.name}:{number}: differs: {spec} | {n} | {step}")
        count += 1
    if count == 0:
        sys.exit(f"{path.name}: no batches in it")
    return count


def main():
    here = Path(__file__).resolve().parent
    paths = [Path(a) for a in sys.argv[1:]] or [
        *sorted(here.glob("golden/*.txt")),
        here / "../../docs/order.md",
    ]
    print(f"order: {sum(map(check, paths))} batches of {len(paths)} files agree")


if __name__ == "__main__":
    main()
