"""Options that several commands share, each declared once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.command_line import address_of, named_values

if TYPE_CHECKING:
    from onlinecde.data import Task
    from onlinecde.training import FitSettings

LABELS_PER = ("stream", "row", "time", "interval", "event", "forecast")
FORECAST = ("--forecast", "--horizons", "--within")
TASK, TABLE, MODEL, TRAINING = "A prepared task", "Your own tables", "Model", "Training"
UPDATE = "Going on from a model"

Text = str | None
Number = int | None
Place = Path | None
Several = list[str] | None


def option(text: str, panel: str | None, *names: str, **more: Any) -> Any:
    """An option with its help under a heading."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


@dataclass(frozen=True)
class TaskOptions:
    """The task to learn: a prepared one by name, or one's own tables."""

    task: Annotated[
        Text, option("Its name: simulated-ward, mimic-iv/sepsis, ... (`data list`).", TASK)
    ] = None
    task_setting: Annotated[
        Several, option("NAME=VALUE of the data set (`data info`); repeatable.", TASK)
    ] = None
    data_dir: Annotated[Place, option("Folder of raw data.", TASK)] = None
    events: Annotated[Place, option("Series: CSV, TSV, Parquet or Arrow, long or wide.", TABLE)] = (
        None
    )
    stream: Annotated[Text, option("Column that names the stream.", TABLE)] = None
    time: Annotated[Text, option("Column of times: numbers or timestamps.", TABLE)] = None
    channel: Annotated[Text, option("Column that names the channel, in a long table.", TABLE)] = (
        None
    )
    value: Annotated[Text, option("Column of values, in a long table.", TABLE)] = None
    channel_column: Annotated[
        Several,
        option(
            "Column that is a channel, in a wide table; repeatable. Default: all without another "
            "role.",
            TABLE,
        ),
    ] = None
    labels: Annotated[
        Place, option("Table of labels; default: they stand in the events.", TABLE)
    ] = None
    label: Annotated[
        Several,
        option(
            "Column of the label; per stream, several for several outputs; for intervals start, "
            "then end.",
            TABLE,
        ),
    ] = None
    label_per: Annotated[
        Text,
        option(
            "What a label is for: stream, row, time, interval, event or forecast. Default: time with "
            "--label-times, event with --event-time, forecast with --forecast, else stream.",
            TABLE,
        ),
    ] = None
    label_times: Annotated[
        Text,
        option("Column of --labels of the time of each label, with a row there or not.", TABLE),
    ] = None
    label_stands: Annotated[
        Text,
        option(
            "How long a label per row or time holds, until the next, as 90min. Default: for that "
            "instant alone.",
            TABLE,
        ),
    ] = None
    interval_label: Annotated[
        Text,
        option(
            "Column of the label of each interval; outside of them nothing is known then.", TABLE
        ),
    ] = None
    event_time: Annotated[
        Text,
        option(
            "Column of the time of the event, one line a stream, empty where none came: in --labels, "
            "else in --static or the events.",
            TABLE,
        ),
    ] = None
    censored: Annotated[
        Text,
        option(
            "Column beside --event-time: until when one would be known of, where none came.", TABLE
        ),
    ] = None
    horizon: Annotated[
        Text,
        option(
            "With --event-time: the label is whether it comes within this, as 12h; without it, when "
            "it comes (time-to-event).",
            TABLE,
        ),
    ] = None
    forecast: Annotated[
        Text,
        option(
            "Channels to forecast, as creatinine,heart_rate: labels are in the events. Of a prepared task, too.",
            TABLE,
        ),
    ] = None
    horizons: Annotated[
        Text, option("With --forecast: how far ahead, as 6,12,24 or 30min,2h.", TABLE)
    ] = None
    within: Annotated[
        Text,
        option(
            "With --forecast: how far from then an observation may lie, one length or one for each "
            "horizon. Default: a quarter of it.",
            TABLE,
        ),
    ] = None
    followed_until: Annotated[
        Text,
        option(
            "Column of the time until which a stream is followed: asked about no later. Default: its "
            "last row or label, its event or censoring.",
            TABLE,
        ),
    ] = None
    static: Annotated[Place, option("Table of static features, one line a stream.", TABLE)] = None
    static_column: Annotated[
        Several,
        option(
            "Column that is a static feature; repeatable. Default: all of --static without another "
            "role.",
            TABLE,
        ),
    ] = None
    subject: Annotated[
        Text, option("Column whose streams stay in one split, as those of a patient.", TABLE)
    ] = None
    time_unit: Annotated[
        str, option("Unit timestamps are turned into; of times that are numbers, its name.", TABLE)
    ] = "hours"
    duplicates: Annotated[
        str, option("Two values at one instant: refuse, first, last or mean.", TABLE)
    ] = "refuse"
    kind: Annotated[
        Text,
        option(
            "binary, multiclass, multilabel, regression or time-to-event; default: by the labels; with "
            "--forecast it is forecast.",
            TABLE,
        ),
    ] = None
    metric: Annotated[Text, option("What the task is judged by.", TABLE)] = None
    split_seed: Annotated[int, option("Seed of the train/validation/test split.", TABLE, min=0)] = 0
    split_by: Annotated[
        Text,
        option(
            "Split by time (oldest streams train, newest test), or by a column: of train, validation, test, or of "
            "times. Default: by chance.",
            TABLE,
        ),
    ] = None
    splits: Annotated[
        Place,
        option("Table of splits: the stream column and --split-by (default: split).", TABLE),
    ] = None
    windows: Annotated[
        Text,
        option(
            "Cut long streams into windows of this length, as 7d, each a stream; split by time unless told otherwise.",
            TABLE,
        ),
    ] = None
    category: Annotated[
        Several,
        option(
            "Channel of text: becomes a channel of 0 and 1 a category, CHANNEL=CATEGORY; repeatable.",
            TABLE,
        ),
    ] = None
    labels_stream: Annotated[
        Text, option("What --stream is called in --labels, where otherwise.", TABLE)
    ] = None
    static_stream: Annotated[
        Text, option("What --stream is called in --static, where otherwise.", TABLE)
    ] = None

    def source(self) -> dict[str, Any]:
        """Where the task comes from, as a run keeps it; refused where it takes more, or less, to say so."""
        from onlinecde.training import FitError
        from onlinecde.training.task_source import registry_source, table_source

        if (self.task is None) == (self.events is None):
            raise FitError(
                "give either --task NAME, or --events FILE with --stream, --time and --label."
            )
        if self.task is not None:
            self._check_forecast()
            for name, given in self._of_labels().items():
                if given and not (name in FORECAST and self.forecast):
                    raise FitError(
                        f"{name} is for tables of your own (--events): a prepared task has its labels, and settings "
                        "(`onlinecde data info`, --task-setting)."
                    )
            source = registry_source(self.task, named_values(self.task_setting))
            return source | ({"forecast": self._forecast()} if self.forecast else {})
        assert self.events is not None
        per = self._per()
        needed = (("--stream", self.stream), ("--time", self.time), ("--label", self.label))
        for name, given in needed:
            if not given and (name != "--label" or per not in ("event", "forecast")):
                raise FitError(
                    f"{name} is missing: tables of your own need --stream, --time and --label "
                    "(or --event-time, or --forecast)."
                )
        if self.channel is not None and self.channel_column:
            raise FitError(
                "--channel-column is for wide tables, and --channel says that this one is long: drop "
                "one of them."
            )
        return table_source(
            self.events,
            labels=self.labels,
            label=list(self.label or []),
            label_per=per,
            label_times=self.label_times,
            label_stands=self.label_stands,
            interval_label=self.interval_label,
            event_time=self.event_time,
            censored=self.censored,
            horizon=self.horizon,
            followed_until=self.followed_until,
            **self._forecast("forecast"),
            stream=self.stream,
            time=self.time,
            channel=self.channel,
            value=self.value,
            channels=self.channel_column or None,
            static=self.static,
            static_columns=self.static_column or None,
            subject=self.subject,
            time_unit=self.time_unit,
            duplicates=self.duplicates,
            kind=self.kind,
            metric=self.metric,
            seed=self.split_seed,
            split_by=self.split_by,
            splits=self.splits,
            windows=self.windows,
            categories=self.category or None,
            labels_stream=self.labels_stream,
            static_stream=self.static_stream,
        )

    def new_data(self) -> dict[str, Any]:
        """New data for a model that goes on: files, or a prepared task; refused where it says more of them."""
        from onlinecde.training import FitError
        from onlinecde.training.task_source import registry_source

        files = {"events": self.events, "labels": self.labels, "static": self.static}
        if (self.task is None) == (self.events is None):
            raise FitError("--from goes on from new data: give --events FILE, or --task NAME.")
        taken = ("task", "task_setting", "data_dir", *files)
        for one in fields(self):
            if one.name not in taken and getattr(self, one.name) != one.default:
                raise FitError(
                    f"--{one.name.replace('_', '-')} is as the run of --from was fitted with it, for an update has the "
                    "same columns and labels: leave it out."
                )
        if self.task is not None:
            return registry_source(self.task, named_values(self.task_setting))
        return files

    def _forecast(self, channels: str = "channels") -> dict[str, Any]:
        """What is forecast, as a run keeps it, the channels under a name; empty where nothing is."""
        if not self.forecast:
            return {}
        given = {channels: self.forecast, "horizons": self.horizons, "within": self.within}
        return {
            name: [one.strip() for one in text.split(",")]
            for name, text in given.items()
            if text is not None
        }

    def _of_labels(self) -> dict[str, Text]:
        """What says more of the labels of own tables."""
        return {
            "--label-per": self.label_per,
            "--label-times": self.label_times,
            "--label-stands": self.label_stands,
            "--interval-label": self.interval_label,
            "--event-time": self.event_time,
            "--censored": self.censored,
            "--horizon": self.horizon,
            "--followed-until": self.followed_until,
            "--forecast": self.forecast,
            "--horizons": self.horizons,
            "--within": self.within,
        }

    def _per(self) -> str:
        """What a label is for; options that belong to another kind of label are refused."""
        from onlinecde.training import FitError

        self._check_forecast()
        implied = "time" if self.label_times else "event" if self.event_time else None
        implied = "forecast" if self.forecast else implied
        per = self.label_per or implied or "stream"
        if per not in LABELS_PER:
            raise FitError(f"--label-per is {per!r}: choose one of {', '.join(LABELS_PER)}.")
        kinds = {
            "--label-times": ("time",),
            "--label-stands": ("row", "time"),
            "--interval-label": ("interval",),
            **dict.fromkeys(("--event-time", "--censored", "--horizon"), ("event",)),
            "--label": LABELS_PER[:-2],
            **dict.fromkeys(FORECAST, ("forecast",)),
            "--followed-until": LABELS_PER,
        }
        for name, given in {**self._of_labels(), "--label": self.label}.items():
            if given and per not in kinds.get(name, (per,)):
                raise FitError(
                    f"{name} is for labels per {' or '.join(kinds[name])}, and these are per {per}: drop it, or say "
                    "otherwise with --label-per, --label-times or --event-time."
                )
        if per in ("time", "event", "forecast") and implied != per:
            name = {"time": "--label-times", "event": "--event-time", "forecast": "--forecast"}[per]
            raise FitError(f"{name} is missing: labels per {per} need the column of their times.")
        return per

    def _check_forecast(self) -> None:
        """Refuse horizons without channels, and channels without horizons."""
        from onlinecde.training import FitError

        if bool(self.forecast) != bool(self.horizons) or (self.within and not self.forecast):
            raise FitError(
                "--forecast names channels and --horizons says how far ahead, as --forecast creatinine --horizons "
                "12h,24h: give both."
            )


