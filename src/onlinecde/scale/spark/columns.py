"""Columns of events as a job takes them in, checked on the driver before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ANSWERS = (
    "stream string, time double, kind string, outputs array<double>, probabilities array<double>, "
    "revision int, code string, field string, message string, channel string, value double, id string"
)
"""Columns of what comes out. `kind` is "row" (the answer after a row), "between" (at a tick), or "refused"."""

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_CLOCKS = ("timestamp", "timestamp_ntz")


class SparkError(ValueError):
    """A job that cannot be started or resumed; the message says what is wrong and what to do."""


def prepared(
    events: DataFrame,
    *,
    stream: str,
    time: str,
    channel: str,
    value: str,
    id: str | None = None,
    order: str | None = None,
    clock: str | None = None,
    static: str | None = None,
    features: int = 0,
) -> DataFrame:
    """The columns of events under their own names and types; raises SparkError where one cannot be right."""
    from pyspark.sql import functions as F  # noqa: N812

    result = dict(events.dtypes)
    wanted = {"stream": stream, "time": time, "channel": channel, "value": value, "id": id}
    wanted |= {"order": order, "clock": clock, "static": static}
    for role, name in wanted.items():
        if name is not None and name not in result:
            raise SparkError(
                f"the events have no column {name!r} for {role} (they have {', '.join(result)}): "
                f"give {role}=."
            )

    def checked(role: str, kinds: tuple[str, ...], remedy: str) -> Column:
        name = wanted[role]
        assert name is not None
        kind = result[name].split("(")[0]
        if kind not in kinds:
            raise SparkError(f"column {name!r} for {role} is {result[name]}: {remedy}")
        return F.col(f"`{name}`")

    cast = "cast it to string."
    taken = [
        checked("stream", ("string",), cast).alias("stream"),
        checked(
            "time",
            _NUMBERS,
            "give numbers in the model's unit of time, such as hours since the stream began.",
        )
        .cast("double")
        .alias("time"),
        checked("channel", ("string",), cast).alias("channel"),
        checked("value", _NUMBERS, "give numbers.").cast("double").alias("value"),
    ]
    if id is not None:
        taken.append(checked("id", ("string",), cast).alias("id"))
    if order is not None:
        placed = checked("order", (*_WHOLE, *_CLOCKS), "give whole numbers or timestamps.")
        if result[order] in _CLOCKS:
            placed = F.unix_micros(placed.cast("timestamp"))
        taken.append(placed.cast("bigint").alias("order"))
    if clock is not None:
        # As a plain number: Spark would drop late rows by a column that carries a watermark.
        taken.append(
            (F.unix_micros(checked("clock", ("timestamp",), "give a timestamp.")) / 1e6).alias(
                "clock"
            )
        )
    if static is not None and result[static].startswith(("struct<", "map<string,")):
        # As text, whatever the types of its fields are; null fields are left out.
        taken.append(F.to_json(F.col(f"`{static}`")).alias("static"))
    elif static is not None:
        checked("static", ("array<double>", "array<float>", "array<int>", "array<bigint>"),
             "give an array of numbers, or raw values by name in a struct or a map.")  # fmt: skip
        taken.append(F.col(f"`{static}`").cast("array<double>").alias("static"))
    elif features:
        raise SparkError(
            f"the model takes {features} static features: give static=, a column of structs or maps of raw "
            "values by name, or of arrays of numbers."
        )
    return events.select(*taken)


def placed(frame: DataFrame, buckets: int, pages: int) -> DataFrame:
    """Give rows with a `stream` the bucket that follows it and its page there."""
    from pyspark.sql import functions as F  # noqa: N812

    hashed = F.xxhash64("stream")
    return frame.withColumns(
        {
            "bucket": F.pmod(hashed, F.lit(buckets)).cast("int"),
            "page": F.pmod(F.shiftrightunsigned(hashed, 24), F.lit(pages)).cast("int"),
        }
    )


def answer_frame(
    stream: Any,
    time: Any,
    kind: str,
    *,
    outputs: Any = None,
    probabilities: Any = None,
    revision: Any = None,
    code: Any = None,
    field: Any = None,
    message: Any = None,
    channel: Any = None,
    value: Any = None,
    id: Any = None,
) -> Any:
    """A pandas frame with the columns of `ANSWERS`; outputs and probabilities (row, output)."""
    import pandas as pd

    count = len(stream)

    def texts(column: Any) -> Any:
        filled = [None] * count if column is None else column
        return pd.array([one if isinstance(one, str) else None for one in filled], dtype="str")

    def arrays(table: Any) -> Any:
        return pd.Series([None] * count if table is None else list(table), dtype=object)

    def numbers(column: Any, kind: str) -> Any:
        return pd.array([None] * count if column is None else column, dtype=kind)  # pyright: ignore[reportArgumentType, reportCallIssue]

    return pd.DataFrame(
        {
            "stream": texts(stream),
            "time": numbers(time, "Float64"),
            "kind": texts([kind] * count),
            "outputs": arrays(outputs),
            "probabilities": arrays(probabilities),
            "revision": numbers(revision, "Int32"),
            "code": texts(code),
            "field": texts(field),
            "message": texts(message),
            "channel": texts(channel),
            "value": numbers(value, "Float64"),
            "id": texts(id),
        }
    )
