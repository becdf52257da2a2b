"""Observed series -> scaled, causal rows: the same numbers offline and online."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from onlinecde.controls.fill import observation_counts
from onlinecde.series import Schema, SeriesBatch, SeriesError

_METHODS = frozenset({"forward", "scale_time", "scale_values", "scale_counts", "seen", "since"})
FAR = 1_000.0
"""Times and values this large are taken as they are only by mistake."""
CountScale = Literal["linear", "log"]
COUNT_SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda counts: counts,
    "log": torch.log1p,
}
"""How counts are scaled, all of it; `kernels.cpu.observation` has some of it in compiled code, and leaves what it does
not know to this."""
LINEAR = 2.0
"""What `bound` leaves as it is: equally long series that begin at one time lie within 1.74 of scaled time."""


def bound(x: Tensor) -> Tensor:
    """x where it is within `LINEAR` of 0; further out it nears `LINEAR` + 1 and never passes it.

    Neither it nor its slope jumps.

    >>> bound(torch.tensor([-1.0, 2.0, 3.0, 1e6]))
    tensor([-1.0000,  2.0000,  2.5000,  3.0000])
    """
    beyond = (x.abs() - LINEAR).clamp(min=0)
    return x.clamp(-LINEAR, LINEAR) + x.sign() * (beyond / (1 + beyond))


def bound_counts(x: Tensor, counts: int) -> Tensor:
    """X (..., path channel), of whose channels the last `counts` are counts, with those bounded."""
    if not counts:
        return x
    return torch.cat([x[..., :-counts], bound(x[..., -counts:])], -1)


@dataclass(frozen=True, eq=False)
class EncodedSeries:
    """A series in the model's units: what the control paths are built from."""

    time: Tensor
    """(stream, row) float64: scaled time."""
    values: Tensor
    """(stream, row, channel): scaled values, NaN where not observed."""
    counts: Tensor | None
    """(stream, row, channel): observations so far, as the encoding scales them, or None."""
    times: Tensor
    """(stream, row) float64: time as observed."""
    lengths: Tensor
    """(stream,) int64"""
    streams: tuple[Hashable, ...]
    """The streams' names, for messages."""
    static: int = 0
    """How many of the channels, the last ones, are static features: told at the first row, once."""


