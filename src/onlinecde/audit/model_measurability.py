"""Whether a model may be used live: found by editing the future and looking at the past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.audit.asking import ROUNDING, Answering, Asked, change, in_use, rounding_of, scale_of
from onlinecde.audit.batch_leaks import batch_leak
from onlinecde.audit.changes import Ranges, Series, Trial, stream_series, trials
from onlinecde.audit.leaks import KINDS, Found, Leak, Question, narrow
from onlinecde.controls import Measurability
from onlinecde.series import SeriesBatch

_CONFIRMED_AT_MOST = 16
_FROM_BEST = (Measurability.CONTINUOUS, Measurability.DISCRETE, Measurability.OFFLINE)


@dataclass(frozen=True)
class ModelMeasurability:
    """What a model's outputs were seen to depend on, and the first leak that showed it."""

    measurability: Measurability
    reason: str
    leak: Leak | None
    """The first leak found; None where nothing leaked."""
    edits: int
    """How many edited series were compared with the original."""
    declared: Measurability | None
    """What the model itself says, if it says so."""

    @property
    def as_declared(self) -> bool:
        """Whether it is at least as good as declared; true where nothing was declared."""
        if self.declared is None:
            return True
        return _FROM_BEST.index(self.measurability) <= _FROM_BEST.index(self.declared)

    def __str__(self) -> str:
        text = f"{self.measurability.name}: {self.reason}"
        if self.leak is not None:
            text += f"\n  first leak: {self.leak}."
        if self.declared is not None:
            verdict = "it is declared" if self.as_declared else "WORSE than declared:"
            text += f"\n  {verdict} {self.declared.name}."
        return text


def measurability(
    model: Answering,
    batch: SeriesBatch,
    at: Any = None,
    *,
    tolerance: float | None = None,
    streams: int = 16,
    cuts: int = 32,
    seed: int = 0,
) -> ModelMeasurability:
    """Find out by experiment what the outputs of any model at time t depend on.

    Everything after a time t is changed, removed, moved, deleted and added to; outputs at or before t must
    stay. A model

    - whose outputs at rows move is OFFLINE, as is one whose outputs for a stream move with
      another stream of the batch;
    - whose outputs between rows move is DISCRETE; so is one whose answers do not change between rows,
      and one that cannot be asked there;
    - any other is CONTINUOUS.

    Changes that leave the pattern of rows and values as it was must not move a bit. Others may
    change the shapes of products inside the model and so the order of additions: there, 1e-5 of
    the largest output (1e-10 in float64) is allowed. An experiment can miss a dependence on data
    unlike these; it cannot make one up.

    Args:
        model: any callable from a `SeriesBatch` to outputs at its rows, (stream, row, output); one that takes
            `at=` is asked at query times too, (stream, query, output). A torch module is asked in eval mode.
        batch: series like those it is for.
        at: query times, (query,) or (stream, query); default: where the audit likes.
        tolerance: how far outputs may move, as a share of the largest, in place of both.
        streams: largest number of streams of the batch that are tried.
        cuts: largest number of times t that are tried in each stream.
        seed: of the experiments.

    Raises:
        ValueError: no stream has two rows; the outputs have another shape; the model gives two
            answers to one question; `at` is given to a model that does not take it.
    """
    ask = Asked(model)
    if at is not None and not ask.takes_at:
        raise ValueError("the model takes no `at`: leave it out, or give the model that argument.")
    generator = np.random.default_rng(seed)
    chosen = _chosen(batch, streams, generator)
    clock = None if at is None else _per_stream(at, len(batch))[chosen]
    part = batch[chosen]
    with in_use(model):
        noisy = _check_repeatable(ask, part)
        least = rounding_of(noisy) if bool(noisy.any()) else None
        allowed = tolerance if tolerance is not None else least
        through = batch_leak(ask, part, tolerance, generator)
        return _audit(ask, part, clock, allowed, through, cuts, generator)


def _audit(
    ask: Asked,
    batch: SeriesBatch,
    clock: Tensor | None,
    tolerance: float | None,
    through: Leak | None,
    cuts: int,
    generator: np.random.Generator,
) -> ModelMeasurability:
    declared = getattr(ask.model, "measurability", None)
    declared = declared if isinstance(declared, Measurability) else None
    ranges, edits, between, moves = Ranges.of(batch), 0, None, False
    for place, one in enumerate(batch):
        question, tests = plan(
            ask, one, ranges, cuts, generator, tolerance, None if clock is None else clock[place]
        )
        edits += len(tests)
        # Where streams disturb each other, versions of one must not stand in one call.
        together = 1 if through is not None else None
        leaks = question.changed(tests, together)
        leak = _first_leak(question, [f for f in leaks if not f.between], together)
        if leak is not None:
            reason = "outputs at rows depend on what comes after them."
            if leak.relative <= ROUNDING[one.dtype]:
                reason += f" That is rounding: allow it with tolerance={2 * leak.relative:.0e}."
            return ModelMeasurability(Measurability.OFFLINE, reason, leak, edits, declared)
        if between is None:
            between = _first_leak(question, [f for f in leaks if f.between], together)
        moves = moves or (ask.takes_at and _moves_between_rows(question))
    verdict, leak = Measurability.DISCRETE, between
    unchanged = f"{edits} edits of the future left every output at rows as it was"
    if through is not None:
        verdict, leak = Measurability.OFFLINE, through
        reason = "outputs for one stream depend on the other streams in the batch."
    elif not ask.takes_at:
        reason = f"{unchanged}. It takes no query times `at`, so it is discrete at most."
    elif between is not None:
        reason = f"{unchanged}, but not those between rows."
    elif not moves:
        reason = f"{unchanged}. Between rows it repeats what it said after the last one."
    else:
        verdict = Measurability.CONTINUOUS
        reason = f"{edits} edits of the future left every output at or before their time as it was."
    return ModelMeasurability(verdict, reason, leak, edits, declared)


