"""From a model's folder and a store to an engine and the settings its manifest asks for."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onlinecde.models import AlarmPolicy, AlarmPolicyError
from onlinecde.serving.problems import ServingError
from onlinecde.serving.request_log import note
from onlinecde.serving.settings import ServeSettings
from onlinecde.streaming import (
    Engine,
    Event,
    ModelMismatch,
    PostgresStore,
    SQLiteStore,
    Store,
    StoreError,
    StreamingError,
)
from onlinecde.streaming.served import ServedModel
from onlinecde.streaming.shadow import successor

POSTGRES = ("postgresql://", "postgres://")


def open_store(where: str | os.PathLike[str]) -> Store:
    """The store at a `postgresql://` URL, or in a SQLite file."""
    if not str(where).strip() or Path(where) == Path():
        raise StoreError("the store is empty or '.': give a file, or a postgresql:// URL.")
    if isinstance(where, str) and where.startswith(POSTGRES):
        return PostgresStore(where)
    return SQLiteStore(Path(where))


def default_audit(store: str) -> Path:
    """Where the audit log is, if no one says: beside the store."""
    if store.startswith(POSTGRES):
        return Path("onlinecde.audit.jsonl")
    file = Path(store)
    if not file.name:
        return Path("onlinecde.audit.jsonl")  # of no store: what opens it says what to give
    return file.with_name(f"{file.name}.audit.jsonl")


def read_ranges(file: Path) -> dict[str, tuple[float, float]]:
    """Plausible values by channel, from a file of JSON: `{"heart_rate": [20, 300]}`."""
    try:
        content = json.loads(file.read_text())
        return {str(name): (float(least), float(most)) for name, (least, most) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ServingError(
            f'{file} is not a file of plausible values ({error}): write {{"heart_rate": [20, 300]}}.'
        ) from error


def open_engine(
    model: str | os.PathLike[str],
    store: Store | str | os.PathLike[str] | None,
    settings: ServeSettings,
    *,
    time_unit: str | None = None,
    policy_changes: Mapping[str, Any] | None = None,
    **engine: Any,
) -> tuple[Engine, ServeSettings]:
    """An engine on a saved model (or a run's folder), and settings completed from its manifest.

    store: a file for SQLite, a `postgresql://` URL, a store, or None for one in memory. The unit of time is
    what the manifest says unless it is given. policy_changes: fields of the model's `AlarmPolicy` that are others
    here. engine: further arguments of `Engine`.
    """
    from onlinecde.artifacts import read_manifest
    from onlinecde.training import model_folder

    home = model_folder(model)
    manifest = read_manifest(home)
    extra, schema = manifest.extra, manifest.named_schema()
    unit = time_unit or extra.get("time_unit") or (schema and schema.time_unit)
    completed = replace(
        settings,
        time_unit=unit or settings.time_unit,
        classes=tuple(extra.get("classes", ())),
        features=tuple(extra.get("static", ())),
    )
    opened_store = open_store(store) if isinstance(store, str | os.PathLike) else store
    try:
        if policy_changes:
            engine["policy"] = changed_policy(manifest.alarm_policy, policy_changes)
        try:
            opened = Engine(home, opened_store, **engine)
        except ModelMismatch:
            # One that took over while the model that is given here served.
            later = None if opened_store is None else successor(opened_store, home)
            if later is None:
                raise
            note("a model that took over is served", logging.WARNING)
            return open_engine(
                later, opened_store, settings, time_unit=time_unit, policy_changes=policy_changes,
                **{name: one for name, one in engine.items() if name != "policy"},
            )  # fmt: skip
        warm_up(opened)
    except BaseException:
        if opened_store is not None:
            opened_store.close()
        raise
    return opened, completed


def changed_policy(own: Mapping[str, Any] | None, changes: Mapping[str, Any]) -> AlarmPolicy:
    """A model's policy, as its manifest has it, with other fields; with another threshold, one of these alone."""
    if own is None and "threshold" not in changes:
        raise ServingError(
            f"the model has no alarm policy, so {' and '.join(changes)} alone say nothing: give a threshold, too."
        )
    base = {} if own is None or "threshold" in changes else {**own, "chosen": {}}
    try:
        return AlarmPolicy.from_json({**base, **changes})
    except AlarmPolicyError as error:
        raise ServingError(f"the alarm policy: {error}") from error


def warm_up(engine: Engine | ServedModel) -> None:
    """Run everything a live stream needs once, on a stream of no one, so that no one waits for compilers."""
    static = [0.0] * engine.model.static if engine.model.static else None
    # Where times of training lie: those far from them, as 0 may be, are refused.
    clock = getattr(engine.model, "encoding", None)
    start, unit = (float(clock.time_shift), float(clock.time_scale)) if clock else (0.0, 1.0)
    with Engine(engine.model, channels=engine.channels) as trial:
        name = engine.channels[0]
        trial.open_stream("trial", static=static)
        for time in (0.0, 0.5, 1.0):
            trial.apply([Event("trial", start + time * unit, name, 0.0)])
        trial.predict_many(["trial"], [start + 1.5 * unit])
        trial.curve("trial", points=4)
        with contextlib.suppress(StreamingError):
            trial.explain("trial")
