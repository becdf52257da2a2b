"""Weights in halves: x = head + tail / 2048, to 22 bits, and rows padded with zeros."""

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
import triton
import triton.language as tl

BLOCK = 16
"""Rows of a matrix a program takes; all padded sizes are multiples of it."""


@triton.jit
def halves_kernel(
    weight, bias, head, tail, offset, M: tl.constexpr, K: tl.constexpr,
    MP: tl.constexpr, KP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """(number, M, K) and (number, M) as halves (number, MP, KP) twice and as they are (number, MP)."""
    number = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, KP)
    there = (m < M)[:, None] & (k < K)[None, :]
    x = tl.load(weight + (number * M + m[:, None]) * K + k[None, :], mask=there, other=0.0)
    upper = x.to(tl.float16)
    lower = ((x - upper.to(tl.float32)) * 2048).to(tl.float16)
    to = (number * MP + m[:, None]) * KP + k[None, :]
    tl.store(head + to, upper)
    tl.store(tail + to, lower)
    tl.store(offset + number * MP + m, tl.load(bias + number * M + m, mask=m < M, other=0.0))
