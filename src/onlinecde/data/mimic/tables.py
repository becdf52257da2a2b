"""Which tables and columns of MIMIC-IV are read, and what is done where an optional one is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Type = Literal["BIGINT", "INTEGER", "DOUBLE", "VARCHAR", "TIMESTAMP"]


@dataclass(frozen=True)
class Column:
    """A column to read: its names in the releases (newest first) and the type it is read as."""

    names: tuple[str, ...]
    type: Type
    without: str | None = None
    """None: the column is needed. Else what is done where no release name is there."""

    @property
    def name(self) -> str:
        """What it is called here: the name in the newest release."""
        return self.names[0]


def _column(names: str, type: Type, without: str | None = None) -> Column:
    return Column(tuple(names.split("|")), type, without)


TABLES: dict[str, tuple[Column, ...]] = {
    "patients": (
        _column("subject_id", "BIGINT"),
        _column("gender", "VARCHAR"),
        _column("anchor_age", "INTEGER"),
        _column("anchor_year", "INTEGER"),
    ),
    "admissions": (
        _column("subject_id", "BIGINT"),
        _column("hadm_id", "BIGINT"),
        _column("admittime", "TIMESTAMP"),
        _column("hospital_expire_flag", "INTEGER"),
        _column("race|ethnicity", "VARCHAR"),
    ),
    "icustays": (
        _column("subject_id", "BIGINT"),
        _column("hadm_id", "BIGINT"),
        _column("stay_id", "BIGINT"),
        _column("intime", "TIMESTAMP"),
        _column("outtime", "TIMESTAMP"),
    ),
    "chartevents": (
        _column("stay_id", "BIGINT"),
        _column("charttime", "TIMESTAMP"),
        _column("itemid", "INTEGER"),
        _column("valuenum", "DOUBLE"),
        _column("value", "VARCHAR", "charted texts (devices, ventilator modes) are not used"),
    ),
    "labevents": (
        _column("subject_id", "BIGINT"),
        _column("charttime", "TIMESTAMP"),
        _column("itemid", "INTEGER"),
        _column("valuenum", "DOUBLE"),
        _column("value", "VARCHAR", "the kind of specimen is not known"),
        _column("specimen_id", "BIGINT", "values of one patient and minute are one specimen"),
    ),
    "inputevents": (
        _column("stay_id", "BIGINT"),
        _column("starttime", "TIMESTAMP"),
        _column("endtime", "TIMESTAMP"),
        _column("itemid", "INTEGER"),
        _column("rate", "DOUBLE"),
        _column("rateuom", "VARCHAR", "rates of vasopressors are taken as mcg/kg/min"),
        _column("patientweight", "DOUBLE", "the charted weight stands in for it"),
        _column("statusdescription", "VARCHAR", "rewritten orders are not left out"),
    ),
    "outputevents": (
        _column("stay_id", "BIGINT"),
        _column("charttime", "TIMESTAMP"),
        _column("itemid", "INTEGER"),
        _column("value", "DOUBLE"),
    ),
    "procedureevents": (
        _column("stay_id", "BIGINT"),
        _column("starttime", "TIMESTAMP"),
        _column("endtime", "TIMESTAMP"),
        _column("itemid", "INTEGER"),
    ),
    "prescriptions": (
        _column("subject_id", "BIGINT"),
        _column("hadm_id", "BIGINT"),
        _column("starttime", "TIMESTAMP"),
        _column("stoptime", "TIMESTAMP"),
        _column("drug", "VARCHAR"),
        _column("route", "VARCHAR", "drops for eyes and ears are not left out by their route"),
        _column("drug_type", "VARCHAR", "solvents are not left out"),
    ),
    "microbiologyevents": (
        _column("subject_id", "BIGINT"),
        _column("hadm_id", "BIGINT"),
        _column("micro_specimen_id", "BIGINT"),
        _column("chartdate", "TIMESTAMP"),
        _column("charttime", "TIMESTAMP"),
        _column("spec_type_desc", "VARCHAR", "the kind of specimen is not shown"),
    ),
    "d_items": (
        _column("itemid", "INTEGER"),
        _column("label", "VARCHAR"),
        _column("category", "VARCHAR"),
    ),
}
"""Every table that is read, with its columns."""

OPTIONAL: dict[str, str] = {
    "procedureevents": "ventilation is taken from charted texts alone",
    "d_items": "antibiotics given in the ICU are known by the item numbers listed in items.sql",
}
"""Tables that may be absent, and what is done then."""
