"""Which streams are trained on together: any with any, mixed anew every epoch."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def seed_for(*parts: int | str) -> int:
    """A seed from a few numbers and words; the same on every machine."""
    text = "/".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def epoch_batches(streams: int, size: int, seed: int, epoch: int) -> list[Tensor]:
    """Positions of the streams of each batch of an epoch, from the seed alone; at most `size` a batch.

    Streams of like length are not put together, though it would save padding: events are rarer or
    more frequent in longer streams, so each batch would know another share of them
    (docs/tried.md has what that cost). Batches are of one size, give or take a stream.

    >>> batches = epoch_batches(5, 2, seed=0, epoch=1)
    >>> [len(batch) for batch in batches], sorted(i for batch in batches for i in batch.tolist())
    ([2, 2, 1], [0, 1, 2, 3, 4])
    """
    generator = torch.Generator().manual_seed(seed_for("batches", seed, epoch))
    shuffled = torch.randperm(streams, generator=generator)
    return list(shuffled.tensor_split(-(-streams // size)))
