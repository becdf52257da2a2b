"""Sums by bin: what boosting asks of all lines in every round."""

import numpy as np

from onlinecde.kernels.cpu.compiled import kernel


@kernel
def sums_by_bin(codes, some, slope, bend, bins):
    """(number, bin, 3): slopes, curvatures and lines added up by bin, in the order of the lines.

    codes (number, line) uint8 says which bin; slope and bend (line,); `some` are the numbers asked for.
    """
    sums = np.zeros((len(some), bins, 3))
    for at in range(len(some)):
        row = codes[some[at]]
        for line in range(len(row)):
            here = sums[at, row[line]]
            here[0] += slope[line]
            here[1] += bend[line]
            here[2] += 1.0
    return sums
