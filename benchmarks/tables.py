"""The tables of README and docs/gpu.md, made from the committed results: `python -m benchmarks.tables`.

Tests check that both hold what this makes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import shown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
GPU_PAGE = ROOT / "docs" / "gpu.md"


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


def serving_table() -> str:
    """The engine and the server: how much they take in, how soon they answer."""
    engine, server = read("streaming"), read("serving")
    lines = ["| live streams, 30 channels with counts, 3 observed a row | measured |", "|---|---|"]
    told = [(f"engine: {one['what']}", one["number"], one) for one in engine["results"]]
    told += [(f"server: {one['what']}", one["value"], one) for one in server["results"]]
    for what, number, one in told:
        bar = one.get("at_least") or one.get("at_most")
        if bar is not None and "times" not in one["unit"]:
            lines.append(f"| {what} | {shown(number)} {one['unit']} |")
    return "\n".join([*lines, "", source(engine), "", source(server)])


def gpu_table() -> str:
    """Milliseconds of a training step of every library on every shape, and how many times ours."""
    content = read("gpu")
    lines = [
        "| group | shape | highest | high | error of z | memory | plain torch | torchcde | diffrax |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    shapes: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for one in content["results"]:
        if one["group"] != "epoch":
            shapes.setdefault((one["group"], one["name"]), {})[one["library"]] = one
    for (group, name), found in shapes.items():
        mine, fast = found["onlinecde highest"], found["onlinecde high"]
        sizes = f"{mine['hidden']}/{mine['width']}/{mine['depth']}"
        cells = [group, f"{name}, {sizes}", f"**{mine['train']:.1f}**", f"**{fast['train']:.1f}**"]
        cells += [
            f"{mine['error']:.0e}, {fast['error']:.0e}",
            f"{mine['memory'] / 2**30:.2f} GiB",
        ]
        for peer in ("plain torch", "torchcde", "diffrax"):
            its = found.get(peer, {}).get("train")
            ratios = (
                "" if its is None else f" ({its / mine['train']:.0f}x, {its / fast['train']:.0f}x)"
            )
            cells.append("" if its is None else f"{its:,.0f}{ratios}")
        lines.append("| " + " | ".join(cells) + " |")
    epoch = [one for one in content["results"] if one["group"] == "epoch"]
    told = ", ".join(f"{one['library']} {one['epoch_s']:.2f} s" for one in epoch)
    lines += ["", f"One epoch of 50,538 stays in batches of 1,024: {told}."]
    lines += ["", f"{content['hardware']['gpu'][0]}; {source(content)}"]
    return "\n".join(lines)


def with_gpu_table(text: str) -> str:
    """docs/gpu.md with its table made anew."""
    return _with(text, "gpu", gpu_table)


def with_tables(text: str) -> str:
    """README with its tables made anew."""
    for name, make in (
        ("solve", solve_table),
        ("live", live_table),
        ("serving", serving_table),
    ):
        text = _with(text, name, make)
    return text


def _with(text: str, name: str, make: Callable[[], str]) -> str:
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n{make()}\n{end}{rest.split(end)[1]}"


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
    GPU_PAGE.write_text(with_gpu_table(GPU_PAGE.read_text()))
