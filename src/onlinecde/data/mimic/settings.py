"""`MimicSettings`: every choice that the paper, its code and the literature make differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from onlinecde.data.errors import DataError

VITAL_SIGNS: tuple[str, ...] = (
    "dbp", "dbp_ni", "heart_rate", "mbp", "mbp_ni", "o2_flow", "resp_rate", "sbp", "spo2",
    "temperature",
)  # fmt: skip
"""The paper's 10 vital signs; `_ni` is measured with a cuff."""

LABORATORY: tuple[str, ...] = (
    "alp", "ast", "baseexcess", "bicarbonate_bg", "bilirubin_direct", "bilirubin_total", "bun",
    "calcium", "chloride", "creatinine", "fibrinogen", "fio2", "glucose", "glucose_bg",
    "hematocrit", "hemoglobin", "lactate", "pco2", "ph", "platelet", "po2", "potassium_bg", "ptt",
    "so2", "sodium", "troponin", "wbc",
)  # fmt: skip
"""The paper's 27 laboratory values; `_bg` comes from a blood gas analyser."""

Troponin = Literal["i", "t"]
AntibioticSource = Literal["inputevents", "prescriptions", "both"]


@dataclass(frozen=True)
class MimicSettings:
    """How MIMIC-IV becomes tasks; the defaults are `clean`, `paper()` is what the paper's code did.

    Change one choice with `dataclasses.replace`. docs/mimic.md discusses each of them.

    >>> MimicSettings.paper().los_rule, MimicSettings.clean().los_rule
    ('ended by 24 h', 'stay of 24 to 72 h')
    """

    # Rows.
    merge_minutes: float = 2.0
    """Readings closer together than this become one row, at the time of the last of them."""
    merge_span: Literal["chain", "window"] = "window"
    """How far merging reaches: "chain" goes on while gaps are small, however long that lasts;
    "window" cuts a chain into rows no wider than `merge_minutes`."""
    troponin: Troponin = "t"
    """Which troponin is the channel "troponin". Type I is hardly ever measured in MIMIC-IV."""
    hours_after_discharge: float = 0.0
    """Readings count until this long after the ICU discharge."""
    ethnicity: Literal["code", "groups"] = "groups"
    """One column with a number for each description, or one column for each of six groups."""
    static_hours: float = 24.0
    """Height and weight count if charted by this hour of the stay."""

    # Cohort.
    length_by: Literal["stay", "readings"] = "stay"
    """What `hours_least` and `hours_most` bound: ICU discharge, or the last reading."""
    hours_least: float = 4.0
    hours_most: float = 72.0
    rows_least: int = 4
    """Readings at so many times or more, or the stay is left out."""
    monitored_run: int = 0
    """Leave out stays with so many gaps in a row under `merge_minutes` (0: none is left out)."""
    split_by: Literal["subject", "stay"] = "subject"
    """What is never divided between training and test."""

    # Length of stay.
    los_rule: Literal["stay of 24 to 72 h", "ended by 24 h"] = "stay of 24 to 72 h"
    """Who is in the task: as the text says, or stays without a reading after `los_hours`."""
    los_hours: float = 24.0
    """What is seen: the readings until this hour."""
    los_rows_least: int = 4

    # Infection.
    antibiotics_from: AntibioticSource = "both"
    """Doses given in the ICU (inputevents), orders of the hospital (prescriptions), or both."""
    antivirals: bool = False
    """Count antivirals and antifungals too, which MIMIC-IV files under antibiotics."""
    doses_hours: float = 96.0
    """An antibiotic counts if a further dose follows within this time."""
    cultures_of: Literal["subject", "admission"] = "subject"
    """Which cultures may go with an antibiotic; the admission is not recorded for all of them."""
    antibiotic_hours_before_culture: float = 24.0
    antibiotic_hours_after_culture: float = 72.0

    # SOFA and the onset of sepsis.
    ventilation_from: Literal["charts", "procedures", "both"] = "both"
    """Invasive ventilation from charted devices and modes, from procedures, or from both."""
    sofa_hours_before: float = 48.0
    sofa_hours_after: float = 24.0
    """SOFA must rise from so long before the suspicion of infection to so long after it."""
    sofa_rise: int = 2
    sofa_baseline: Literal["first", "lowest", "zero"] = "first"
    """What SOFA rises from: the first score of the window, the lowest so far, or 0."""
    sofa_stamp: Literal["start", "end"] = "end"
    """The time of an hourly score: a score is known at the end of its hour."""
    onset_rule: Literal["earlier", "later", "sofa", "suspicion"] = "earlier"
    """The onset: the earlier or the later of suspicion and SOFA rise, or one of the two."""

    # Sepsis task.
    onset_at: Literal["exact", "nearest row"] = "exact"
    """Count from the onset itself, or from the row nearest to it."""
    onset_least_hours: float = 4.0
    """Stays with an onset before this are left out."""
    sepsis_hours_before: float = 12.0
    sepsis_hours_after: float = 6.0
    """The label is 1 from so long before the onset to so long after it, where the stay is cut."""
    drop_antibiotics_before_icu: bool = True
    """Leave out stays with an antibiotic in the same admission before the ICU."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise DataError(
                    f"MIMIC-IV setting {name} is {getattr(self, name)!r}: choose one of "
                    f"{list(choices)}."
                )
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) and not 0 <= value < float("inf"):
                raise DataError(f"MIMIC-IV setting {field.name} is {value}: give 0 or more.")
        if self.merge_minutes == 0:
            raise DataError("MIMIC-IV setting merge_minutes is 0: give a positive number.")
        if self.hours_least > self.hours_most:
            raise DataError(
                f"MIMIC-IV settings ask for stays of at least {self.hours_least:g} and at most "
                f"{self.hours_most:g} hours: swap hours_least and hours_most."
            )

    @classmethod
    def clean(cls) -> MimicSettings:
        """The text of the paper and of Sepsis-3, without the slips."""
        return cls()

    @classmethod
    def paper(cls) -> MimicSettings:
        """What the paper's code did, slips included."""
        return cls(
            merge_span="chain",
            troponin="i",
            hours_after_discharge=6.0,
            ethnicity="code",
            static_hours=10_000.0,  # whenever: no stay is as long
            length_by="readings",
            monitored_run=5,
            split_by="stay",
            los_rule="ended by 24 h",
            los_rows_least=5,
            antibiotics_from="inputevents",
            antivirals=True,
            cultures_of="admission",
            ventilation_from="charts",
            sofa_stamp="start",
            onset_rule="sofa",
            onset_at="nearest row",
        )

    @classmethod
    def named(cls, protocol: str) -> MimicSettings:
        """The settings of a protocol by name, "paper" or "clean"."""
        if protocol not in ("paper", "clean"):
            raise DataError(f"the protocol is {protocol!r}: choose 'paper' or 'clean'.")
        return cls.paper() if protocol == "paper" else cls.clean()

    @property
    def channels(self) -> tuple[str, ...]:
        """The 37 channels: vital signs, then laboratory values."""
        return VITAL_SIGNS + LABORATORY

    def as_dict(self) -> dict[str, Any]:
        """Every setting by name."""
        return asdict(self)


_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "merge_span": ("chain", "window"),
    "troponin": ("i", "t"),
    "ethnicity": ("code", "groups"),
    "length_by": ("stay", "readings"),
    "split_by": ("subject", "stay"),
    "los_rule": ("stay of 24 to 72 h", "ended by 24 h"),
    "antibiotics_from": ("inputevents", "prescriptions", "both"),
    "cultures_of": ("subject", "admission"),
    "ventilation_from": ("charts", "procedures", "both"),
    "sofa_baseline": ("first", "lowest", "zero"),
    "sofa_stamp": ("start", "end"),
    "onset_rule": ("earlier", "later", "sofa", "suspicion"),
    "onset_at": ("exact", "nearest row"),
}
