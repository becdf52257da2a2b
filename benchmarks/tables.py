"""The tables of README and docs, made from the committed results: `python -m benchmarks.tables`.

Tests check that they hold what this makes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.timing import shown

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
FAST_PAGE = ROOT / "docs" / "fast.md"
GPU_PAGE = ROOT / "docs" / "gpu.md"
SCALE_PAGE = ROOT / "docs" / "scale.md"
PREDICT_PAGE = ROOT / "docs" / "predict.md"


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


def spark_table() -> str:
    """The Spark job beside the engine, and what its time goes to."""
    content = read("spark")
    lines = [
        f"| {content['settings']['streams']:,} streams, 3 events a row | measured |",
        "|---|---|",
    ]
    lines += [
        f"| {one['what']} | {shown(one['number'])} {one['unit']} |" for one in content["results"]
    ]
    load = content["hardware"]["load"]
    return "\n".join([*lines, "", f"{source(content)} Load of the machine: {load}."])


def sizing_table() -> str:
    """Cores, delays and states by the number of streams."""
    content = read("sizing")
    lines = [
        "| streams, one row a minute | how | cores | time spent on rows | delay p50 | p99 | states |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in content["results"]:
        lines.append(
            f"| {one['streams']:,} | {one['how']} | {one['cores']} | {one['row_share']:.1%} | "
            f"{shown(1e3 * one['p50'])} ms | {shown(1e3 * one['p99'])} ms | {shown(one['state_gb'])} GB |"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"`{content['command']}`, {content['date'][:10]}, from `streaming.json` and `spark.json`.",
        ]
    )


def onnx_table() -> str:
    """What a row costs in onnxruntime and in this package."""
    content = read("onnx")
    lines = ["| one row of a stream | onlinecde | onnxruntime |", "|---|---:|---:|"]
    seconds = {one["what"]: one["seconds"] for one in content["results"]}
    for what in dict.fromkeys(name.rpartition(", ")[0] for name in seconds):
        name, streams = what.split(", ")
        times = [
            f"{1e6 * seconds[f'{what}, {where}']:.1f} us" for where in ("onlinecde", "onnxruntime")
        ]
        among = "alone" if streams == "1" else f"among {int(streams):,}"
        lines.append(f"| {name}, {among} | {times[0]} | {times[1]} |")
    settings = content["settings"]
    size = f"The three graphs have {settings['bytes'] / 1024:,.0f} KiB; outputs differ by {settings['difference']:.0e}."
    return "\n".join([*lines, "", size, "", source(content)])


def scoring_table() -> str:
    """Peak memory and time of scoring a small and a large file, in little memory and in more."""
    content = read("scoring")
    size = content["settings"]["mib"]
    lines = [
        "| table | asked at | --memory | peak of the process | seconds |",
        "|---|---|---:|---:|---:|",
    ]
    for one in content["results"]:
        table = f"{one['streams']:,} streams" + (
            f", {size:,.0f} MiB" if one["streams"] > 400 else ""
        )
        lines.append(
            f"| {table} | {one['at']} | {one['memory_mib']:,} | {one['peak_mib']:,.0f} MiB | {one['seconds']:.0f} |"
        )
    return "\n".join([*lines, "", source(content)])


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
    groups = list(dict.fromkeys(group for group, _ in shapes))
    for (group, name), found in sorted(shapes.items(), key=lambda one: groups.index(one[0][0])):
        mine, fast = found["onlinecde highest"], found["onlinecde high"]
        sizes = f"{mine['hidden']}/{mine['width']}/{mine['depth']}"
        earlier = " *" if "measured" in mine else ""
        cells = [group, f"{name}, {sizes}{earlier}"]
        cells += [f"**{mine['train']:.1f}**", f"**{fast['train']:.1f}**"]
        cells += [
            f"{mine['error']:.0e}, {fast['error']:.0e}",
            f"{mine['memory'] / 2**30:.2f} GiB",
        ]
        for peer in ("plain torch", "torchcde", "diffrax"):
            its = found.get(peer, {}).get("train")
            # Like with like: diffrax in float32 beside "highest", in tf32 beside "high".
            exact = found.get(f"{peer} float32", {}).get("train", its)
            if its is None or exact is None:
                cells.append("")
                continue
            took = f"{its:,.0f}" if exact == its else f"{exact:,.0f}, tf32 {its:,.0f}"
            cells.append(f"{took} ({exact / mine['train']:.0f}x, {its / fast['train']:.0f}x)")
        lines.append("| " + " | ".join(cells) + " |")
    epoch = [one for one in content["results"] if one["group"] == "epoch"]
    told = ", ".join(f"{one['library']} {one['epoch_s']:.2f} s" for one in epoch)
    lines += ["", f"One epoch of 50,538 stays in batches of 1,024: {told}."]
    lines += ["", f"{content['hardware']['gpu'][0]}; {source(content)}"]
    before = {one["measured"] for one in content["results"] if "measured" in one}
    if before:
        lines += ["", f"\\* from an earlier run of this benchmark, {', '.join(sorted(before))}."]
    return "\n".join(lines)


def with_gpu_table(text: str) -> str:
    """docs/gpu.md with its table made anew."""
    return with_part(text, "gpu", gpu_table)


def with_predict_tables(text: str) -> str:
    """docs/predict.md with its tables made anew."""
    return with_part(with_part(text, "onnx", onnx_table), "scoring", scoring_table)


def with_scale_tables(text: str) -> str:
    """docs/scale.md with its tables made anew."""
    return with_part(with_part(text, "spark", spark_table), "sizing", sizing_table)


def why_table() -> str:
    """README's comparison with what else there is, each figure with the page of its measurement."""
    slower = [
        one["training_ratio"] for one in read("solve")["results"] if one["library"] == "torchcde"
    ]
    live = {one["what"]: one["seconds"] for one in read("live")["results"]}
    ours = live["one observe, through Python, after 10,000 rows"]
    theirs = live["torchcde, 72 rows of history solved again"]
    gru_d = next(one for one in read("gru_d")["results"] if one["case"].startswith("training step"))
    folds = json.loads((ROOT / "results" / "sepsis-folds.json").read_text())
    rival = [one["model"] for one in folds["against"]].index("GRU-D")
    auc, rival_auc = (
        one["metrics"]["auc"]["value"] for one in (folds["evaluation"], folds["against"][rival])
    )
    less = folds["differences"][rival]["auc"]
    steps = fmean(json.loads((ROOT / "results" / "sepsis-steps.json").read_text())["steps"])
    speed = "docs/fast.md#what-was-measured"
    page, lead = "docs/results.md#every-patient-tested-once", "docs/results.md#whose-the-lead-is"
    rows = [
        [
            "",
            "online: nothing from the future",
            "continuous: answers between observations",
            "speed",
            "accuracy: sepsis at every hour, AUROC",
        ],
        ["---"] * 5,
        [
            "**onlinecde**",
            "[measured](docs/audit.md): the future is edited, and no earlier output may move",
            "a new answer at any time",
            f"a live observation in [{1e6 * ours:.0f} us]({speed}), after any history",
            f"[{auc:.3f}]({page})",
        ],
        [
            "torchcde",
            "with its rectilinear path; a stream has no state, its history is solved again",
            "yes",
            f"training takes [{min(slower):.0f} to {max(slower):.0f} times]({speed}) as long;"
            f" a live observation [{1e3 * theirs:.0f} ms]({speed}), after 72 rows",
            "the same model",
        ],
        [
            "GRU-D",
            "at observations",
            "repeats its last answer",
            f"PyPOTS takes [{gru_d['ratio']:.1f} times](benchmarks/results/gru_d.json) as long to train as ours",
            f"[{rival_auc:.3f}]({page}); {less['value']:.3f} less ({less['low']:.3f} to {less['high']:.3f})",
        ],
        [
            "boosted trees",
            "if every feature is of the past",
            "if features are made anew for each answer",
            "no state: features of the whole history for each answer",
            f"single-feature boosting alone: [{steps:.3f}]({lead})",
        ],
    ]
    note = (
        "The lead over GRU-D comes from boosted additive terms in the readout; "
        f"GRUs given the same terms [match it]({lead})."
    )
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", note])


def with_tables(text: str) -> str:
    """README with its table made anew."""
    return with_part(text, "why", why_table)


def with_fast_tables(text: str) -> str:
    """docs/fast.md with its tables made anew."""
    for name, make in (
        ("solve", solve_table),
        ("live", live_table),
        ("serving", serving_table),
    ):
        text = with_part(text, name, make)
    return text


def with_part(text: str, name: str, make: Callable[[], str]) -> str:
    """A page with what stands between the marks of a name made anew."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n{make()}\n{end}{rest.split(end)[1]}"


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
    FAST_PAGE.write_text(with_fast_tables(FAST_PAGE.read_text()))
    GPU_PAGE.write_text(with_gpu_table(GPU_PAGE.read_text()))
    PREDICT_PAGE.write_text(with_predict_tables(PREDICT_PAGE.read_text()))
    SCALE_PAGE.write_text(with_scale_tables(SCALE_PAGE.read_text()))