def plan(
    ask: Asked,
    one: SeriesBatch,
    ranges: Ranges,
    cuts: int,
    generator: np.random.Generator,
    tolerance: float | None,
    clock: Tensor | None = None,
    companion: Series | None = None,
) -> tuple[Question, list[Trial]]:
    """What to ask of one stream, and the edits to try on it; `clock` (query,) are query times given."""
    series = stream_series(one)
    times = series[0]
    rows = np.arange(len(times))
    if len(rows) > cuts:
        rows = np.sort(generator.choice(rows, cuts, replace=False))
    last = times[-1] + (times[-1] - times[-2] if len(times) > 1 else 1.0)
    following = np.append(times[1:], last)[rows]
    if clock is None:
        inside = times[rows] + generator.uniform(0.1, 0.9, len(rows)) * (following - times[rows])
        queries = np.unique(np.concatenate([times[rows], inside]))
    else:
        queries = np.unique(clock.detach().cpu().double().numpy())
    tests: list[Trial] = []
    for row, stop in zip(rows, following, strict=True):
        here = queries[(queries >= times[row]) & (queries < stop)]
        cut = float(here[-1]) if len(here) and ask.takes_at else float(times[row])
        tests += trials(series, int(row), cut, ranges, generator)
    return Question(ask, one, series, queries, tolerance, companion), tests


def _first_leak(question: Question, leaks: Sequence[Found], together: int | None) -> Leak | None:
    """The largest change that is there for the stream alone too, narrowed to its event.

    Changed values come first: of them one can say from what to what.
    """
    ordered = sorted(leaks, key=lambda f: (KINDS.index(f.trial.change.kind), -f.size))
    # Among other versions a stream's last bits may change with their rounding; alone they may not.
    doubtful = [f for f in ordered if f.rounding]
    for seen in [f for f in ordered if not f.rounding] + doubtful[:_CONFIRMED_AT_MOST]:
        alone = [seen]
        if together != 1:
            alone = question.changed([seen.trial], together=1)
            alone = [f for f in alone if f.between == seen.between]
        if alone:
            return narrow(question, max(alone, key=lambda f: f.size))
    return None


def _moves_between_rows(question: Question) -> bool:
    """Whether any output changes from a row to a query time before the next row."""
    times = question.series[0]
    queries = question.queries[question.queries >= times[0]]
    before = times[np.searchsorted(times, queries, side="right") - 1]
    if len(queries) == 0:
        return False
    asked = torch.from_numpy(np.stack([before, queries])).to(question.one.device)
    at_row, later = (question.ask.at_times(question.one, clock[None]) for clock in asked)
    moved = change(at_row, later)
    return bool((moved > rounding_of(at_row) * scale_of(at_row)).any())


def _chosen(batch: SeriesBatch, streams: int, generator: np.random.Generator) -> list[int]:
    able = np.flatnonzero(batch.rows.cpu().numpy() > 1)
    if len(able) == 0:
        raise ValueError("every stream has one row: give series with a row that can be edited.")
    if len(able) > streams:
        able = np.sort(generator.choice(able, streams, replace=False))
    return able.tolist()


def _per_stream(at: Any, streams: int) -> Tensor:
    clock = torch.as_tensor(at, dtype=torch.float64)
    if clock.ndim not in (1, 2) or (clock.ndim == 2 and clock.shape[0] != streams):
        raise ValueError(
            f"at has shape {tuple(clock.shape)} for {streams} streams: give (query,) or "
            "(stream, query)."
        )
    return clock.expand(streams, clock.shape[-1])


def _check_repeatable(ask: Asked, batch: SeriesBatch) -> Tensor:
    """The change (stream, row, output) from asking twice; refuses one that is more than rounding."""
    first = ask.at_rows(batch)
    again = change(first, ask.at_rows(batch))
    if bool((again > rounding_of(first) * scale_of(first)).any()):
        raise ValueError(
            "the model answered the same series in two ways: switch off what is random in it, such "
            "as dropout."
        )
    return again.to(first.dtype)
