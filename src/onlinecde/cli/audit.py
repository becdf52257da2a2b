"""`onlinecde audit`: may a saved model be used live? Found by editing the future of real series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onlinecde.series import SeriesBatch


def audit(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    data: Annotated[Path, typer.Option(help="Series to audit it on: CSV, TSV, Parquet or Arrow.")],
    stream: Annotated[str, typer.Option(help="Column that names the stream.")],
    time: Annotated[str, typer.Option(help="Column of times: numbers or timestamps.")],
    channel: Annotated[
        str | None, typer.Option(help="Column that names the channel, in a long table.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="Column of values, in a long table.")] = None,
    static: Annotated[
        Path | None, typer.Option(help="Table of static features: the stream column and numbers.")
    ] = None,
    time_unit: Annotated[str, typer.Option(help="Unit for timestamps.")] = "hours",
    streams: Annotated[int, typer.Option(min=1, help="How many streams to try.")] = 16,
    cuts: Annotated[int, typer.Option(min=1, help="At how many rows of each.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Chooses streams and edits.")] = 0,
    contracts: Annotated[
        bool, typer.Option("--contracts", help="Check the eight contracts too.")
    ] = False,
) -> None:
    """Edit the future of series and see whether a model's earlier outputs move.

    Exits with 1 where the model is less online than it declares, or breaks a contract.
    """
    import onlinecde
    from onlinecde.artifacts import load, read_manifest

    names = read_manifest(folder).channels
    model = load(folder)
    batch = read_series(data, stream, time, channel, value, static, time_unit, names)
    batch = model.prepare(batch)
    found = onlinecde.audit.measurability(model, batch, streams=streams, cuts=cuts, seed=seed)
    typer.echo(f"{folder}: {type(model).__name__} on {batch!r}")
    typer.echo(str(found))
    held = found.as_declared
    if contracts:
        report = onlinecde.audit.check_model(model, batch, seed=seed)
        typer.echo(str(report))
        held = held and report.ok
    if not held:
        raise typer.Exit(1)


def read_series(
    data: Path,
    stream: str,
    time: str,
    channel: str | None,
    value: str | None,
    static: Path | None,
    time_unit: str,
    channels: Sequence[str] | None,
) -> SeriesBatch:
    """The series of a long table (`channel` and `value` given) or a wide one."""
    import polars as pl

    from onlinecde.data.table_files import LINE, read_table
    from onlinecde.data.table_times import read_clock
    from onlinecde.series import SeriesBatch

    if (channel is None) != (value is None):
        raise ValueError("a long table needs both --channel and --value; a wide one neither.")
    table = read_table(data)
    keys = table.keys(stream, "stream")
    times = read_clock(table, time, keys, time_unit).read(table, time, keys, "time")
    facts = None
    if static is not None:
        told = read_table(static)
        features = [c for c in told.frame.columns if c not in (stream, LINE)]
        facts = pl.DataFrame(
            {stream: told.keys(stream, "stream")}
            | {feature: told.numbers(feature, "static feature") for feature in features}
        )
    lines = {stream: keys, time: times}
    if channel is not None and value is not None:
        lines |= {channel: table.complete(channel, "channel"), value: table.numbers(value, "value")}
        return SeriesBatch.from_long(
            pl.DataFrame(lines),
            stream=stream,
            time=time,
            channel=channel,
            value=value,
            channels=channels,
            static=facts,
        )
    wanted = channels or [c for c in table.frame.columns if c not in (stream, time, LINE)]
    lines |= {name: table.numbers(name, "channel") for name in wanted}
    return SeriesBatch.from_wide(
        pl.DataFrame(lines), stream=stream, time=time, channels=wanted, static=facts
    )
