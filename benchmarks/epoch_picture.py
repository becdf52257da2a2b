"""Seconds of a training epoch, ours beside the peers: a picture and a table of the committed timings."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from onlinecde.plots.look import AMBER, BLUE, FAINT, INK, house_style


def epoch_figure(content: dict[str, Any]) -> Figure:
    """A bar for each library, the seconds written at its end."""
    results = _by_time(content)
    with house_style():
        figure = Figure(figsize=(8.6, 0.9 + 0.42 * len(results)), facecolor="white")
        axis: Any = figure.subplots()
        longest = max(one["epoch_s"] for one in results)
        for place, one in enumerate(results):
            colour = BLUE if one["library"].startswith("onlinecde") else AMBER
            axis.barh(place, one["epoch_s"], 0.62, color=colour)
            axis.text(
                one["epoch_s"] + 0.01 * longest,
                place,
                f"{one['epoch_s']:.2f} s" if one["epoch_s"] < 10 else f"{one['epoch_s']:.0f} s",
                va="center",
                fontsize=10,
                color=INK,
            )
        axis.set_yticks(range(len(results)), [one["library"] for one in results])
        axis.invert_yaxis()
        axis.set_xticks([])
        axis.set_xlim(0, 1.1 * longest)
        axis.spines[["top", "right", "bottom", "left"]].set_visible(False)
        axis.tick_params(length=0)
        width, height = figure.get_size_inches()
        figure.text(0.15 / width, 0.14 / height, _shape(content), fontsize=9, color=FAINT)
        figure.subplots_adjust(
            left=2.35 / width, right=0.99, top=1 - 0.1 / height, bottom=0.45 / height
        )
    return figure


def epoch_table(content: dict[str, Any]) -> str:
    """A line a library: a step, an epoch, and how many times ours."""
    results = _by_time(content)
    mine = min(one["epoch_s"] for one in results if one["library"].startswith("onlinecde Neural"))
    lines = ["| library | a step | an epoch | | memory |", "|---|---:|---:|---:|---:|"]
    for one in results:
        memory = "" if one["memory"] is None else f"{one['memory'] / 2**30:.2f} GiB"
        lines.append(
            f"| {one['library']} | {one['step_best_s'] * 1e3:,.1f} ms | {one['epoch_s']:.2f} s | "
            f"{one['epoch_s'] / mine:.1f}x | {memory} |"
        )
    return "\n".join(lines)


def _by_time(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The results with an epoch's seconds from the best step, fastest first."""
    batches = content["settings"]["batches"]
    found = [{**one, "epoch_s": one["step_best_s"] * batches} for one in content["results"]]
    return sorted(found, key=lambda one: one["epoch_s"])


def _shape(content: dict[str, Any]) -> str:
    told, hardware = content["settings"], content["hardware"]
    where = (
        hardware["gpu"][0]
        if hardware["gpu"]
        else f"{hardware['cpu']}, {hardware['threads']} threads"
    )
    return (
        f"{told['stays']:,} series of {told['rows']} rows, {told['channels']} channels, "
        f"{told['observed']:.0%} observed, batches of {told['streams']:,}; {where}"
    )
