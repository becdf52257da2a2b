"""`onlinecde properties`: the paper's properties table, measured here and now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from onlinecde.audit import PropertiesRow

_LEGEND = """\
online      what the path at time t depends on, found by editing all that comes
            after t: continuous = the past alone, at every t; discrete = the
            past alone, at the rows; offline = the future too
smoothness  from one-sided limits at the knots (C1, C2: smooth, as the paper
            has it)
bounded     the worst |X|, |dX/ds| and variation of dX/ds for values in [-1, 1]
            stop growing as series grow to 512 rows; quadratic splines resonate
            and must fail: they are the negative control
unique      no two different series tried gave the same start and signature (a
            trial can refute that, not prove it)"""

_HEADERS = {
    "nothing missing": "online,\nnothing\nmissing",
    "values missing": "online,\nvalues\nmissing",
}


def properties(
    seed: Annotated[int, typer.Option(min=0, help="Chooses the series and edits tried.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write verdicts and reasons to this file.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown, alone.")
    ] = False,
) -> None:
    """Measure the four conditions of every control and print them beside the paper's claims."""
    import torch

    from onlinecde.audit import properties_table

    if json_file is not None and json_file.is_dir():
        raise ValueError(f"--json {json_file} is a folder: give the name of a file.")

    # Thousands of small tensors: on more threads they spend their time waiting for each other.
    torch.set_num_threads(1)
    rows = properties_table(seed)
    if json_file is not None:
        _write_json(rows, seed, json_file)
    if markdown:
        typer.echo(as_markdown(rows))
        return
    from rich.console import Console

    console = Console()
    console.print(_as_rich(rows))
    console.print(_LEGEND, style="dim", highlight=False)
    differing = _differing(rows)
    if differing:
        console.print(f"Not as the paper says: {'; '.join(differing)}.", style="bold red")
    else:
        console.print("Every cell agrees with the paper.", style="bold green")


def as_markdown(rows: tuple[PropertiesRow, ...]) -> str:
    """The table in Markdown: each cell what was measured, and the paper's claim in brackets."""
    names = list(rows[0].measured.verdicts())
    lines = ["| control | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    for row in rows:
        cells = [
            f"**{found}** ({row.paper[name]})" if name in row.paper else f"**{found}**"
            for name, found in row.measured.verdicts().items()
        ]
        lines.append(f"| {row.control} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _as_rich(rows: tuple[PropertiesRow, ...]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="Properties of the control paths, as measured and as the paper has them",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title_style="bold",
    )
    table.add_column("\n\ncontrol", no_wrap=True)
    for name in rows[0].measured.verdicts():
        table.add_column(_HEADERS.get(name, f"\n\n{name}"), no_wrap=True)
    for row in rows:
        cells = [Text.assemble(row.control, ("\n  paper", "dim"))]
        for name, found in row.measured.verdicts().items():
            style = "bold" if row.agrees(name) else "bold red"
            cells.append(Text.assemble((found, style), (f"\n{row.paper.get(name, '-')}", "dim")))
        table.add_row(*cells, end_section=row is rows[-2])
    return table


def _differing(rows: tuple[PropertiesRow, ...]) -> list[str]:
    return [
        f"{row.control}, {name}: {row.measured.reasons()[name]}"
        for row in rows
        for name in row.measured.verdicts()
        if not row.agrees(name)
    ]


def _write_json(rows: tuple[PropertiesRow, ...], seed: int, file: Path) -> None:
    import json

    import onlinecde

    told = {
        "command": f"onlinecde properties --seed {seed}",
        "version": onlinecde.__version__,
        "controls": [
            {
                "control": row.control,
                "conditions": {
                    name: {
                        "measured": found,
                        "paper": row.paper.get(name),
                        "agrees": row.agrees(name),
                        "reason": row.measured.reasons()[name],
                    }
                    for name, found in row.measured.verdicts().items()
                },
            }
            for row in rows
        ],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
