"""The tables of README, made from the committed results: `python -m benchmarks.tables`.

A test checks that README holds what this makes.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def source(content: dict[str, Any]) -> str:
    hardware = content["hardware"]
    peers = [f"{k} {v}" for k, v in content["versions"].items() if k not in ("python", "onlinecde")]
    return (
        f"`{content['command']}`, {content['date'][:10]}, {hardware['cpu']}, {hardware['cores']} cores, "
        f"{hardware['threads']} threads; {', '.join(peers)}."
    )


def solve_table() -> str:
    """Forward, training step and memory of every library on every case."""
    content = read("solve")
    lines = [
        "| streams x rows x channels, observed | library | forward | training step | memory of a step |",
        "|---|---|---|---|---|",
    ]
    for one in content["results"]:
        mine = one["library"] == "onlinecde"
        channels = one["values"] * (2 if one["counts"] else 1)
        shape = (
            f"{one['streams']} x {one['rows']} x {channels}, {one['observed']:.0%}" if mine else ""
        )
        cells = []
        for what in ("forward", "training"):
            best = f"{one[what]['best'] * 1e3:,.0f} ms"
            cells.append(f"**{best}**" if mine else f"{best} ({one[f'{what}_ratio']:.1f}x)")
        memory = f"{one['memory'] / 2**20:,.0f} MiB"
        name = (
            f"**{one['library']}**"
            if mine
            else one["library"].replace("plain torch", "onlinecde, no numba")
        )
        lines.append(
            f"| {shape} | {name} | {cells[0]} | {cells[1]} | {f'**{memory}**' if mine else memory} |"
        )
    return "\n".join([*lines, "", source(content)])


def live_table() -> str:
    """One live observation."""
    content = read("live")
    lines = ["| one live observation, 30 channels with counts, 3 observed | time |", "|---|---|"]
    for one in content["results"]:
        seconds = one["seconds"]
        told = f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.0f} ms"
        lines.append(f"| {one['what']} | {told} |")
    return "\n".join([*lines, "", source(content)])


def with_tables(text: str) -> str:
    """README with its tables made anew."""
    for name, make in (("solve", solve_table), ("live", live_table)):
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, rest = text.split(start)
        text = f"{before}{start}\n{make()}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
