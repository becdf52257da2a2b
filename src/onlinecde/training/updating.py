"""`update`: go on from a fitted model on new streams, and publish it only if it is no worse on the old ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from onlinecde.artifacts import load, read_manifest
from onlinecde.artifacts.saved_model import Manifest
from onlinecde.data import DataError, Task
from onlinecde.data.joining import check_alike, join
from onlinecde.evaluation import evaluate
from onlinecde.evaluation.bootstrap import Difference
from onlinecde.evaluation.metrics import METRICS
from onlinecde.evaluation.naive import JUDGED_BY
from onlinecde.evaluation.results import compare
from onlinecde.files import check_folder
from onlinecde.models import OnlineModel
from onlinecde.training.callbacks import Callback
from onlinecde.training.fitting import Fitted, fit
from onlinecde.training.journal import model_folder
from onlinecde.training.query_times import asked_task
from onlinecde.training.settings import FitError, FitSettings
from onlinecde.training.task_source import (
    check_content,
    load_task,
    new_source,
    table_of,
    update_source,
)

SLOWER = 0.2
"""The learning rate of an update, as a share of that of the run it goes on from"""
EPOCHS, STOP, PLATEAU = 20, 8, 4
REHEARSAL = 0.5
SURE = 0.9
"""An update that is worse in a larger share of resamples is not published"""


@dataclass(frozen=True)
class Beside:
    """An updated model beside the one it goes on from, on one set of validation streams; less is better."""

    metric: str
    streams: int
    before: float
    after: float
    difference: Difference
    """after - before, with an interval by subject on the same resamples"""

    @property
    def worse(self) -> bool:
        """Whether it is worse, and that in more than `SURE` of the resamples of subjects."""
        share = self.difference.above_zero
        return (
            self.difference.value is not None
            and self.difference.value > 0
            and (share is None or share > SURE)
        )

    @property
    def in_words(self) -> str:
        """Both, and the difference."""
        return (
            f"{METRICS[self.metric].title} {self.after:.4f}, before {self.before:.4f}: {self.difference} on "
            f"{self.streams} streams"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def update(
    run: str | os.PathLike[str],
    new: Task | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    old: Task | None = None,
    old_files: Mapping[str, str | os.PathLike[str]] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    rehearsal: float = REHEARSAL,
    resamples: int = 1000,
    device: str = "auto",
    fresh: bool = False,
    callback: Callback | None = None,
    **changes: Any,
) -> Fitted:
    """Go on from the model of a run on new streams, with a share of the old ones, and save it in `out`.

    Scales and names stay the model's. It learns at a fifth of the run's rate; calibration, boosted steps and intervals
    are fitted anew on the validation streams of both, an alarm policy is dropped. It is not saved
    if it is worse on the old validation streams, in nine of ten paired resamples of subjects. Killed, it goes on as
    `fit` does.

    Args:
        run: folder of a run, or of its model.
        new: streams with the same channels and labels: a task, or files in place of the run's (`events`, `labels`,
            `static`).
        out: folder of the new run.
        old: the task of the run, where it cannot be loaded again.
        old_files: where its files are now, if they have moved.
        data_dir: folder of raw data.
        rehearsal: share of the old training streams that is taught again.
        resamples: of subjects, for the interval of the difference.
        device: "auto", "cpu" or "cuda".
        fresh: forget what `out` holds.
        callback: hears of epochs and notes.
        changes: of the run's settings, such as `lr` or `epochs`.

    Raises:
        FitError: the data are others, or the updated model is worse; nothing is saved then.

    >>> from onlinecde.data import simulate_ward  # doctest: +SKIP
    >>> done = update("run", {"events": "july.parquet"}, "run-july")  # doctest: +SKIP
    """
    callback, home = callback or Callback(), model_folder(run)
    if not 0 <= rehearsal <= 1:
        raise FitError(f"rehearsal is {rehearsal}: give a share from 0 to 1.")
    check_folder(Path(out), "out")
    if Path(out).resolve() in (Path(run).resolve(), home.resolve()):
        raise FitError(f"{out} holds the model that is updated: give another folder.")
    manifest, model = read_manifest(home), load(home)
    before, source = _old_task(manifest, home, old, old_files, data_dir)
    later, new_description = _new_task(manifest, source, new, data_dir)
    _check_model(manifest, before, home)
    schema = model.schema
    if schema is None:
        raise FitError(f"{home} does not name its channels: fit it again before it is updated.")
    try:
        check_alike(before, later)
        before, later = before.under(schema), later.under(schema)
        seed = int(changes.get("seed", 0))
        task = join(before, later, rehearsal=rehearsal, seed=seed)
    except DataError as error:
        raise FitError(str(error)) from error
    settings = _settings(manifest, changes)
    parent = load(home)
    callback.data(task, settings.epochs)
    counts = _counts(before, later, task)
    callback.note(", ".join(f"{count:,} streams {name}" for name, count in counts.items()))
    description = update_source(source, new_description, schema, rehearsal, seed, manifest.sha256)
    _begin_anew(model, callback)

    def judge(ready: OnlineModel) -> dict[str, Any]:
        found = {
            name: _beside(parent, ready, asked_task(data, settings), resamples)
            for name, data in (("old", before), ("new", later))
        }
        for name, one in found.items():
            callback.note(f"{name} validation: {one.in_words}")
        if found["old"].worse:
            raise FitError(
                "the updated model is worse on the old validation streams and is not published: "
                f"{found['old'].in_words}. Give a larger --rehearsal, a smaller --lr or fewer --epochs, or look at the "
                "new data."
            )
        return {
            "parent": {
                "sha256": manifest.sha256,
                "task": source,
                "new": new_description,
                "rehearsal": rehearsal,
                "streams": counts,
                "validation": {name: one.as_json() for name, one in found.items()},
                "in_words": {name: one.in_words for name, one in found.items()},
                "before": manifest.extra.get("parent"),
            }
        }

    return fit(
        task,
        model,
        out,
        settings=settings,
        source=description,
        device=device,
        fresh=fresh,
        callback=callback,
        before_saving=judge,
        goes_on=True,
    )


def _old_task(
    manifest: Manifest,
    home: Path,
    given: Task | None,
    files: Mapping[str, str | os.PathLike[str]] | None,
    data_dir: str | os.PathLike[str] | None,
) -> tuple[Task, dict[str, Any]]:
    """The task a model was fitted on, unchanged, and its description."""
    source = manifest.extra.get("task")
    if not isinstance(source, dict):
        raise FitError(f"{home} does not say what it was fitted on: it cannot be updated.")
    if given is None:
        source = new_source(source, files or {})
        for role, file in _files_of(source):
            if not Path(file).exists():
                raise FitError(
                    f"the old data's file {file} is not found, and some of its streams are taught again: give its new "
                    f"path with --old-{role} FILE (old_files={{'{role}': ...}} in Python)."
                )
        given = load_task(source, data_dir)
    elif files:
        raise FitError("old and old_files: give one of them.")
    check_content(given, source)
    return given, source


def _files_of(source: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The files of a description, by role; those of the newest data of an update first."""
    arguments = source.get("arguments", {})
    if source.get("source") == "update":
        return [*_files_of(arguments["new"]), *_files_of(arguments["old"])]
    if source.get("source") != "table":
        return []
    return [(role, arguments[role]) for role in ("events", "labels", "static") if role in arguments]


