"""`SeriesBatch`: many irregular, partly observed series of unequal length in one place."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from onlinecde.series import checks, tables
from onlinecde.series.checks import SeriesError
from onlinecde.series.static_columns import RawStatic, encode_columns, feature_names


@dataclass(frozen=True, eq=False)
class SeriesBatch:
    """Observed series, padded to one length; NaN means not observed.

    Build one with `from_arrays`, `from_padded`, `from_long` or `from_wide`, which check their
    input. Times are always float64 (a clock in float32 loses seconds within days); values and
    static features have the dtype they came with.

    >>> batch = SeriesBatch.from_arrays([[0.0, 1.5]], [[[36.6, float("nan")], [37.1, 80.0]]])
    >>> batch
    SeriesBatch(1 stream, 2 rows, 2 channels, 75 % observed)
    """

    times: Tensor
    """(stream, row) float64; padding repeats the last time, so that a path stands still there."""
    values: Tensor
    """(stream, row, channel); NaN where not observed and in the padding."""
    rows: Tensor
    """(stream,) int64: how many rows of each stream are real."""
    static: Tensor | None
    """(stream, feature): what is known of a stream besides its series, or None."""
    channels: tuple[str, ...]
    features: tuple[str, ...]
    streams: tuple[Hashable, ...]
    numbered: bool = False
    """Whether the streams were never named: they are called 0, 1, ... in the order they came in."""
    raw_static: RawStatic | None = None
    """Static features as they came, texts and gaps included, where `static` was encoded from such"""

    @classmethod
    def from_padded(
        cls,
        times: Any,
        values: Any,
        rows: Any = None,
        static: Any = None,
        *,
        channels: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        streams: Sequence[Hashable] | None = None,
    ) -> SeriesBatch:
        """Build from times (stream, row) and values (stream, row, channel).

        `rows` (stream,) says how many rows of each stream are real; what stands behind them is
        ignored. Gradients flow through to `times`, `values` and `static`.
        """
        values = checks.as_real(values, "values")
        times = checks.as_real(times, "times", torch.float64)
        times = times.to(device=values.device, dtype=torch.float64)
        if static is not None:
            static = checks.as_real(static, "static").to(values)
        if rows is None:
            rows = torch.full(times.shape[:1], times.shape[1] if times.ndim > 1 else 0)
        rows = checks.as_row_counts(rows, "rows").to(values.device)
        checks.check_shapes(times, values, rows, static)
        channels = checks.names_or_default(channels, values.shape[2], "x", "channel")
        features = checks.names_or_default(
            features, 0 if static is None else static.shape[1], "f", "static feature"
        )
        names = checks.streams_or_default(streams, times.shape[0])
        checks.check_content(times, values, rows, static, names, channels, features)
        given = channels, features, names, streams is None
        return cls(*_pad(times, values, rows), rows, static, *given)

    @classmethod
    def from_arrays(
        cls,
        times: Sequence[Any],
        values: Sequence[Any],
        static: Any = None,
        *,
        channels: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        streams: Sequence[Hashable] | None = None,
    ) -> SeriesBatch:
        """Build from lists of times (n_i,) and values (n_i, channel), one pair a stream."""
        if len(times) != len(values):
            raise SeriesError(
                f"{len(times)} series of times and {len(values)} of values were given: "
                "give one of each for every stream."
            )
        if len(times) == 0:
            raise SeriesError("there is no stream: give at least one.")
        names = checks.streams_or_default(streams, len(times))
        clocks, tables_ = [], []
        for stream, (clock, table) in enumerate(zip(times, values, strict=True)):
            where = f"stream {names[stream]!r}"
            clock = checks.as_real(clock, f"{where}: times", torch.float64).to(torch.float64)
            table = checks.as_real(table, f"{where}: values")
            if clock.ndim != 1 or table.ndim != 2 or clock.shape[0] != table.shape[0]:
                raise SeriesError(
                    f"{where}: times {tuple(clock.shape)} and values {tuple(table.shape)} must "
                    "have shapes (row,) and (row, channel)."
                )
            if tables_ and table.shape[1] != tables_[0].shape[1]:
                raise SeriesError(
                    f"{where} has {table.shape[1]} channels, stream {names[0]!r} has "
                    f"{tables_[0].shape[1]}: give every stream the same channels, NaN where one "
                    "is not observed."
                )
            if tables_ and table.dtype != tables_[0].dtype:
                raise SeriesError(
                    f"{where} has values of dtype {table.dtype}, stream {names[0]!r} of "
                    f"{tables_[0].dtype}: give all streams the same dtype."
                )
            clocks.append(clock)
            tables_.append(table)
        rows = torch.tensor([len(clock) for clock in clocks])
        if (rows == 0).any():
            stream = int((rows == 0).nonzero()[0])
            raise SeriesError(f"stream {names[stream]!r} has no row: leave empty streams out.")
        return cls.from_padded(
            torch.nn.utils.rnn.pad_sequence(clocks, batch_first=True),
            torch.nn.utils.rnn.pad_sequence(tables_, batch_first=True),
            rows,
            static,
            channels=channels,
            features=features,
            streams=streams,
        )

    @classmethod
    def from_long(
        cls,
        frame: Any,
        *,
        stream: str,
        time: str,
        channel: str,
        value: str,
        channels: Sequence[str] | None = None,
        static: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> SeriesBatch:
        """Build from a table of events: one line for each (stream, time, channel, value).

        Lines of one stream and time become one row, in any order; a line repeated is read once.

        Args:
            frame: a polars, pandas or Arrow table.
            stream: its column that names the stream.
            time: its column of times.
            channel: its column that names the channel.
            value: its column of values.
            channels: the channels and their order; default: all, sorted by name.
            static: a table with the stream column and a column for each static feature: numbers, or texts,
                which are categories. What is missing there is filled and marked as `with_raw_static` says.
            dtype: of the values.

        Raises:
            SeriesError: a column is not there, or two values stand at one instant.
        """
        parts = tables.pivot_long(
            tables.to_polars(frame), stream, time, channel, value, channels, dtype
        )
        raw = tables.static_part(static, stream, parts["streams"])
        return cls.from_padded(**parts).with_raw_static(raw)

    @classmethod
    def from_wide(
        cls,
        frame: Any,
        *,
        stream: str,
        time: str,
        channels: Sequence[str] | None = None,
        static: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> SeriesBatch:
        """Build from a table with one line for each (stream, time) and one column a channel.

        Lines of one stream and time are merged.

        Args:
            frame: a polars, pandas or Arrow table.
            stream: its column that names the stream.
            time: its column of times.
            channels: the columns to read; default: all others.
            static: as in `from_long`.
            dtype: of the values.

        Raises:
            SeriesError: a column is not there, or two values of one channel stand at one instant.
        """
        parts = tables.pivot_wide(tables.to_polars(frame), stream, time, channels, dtype)
        raw = tables.static_part(static, stream, parts["streams"])
        return cls.from_padded(**parts).with_raw_static(raw)

    def with_raw_static(
        self,
        raw: RawStatic | None,
        *,
        training: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> SeriesBatch:
        """Encode static features, as they came, by what is learned from the streams at `training`.

        A number that is missing becomes the mean there; a feature `NAME_missing` marks it, and a text becomes a
        feature `NAME=CATEGORY`, where one of the streams at `seen` has such. By default both are all streams.
        """
        if raw is None:
            return self
        mine, those = (None if at is None else at.cpu().numpy() for at in (training, seen))
        raw = raw.learned(mine, mine if seen is None else those)
        features = feature_names(raw.encoding)
        table, _ = encode_columns(raw.encoding, raw.columns, self.streams)
        static = torch.from_numpy(table).to(self.values) if features else None
        if static is not None and bool((wild := ~static.isfinite()).any()):
            stream, feature = (int(i) for i in wild.nonzero()[0])
            raise SeriesError(
                f"stream {self.streams[stream]!r}, static feature '{features[feature]}' is "
                f"{table[stream, feature]:g}, which is beyond {static.dtype}: use other units."
            )
        return replace(self, static=static, features=features, raw_static=raw)

    def __len__(self) -> int:
        """The number of streams."""
        return self.times.shape[0]

    def __repr__(self) -> str:
        streams, most, channels = self.values.shape
        low = int(self.rows.min())
        rows = f"{low}" if low == most else f"{low} to {most}"
        share = 100 * float(self.observed.sum()) / (float(self.rows.sum()) * channels)
        static = f", {len(self.features)} static" if self.features else ""
        return (
            f"SeriesBatch({streams} stream{'s' * (streams > 1)}, {rows} row{'s' * (most > 1)}, "
            f"{channels} channel{'s' * (channels > 1)}{static}, {share:.0f} % observed)"
        )

    @property
    def real(self) -> Tensor:
        """(stream, row) bool: true for rows, false for padding."""
        return torch.arange(self.times.shape[1], device=self.rows.device) < self.rows[:, None]

    @property
    def observed(self) -> Tensor:
        """(stream, row, channel) bool: true where there is a value."""
        return ~self.values.isnan()

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def to(
        self,
        device: torch.device | torch.dtype | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> SeriesBatch:
        """Move to a device, or give values and static features another dtype (times stay float64)."""
        if isinstance(device, torch.dtype):  # `batch.to(torch.float64)`, as tensors allow
            device, dtype = None, device
        return replace(
            self,
            times=self.times.to(device=device),
            values=self.values.to(device=device, dtype=dtype),
            rows=self.rows.to(device=device),
            static=None if self.static is None else self.static.to(device=device, dtype=dtype),
        )

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> SeriesBatch:
        """Take some streams: a position, a slice, positions, or a mask (stream,).

        Padding that no stream needs any more is cut off.
        """
        chosen = torch.arange(len(self))[_as_index(index, len(self))]
        if chosen.numel() == 0:
            raise SeriesError("the index chooses no stream: take at least one.")
        at = chosen.to(self.device)
        rows = self.rows[at]
        most = int(rows.max())
        return replace(
            self,
            times=self.times[at, :most],
            values=self.values[at, :most],
            rows=rows,
            static=None if self.static is None else self.static[at],
            streams=tuple(self.streams[i] for i in chosen.tolist()),
            raw_static=None if self.raw_static is None else self.raw_static.take(chosen.numpy()),
        )

    def __iter__(self) -> Iterator[SeriesBatch]:
        """One batch of one stream after another."""
        return (self[i] for i in range(len(self)))

    def first_rows(self, rows: Tensor | int) -> SeriesBatch:
        """Keep the first rows of each stream: a number, or one for each (stream,), at least 1."""
        keep = checks.as_row_counts(rows, "rows").to(self.device)
        if keep.ndim and keep.shape != self.rows.shape:
            raise SeriesError(
                f"rows has shape {tuple(keep.shape)}: give a number, or one for each of the "
                f"{len(self)} streams."
            )
        if (keep < 1).any():
            raise SeriesError("every stream must keep at least one row.")
        keep = torch.minimum(keep, self.rows)
        most = int(keep.max())
        times, values = _pad(self.times[:, :most], self.values[:, :most], keep)
        return replace(self, times=times, values=values, rows=keep)

    def observed_rows(self) -> SeriesBatch:
        """Keep the rows in which anything was observed, and the streams that have one: all that has events.

        >>> nan = float("nan")
        >>> batch = SeriesBatch.from_arrays([[0.0, 1.0, 2.0], [0.0]], [[[1.0], [nan], [3.0]], [[nan]]])
        >>> batch.observed_rows().times.tolist()
        [[0.0, 2.0]]
        """
        some = self[self.observed.any(2).any(1)]
        kept = some.observed.any(2)
        order, rows = (~kept).to(torch.int8).argsort(dim=1, stable=True), kept.sum(1)
        most = int(rows.max())
        values = some.values.gather(1, order[:, :, None].expand_as(some.values))
        times, values = _pad(some.times.gather(1, order)[:, :most], values[:, :most], rows)
        return replace(some, times=times, values=values, rows=rows)

    def length_buckets(self, size: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """Group streams of like length: positions (at most `size`,) to index batch and labels with.

        With a generator, streams of equal length and the order of the groups are shuffled.
        """
        if size < 1:
            raise SeriesError(f"size is {size}: give at least 1.")
        order = torch.arange(len(self))
        if generator is not None:
            order = torch.randperm(len(self), generator=generator)
        order = order[torch.argsort(self.rows.cpu()[order], stable=True)]
        groups = list(order.split(size))
        if generator is not None:
            groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
        return groups

    @staticmethod
    def concatenate(batches: Sequence[SeriesBatch]) -> SeriesBatch:
        """Put the streams of several batches with the same channels into one.

        Streams that were never named, in any of the batches, are numbered anew.
        """
        if not batches:
            raise SeriesError("there is no batch to concatenate: give at least one.")
        first = batches[0]
        for number, other in enumerate(batches):
            for what in ("channels", "features", "dtype", "device"):
                if getattr(other, what) != getattr(first, what):
                    raise SeriesError(
                        f"batch {number} has {what} {getattr(other, what)}, the first has "
                        f"{getattr(first, what)}: make them agree before concatenating."
                    )
        most = max(batch.times.shape[1] for batch in batches)
        rows = torch.cat([batch.rows for batch in batches])
        times = torch.cat([_grow(batch.times, most) for batch in batches])
        values = torch.cat([_grow(batch.values, most) for batch in batches])
        raws = [batch.raw_static for batch in batches if batch.raw_static is not None]
        unnamed = all(b.numbered or b.streams == tuple(range(len(b))) for b in batches)
        return SeriesBatch(
            *_pad(times, values, rows),
            rows,
            None if first.static is None else torch.cat([b.static for b in batches]),  # pyright: ignore[reportCallIssue, reportArgumentType]
            first.channels,
            first.features,
            checks.streams_or_default(
                None if unnamed else [s for batch in batches for s in batch.streams], len(rows)
            ),
            numbered=unnamed,
            raw_static=RawStatic.concatenate(raws) if len(raws) == len(batches) else None,
        )


def _pad(times: Tensor, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Make padding inert: the last time repeated, nothing observed."""
    most = times.shape[1]
    if bool((rows == most).all()):
        return times, values
    real = torch.arange(most, device=rows.device) < rows[:, None]
    last = times.gather(1, rows[:, None] - 1)
    return torch.where(real, times, last), values.masked_fill(~real[:, :, None], torch.nan)


def _grow(array: Tensor, most: int) -> Tensor:
    """Lengthen (stream, row, ...) to `most` rows; what is added is padded over later."""
    missing = most - array.shape[1]
    return torch.cat([array, array[:, :1].expand(-1, missing, *array.shape[2:])], 1)


def _as_index(index: Any, count: int) -> Any:
    if isinstance(index, slice):
        return list(range(count)[index])
    chosen = torch.as_tensor(index).cpu()
    if chosen.ndim == 0 and chosen.dtype != torch.bool:
        if not -count <= int(chosen) < count:
            raise IndexError(f"stream position {int(chosen)} is out of range for {count} streams.")
        return chosen.reshape(1)
    return chosen if chosen.numel() else []
