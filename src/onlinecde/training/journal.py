"""The folder of a run: what it is, its checkpoint (never a pickle), and its log for people and for TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from onlinecde.data import Task
from onlinecde.files import claim, replace_file
from onlinecde.training.settings import FitError

RUN, LOG, CHECKPOINT, MODEL, BOARD = "run.json", "log.jsonl", "checkpoint", "model", "tensorboard"
SETTINGS, POLICIES, SPLITS = "settings.json", "alarm_policies.jsonl", "splits.csv"
LOCK = ".lock"
FORMAT = "onlinecde training 1"
_LARGEST_HEADER = 1 << 26


class Journal:
    """A run's folder: `run.json`, `settings.json`, `splits.csv`, `log.jsonl`, `tensorboard/`, `checkpoint`, `model/`.

    One process writes at a time; a second one is refused while the first is alive.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        mine = claim(folder / LOCK)
        if mine is None:
            raise FitError(f"another process is training in {folder}: wait for it to end.")
        self._lock = mine
        self._board: Any = None
        try:
            for left in folder.glob(".*.partial"):  # of a process that was killed
                left.unlink()
            if fresh:
                self._clear()
            self._claim(about)
        except BaseException:
            self.close()
            raise

    def _claim(self, about: Mapping[str, Any]) -> None:
        """Say in the folder which run it holds, or find that it holds this one."""
        folder, known = self.folder, read_run(self.folder)
        if known is None:
            if any(not p.name.startswith(".") for p in folder.iterdir()):
                raise FitError(f"{folder} holds something else than a run: give another folder.")
            replace_file(folder / RUN, json.dumps(about, indent=2, sort_keys=True) + "\n")
            return
        more = _with_more_epochs(known, about)
        _check_same(folder, more, about)
        if more != known:
            (folder / SETTINGS).unlink(missing_ok=True)
            replace_file(folder / RUN, json.dumps(more, indent=2, sort_keys=True) + "\n")

    def _clear(self) -> None:
        import shutil

        if (self.folder / RUN).exists():
            for name in (CHECKPOINT, LOG, SETTINGS, POLICIES, SPLITS, RUN):
                (self.folder / name).unlink(missing_ok=True)
            for name in (MODEL, BOARD):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def explain(self, settings: Mapping[str, Any]) -> None:
        """Keep who set each setting and why, as it was when the run began."""
        if not (self.folder / SETTINGS).exists():
            replace_file(self.folder / SETTINGS, json.dumps(settings, indent=1) + "\n")

    def keep_splits(self, task: Task) -> None:
        """List which stream, of which subject, is in which split."""
        lines = io.StringIO()
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(("stream", "subject", "split"))
        for name, places in task.splits.items():
            for place in places.tolist():
                table.writerow((task.series.streams[place], task.subjects[place], name))
        replace_file(self.folder / SPLITS, lines.getvalue())

    @property
    def model_folder(self) -> Path:
        return self.folder / MODEL

    def epochs_of_model(self) -> int | None:
        """After how many epochs the model that is there was saved; None where there is none."""
        file = self.model_folder / "manifest.json"
        if not file.exists():
            return None
        return json.loads(file.read_text())["extra"]["training"]["epochs"]

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint, if there is one."""
        return read_checkpoint(self.folder / CHECKPOINT)

    def write(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        write_checkpoint(self.folder / CHECKPOINT, tensors, facts)

    def begin(self, history: list[dict[str, Any]]) -> None:
        """Make the log say what the checkpoint knows; what came after it will come again."""
        replace_file(self.folder / LOG, "".join(json.dumps(entry) + "\n" for entry in history))
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(
            str(self.folder / BOARD), purge_step=len(history) + 1 if history else None
        )

    def epoch(self, entry: dict[str, Any]) -> None:
        """Add an epoch to the log."""
        with (self.folder / LOG).open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self._board is not None:
            for name, value in entry.items():
                if name != "epoch" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, entry["epoch"])
            self._board.flush()

    def close(self) -> None:
        """Let others write."""
        if self._board is not None:
            self._board.close()
        self._lock.release()


def read_run(folder: Path) -> dict[str, Any] | None:
    """Which run a folder holds, as it was written; None where it holds none."""
    try:
        return json.loads((folder / RUN).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FitError(
            f"{folder / RUN} is not JSON ({error}): give another folder, or --fresh."
        ) from error


def settings_of_then(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Settings of the run a folder holds that were the default when it began, and may not be now."""
    settings = (read_run(Path(folder)) or {}).get("settings", {})
    earlier = {"monitor": "metric", "head_lr": 1.0, "weight_decay": 0.0, "batch_size": 64}
    found = {name: value for name, value in earlier.items() if settings.get(name) == value}
    # What is not written down is as it always is.
    as_ever = {"at": "task", "validate_at": "task", "outlook": []}
    return found | {name: settings.get(name, usual) for name, usual in as_ever.items() if settings}


