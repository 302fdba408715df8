#!/usr/bin/env python3
"""A second implementation of docs/order.md, from its text alone.

It checks the golden files and the document's examples. Run: python3 order_reference.py [FILE ...];
without arguments it takes golden/*.txt beside this file and docs/order.md.
"""

import struct
import sys
from bisect import bisect_right
from itertools import accumulate
from math import gcd, isqrt
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


def lengths(text):
    if "*" in text:
        count, documents = map(int, text.split("*"))
        return [[(17 * g + 31 * d + g * d) % 13 for d in range(documents)] for g in range(count)]
    return [[int(n) for n in group.split()] for group in text.split(";")]


class Run:
    """The lanes of a dataset: windows, stretches, pieces, rows."""

    def __init__(self, text, groups):
        spec = {"window": "64", "seed": "0", "rank": "0", "world": "1"}
        spec.update(item.split("=") for item in text.split(","))
        names = ("lanes", "window", "seq_len", "seed", "rank", "world")
        self.lanes, self.window, self.length, self.seed, self.rank, self.world = (
            int(spec[name]) for name in names
        )
        self.groups = groups
        self.first = [sum(map(len, groups[:g])) for g in range(len(groups))]
        self.total = sum(map(sum, groups))

    def windows(self, step):
        """Epoch, number, place in the run and row groups of each window that the step meets."""
        begin = step * self.length * self.lanes
        end = begin + self.length * self.lanes
        n = len(self.groups)
        for epoch in range(begin // self.total, (end - 1) // self.total + 1):
            at = epoch * self.total
            order = permuted(self.seed, epoch, n, range(n))
            for number, place in enumerate(range(0, n, self.window)):
                members = order[place : place + self.window]
                after = at + sum(sum(self.groups[g]) for g in members)
                if at < end and begin < after:
                    yield epoch, number, at, after, members
                at = after

    def stretch(self, lane, window):
        """The pieces (document, offset, length) of a lane in a window, in the lane's order."""
        epoch, number, before, after, members = window
        share = [(after + b) // self.lanes - (before + b) // self.lanes for b in range(lane + 1)]
        begin, end = sum(share[:-1]), sum(share)
        pieces, at = [], 0
        for g in members:
            for d, length in enumerate(self.groups[g]):
                low, high = max(at, begin), min(at + length, end)
                if low < high:
                    pieces.append((self.first[g] + d, low - at, high - low))
                at += length
        seed = Words(self.seed, "order-1 windows", epoch).draw_word(number, 2)
        return [pieces[p] for p in permuted(seed, lane, len(pieces), range(len(pieces)))]

    def row(self, step, lane, windows):
        low, high = step * self.length, (step + 1) * self.length
        pieces = []
        for window in windows:
            at = (window[2] + lane) // self.lanes
            for document, offset, length in self.stretch(lane, window):
                first, last = max(at, low), min(at + length, high)
                if first < last:
                    pieces.append(f"{document}:{offset + first - at}:{last - first}")
                at += length
        return " ".join(pieces)

    def rows(self, step):
        windows, share = list(self.windows(step)), self.lanes // self.world
        lanes = range(self.rank * share, (self.rank + 1) * share)
        return "; ".join(self.row(step, lane, windows) for lane in lanes)


def mixed(mix, text, step):
    """The rows of a step of a mixture: source, the source's own step and its lane there."""
    spec = {"seed": "0", "rank": "0", "world": "1"}
    spec.update(item.split("=") for item in text.split(","))
    lanes, seed, rank, world = (int(spec[key]) for key in ("lanes", "seed", "rank", "world"))
    weights = {}
    for item in mix.split(","):
        name, weight = item.split("=")
        whole, _, part = weight.partition(".")
        weights[name] = int(whole) * 10**9 + int(part.ljust(9, "0"))
    names = sorted(weights, key=str.encode)
    divisor = gcd(*weights.values())
    values = [weights[name] // divisor for name in names]
    total = sum(values)
    size = min(total, 65536)
    shares = [size * value // total for value in values]
    largest = sorted(range(len(names)), key=lambda k: (-(size * values[k] % total), k))
    for k in largest[: size - sum(shares)]:
        shares[k] += 1

    ends = list(accumulate(shares))
    blocks = {}

    def sources(block):
        """The source of each place of a block."""
        if block not in blocks:
            high, low = divmod(block, 2**64)
            key = Words(seed, "order-1 mix", high).draw_word(0, 2)
            blocks[block] = [bisect_right(ends, x) for x in permuted(key, low, size, range(size))]
        return blocks[block]

    rows = []
    share = lanes // world
    for j in range(rank * share, (rank + 1) * share):
        block, place = divmod(step * lanes + j, size)
        k = sources(block)[place]
        number = block * shares[k] + sources(block)[:place].count(k)
        rows.append(f"{names[k]}:{number // lanes}:{number % lanes}")
    return " ".join(rows)


def agrees(spec, data, step, expected):
    if spec.startswith("mix:"):
        return mixed(spec[4:], data, step) == expected
    if spec.startswith("lanes="):
        return Run(spec, lengths(data)).rows(step) == expected
    return ids(spec, int(data), step) == [int(i) for i in expected.split()]


def check(path):
    count = 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.startswith(("mode=", "lanes=", "mix:")) or line.count(" | ") != 3:
            continue
        spec, data, step, expected = line.split(" | ")
        if not agrees(spec, data, int(step), expected):
            sys.exit(f"{path.name}:{number}: differs: {spec} | {data} | {step}")
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