def _new_task(
    manifest: Manifest,
    source: Mapping[str, Any],
    new: Task | Mapping[str, Any],
    data_dir: str | os.PathLike[str] | None,
) -> tuple[Task, dict[str, Any]]:
    """The new streams as a task, and its description."""
    if isinstance(new, Task):
        return new, {"source": "memory", "name": new.name}
    if "source" in new:
        description = dict(new)
    else:
        first = table_of(source)
        if first.get("source") != "table":
            raise FitError(
                f"the model was fitted on '{first.get('name')}', not on tables of your own: give new data as a task."
            )
        roles = [role for role in ("labels", "static") if role in first["arguments"]]
        for role in roles:
            if new.get(role) is None:
                raise FitError(
                    f"the run has a table of its own for {role}: give that of the new streams (--{role})."
                )
        for role in ("labels", "static"):
            if new.get(role) is not None and role not in roles:
                raise FitError(f"the run has no table of {role}: leave --{role} out.")
        description = new_source(first, new)
        if manifest.extra.get("kind") is not None and "kind" not in description["arguments"]:
            description["arguments"]["kind"] = manifest.extra["kind"]
    return load_task(description, data_dir), description


def _check_model(manifest: Manifest, task: Task, home: Path) -> None:
    """Refuse models whose learning cannot be gone on with."""
    if manifest.extra.get("settings", {}).get("objective") == "utility":
        raise FitError(
            f"{home} learned what alarms are worth, which is not known of other data: fit a new model."
        )
    if not len(task.splits.get("validation", ())):
        raise FitError(f"the data of {home} has no validation split: an update is judged on it.")


def _settings(manifest: Manifest, changes: Mapping[str, Any]) -> FitSettings:
    """The run's settings, slower and shorter, with what is given."""
    known = set(FitSettings.__dataclass_fields__)
    run = {n: v for n, v in manifest.extra.get("settings", {}).items() if n in known}
    settings = FitSettings(**run)
    settings = replace(settings, lr=SLOWER * settings.lr, epochs=EPOCHS, stop=STOP, plateau=PLATEAU)
    return settings.changed(changes)


def _begin_anew(model: OnlineModel, callback: Callback) -> None:
    """Take off what was measured on validation and is fitted anew, or not at all."""
    if model.alarm_policy is not None:
        callback.note(
            "the alarm policy is dropped, for it was chosen for the model before: choose one with onlinecde alarms"
        )
        model.alarm_policy = None
    model.intervals = None
    steps = model.readout.steps
    if steps is not None:
        steps.share.zero_()
        steps.height.zero_()


def _beside(before: OnlineModel, after: OnlineModel, task: Task, resamples: int) -> Beside:
    """Both models on a task's validation split."""
    metric = "crps" if task.kind == "forecast" else JUDGED_BY[task.kind]
    mine, theirs = (
        evaluate(one.to(after.device), task, "validation", metrics=[metric], bootstrap=resamples)
        for one in (after, before)
    )
    values = [one.metrics[metric].value for one in (theirs, mine)]
    if None in values:
        raise FitError(
            f"{METRICS[metric].title} has no value on the validation streams: {mine.metrics[metric].reason}."
        )
    return Beside(
        metric,
        len(task.splits["validation"]),
        float(values[0] or 0.0),
        float(values[1] or 0.0),
        compare(mine, theirs)[metric],
    )


def _counts(old: Task, new: Task, task: Task) -> dict[str, int]:
    """How many streams were taught again, and how many are new."""
    again = int((task.splits["train"] < len(old.series)).sum())
    return {
        "old": len(old.series),
        "taught again": again,
        "new": len(new.series),
        "new in training": len(task.splits["train"]) - again,
    }
