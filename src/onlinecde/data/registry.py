"""The data sets by name: what each is, where it comes from, and what loads it."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onlinecde.data.errors import DataError


@dataclass(frozen=True)
class Download:
    """One file at its official address; `sha256` only where its publisher gives one."""

    file: str
    url: str
    sha256: str | None = None


@dataclass(frozen=True)
class DataSet:
    """One data set: a page of facts, and the loader by name, imported when it is first needed.

    The loader is `function(paths: tuple[Path, ...], *, task: str, seed: int, **settings) -> Task`;
    its keyword arguments beyond `task` and `seed` are the settings of the data set.
    """

    name: str
    what: str
    licence: str
    address: str
    """The page to read and to cite."""
    loader: str
    """`module:function`."""
    tasks: tuple[str, ...] = ("default",)
    """The first is what `load` takes where none is named."""
    places: tuple[str, ...] = ()
    """Glob patterns, `|` between those that belong together, in the data folder; the first whose first
    pattern has a match is read. A folder called as the data set comes before them all."""
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    """What to download and where to put it, where `fetch` cannot: accounts, agreements."""
    small_search: bool = False
    """Whether the paper searched smaller Neural CDEs on it than elsewhere."""
    report: str = ""
    """`module:function`, called as the loader less `task` and `seed`: something with a `text()`."""

    def function(self) -> Callable[..., Any]:
        """Import and return the loader."""
        return imported(self.loader)

    def settings(self) -> dict[str, Any]:
        """The settings a user may change, with their defaults."""
        parameters = inspect.signature(self.function()).parameters.values()
        return {
            p.name: p.default
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name not in ("task", "seed")
        }

    def instructions(self, data_dir: Path) -> str:
        """What to download by hand, and where exactly to put it; empty where `fetch` does it."""
        return self.by_hand.replace("<data folder>", str(data_dir))

    def locate(self, data_dir: Path) -> tuple[Path, ...]:
        """Find its files in the data folder; the error says how to get them."""
        if not self.places:
            return ()
        if (own := data_dir / self.name).is_dir() and any(own.iterdir()):
            return (own,)
        for place in self.places:
            found = [sorted(data_dir.glob(pattern)) for pattern in place.split("|")]
            if found[0]:
                return tuple(path for paths in found for path in paths)
        remedy = self.instructions(data_dir) or (
            f"Run `onlinecde data fetch {self.name}`, or put one of "
            f"{', '.join(self.places)} there ({self.address})."
        )
        raise DataError(f"'{self.name}' is not in the data folder {data_dir}. {remedy}")


def imported(name: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _physionet(path: str) -> str:
    return f"https://physionet.org/files/{path}"


def _zenodo(record: int, name: str) -> tuple[Download, ...]:
    base = f"https://zenodo.org/records/{record}/files/{name}"
    return tuple(Download(f"{name}_{s}.ts", f"{base}_{s}.ts") for s in ("TRAIN", "TEST"))


DATA_SETS: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        DataSet(
            name="simulated-ward",
            what="a simulated ward: irregular vital signs and laboratory values, true risk known",
            licence="none needed: it is generated",
            address="docs/data.md",
            loader="onlinecde.data.ward:load",
            tasks=("deterioration",),
        ),
        DataSet(
            name="character-trajectories",
            what="pen tip velocities of 20 written characters (UEA), 3 channels, 60 to 182 rows",
            licence="CC BY 4.0",
            address="https://www.timeseriesclassification.com/description.php?Dataset=CharacterTrajectories",
            loader="onlinecde.data.sets.character_trajectories:load",
            tasks=("character",),
            places=(
                "CharacterTrajectories.zip",
                "CharacterTrajectories_T*.ts",
                "CharacterTrajectories",
            ),
            downloads=(
                Download(
                    "CharacterTrajectories.zip",
                    "https://www.timeseriesclassification.com/aeon-toolkit/CharacterTrajectories.zip",
                ),
            ),
        ),
        DataSet(
            name="beijing-pm25",
            what="hourly air and weather at 12 stations (Monash TSER), highest PM2.5 of the day",
            licence="CC BY 4.0",
            address="https://zenodo.org/records/3902671",
            loader="onlinecde.data.sets.beijing:load",
            tasks=("pm25",),
            places=("BeijingPM25Quality.zip", "BeijingPM25Quality_T*.ts", "BeijingPM25Quality"),
            downloads=_zenodo(3902671, "BeijingPM25Quality"),
        ),
        DataSet(
            name="beijing-pm10",
            what="hourly air and weather at 12 stations (Monash TSER), highest PM10 of the day",
            licence="CC BY 4.0",
            address="https://zenodo.org/records/3902667",
            loader="onlinecde.data.sets.beijing:load",
            tasks=("pm10",),
            places=("BeijingPM10Quality.zip", "BeijingPM10Quality_T*.ts", "BeijingPM10Quality"),
            downloads=_zenodo(3902667, "BeijingPM10Quality"),
        ),
        DataSet(
            name="speech-commands",
            what="one-second recordings of ten spoken words (v0.02), 10 MFCCs, 89 rows",
            licence="CC BY 4.0",
            address="https://arxiv.org/abs/1804.03209",
            loader="onlinecde.data.sets.speech_commands:load",
            tasks=("word",),
            places=("speech_commands_v0.02*.tar.gz", "speech_commands*.zip", "speech_commands*"),
            downloads=(
                Download(
                    "speech_commands_v0.02.tar.gz",
                    "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
                    # As published in torchaudio and in TensorFlow Datasets.
                    "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
                ),
            ),
        ),
        DataSet(
            name="physionet-2019",
            what="intensive care by the hour (Challenge 2019), sepsis label at every row",
            licence="CC BY 4.0",
            address="https://physionet.org/content/challenge-2019/1.0.0/",
            loader="onlinecde.data.sets.physionet_2019:load",
            tasks=("sepsis",),
            places=("*training_set[AB].zip", "training_set[AB]", "training", "challenge-2019*"),
            downloads=tuple(
                Download(
                    f"training_set{s}.zip",
                    f"https://archive.physionet.org/users/shared/challenge-2019/training_set{s}.zip",
                )
                for s in "AB"
            ),
        ),
        DataSet(
            name="physionet-2012",
            what="48 h of intensive care at irregular times (Challenge 2012), in-hospital death",
            licence="ODC-BY 1.0",
            address="https://physionet.org/content/challenge-2012/1.0.0/",
            loader="onlinecde.data.sets.physionet_2012:load",
            tasks=("mortality",),
            places=(
                "physionet2012_set-[abc].zip|physionet2012_field_splits.json",
                "set-[abc].tar.gz|Outcomes-[abc].txt|physionet2012_field_splits.json",
                "set-[abc].zip|Outcomes-[abc].txt|physionet2012_field_splits.json",
                "set-[abc]|Outcomes-[abc].txt|physionet2012_field_splits.json",
                "challenge-2012*",
            ),
            downloads=tuple(
                Download(file, _physionet(f"challenge-2012/1.0.0/{file}"))
                for s in "abc"
                for file in (f"set-{s}.tar.gz", f"Outcomes-{s}.txt")
            ),
        ),
        DataSet(
            name="mimic-iv",
            what="intensive care stays of a Boston hospital: mortality, length of stay, sepsis",
            licence="PhysioNet credentialed health data licence 1.5.0 (demo: ODbL 1.0)",
            address="https://physionet.org/content/mimiciv/",
            loader="onlinecde.data.mimic:load",
            report="onlinecde.data.mimic:report",
            small_search=True,
            tasks=("mortality", "los", "sepsis"),
            places=("mimiciv*", "mimic-iv-[0-9]*", "mimic-iv-demo"),
            by_hand=(
                "MIMIC-IV needs a PhysioNet account, the CITI course 'Data or Specimens Only "
                "Research' and a signed data use agreement. Then download the folders hosp/ and "
                "icu/ (csv.gz, any release from 1.0 to 3.1) from "
                "https://physionet.org/content/mimiciv/ "
                "and put them into <data folder>/mimic-iv/hosp and <data folder>/mimic-iv/icu. "
                "Release 1.0 also needs core/. The demo of 100 patients is open: "
                "https://physionet.org/content/mimic-iv-demo/."
            ),
        ),
        DataSet(
            name="meds",
            what="any data set in the MEDS standard: subject_id, time, code, numeric_value",
            licence="that of the data set",
            address="https://medical-event-data-standard.github.io/",
            loader="onlinecde.data.meds:load",
            tasks=("labels",),
            places=("meds", "*meds*.parquet"),
            by_hand=(
                "Put the data set's folder (data/*/*.parquet, with its label file) at "
                "<data folder>/meds."
            ),
        ),
    )
}


def data_set(name: str) -> DataSet:
    """Look a data set up by name; case and hyphens do not matter."""
    found = {_plain(known): entry for known, entry in DATA_SETS.items()}.get(_plain(name))
    if found is None:
        raise DataError(f"there is no data set '{name}': choose one of {', '.join(DATA_SETS)}.")
    return found


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def default_data_dir() -> Path:
    """Where raw data is looked for and fetched to: `$ONLINECDE_DATA`, else `~/.onlinecde/data`."""
    return Path(os.environ.get("ONLINECDE_DATA") or Path.home() / ".onlinecde" / "data")
