"""Running statistics of channels, and trees over them: the functions of `models.past` and `models.forest` compiled.

Plain IEEE arithmetic in the same order: the same bits as in torch.
"""

import numpy as np

from onlinecde.kernels.cpu.compiled import kernel, part


@part
def _take(kept, t, x):
    """One value of a channel at t into what is kept of it."""
    if kept[0] == 0:
        kept[1], kept[2], kept[5], kept[6] = x, t, x, x
    kept[0] += 1
    kept[3], kept[4] = x, t
    kept[5], kept[6] = min(kept[5], x), max(kept[6], x)
    d, a = x - kept[1], t - kept[2]
    kept[7] += d
    kept[8] += d * d
    kept[9] += a
    kept[10] += a * a
    kept[11] += a * d


@part
def _describe(past, t, said):
    """What is said at t of one stream's statistics (channel, kept), all channels for each statistic."""
    channels = len(past)
    for c in range(channels):
        kept = past[c]
        count = kept[0]
        said[7 * channels + c] = count
        if count == 0:
            for statistic in (0, 1, 2, 3, 4, 5, 6, 8):
                said[statistic * channels + c] = np.nan
            continue
        mean, middle = kept[7] / count, kept[9] / count
        variance = kept[8] / count - mean * mean
        spread = kept[10] / count - middle * middle
        slope = np.nan
        if count > 1 and spread > 0:
            slope = (kept[11] / count - mean * middle) / spread
        said[c] = kept[3]
        said[channels + c] = mean + kept[1]
        said[2 * channels + c] = kept[5]
        said[3 * channels + c] = kept[6]
        said[4 * channels + c] = np.sqrt(variance) if variance > 0 else 0.0
        said[5 * channels + c] = slope
        said[6 * channels + c] = kept[1]
        said[8 * channels + c] = t - kept[4]


@kernel
def take_rows(past, time, values, observed):
    """A row of each stream into its statistics (stream, channel, kept), in place."""
    for n in range(len(past)):
        for c in range(past.shape[1]):
            if observed[n, c]:
                _take(past[n, c], time[n], np.float64(values[n, c]))


@kernel
def describe_each(past, clock, said):
    """`said` (stream, number) of statistics (stream, channel, kept) at clock (stream,)."""
    for n in range(len(past)):
        _describe(past[n], clock[n], said[n])


@kernel
def describe_along(past, times, values, observed, row, order, clock, said):
    """`said` (stream, query, number) of whole histories; `order` (stream, query) sorts queries by `row`."""
    queries = row.shape[1]
    for n in range(len(times)):
        taken = -1
        for at in range(queries):
            query = order[n, at]
            while taken < row[n, query]:
                taken += 1
                for c in range(past.shape[1]):
                    if observed[n, taken, c]:
                        _take(past[n, c], times[n, taken], np.float64(values[n, taken, c]))
            _describe(past[n], clock[n, query], said[n, query])


@kernel
def add_leaves(numbers, root, output, number, threshold, missing_left, left, right, value, total):
    """Add to `total` (line, output) the leaves that numbers (line, number) reach, tree by tree."""
    for line in range(len(numbers)):
        for tree in range(len(root)):
            at = root[tree]
            while left[at] != at:
                x = numbers[line, number[at]]
                goes_left = x <= threshold[at] or (missing_left[at] and np.isnan(x))
                at = left[at] if goes_left else right[at]
            total[line, output[tree]] += value[at]
