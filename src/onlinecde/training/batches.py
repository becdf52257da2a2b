"""Which streams are trained on together: mixed anew every epoch, of like length within a batch."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

POOL = 16
"""Batches drawn at random together and then sorted by length among themselves."""


def seed_for(*parts: int | str) -> int:
    """A seed from a few numbers and words; the same on every machine."""
    text = "/".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def epoch_batches(lengths: Tensor, size: int, seed: int, epoch: int) -> list[Tensor]:
    """Positions (at most `size`,) of the streams of each batch of an epoch, from the seed alone.

    Streams are shuffled, and sorted by their number of rows `lengths` (stream,) only within pools,
    so that padding is little and still no two epochs have the same batches.

    >>> batches = epoch_batches(torch.tensor([3, 9, 4, 8]), 2, seed=0, epoch=1)
    >>> sorted(i for batch in batches for i in batch.tolist())
    [0, 1, 2, 3]
    """
    generator = torch.Generator().manual_seed(seed_for("batches", seed, epoch))
    shuffled = torch.randperm(len(lengths), generator=generator)
    lengths = lengths.cpu()
    batches: list[Tensor] = []
    for pool in shuffled.split(POOL * size):
        batches += pool[torch.argsort(lengths[pool], stable=True)].split(size)
    # A last batch of one or two streams would count as much as a whole one: it joins its neighbour.
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in order]
