"""The last layer: columns of the channels that move, for rows of streams."""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import product, states_from, tanh


@triton.jit
def column(
    h, channel, n, head, tail, bias,
    HP: tl.constexpr, WP: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """f_j for hidden units n: (row, n), from h (row, WP)."""
    k = tl.arange(0, WP)
    at = channel * (HP * WP) + n[None, :] * WP + k[:, None]
    f = product(h, head, tail, at, SPLIT) + tl.load(bias + channel * HP + n)[None, :]
    if TANH:
        f = tanh(f, FAST)
    return f


@triton.jit
def column_from(
    h, base, place, used, channel, n, head, tail, bias,
    HP: tl.constexpr, W: tl.constexpr, WP: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    ACT: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """`column`; where h is too wide to be held (BK < WP) it is read again, before its activation.

    It then stands at `base + place`, W numbers a row.
    """
    if BK == WP:
        return column(h, channel, n, head, tail, bias, HP, WP, TANH, SPLIT, FAST)
    at = channel * (HP * WP) + n * WP
    f = states_from(base, place, used, head, tail, at, W, BK, BN, ACT, SPLIT, FAST)
    f += tl.load(bias + channel * HP + n)[None, :]
    if TANH:
        f = tanh(f, FAST)
    return f


@triton.jit
def entries_of(
    item, last, tile_channel, tile_first, tile_last, entry_stream, entry_place,
    ENTRIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The value of a piece of work and, for its entries: whether they are there, their streams and places.

    A tile of `ENTRIES` makes one or more pieces of work of `BLOCK` entries.
    """
    SHARES: tl.constexpr = ENTRIES // BLOCK
    tile = item // SHARES
    there = item < last
    value = tl.load(tile_channel + tile, mask=there, other=0)
    first = tl.load(tile_first + tile, mask=there, other=0)
    entry = first + (item % SHARES) * BLOCK + tl.arange(0, BLOCK)
    used = entry < tl.load(tile_last + tile, mask=there, other=0)
    stream = tl.load(entry_stream + entry, mask=used, other=0)
    return value, used, stream, tl.load(entry_place + entry, mask=used, other=0)
