"""Prepared tasks on disk: npz without pickle, under a key of source files and settings."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onlinecde.data.errors import DataError
from onlinecde.data.parts import part_arrays, part_of
from onlinecde.data.ragged import pad, pad_rows, strip_padding
from onlinecde.data.task import Task
from onlinecde.files import cache_folder
from onlinecde.series import RawStatic, StaticColumn

FORMAT = 5
"""Raised whenever what is stored, or how a data set is prepared, changes."""
PARTS = ("utility", "known_risk", "truth")
"""What a task may carry beside its series and labels."""


def cached_task(
    name: str,
    paths: Sequence[Path],
    settings: Mapping[str, Any],
    prepare: Callable[[], Task],
    cache_dir: str | os.PathLike[str] | None = None,
) -> Task:
    """Return the task stored for these files and settings, else prepare and store it.

    A file that changed (name, size or time of change), another setting, another format or a
    damaged store all mean: prepare anew. A store that cannot be written costs only the next start.
    """
    from onlinecde.version import __version__

    key = {
        "name": name,
        "format": FORMAT,
        "version": __version__,
        "settings": dict(settings),
        "source": [*map(_fingerprint, paths)],
    }
    text = json.dumps(key, sort_keys=True, default=str)
    folder = Path(cache_dir) if cache_dir is not None else cache_folder()
    file = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.npz"
    if file.exists():
        with contextlib.suppress(DataError):
            return load_task(file, key=text)
    task = prepare()
    with contextlib.suppress(OSError):
        save_task(task, file, key=text)
    return task


def save_task(task: Task, file: str | os.PathLike[str], *, key: str = "") -> None:
    """Write a task to one file, wholly or not at all."""
    file, series = Path(file), task.series
    facts = {
        "key": key,
        "format": FORMAT,
        "streams": [_plain(stream) for stream in series.streams],
        "subjects": [_plain(subject) for subject in task.subjects],
        "channels": series.channels,
        "features": series.features,
        "splits": list(task.splits),
        "facts": {
            "name": task.name,
            "kind": task.kind,
            "per": task.per,
            "time_unit": task.time_unit,
            "metric": task.metric,
            "classes": task.classes,
            "source": task.source,
            "settings": task.settings,
            "flow": task.flow,
            "notes": task.notes,
            "label_lead": task.label_lead,
            "edges": task.edges,
            "horizon": task.horizon,
        },
    }
    arrays = {
        "lengths": series.rows.cpu().numpy(),
        "times": strip_padding(series, series.times),
        "values": strip_padding(series, series.values),
        "labels": strip_padding(series, task.labels)
        if task.per == "row"
        else task.labels.cpu().numpy(),
    }
    if series.static is not None:
        arrays["static"] = series.static.cpu().numpy()
    if series.raw_static is not None:
        facts["raw_static"] = _raw_facts(series.raw_static, arrays)
    if task.queries is not None:
        arrays["queries"] = task.queries.cpu().numpy()
    parts = {name: getattr(task, name) for name in PARTS}
    facts["parts"] = {n: part_arrays(x, n, arrays) for n, x in parts.items() if x is not None}
    arrays["facts"] = np.frombuffer(json.dumps(facts, default=str).encode(), np.uint8)
    for name, positions in task.splits.items():
        arrays[f"split_{name}"] = positions.cpu().numpy()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}-{time.monotonic_ns()}.part")
    try:
        with temporary.open("xb") as out:
            np.savez(out, **arrays)  # pyright: ignore[reportArgumentType]
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load_task(file: str | os.PathLike[str], *, key: str | None = None) -> Task:
    """Read what `save_task` wrote; a damaged file, or one made for another `key`, is refused."""
    try:
        # Sums over the whole file are checked by the zip inside; nothing in it is executed.
        with np.load(io.BytesIO(Path(file).read_bytes()), allow_pickle=False) as arrays:
            stored = {name: arrays[name] for name in arrays.files}
        facts = json.loads(stored["facts"].tobytes())
        if facts["format"] != FORMAT or (key is not None and facts["key"] != key):
            raise DataError(
                f"{file}: made by another version or for other settings: prepare it anew."
            )
        lengths = stored["lengths"]
        static = torch.from_numpy(stored["static"]) if "static" in stored else None
        series = pad_rows(
            lengths,
            stored["times"],
            stored["values"],
            channels=facts["channels"],
            streams=facts["streams"],
            static=static,
            features=facts["features"],
        )
        if "raw_static" in facts:
            series = replace(series, raw_static=_raw_static(facts["raw_static"], stored))
        about = facts["facts"]
        labels = stored["labels"]
        if about["per"] == "row":
            labels = pad(lengths, labels, -1 if about["kind"] == "multiclass" else np.nan)
        about["classes"], about["edges"] = tuple(about["classes"]), tuple(about["edges"])
        about["flow"] = tuple((step, left) for step, left in about["flow"])
        about["notes"] = tuple(about["notes"])
        about |= {name: part_of(part, stored) for name, part in facts["parts"].items()}
        if "queries" in stored:
            about["queries"] = torch.from_numpy(stored["queries"])
        return Task(
            **about,
            series=series,
            labels=torch.from_numpy(labels),
            subjects=tuple(facts["subjects"]),
            splits={name: torch.from_numpy(stored[f"split_{name}"]) for name in facts["splits"]},
        )
    except (OSError, EOFError, KeyError, IndexError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{file}: the prepared data is damaged ({error}): prepare it anew."
        ) from error
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{file}: the prepared data is damaged ({error}): prepare it anew."
        ) from error


def _raw_facts(raw: RawStatic, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What JSON keeps of raw static features; columns of numbers go to `arrays`."""
    columns: dict[str, Any] = {}
    for number, (name, column) in enumerate(raw.columns.items()):
        columns[name] = column.tolist() if column.dtype == object else number
        if column.dtype != object:
            arrays[f"raw_{number}"] = column
    encoding = [column.as_json() for column in raw.encoding]
    return {"columns": columns, "fixed": dict(raw.fixed), "encoding": encoding}


def _raw_static(facts: Mapping[str, Any], stored: Mapping[str, np.ndarray]) -> RawStatic:
    return RawStatic(
        {
            name: np.array(column, object) if isinstance(column, list) else stored[f"raw_{column}"]
            for name, column in facts["columns"].items()
        },
        {name: tuple(known) for name, known in facts["fixed"].items()},
        tuple(StaticColumn.from_json(column) for column in facts["encoding"]),
    )


def _fingerprint(path: Path) -> list[Any]:
    """Name, size and time of change of a file, or of all files of a folder as one sum."""
    if not path.is_dir():
        state = path.stat()
        return [path.name, state.st_size, state.st_mtime_ns]
    sums = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        state = file.stat()
        entry = [file.relative_to(path).as_posix(), state.st_size, state.st_mtime_ns]
        sums.update(json.dumps(entry).encode())
    return [path.name, sums.hexdigest()]


def _plain(name: Any) -> str | int:
    """A stream's name as JSON keeps it: whole numbers and text stay what they are."""
    if isinstance(name, bool) or not isinstance(name, (int, np.integer)):
        return str(name)
    return int(name)