@dataclass(frozen=True)
class UpdateOptions:
    """A model to go on from, and where the data it was fitted on is."""

    parent: Annotated[
        Place,
        option(
            "Run whose model goes on learning from new --events (and --labels, --static), or --task; columns and "
            "labels are that run's.",
            UPDATE,
            "--from",
        ),
    ] = None
    rehearsal: Annotated[
        float | None,
        option("Share of the old training streams that is taught again. Default: 0.5.", UPDATE),
    ] = None
    old_events: Annotated[Place, option("The run's own events, if they have moved.", UPDATE)] = None
    old_labels: Annotated[Place, option("Its labels, if they have moved.", UPDATE)] = None
    old_static: Annotated[Place, option("Its static features, if they have moved.", UPDATE)] = None

    @property
    def given(self) -> dict[str, Any]:
        """What is given of it, for `update`."""
        files = {"events": self.old_events, "labels": self.old_labels, "static": self.old_static}
        files = {role: file for role, file in files.items() if file is not None}
        share = {} if self.rehearsal is None else {"rehearsal": self.rehearsal}
        return share | ({"old_files": files} if files else {})


@dataclass(frozen=True)
class ModelOptions:
    """A model by name, and its settings."""

    model: Annotated[
        Text,
        option(
            "neural-cde (default), gru, gru-dt, gru-dt-intensity, gru-d or ode-rnn.",
            MODEL,
        ),
    ] = None
    control: Annotated[
        Text,
        option(
            "rectilinear, linear, hermite or natural_cubic; default: what is recommended.", MODEL
        ),
    ] = None
    counts: Annotated[
        bool | None,
        option("Whether observation counts are channels.", MODEL, "--counts/--no-counts"),
    ] = None
    hidden: Annotated[Number, option("Size of the state.", MODEL)] = None
    width: Annotated[Number, option("Width of the vector field's layers.", MODEL)] = None
    depth: Annotated[Number, option("Layers of the vector field.", MODEL)] = None
    solver: Annotated[Text, option("rk4, heun, midpoint, euler, dopri5, ...", MODEL)] = None
    precision: Annotated[
        Text,
        option(
            "highest (default) or high, of a Neural CDE on a GPU: high is faster and rounds the factors "
            "of products to half precision (sums stay float32), so that states are right to 3 or 4 "
            "digits. On a CPU both are float32.",
            MODEL,
        ),
    ] = None
    model_setting: Annotated[
        Several, option("NAME=VALUE, any other argument of the model; repeatable.", MODEL)
    ] = None

    @property
    def name(self) -> str:
        return self.model or "neural-cde"

    def settings(self) -> dict[str, Any]:
        """What is given of the model's settings."""
        sizes = {
            "control": self.control,
            "counts": self.counts,
            "hidden": self.hidden,
            "width": self.width,
            "depth": self.depth,
            "method": self.solver,
            "precision": self.precision,
        }
        given = {name: value for name, value in sizes.items() if value is not None}
        return given | named_values(self.model_setting)


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained."""

    recipe: Annotated[
        str,
        option(
            "Where training settings start from: default or paper; of `tune` clean, too.", TRAINING
        ),
    ] = "default"
    epochs: Annotated[
        Number, option("At most this many; raised on a finished run, it goes on.", TRAINING)
    ] = None
    batch_size: Annotated[Number, option("Streams in a batch.", TRAINING)] = None
    lr: Annotated[float | None, option("Learning rate.", TRAINING)] = None
    class_weights: Annotated[Text, option("none or balanced.", TRAINING)] = None
    setting: Annotated[
        Several, option("NAME=VALUE, any other training setting; repeatable.", TRAINING)
    ] = None
    seed: Annotated[
        Number,
        option("Of weights and batches (default 0); in a search, of its trials, too.", TRAINING),
    ] = None
    device: Annotated[str, option("auto, cpu or cuda.", TRAINING)] = "auto"

    def changes(self) -> dict[str, Any]:
        """What is given of the training settings."""
        given = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "lr": self.lr,
            "class_weights": self.class_weights,
            "seed": self.seed,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return given | named_values(self.setting)

    def start(self) -> FitSettings | None:
        """The settings of the recipe; None for the default, which fits the task."""
        from onlinecde.training import PAPER, FitError

        if self.recipe not in ("default", "paper"):
            raise FitError(f"--recipe is {self.recipe!r}: choose 'default' or 'paper'.")
        return PAPER if self.recipe == "paper" else None


@dataclass(frozen=True)
class ClusterOptions:
    """Processes that work together, here or on a Ray cluster."""

    ray: Annotated[
        Text,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help="Work on a Ray cluster: HOST:PORT, auto, or, without an address, this machine's cores.",
        ),
    ] = None
    workers: Annotated[
        Number,
        typer.Option(
            "--workers",
            "--jobs",
            min=1,
            help="At the same time: of --ray, processes that share each batch of a fit; else trials or cells.",
        ),
    ] = None

    @property
    def here(self) -> int:
        """How many processes to start on this machine, without a cluster."""
        return (self.workers or 1) if self.ray is None else 1

    @property
    def on_ray(self) -> dict[str, Any]:
        """What a function of `onlinecde.scale.ray` takes beside its namesake's arguments."""
        assert self.ray is not None
        return {"address": address_of(self.ray), "workers": self.workers}


