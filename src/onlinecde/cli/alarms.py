"""`onlinecde alarms`: a threshold, re-arming level and quiet period for a budget of false alarms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.command_line import command_words, grouped
from onlinecde.cli.options import JudgedOptions

if TYPE_CHECKING:
    from onlinecde.data import Task
    from onlinecde.evaluation.alarm_budget import Chosen
    from onlinecde.evaluation.alarms import AlarmScore


@grouped
def alarms(
    *,
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or of a saved model.")],
    budget: Annotated[
        list[float],
        typer.Option(help="False alarms allowed per stream and day; repeatable."),
    ],
    judged: JudgedOptions,
    every: Annotated[
        str | None,
        typer.Option(help="Time between looks between rows, as 15min; default: by the labels."),
    ] = None,
    quiet: Annotated[
        str | None,
        typer.Option(help="No second alarm of a stream within this, as 4h; default: chosen."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="The output watched, by name or position, where several.")
    ] = None,
    horizon: Annotated[
        str | None,
        typer.Option(help="Of time to an event: how far ahead the risk watched looks, as 12h."),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            help="Share of choices of validation streams after which the budget holds; 0: on average alone."
        ),
    ] = 0.9,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="Choose on half of the subjects of --events, judge on the others: for another place.",
        ),
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Give the model this policy; `serve` follows it.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn by lot.")] = 0,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Resamples of subjects for the intervals; 0: none.")
    ] = 1000,
    json: Annotated[Path | None, typer.Option(help="Write all numbers here.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
) -> None:
    """Choose when a model raises alarms, so that false ones stay within a budget on new streams."""
    given = dict(locals())
    from onlinecde.artifacts import load
    from onlinecde.data.queries import duration
    from onlinecde.evaluation.alarm_budget import choose_policies, halves, usual_every
    from onlinecde.evaluation.alarms import check_alarms, look, score_alarms, within
    from onlinecde.evaluation.bootstrap import Cohort
    from onlinecde.evaluation.evaluating import check_fit
    from onlinecde.files import check_file
    from onlinecde.models import AlarmPolicy
    from onlinecde.training import model_folder
    from onlinecde.training.fitting import device_for

    check_file(json, "--json")
    if write and len(budget) > 1:
        raise ValueError("--write keeps one policy: give one --budget with it.")
    if local and not judged.elsewhere:
        raise ValueError("--local is for streams of another place: give --events or --task too.")
    home = model_folder(folder)
    task = judged.load(home)
    own = JudgedOptions(data_dir=judged.data_dir).load(home) if judged.elsewhere else task
    if judged.split == "validation" and not judged.elsewhere:
        raise ValueError("the policy is chosen on validation: judge it on another split.")
    model = load(home).to(device_for(device))
    for each in {id(one): one for one in (own, task)}.values():
        check_fit(model, each)
    watched = _output(output, own)
    spans: dict[str, Any] = {
        name: None if text is None else duration(text, own.time_unit)
        for name, text in (("every", every), ("quiet", quiet), ("horizon", horizon))
    }
    risk, binary = within(model, own, spans["horizon"])
    check_alarms(binary)
    every_look = spans["every"] or usual_every(binary)
    grid = AlarmPolicy(0.5, every=every_look, output=watched)
    task = within(model, task, spans["horizon"])[1]
    task = halves(task, seed) if local else task
    chosen = choose_policies(
        model,
        own,
        budget,
        every=grid.every,
        output=watched,
        horizon=spans["horizon"],
        quiet=spans["quiet"],
        confidence=confidence,
        validation=look(risk, task, "validation", grid) if local else None,
        seed=seed,
    )
    looks = look(risk, task, judged.split, grid)
    cohort = Cohort(looks.owners, looks.subjects, bootstrap if looks.subjects > 1 else 0, seed)
    scores = [score_alarms(looks, one.policy, cohort) for one in chosen]
    _show(chosen, scores, own, f"{task.name}, {judged.split}" if judged.elsewhere else judged.split)
    if json is not None:
        words = command_words(alarms, given, without=("data_dir", "json", "device", "write"))
        typer.echo(f"wrote {_write_json(json, chosen, scores, words, str(model.device))}")
    if write:
        _write(home, chosen[0], scores[0], task)


def _output(given: str | None, task: Task) -> int:
    """The position of the output that is watched."""
    if given is None and (task.outputs == 1 or task.kind == "time-to-event"):
        return 0
    names = [*task.classes] if task.outputs > 1 else [*task.classes[1:]]
    if given is None:
        raise ValueError(
            f"the model has {task.outputs} outputs: say with --output which is watched, one of {', '.join(names)}."
        )
    if given in names:
        return names.index(given)
    if given.isdigit() and int(given) < task.outputs:
        return int(given)
    raise ValueError(f"there is no output {given!r}: choose one of {', '.join(names)}.")


def _show(chosen: list[Chosen], scores: list[AlarmScore], task: Task, unseen: str) -> None:
    """A line a budget: the rule, and what it is worth on validation and on unseen streams."""
    from rich.console import Console

    from onlinecde.cli.terminal_tables import alarms_table

    console = Console()
    first, other = chosen[0].validation, scores[0]
    console.print(
        f"Chosen on {first.subjects:,} subjects with {first.events:,} events in {first.days:,.0f} days; judged on "
        f"{unseen}: {other.subjects:,} subjects, {other.events:,} events, {other.days:,.0f} days.",
        highlight=False,
    )
    console.print(alarms_table(chosen, scores, task.time_unit))
    for one, score in zip(chosen, scores, strict=True):
        low = score.false_a_day.low
        if low is not None and low > one.budget:
            console.print(
                f"[bold red]warning:[/bold red] a budget of {one.budget:g} is not kept on {unseen}: "
                f"{score.false_a_day} false alarms a stream and day. Choose on streams from there (--local).",
                highlight=False,
            )
    console.print(chosen[-1].policy.chosen["guarantee"], highlight=False)


def _write(home: Path, one: Chosen, score: AlarmScore, task: Task) -> None:
    from onlinecde.artifacts import read_manifest, save_alarm_policy
    from onlinecde.training.journal import keep_policies

    reasons = {**one.policy.chosen, "task": task.name, "judged": score.as_json()}
    policy = replace(one.policy, chosen=reasons)
    before = read_manifest(home).alarm_policy
    save_alarm_policy(home, policy)
    history = keep_policies(home, before, read_manifest(home).alarm_policy)
    typer.echo(
        f"{home}: {policy.words(task.time_unit)}. Earlier policies are in {history}; `serve` follows the new one."
    )


def _write_json(
    target: Path, chosen: list[Chosen], scores: list[AlarmScore], words: list[str], device: str
) -> Path:
    import shlex
    from json import dumps

    from onlinecde.evaluation.report import write_report
    from onlinecde.experiments.machine import circumstances

    content = {
        "format": "onlinecde alarms 1",
        "command": shlex.join(["onlinecde", "alarms", *words]),
        **circumstances(device),
        "policies": [
            {"budget": one.budget, "policy": one.policy.as_json(), "judged": score.as_json()}
            for one, score in zip(chosen, scores, strict=True)
        ],
    }
    return write_report(target, dumps(content, indent=1, allow_nan=False) + "\n")