def model_settings_of_then(folder: str | os.PathLike[str], model: str) -> dict[str, Any]:
    """The settings that the run of a folder began its model of a class with; empty where it has none."""
    known = (read_run(Path(folder)) or {}).get("model")
    if not isinstance(known, dict) or known.get("name") != model:
        return {}
    by_task = ("name", "channels", "static", "outputs", "kind")
    # What is not written down is as it always was.
    usual = {"readout_direct": False} if model == "NeuralCDE" else {}
    return usual | {name: value for name, value in known.items() if name not in by_task}


def known_task(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the run in a folder says of its task; empty where there is none that can be read."""
    try:
        return dict(json.loads((Path(folder) / RUN).read_text())["task"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_log(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The epochs in a run's log, one dictionary each; empty where there is no log."""
    file = Path(folder) / LOG
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def keep_policies(home: Path, *policies: Mapping[str, Any] | None) -> Path:
    """Note the alarm policies that a model had, oldest first, in its history: that of its run, or its own.

    One that stands there last already, or is None, is passed over. Returns the history's file.
    """
    file = (home.parent if (home.parent / RUN).is_file() else home) / POLICIES
    known = file.read_text().splitlines() if file.is_file() else []
    for policy in policies:
        line = json.dumps(policy, sort_keys=True)
        if policy is not None and (not known or known[-1] != line):
            known.append(line)
    replace_file(file, "".join(line + "\n" for line in known))
    return file


def model_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder of the model: that of a run, or the folder itself; a run that has none yet is refused."""
    home = Path(folder)
    if (home / MODEL).is_dir():
        return home / MODEL
    if (home / RUN).is_file():
        log = home / LOG
        epochs = log.read_text().count("\n") if log.is_file() else 0
        raise FitError(
            f"{home} holds a run that is not finished ({epochs} epoch{'s' * (epochs != 1)} done), and no model yet: "
            "start the same fit command again, and it goes on where it was."
        )
    return home


def model_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """The folder of the model of a run; those of all runs, where a folder holds one for each seed."""
    home = Path(folder)
    several = sorted([*home.glob("*/run/model"), *home.glob("*/model")])
    own = model_folder(home)
    return several if several and not (own / "manifest.json").exists() else [own]


def _with_more_epochs(known: dict[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a run, with as many epochs as it is given now, where those are more."""
    own, wanted = (one.get("settings", {}).get("epochs", 0) for one in (known, about))
    if not isinstance(own, int) or own >= wanted:
        return known
    return {**known, "settings": {**known["settings"], "epochs": wanted}}


def _check_same(folder: Path, known: dict[str, Any], about: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(about))
    for part, words in (
        ("task", "of another task"),
        ("model", "of another model"),
        ("settings", "with other settings"),
    ):
        differ = list(_differences(part, known.get(part), now.get(part)))
        # A hash tells a person nothing: it counts where all else is the same.
        told = [(name, old, new) for name, old, new in differ if name != "content"]
        if told:
            each = "; ".join(f"{name} was {old!r}, is {new!r}" for name, old, new in told[:3])
            what = f"{words} ({each})"
        elif differ:
            what = "on other data: streams, labels or splits have changed since"
        else:
            continue
        raise FitError(
            f"{folder} holds a run {what}. Give another folder, or start anew with fresh=True (--fresh)."
        )


def _differences(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Single entries, by name, that two descriptions do not share."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _differences(key, old.get(key), new.get(key))
    elif old != new:
        yield name, old, new


def write_checkpoint(file: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts (anything JSON); whoever looks finds the old file or the new one."""
    held = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    data = write_tensors(held, {"format": FORMAT, "facts": json.dumps(facts)})
    try:
        replace_file(file, data)
    except OSError as error:
        raise FitError(
            f"{file} cannot be written ({error}): make room; the same run then goes on from its last "
            "checkpoint."
        ) from error


def read_checkpoint(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts of a checkpoint; None where there is none."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        size = struct.unpack("<Q", data[:8])[0]
        if size > min(_LARGEST_HEADER, len(data)):
            raise ValueError("its header is longer than it is")
        about = json.loads(data[8 : 8 + size])["__metadata__"]
        if about.get("format") != FORMAT:
            raise ValueError(f"it says {about.get('format')!r}, not {FORMAT!r}")
        return read_tensors(data), json.loads(about["facts"])
    except Exception as error:  # safetensors, json and struct each raise their own
        raise FitError(
            f"{file} is not a checkpoint that can be read ({error}): delete it to start anew."
        ) from error