class Encoding(nn.Module):
    """How a model sees time, values and counts; every step looks at one row or only backwards.

    - time: `(t - time_shift) / time_scale`
    - values: `(x - shift) / scale`, clipped to `clip` scales where that is given, times `gain`
    - counts: `count_gain * c`, or `count_gain * log(1 + c)` with `count_scale="log"`

    `bounded`: scaled time, how long ago a channel was observed, and counts wherever they are seen, stop
    growing (`bound`), so that a stream much longer than the training's looks like the end of one of
    those. Each count still moves the path by `count_gain`.

    `static` features, where they are to be seen too, stand behind the channels: scaled as values
    are, observed once, at a stream's first row.

    `fit` learns shifts and scales from training series; they are buffers and travel with a saved
    model. Without `fit` they are 0 and 1, and a warning says so where times or values are beyond 1,000.

    >>> encoding = Encoding(channels=30, counts=True).fit(train)  # doctest: +SKIP
    """

    time_shift: Tensor
    time_scale: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(
        self,
        channels: int,
        counts: bool = False,
        *,
        static: int = 0,
        gain: float = 1.0,
        clip: float | None = None,
        count_scale: CountScale = "linear",
        count_gain: float = 1.0,
        bounded: bool = False,
    ) -> None:
        self.config = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels is {channels}: give at least 1.")
        if count_scale not in COUNT_SCALES:
            choices = " or ".join(map(repr, COUNT_SCALES))
            raise ValueError(f"count_scale is {count_scale!r}: choose {choices}.")
        if static < 0:
            raise ValueError(f"static is {static}: give 0 or more.")
        if not 0 < gain < float("inf"):
            raise ValueError(f"gain is {gain}: give a factor above 0.")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip is {clip}: give a number of scales above 0, or None.")
        self.channels, self.counts, self.static = channels, counts, static
        self.gain, self.clip = gain, clip
        self.count_scale, self.count_gain = count_scale, count_gain
        self.schema: Schema | None = None
        self.bounded = bounded
        # Times are float64 whatever the model's dtype: `_apply` below keeps them so.
        self.register_buffer("time_shift", torch.zeros((), dtype=torch.float64))
        self.register_buffer("time_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(channels + static))
        self.register_buffer("scale", torch.ones(channels + static))

    def _apply(self, fn, recurse: bool = True):
        shift, scale = self.time_shift, self.time_scale
        super()._apply(fn, recurse)
        if self.time_shift.dtype != torch.float64:
            self.time_shift = shift.to(self.time_shift.device)
            self.time_scale = scale.to(self.time_scale.device)
        return self

    @property
    def is_plain(self) -> bool:
        """Whether its numbers say all that it computes: it is no subclass, and no method was replaced."""
        return type(self) is Encoding and _METHODS.isdisjoint(self.__dict__)

    @property
    def is_fitted(self) -> bool:
        """Whether any shift or scale is not what it was in the beginning."""
        if float(self.time_scale) != 1.0 or float(self.time_shift) != 0.0:
            return True
        return bool(self.shift.any()) or bool((self.scale != 1).any())

    def warn_if_unfitted(self, times: Tensor, values: Tensor) -> None:
        """Warn where nothing was fitted and times (...) or values (..., channel) of a batch are far from 0.

        Python shows a warning once. Single events are not asked: who sends them may not be who fits.
        """
        if torch.compiler.is_compiling() or self.is_fitted:
            return
        for name, numbers in (("times", times), ("values", values)):
            far = numbers.detach().abs().nan_to_num(0.0, posinf=0.0)
            # What no dtype of a model holds is refused by the model itself, with more to say.
            if far.numel() and FAR <= float(far.amax()) < torch.finfo(torch.float32).max:
                warnings.warn(
                    f"the encoding was never fitted, and {name} reach {float(far.amax()):.0e}: the model "
                    "takes them as they are, and its outputs grow with them. Fit it on training series: "
                    "model.encoding.fit(train).",
                    stacklevel=3,
                )
                return

    @property
    def value_channels(self) -> int:
        """Channels that have a value: those observed and, behind them, static features."""
        return self.channels + self.static

    @property
    def path_channels(self) -> int:
        """Channels of an encoded path: time, values and, with counts, counts."""
        return 1 + self.value_channels * (2 if self.counts else 1)

    @torch.no_grad()
    def fit(self, batch: SeriesBatch) -> Encoding:
        """Learn shift and scale (mean and standard deviation), and names, from training series; returns itself.

        A channel never observed, or always the same, keeps scale 1.
        """
        self._check(batch)
        self.schema = Schema.of(batch)
        real, values = batch.real, self._with_static(batch).double()
        self.time_shift, self.time_scale = (
            moment.squeeze().to(self.time_shift)
            for moment in _mean_and_deviation(batch.times[real][:, None])
        )
        mean, deviation = _mean_and_deviation(values[real])
        self.shift, self.scale = mean.to(self.shift), deviation.to(self.scale)
        return self

    def since(self, times: Tensor, stamps: Tensor) -> Tensor:
        """How long ago, in scaled time, each channel was observed; 0 where never.

        times (...) and stamps (..., channel), NaN where never, in float64.
        """
        if self.bounded:
            gone = bound((times[..., None] - stamps) / self.time_scale)
        else:
            gone = self.scale_time(times)[..., None] - self.scale_time(stamps)
        return torch.where(stamps.isnan(), 0.0, gone).to(self.shift.dtype)

    def forward(self, batch: SeriesBatch) -> EncodedSeries:
        """Scale a batch; `counts` are those of the whole history of each stream."""
        self._check(batch)
        self.warn_if_unfitted(batch.times, batch.values)
        values = self._with_static(batch)
        counts = None
        if self.counts:
            counts = self.scale_counts(observation_counts(~values.isnan(), values.dtype))
        return EncodedSeries(
            time=self.scale_time(batch.times),
            values=self.scale_values(values),
            counts=counts,
            times=batch.times,
            lengths=batch.rows,
            streams=batch.streams,
            static=self.static,
        )

    def scale_time(self, times: Tensor) -> Tensor:
        """Scaled time, float64; shape as given."""
        scaled = (times - self.time_shift) / self.time_scale
        return bound(scaled) if self.bounded else scaled

    @property
    def bounded_counts(self) -> int:
        """How many of the path's channels, the last ones, are counts that are seen bounded."""
        return self.value_channels if self.bounded and self.counts else 0

    def seen(self, x: Tensor) -> Tensor:
        """X (..., path channel) as the field, the readout and the initial map see it."""
        return bound_counts(x, self.bounded_counts)

    def scale_values(self, values: Tensor) -> Tensor:
        """Scaled values (..., channel); NaN stays NaN."""
        scaled = (values - self.shift) / self.scale
        if self.clip is not None:
            scaled = scaled.clamp(-self.clip, self.clip)
        return scaled if self.gain == 1.0 else scaled * self.gain

    def scale_counts(self, counts: Tensor) -> Tensor:
        """Scaled counts (..., channel) of raw counts, in the dtype they are kept in (see `count_dtype`)."""
        scaled = COUNT_SCALES[self.count_scale](counts)
        return scaled if self.count_gain == 1.0 else scaled * self.count_gain

    def _check(self, batch: SeriesBatch) -> None:
        if batch.values.shape[2] != self.channels:
            raise SeriesError(
                f"the series has {batch.values.shape[2]} channels, the encoding was made for "
                f"{self.channels}: give the channels it was made for."
            )
        given = 0 if batch.static is None else batch.static.shape[1]
        if self.static and given != self.static:
            raise SeriesError(
                f"the series has {given} static features, the encoding was made for {self.static}: "
                "give the static features it was made for."
            )

    def _with_static(self, batch: SeriesBatch) -> Tensor:
        """Values (stream, row, channel) with static features behind them, at each stream's first row."""
        if not self.static or batch.static is None:
            return batch.values
        first, later = batch.static[:, None], batch.values.shape[1] - 1
        never = torch.full_like(first, torch.nan).expand(-1, later, -1)
        return torch.cat([batch.values, torch.cat([first, never], 1)], 2)

    def extra_repr(self) -> str:
        static = f", static={self.static}" if self.static else ""
        return f"channels={self.channels}, counts={self.counts}{static}"


def _mean_and_deviation(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (column,) of (line, column), NaN left out; 0 and 1 where undefined."""
    seen = ~numbers.isnan()
    count = seen.sum(0)
    mean = torch.where(seen, numbers, 0.0).sum(0) / count.clamp(min=1)
    spread = torch.where(seen, numbers - mean, 0.0).square().sum(0) / count.clamp(min=1)
    deviation = spread.sqrt()
    return mean, torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0)
