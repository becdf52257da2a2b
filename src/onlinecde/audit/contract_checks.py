"""The eight contracts of an online model, one function each: measure, and judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from onlinecde import artifacts
from onlinecde.audit.asking import ROUNDING, Asked, change, scale_of
from onlinecde.audit.changes import Ranges
from onlinecde.audit.leaks import narrow
from onlinecde.audit.model_measurability import measurability, plan
from onlinecde.controls import Measurability
from onlinecde.models import OnlineModel, StateError, StreamState
from onlinecde.series import SeriesBatch

_STREAMS_IN_ALL = 256
_INDEPENDENCE = 1e-6


class Measured(NamedTuple):
    """Whether a contract holds (None: it does not apply), what was seen, and what was allowed."""

    passed: bool | None
    measured: str
    tolerance: str


def stream_is_batch(model: OnlineModel, batch: SeriesBatch, seed: int) -> Measured:
    """Contract 1: row by row, and asked between rows, it says what it says for the whole series."""
    clock = _between_rows(batch)
    whole, asked = model(batch), model(batch, at=clock)
    state = model.init_state(len(batch), batch.static)
    worst = 0.0
    for row in range(batch.times.shape[1]):
        alive = (batch.rows > row).nonzero()[:, 0]
        running = state[alive]
        bits = _bits(running)
        after = model.observe(running, batch.times[alive, row], batch.values[alive, row])
        answers = model.predict(after), model.predict(after, clock[alive, row])
        if _bits(running) != bits:
            return Measured(False, "observe changed the state it was given", "a new state")
        for said, wanted in zip(answers, (whole[alive, row], asked[alive, row]), strict=True):
            worst = max(worst, float(change(wanted, said).max()) / scale_of(whole))
        state = state.put(alive, after)
    return _within(worst, ROUNDING.get(model.dtype, 1e-2))


def adapted(model: OnlineModel, batch: SeriesBatch, seed: int) -> Measured:
    """Contract 2: edits of what comes after t leave outputs up to t as they were, bit for bit.

    A longer series is added to each, so that products inside the model have the shapes they had
    and nothing but the future differs.
    """
    generator, ask, edits = np.random.default_rng(seed), Asked(model), 0
    for one in batch[: min(2, len(batch))]:
        ranges, rows = Ranges.of(batch), int(one.rows[0]) + 4
        start = float(one.times[0, 0])
        step = float(one.times.max() - start) / rows or 1.0
        # As sparse as the series itself: some code chooses its way by how much is observed.
        share = float(one.observed.double().mean())
        made = ranges.made(generator, rows)
        made[generator.random(made.shape) >= share] = np.nan
        beside = start + step * np.arange(rows), made
        question, tests = plan(ask, one, ranges, 3, generator, 0.0, companion=beside)
        edits += len(tests)
        continuous = model.measurability is Measurability.CONTINUOUS
        for leak in question.changed(tests, together=1):
            if continuous or not leak.between:
                return Measured(False, str(narrow(question, leak)), "the same bits")
    return Measured(True, f"{edits} edits of the future moved nothing", "the same bits")


def batch_independence(model: OnlineModel, batch: SeriesBatch, seed: int) -> Measured:
    """Contract 3: a stream alone or among 255 others."""
    order = torch.arange(_STREAMS_IN_ALL) % len(batch)
    crowd = _renamed([batch[int(i)] for i in order])
    among = model(crowd)
    worst = 0.0
    for i in range(min(8, len(batch))):
        alone = model(batch[i])
        moved = change(alone, among[i : i + 1, : alone.shape[1]])
        worst = max(worst, float(moved.max()) / scale_of(among))
    return _within(worst, _INDEPENDENCE)


def inert_padding(model: OnlineModel, batch: SeriesBatch, seed: int) -> Measured:
    """Contract 4: a longer companion changes nothing, and in the padding the last output stands."""
    longest = batch[int(batch.rows.argmax())]
    short = batch.first_rows(max(1, int(batch.rows.max()) // 2))
    before, after = model(short), model(_renamed([short, longest]))[: len(short)]
    most = before.shape[1]
    moved = change(before, after[:, :most])
    last = after.gather(1, (short.rows - 1)[:, None, None].expand(-1, 1, after.shape[2]))
    padded = torch.arange(after.shape[1], device=short.device) >= short.rows[:, None]
    filler = torch.where(padded[:, :, None], change(last.expand_as(after), after), 0.0)
    worst = max(float(moved[short.real].max()), float(filler.max())) / scale_of(before)
    return _within(worst, _INDEPENDENCE)


def events_of_one_instant(model: OnlineModel, batch: SeriesBatch, seed: int) -> Measured:
    """Contract 5: events of one instant, in any order, together or one by one, leave one state."""
    generator = np.random.default_rng(seed)
    one = batch[0]
    full = one.values[0].nan_to_num(float(one.values[one.observed].mean()))
    together = parted = model.init_state(1, one.static)
    for row in range(min(3, int(one.rows[0]))):
        time = float(one.times[0, row])
        together = model.observe(together, time, full[row : row + 1])
        for channel in generator.permutation(model.channels).tolist():
            event = torch.full_like(full[row : row + 1], torch.nan)
            event[0, channel] = full[row, channel]
            try:
                parted = model.observe(parted, time, event)
            except StateError as error:
                return Measured(None, f"it takes rows whole ({error})", "")
    if _bits(together) == _bits(parted):
        return Measured(
            True, f"{model.channels} events one by one, the same state", "the same bits"
        )
    name = next(
        n
        for (n, a), (_, b) in zip(_held(together), _held(parted), strict=True)
        if not torch.equal(a.nan_to_num(), b.nan_to_num())
    )
    worst = float(change(getattr(together, name), getattr(parted, name)).max())
    return Measured(False, f"`{name}` of the state differs by {worst:.2g}", "the same bits")


def save_and_load(model: OnlineModel, batch: SeriesBatch, seed: int) -> Measured:
    """Contract 6: a saved and loaded model gives the same outputs and the same states."""
    with TemporaryDirectory() as folder:
        artifacts.save(model, Path(folder) / "model")
        known = {type(part) for part in model.modules()}
        again = artifacts.load(Path(folder) / "model", classes=known).to(model.device).eval()
    if not torch.equal(model(batch).nan_to_num(), again(batch).nan_to_num()):
        return Measured(False, "outputs differ after loading", "the same bits")
    if model.measurability is not Measurability.OFFLINE:
        states = []
        for each in (model, again):
            state = each.init_state(len(batch), batch.static)
            for row in range(2):
                state = each.observe(state, batch.times[:, row], batch.values[:, row])
            states.append(_bits(state))
        if states[0] != states[1]:
            return Measured(False, "states differ after loading", "the same bits")
    return Measured(True, "the same outputs and states", "the same bits")


def measured_as_declared(model: OnlineModel, batch: SeriesBatch, seed: int) -> Measured:
    """Contract 7: it is as far online as it says."""
    measured = measurability(model, batch, streams=4, cuts=8, seed=seed)
    message = f"measured {measured.measurability.name}, declared {model.measurability.name}"
    if measured.measurability is not model.measurability:
        message += f": {measured.leak or measured.reason}"
    return Measured(measured.measurability is model.measurability, message, "the same")


def refusals(model: OnlineModel, batch: SeriesBatch, seed: int) -> Measured:
    """Contract 8: bad input raises an error that names the place, and the state stays as it was."""
    cases = list(_bad_series(model, batch))
    state = None
    if model.measurability is not Measurability.OFFLINE:
        two = batch[[0, min(1, len(batch) - 1)]] if len(batch) > 1 else _renamed([batch, batch])
        state = model.init_state(2, two.static)
        state = model.observe(state, two.times[:, 0], two.values[:, 0])
        cases += _bad_observations(model, state)
    bits = None if state is None else _bits(state)
    for name, words, attempt in cases:
        try:
            attempt()
        except ValueError as error:
            missing = [word for word in words if word not in str(error)]
            if missing:
                message = f"{name}: the error does not name the {missing[0]}: {error}"
                return Measured(False, message, "a refusal that names the place")
        else:
            return Measured(False, f"{name} was taken", "a refusal")
        if state is not None and _bits(state) != bits:
            return Measured(False, f"{name} changed the state", "no change")
    return Measured(
        True, f"{len(cases)} of {len(cases)} refused, nothing changed", "a refusal each"
    )


Case = tuple[str, tuple[str, ...], Callable[[], Any]]


def _bad_series(model: OnlineModel, batch: SeriesBatch) -> Iterator[Case]:
    wide = torch.cat([batch.values, batch.values[:, :, :1]], 2)
    # Without names, which a model would go by.
    other = replace(batch, values=wide, channels=tuple(f"x{i}" for i in range(wide.shape[2])))
    yield "a series with another channel", ("channel",), lambda: model(other)
    static = torch.zeros(len(batch), model.static + 1, dtype=batch.dtype, device=batch.device)
    names = tuple(f"f{i}" for i in range(model.static + 1))
    more = replace(batch, static=static, features=names, raw_static=None)
    yield "a series with another static feature", ("static",), lambda: model(more)


def _bad_observations(model: OnlineModel, state: StreamState) -> Iterator[Case]:
    now = float(getattr(state, "time", torch.zeros(2)).max())
    row = torch.zeros(2, model.channels, dtype=model.dtype, device=model.device)
    wild = row.clone()
    wild[1, -1] = torch.inf
    later = now + 1.0

    def observe(t: Any, x: Tensor) -> Callable[[], Any]:
        return lambda: model.observe(state, t, x)

    yield "a time before the last row", ("stream 1",), observe([later, now - 1e3], row)
    yield "a time that is NaN", ("stream 1",), observe([later, torch.nan], row)
    yield "an infinite time", ("stream 1",), observe([later, torch.inf], row)
    yield "an infinite value", ("stream 1", "channel"), observe(later, wild)
    yield "a row with another channel", ("shape",), observe(later, torch.cat([row, row], 1))
    yield "a row for another stream", ("shape",), observe(later, torch.cat([row, row]))
    yield "three times for two streams", ("shape",), observe([later, later, later], row)
    yield (
        "a question about the past",
        ("stream 1",),
        lambda: model.predict(state, [later, now - 1e3]),
    )
    static = torch.zeros(1, model.static, dtype=model.dtype) if model.static else None
    yield (
        "a question before the first row",
        ("stream 0",),
        lambda: model.predict(model.init_state(1, static), later),
    )


def _between_rows(batch: SeriesBatch) -> Tensor:
    """A time (stream, row) between each row and the next; after the last, half as long again."""
    gaps = batch.times.diff(dim=1)
    last = gaps.gather(1, (batch.rows - 2).clamp(min=0)[:, None]) if gaps.shape[1] else None
    gaps = torch.cat([gaps, torch.zeros_like(batch.times[:, :1])], 1)
    gaps = torch.where(gaps > 0, gaps, 1.0 if last is None else last.clamp(min=1e-3))
    return batch.times + 0.4 * gaps


def _renamed(parts: list[SeriesBatch]) -> SeriesBatch:
    """Batches in one, with streams named by number, since one may stand there many times."""
    ends = np.cumsum([0, *(len(part) for part in parts)])
    return SeriesBatch.concatenate(
        [
            replace(part, streams=tuple(range(start, start + len(part))))
            for start, part in zip(ends[:-1].tolist(), parts, strict=True)
        ]
    )


def _held(state: StreamState) -> list[tuple[str, Tensor]]:
    tensors = [(f.name, getattr(state, f.name)) for f in fields(state)]
    return [(name, value) for name, value in tensors if isinstance(value, Tensor)]


def _bits(state: StreamState) -> list[bytes]:
    return [value.detach().cpu().contiguous().numpy().tobytes() for _, value in _held(state)]


def _within(worst: float, allowed: float) -> Measured:
    message = f"differs by {worst:.1e} of the largest output"
    return Measured(worst <= allowed, message, f"{allowed:.0e}")