@dataclass(frozen=True)
class JudgedOptions:
    """The task and split a saved model is judged on: default, the test split of what it was fitted on."""

    task: Annotated[
        Text, typer.Option(help="Prepared task; default: the one the model was fitted on.")
    ] = None
    task_setting: Annotated[
        Several, typer.Option(help="NAME=VALUE of the data set, with --task; repeatable.")
    ] = None
    events: Annotated[
        Place, typer.Option(help="Own tables: series in place of those it was fitted on.")
    ] = None
    labels: Annotated[Place, typer.Option(help="Own tables: their labels.")] = None
    static: Annotated[Place, typer.Option(help="Own tables: their static features.")] = None
    splits: Annotated[Place, typer.Option(help="Own tables: their table of splits, as it was.")] = (
        None
    )
    split: Annotated[
        str,
        typer.Option(help="train, validation or test; with --task or tables: all, every stream."),
    ] = "test"
    data_dir: Annotated[Place, typer.Option(help="Folder of raw data.")] = None

    @property
    def tables(self) -> dict[str, Path]:
        """Files given in place of a model's own, by the names of their options."""
        given = {name: getattr(self, name) for name in ("events", "labels", "static", "splits")}
        return {name: file for name, file in given.items() if file is not None}

    @property
    def elsewhere(self) -> bool:
        """Whether what is judged is named, and need not be what the model was fitted on."""
        return self.task is not None or bool(self.tables)

    def files(self, home: Path) -> dict[str, Any]:
        """Own tables that are judged, by the names of their options, and their stream columns; empty for others."""
        from onlinecde.artifacts import read_manifest

        source = read_manifest(home).extra.get("task")
        if self.task is not None or not isinstance(source, dict) or source.get("source") != "table":
            return {}
        return {**source["arguments"], **self.tables}

    def load(self, home: Path) -> Task:
        """The task for the model of a folder; what is worth knowing of it is said."""
        from onlinecde.training.judged_task import judged_task

        settings = named_values(self.task_setting)
        task, notes = judged_task(
            home, self.task, settings, data_dir=self.data_dir, tables=self.tables
        )
        if self.tables and list(task.splits) == ["test"]:
            typer.echo(
                f"{task.name} is not what the model was fitted on: all its {len(task.series)} streams "
                "are judged, and none of them should have been trained on."
            )
        for note in notes:
            typer.echo(f"note: {note}", err=True)
        return self._whole(task) if self.split == "all" else task

    def _whole(self, task: Task) -> Task:
        """The task with all its streams in one split, where they are not those that the model was fitted on."""
        from dataclasses import replace

        import torch

        if self.task is None and list(task.splits) != ["test"]:
            raise ValueError(
                "--split all judges streams that the model was trained on: name another task with --task, or give "
                "tables of other streams."
            )
        return replace(task, splits={"all": torch.arange(len(task.series))})
