"""Bulk scoring: a model over a lake of finished streams, row by row, as `model(batch)` says it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from onlinecde.scale.spark.columns import ANSWERS, SparkError, answer_frame, prepared
from onlinecde.scale.spark.plan import model_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onlinecde.streaming.served import ServedModel

EVENTS_TOGETHER = 200_000
"""Events of whole streams that are gathered before they are scored"""


def score(
    events: DataFrame,
    model: str | os.PathLike[str],
    *,
    stream: str = "stream",
    time: str = "time",
    channel: str = "channel",
    value: str = "value",
    order: str | None = None,
    static: str | None = None,
    horizon: float | None = None,
    together: int = 256,
) -> DataFrame:
    """The answer after each row of finished streams, with the columns of `ANSWERS`; equal to `model(batch)`.

    Columns and model as in `predict_stream`; any control may be used, as the whole of a stream is at hand.
    Of several values for one stream, time and channel the last by `order` counts (without it, the largest).
    together: streams that go through the model at once; they are of like length.

    Events that cannot be right come back as rows of kind "refused"; so does, once, a stream that the model
    cannot take, with code `stream_refused`.
    """
    from onlinecde.streaming.served import named_model

    if together < 1:
        raise SparkError(f"together is {together}: give at least 1.")
    folder = os.path.abspath(os.fspath(model))  # noqa: PTH100
    result = named_model(folder)
    columns = prepared(
        events,
        stream=stream,
        time=time,
        channel=channel,
        value=value,
        order=order,
        static=static,
        features=result.model.static,
    )
    side_by_side = columns.repartition("stream").sortWithinPartitions("stream")
    work = partial(_scored, folder=folder, known=result.hash, horizon=horizon, together=together)
    return side_by_side.mapInPandas(work, ANSWERS)


def _scored(
    frames: Iterable[Any], folder: str, known: str, horizon: float | None, together: int
) -> Iterator[Any]:
    """Frames of events, the streams side by side, to frames of answers."""
    import pandas as pd

    waiting: list[Any] = []
    for frame in frames:
        waiting.append(frame)
        if sum(map(len, waiting)) < EVENTS_TOGETHER:
            continue
        kept = pd.concat(waiting, ignore_index=True)
        # The last stream may go on in the next frame.
        changes = np.flatnonzero(_starts(kept["stream"].to_numpy(object)))
        cut = int(changes[-1])
        yield from _answers(kept.iloc[:cut], folder, known, horizon, together)
        waiting = [kept.iloc[cut:]]
    if waiting:
        yield from _answers(pd.concat(waiting, ignore_index=True), folder, known, horizon, together)


def _starts(names: np.ndarray) -> np.ndarray:
    """Where a run of equal names begins."""
    fresh = np.ones(len(names), bool)
    fresh[1:] = names[1:] != names[:-1]
    return fresh


def _answers(
    events: Any, folder: str, known: str, horizon: float | None, together: int
) -> Iterator[Any]:
    from onlinecde.scale.spark.processor import as_batch, in_order, refused
    from onlinecde.streaming.pipeline.validate import Limits, validate

    if not len(events):
        return
    result = model_here(folder, known)
    model, channels = result.model, result.channels
    batch = as_batch(in_order(events))
    checked = validate(batch, result.codes, {}, Limits.of(model, horizon))
    if checked.refusals:
        yield refused(batch, checked.refusals)
    fine = np.flatnonzero(checked.valid)
    if not len(fine):
        return
    of, times = checked.of[fine], checked.times[fine]
    order = np.lexsort((times, of))  # stable: what came last stays last
    of, times, fine = of[order], times[order], fine[order]
    fresh = np.ones(len(of), bool)
    fresh[1:] = (of[1:] != of[:-1]) | (times[1:] != times[:-1])
    row = np.cumsum(fresh) - 1
    values = np.full((int(row[-1]) + 1, len(channels)), np.nan)
    values[row, checked.channels[fine]] = checked.values[fine]
    clock, owner = times[fresh], of[fresh]
    begins = np.flatnonzero(np.diff(owner, prepend=-1))
    lengths = np.diff(np.append(begins, len(owner)))
    by_length = np.argsort(lengths, kind="stable")
    for start in range(0, len(by_length), together):
        some = by_length[start : start + together]
        yield from _block(result, batch, some, owner, begins, lengths, clock, values)


def _block(
    result: ServedModel,
    batch: Any,
    some: np.ndarray,
    owner: np.ndarray,
    begins: np.ndarray,
    lengths: np.ndarray,
    clock: np.ndarray,
    values: np.ndarray,
) -> Iterator[Any]:
    """Answers of some streams together; where the model takes not all of them, one by one."""
    import torch

    from onlinecde.series import SeriesBatch
    from onlinecde.solvers import SolverError

    model = result.model
    spans = [slice(begins[one], begins[one] + lengths[one]) for one in some.tolist()]
    names = [batch.streams[owner[begins[one]]] for one in some.tolist()]
    try:
        static = None
        if model.static:
            static = [_features(batch.static or {}, name, result) for name in names]
        series = SeriesBatch.from_arrays(
            [clock[span] for span in spans], [values[span] for span in spans], static, streams=names
        )
        with torch.no_grad():
            answers = model(series)
            probabilities = model.readout.probabilities(answers.double()).cpu().numpy()
        outputs = answers.double().cpu().numpy()
    except (ValueError, SolverError) as error:
        if len(some) > 1:
            for one in some:
                yield from _block(
                    result, batch, np.array([one]), owner, begins, lengths, clock, values
                )
            return
        yield answer_frame(
            names,
            [None],
            "refused",
            code=["stream_refused"],
            field=["stream"],
            message=[str(error)],
        )
        return
    rows = [(n, r) for n, span in enumerate(spans) for r in range(span.stop - span.start)]
    stream, place = (np.array(part) for part in zip(*rows, strict=True))
    yield answer_frame(
        [names[n] for n in stream.tolist()],
        np.concatenate([clock[span] for span in spans]),
        "row",
        outputs=outputs[stream, place],
        probabilities=probabilities[stream, place],
        revision=np.zeros(len(rows), np.int32),
    )


def _features(static: Any, name: str, served: ServedModel) -> np.ndarray:
    given, wanted = static.get(name, ()), served.model.static
    if isinstance(given, Mapping):
        return served.schema.encode({key: [one] for key, one in given.items()}, [name])[0][0]
    result = np.asarray(given, np.float64)
    if result.shape != (wanted,) or not np.isfinite(result).all():
        raise ValueError(f"stream {name!r}: {served.schema.ask_static(wanted)}")
    return result
