"""The last layer: columns of the channels that move, for rows of streams."""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import triton
import triton.language as tl

from onlinecde.kernels.gpu.arithmetic import keep_halves, product, product_of_halves, tanh


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
    h, bent, rows, live, streams, channel, n, head, tail, bias,
    HP: tl.constexpr, WS: tl.constexpr, WP: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    TANH: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """`column`; where h is too wide to be held (BK < WP) it is read as `keep_bent` wrote it."""
    if BK == WP:
        return column(h, channel, n, head, tail, bias, HP, WP, TANH, SPLIT, FAST)
    at = channel * (HP * WP) + n * WP
    f = product_of_halves(bent, rows, live, streams, head, tail, at, 1, WS, BK, BN, SPLIT)
    if SPLIT:
        f = f * 64.0
    f += tl.load(bias + channel * HP + n)[None, :]
    if TANH:
        f = tanh(f, FAST)
    return f


@triton.jit
def keep_bent(
    h, bent, rows, live, streams, WS: tl.constexpr, WP: tl.constexpr, SPLIT: tl.constexpr
):
    """Write h (row, WP) to `bent` (2, stream, WS) in halves, as products take it in."""
    if SPLIT:
        # Room for numbers up to 4 million; what is small keeps 1e-9 through its tail.
        h = h * 0.015625
    keep_halves(h, bent, rows, live, streams, WS, WP, SPLIT)


@triton.jit
def bent_rows(bent, stream, used, streams, WA: tl.constexpr, WB: tl.constexpr, SPLIT: tl.constexpr):
    """What `keep_bent` wrote for some streams: heads and tails, each in two blocks.

    A row of 192 numbers is no power of two: it makes blocks of WA = 128 and WB = 64. Where WB is 0
    the second block is not to be used, and without `SPLIT` neither are tails.
    """
    WS: tl.constexpr = WA + WB
    at = bent + stream[:, None] * WS + tl.arange(0, WA)[None, :]
    live = used[:, None]
    x = tl.load(at, mask=live, other=0.0)
    x_b, y, y_b = x, x, x
    if SPLIT:
        y = tl.load(at + streams * WS, mask=live, other=0.0)
    if WB:
        at = bent + stream[:, None] * WS + (WA + tl.arange(0, WB))[None, :]
        x_b = tl.load(at, mask=live, other=0.0)
        if SPLIT:
            y_b = tl.load(at + streams * WS, mask=live, other=0.0)
    return x, x_b, y, y_b


@triton.jit
def weight_rows(
    head, tail, channel, n, HP: tl.constexpr, WP: tl.constexpr, WA: tl.constexpr,
    WB: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The last layer's weights of hidden units n of a channel, in blocks as `bent_rows`."""
    at = (channel * HP + n)[:, None] * WP + tl.arange(0, WA)[None, :]
    w = tl.load(head + at)
    w_b, v, v_b = w, w, w
    if SPLIT:
        v = tl.load(tail + at)
    if WB:
        at = (channel * HP + n)[:, None] * WP + (WA + tl.arange(0, WB))[None, :]
        w_b = tl.load(head + at)
        if SPLIT:
            v_b = tl.load(tail + at)
    return w, w_b, v, v_b


@triton.jit
def moved_columns(
    w, w_b, v, v_b, x, x_b, y, y_b, shift,
    WB: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """f_j (n, row): hidden units first, so that many units and few entries fill the tensor cores."""
    x = tl.trans(x)
    f = tl.dot(w, x)
    if WB:
        x_b = tl.trans(x_b)
        f = tl.dot(w_b, x_b, f)
    if SPLIT:
        cross = tl.dot(w, tl.trans(y))
        cross = tl.dot(v, x, cross)
        if WB:
            cross = tl.dot(w_b, tl.trans(y_b), cross)
            cross = tl.dot(v_b, x_b, cross)
        f = (f + cross * 0.00048828125) * 64.0
    f += shift[:, None]
    if TANH:
        f = tanh(f, FAST)
    return f


@triton.jit
def columns_apart(
    w, w_b, v, v_b, x, x_b, y, y_b, shift,
    WB: tl.constexpr, TANH: tl.constexpr, SPLIT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """`moved_columns` with each product in a sum of its own.

    Where one product goes into another, Triton shares out rows alone among the warps, 16 to each: of 64 rows,
    both halves of eight warps would compute all. The factors keep it from making one sum of them.
    """
    x = tl.trans(x)
    f = tl.dot(w, x) * 64.0
    if WB:
        x_b = tl.trans(x_b)
        f += tl.dot(w_b, x_b) * 64.0
    if SPLIT:
        f += tl.dot(w, tl.trans(y)) * 0.03125
        f += tl.dot(v, x) * 0.03125
        if WB:
            f += tl.dot(w_b, tl.trans(y_b)) * 0.03125
            f += tl.dot(v_b, x_b) * 0.03125
    else:
        f = f * 0.015625
    f += shift[:, None]
    if TANH:
        f = tanh(f, FAST)
    return f


@triton.jit
def gradient_halves(g):
    """Gradients of size below 2, times 8192, in halves: head, tail, and the head for a factor's tail.

    So large, nothing of the head or tail is lost to small halves, and all products go into one sum.
    """
    g = g * 8192.0
    upper = g.to(tl.float16)
    lower = (g - upper.to(tl.float32)).to(tl.float16)
    return upper, lower, (g * 0.00048828125).to(tl.float16)


@triton.jit
def _pull(total, w, v, upper, lower, small, SPLIT: tl.constexpr):
    w = tl.trans(w)
    if total.shape[0] >= 128:
        total = tl.dot(w, upper, total)
        if SPLIT:
            total = tl.dot(w, lower, total)
            total = tl.dot(tl.trans(v), small, total)
    else:
        total += tl.dot(w, upper) * 0.5
        if SPLIT:
            total += tl.dot(w, lower) * 0.5
            total += tl.dot(tl.trans(v), small) * 0.5
    return total


@triton.jit
def pull_columns(total, found_b, g, w, w_b, v, v_b, WB: tl.constexpr, SPLIT: tl.constexpr):
    """Add w^T g (k, row), times 8192, to `found` for gradients g (n, row) of size below 2.

    Where k is less than 128, products stay apart as in `columns_apart`, and it is 4096.
    """
    upper, lower, small = gradient_halves(g)
    total = _pull(total, w, v, upper, lower, small, SPLIT)
    if WB:
        found_b = _pull(found_b, w_b, v_b, upper, lower, small, SPLIT)
    return total, found_b
