"""`onlinecde demo`: what the package is about, on this machine, in under a minute."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Where the pictures go.")] = Path("out/demo"),
) -> None:
    """Draw the four controls, measure their properties, and follow one simulated patient live."""
    from onlinecde.cli.plot import controls
    from onlinecde.cli.properties import properties

    typer.secho("\n1. Four control paths through one partly observed series", bold=True)
    controls(out=out)
    typer.secho(
        "\n2. Which of them may be used online? Measured, beside the paper's claims", bold=True
    )
    properties()
    typer.secho("\n3. One patient, live: the same numbers as from the whole history", bold=True)
    _follow_one()


def _follow_one() -> None:
    import time

    import torch
    from rich.console import Console
    from rich.table import Table

    import onlinecde as oc
    from onlinecde.data import simulate_ward

    series = simulate_ward(64, seed=0).task.series
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        channels=len(series.channels), hidden=32, width=32, static=len(series.features)
    ).eval()
    model.encoding.fit(series)
    patient = series[int(series.rows.argmax())]
    rows = int(patient.rows)
    with torch.no_grad():
        offline = model(patient)[0, :, 0]
        state = model.observe(  # a first, thrown away: it compiles what runs live
            model.init_state(1, patient.static), patient.times[0, 0], patient.values[:, 0]
        )
        state, online, started = model.init_state(1, patient.static), [], time.perf_counter()
        for row in range(rows):
            state = model.observe(state, float(patient.times[0, row]), patient.values[:, row])
            online.append(float(model.predict(state)))
        spent = (time.perf_counter() - started) / rows
        explained = model.explain(patient)
    table = Table("hours", "observed", "online", "offline", "moved most by", box=None)
    for row in [*range(1, 5), rows - 1]:
        named = [
            f"{name} {value:.4g}"
            for name, value in zip(series.channels, patient.values[0, row].tolist(), strict=True)
            if value == value  # not NaN
        ]
        pushes = {"time": float(explained.time[0, row, 0])}
        pushes |= dict(zip(series.channels, explained.events[0, row, :, 0].tolist(), strict=True))
        most = max(pushes, key=lambda name: abs(pushes[name]))
        table.add_row(
            f"{float(patient.times[0, row]):.2f}",
            ", ".join(named[:3]) + (", ..." if len(named) > 3 else ""),
            f"{online[row]:+.6f}",
            f"{float(offline[row]):+.6f}",
            f"{most} {pushes[most]:+.4f}",
        )
    console = Console()
    console.print(table)
    gap = float((torch.tensor(online) - offline).abs().max())
    console.print(
        f"{rows} rows, fed one by one: largest difference from the whole history {gap:.1e}; "
        f"{spent * 1e6:.0f} us a row, observation and prediction. (The model is not trained: this "
        "shows how it runs, not what it knows.)",
        highlight=False,
    )
