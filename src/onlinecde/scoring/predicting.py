"""`predict`: what a model says of a table's streams, as a table."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from onlinecde.models import OnlineModel
from onlinecde.scoring.answers import POSITION
from onlinecde.scoring.request import Request
from onlinecde.series import SchemaWarning

if TYPE_CHECKING:
    import polars as pl


def predict(
    model: OnlineModel | str | os.PathLike[str],
    events: Any,
    *,
    at: Any = None,
    until: str | None = None,
    static: Any = None,
    horizon: str | float | None = None,
    stream: str | None = None,
    time: str | None = None,
    channel: str | None = None,
    value: str | None = None,
    origin: str | None = None,
    duplicates: str | None = None,
    static_stream: str | None = None,
    device: str = "cpu",
) -> Any:
    """What a model says of streams, without labels: a table with `stream`, `time` and its scores.

    Scores are `probability` (`probability_CLASS` where there are several) or, of a regression, `prediction`
    (`prediction_NAME`), with `lower` and `upper` where the model has intervals (90 %). A stream's scores do not
    depend on who else is in the table.

    Args:
        model: a model, or the folder of a run or of a saved model.
        events: polars, pandas or Arrow table, or the path of a CSV, Parquet or Arrow file, long or wide.
        at: "rows", "end", "every=1h" (from each stream's first row on), or a table with the stream and time
            columns; default: "end" for a model with one label a stream, else "rows".
        until: end of a grid, as a time ("48h") or as a time behind each stream's last row ("+6h"); default: that row.
        static: a table with one line of static features a stream; default: columns of `events`.
        horizon: of a model of the time to an event, the risk within how long, as "12h"; default: as it was fitted.
        stream: column of the tables that names the stream; default, here and below: as the run was fitted with.
        time: column of times.
        channel: column of channels, in a long table.
        value: column of values, in a long table.
        origin: column of each stream's time 0.
        duplicates: two values of a channel at one instant: "refuse", "first", "last" or "mean".
        static_stream: column of `static` that names the stream, where it is not called as in the events.
        device: "cpu", "cuda" or "auto".

    Returns:
        A table of the kind given (polars for a path), in the order of the streams in `events` and of time; of the
        lines in a table of query times. A line that asks before anything was observed has an empty score.

    Raises:
        DataError: a table that cannot be read as the model needs it, naming the file, the line and the column.

    >>> import onlinecde as oc, polars as pl
    >>> model = oc.GRU(channels=1, hidden=4, outputs=1, kind="binary")
    >>> model.schema = oc.Schema(("hr",))
    >>> beds = pl.DataFrame({"bed": [1, 1, 2], "hour": [0.0, 1.5, 0.0], "hr": [80.0, 84.0, 75.0]})
    >>> oc.predict(model, beds, stream="bed", time="hour", at="end").columns
    ['stream', 'time', 'probability']
    """
    request = Request.build(
        model,
        events,
        at=at,
        until=until,
        static=static,
        horizon=horizon,
        stream=stream,
        time=time,
        channel=channel,
        value=value,
        origin=origin,
        duplicates=duplicates,
        static_stream=static_stream,
        device=device,
    )
    scores, notes = in_memory(request)
    for note in (*request.said, *notes):
        warnings.warn(note, SchemaWarning, stacklevel=2)
    return _like(events, scores)


def in_memory(request: Request) -> tuple[pl.DataFrame, list[str]]:
    """All scores at once, and what is worth saying of them."""
    import polars as pl

    readers = request.readers()
    lines = {
        role: pl.concat([frame for frame, _ in reader.frames(reader.source.bytes)])
        for role, reader in readers.items()
    }
    request.check_read(readers)
    request.check_ids(iter([lines]))
    scorer = request.scorer()
    scores = pl.concat(list(scorer.scores(lines))).sort(POSITION, "time").drop(POSITION)
    return with_ids(scores, request.whole_ids(readers)), request.notes(readers, scorer)


def with_ids(scores: pl.DataFrame, whole: bool) -> pl.DataFrame:
    """Scores with ids of streams as whole numbers, where all of them are."""
    import polars as pl

    return scores.with_columns(pl.col("stream").cast(pl.Int64)) if whole else scores


def _like(given: Any, scores: pl.DataFrame) -> Any:
    """Scores as a table of the kind given."""
    module = type(given).__module__.split(".")[0]
    if module == "pandas":
        import pandas as pd

        return pd.DataFrame({name: scores[name].to_list() for name in scores.columns})
    return scores.to_arrow() if module == "pyarrow" else scores
