"""A small made MIMIC-IV whose every answer is known, written in any layout and format.

| stay | what it is for |
|---|---|
| 101 | sepsis: culture at 9 h, antibiotics from 10 h; SOFA 0, 3 in hour 13, 5 in hour 15 |
| 102 | a tube until 12 h, blood gases, coma scale, little urine, dopamine in mcg/min |
| 103, 104 | 2.5 and 80 hours: too short, too long |
| 105, 106 | readings at 3 times, and none at all |
| 107 | charted every minute for ten minutes; odd values |
| 108 | an antibiotic before the ICU |
| 109 | antivirals, one single antibiotic, a culture with a day only |
| 110 to 119 | quiet stays of 20 and 30 hours |
"""

import csv
import gzip
import io
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

BASE = datetime(2150, 1, 1)
STAYS = {
    101: (1, 30.0), 102: (2, 48.0), 103: (3, 2.5), 104: (3, 80.0), 105: (4, 20.0), 106: (5, 30.0),
    107: (6, 10.0), 108: (7, 26.0), 109: (8, 40.0), 110: (10, 20.0), 111: (11, 20.0),
    112: (12, 20.0), 113: (13, 30.0), 114: (14, 30.0), 115: (15, 30.0), 116: (16, 20.0),
    117: (17, 20.0), 118: (18, 20.0), 119: (19, 20.0),
}  # fmt: skip
FOLDERS = {
    "patients": "hosp", "admissions": "hosp", "icustays": "icu", "chartevents": "icu",
    "labevents": "hosp", "inputevents": "icu", "outputevents": "icu", "procedureevents": "icu",
    "prescriptions": "hosp", "microbiologyevents": "hosp", "d_items": "icu",
}  # fmt: skip
ENDINGS = ("csv.gz", "csv", "parquet")


def at(stay: int, hours: float) -> datetime:
    """A time in hours from the stay's ICU admission."""
    return BASE + timedelta(days=10 * (stay - 100)) + timedelta(hours=hours)


class MadeMimic:
    """The rows of every table, to be changed before `write`."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict]] = defaultdict(list)
        for stay, (subject, hours) in STAYS.items():
            self._admit(stay, subject, hours)
            if stay not in (105, 106):
                for hour in range(int(hours)):
                    self.chart(stay, hour + 0.5, 220045, 80)
        self.septic()
        self.ventilated()
        self.odd()
        self.tables["d_items"] = [
            {"itemid": 225798, "label": "Vancomycin", "category": "Antibiotics"},
            {"itemid": 225837, "label": "Acyclovir", "category": "Antibiotics"},
            {"itemid": 999001, "label": "Newcillin", "category": "Antibiotics"},
        ]

    def _admit(self, stay: int, subject: int, hours: float) -> None:
        races = {1: "WHITE", 2: "BLACK/AFRICAN AMERICAN", 6: "ASIAN - CHINESE", 7: "UNKNOWN"}
        if not any(row["subject_id"] == subject for row in self.tables["patients"]):
            self.add(
                "patients", subject_id=subject, gender="FM"[subject % 2], anchor_age=50 + subject,
                anchor_year=2148, anchor_year_group="2014 - 2016", dod=None,
            )  # fmt: skip
        self.add(
            "admissions", subject_id=subject, hadm_id=stay + 1000, admittime=at(stay, -8),
            dischtime=at(stay, hours + 48), race=races.get(subject, "OTHER"),
            hospital_expire_flag=int(stay in (102, 111)),
        )  # fmt: skip
        self.add(
            "icustays", subject_id=subject, hadm_id=stay + 1000, stay_id=stay,
            first_careunit="MICU", intime=at(stay, 0), outtime=at(stay, hours), los=hours / 24,
        )  # fmt: skip

    def add(self, table: str, **row: object) -> None:
        self.tables[table].append(row)

    def keys(self, stay: int) -> dict[str, int]:
        return {"subject_id": STAYS[stay][0], "hadm_id": stay + 1000, "stay_id": stay}

    def chart(
        self, stay: int, hours: float, item: int, number: float | None, text: str = ""
    ) -> None:
        self.add(
            "chartevents", **self.keys(stay), caregiver_id=7, charttime=at(stay, hours),
            storetime=at(stay, hours + 0.1), itemid=item,
            value=text or ("" if number is None else str(number)), valuenum=number, valueuom="",
        )  # fmt: skip

    def lab(self, stay: int, hours: float, item: int, number: float | None, text: str = "") -> None:
        self.add(
            "labevents", labevent_id=len(self.tables["labevents"]), subject_id=STAYS[stay][0],
            hadm_id=None, specimen_id=int(stay * 1000 + 10 * hours), itemid=item,
            order_provider_id="P1", charttime=at(stay, hours), value=text or str(number),
            valuenum=number, valueuom="",
        )  # fmt: skip

    def give(
        self, stay: int, start: float, end: float, item: int, rate: float | None, **more: object
    ) -> None:
        self.add(
            "inputevents", **self.keys(stay), starttime=at(stay, start), endtime=at(stay, end),
            itemid=item, amount=1.0, rate=rate, rateuom=more.get("unit", "mcg/kg/min"),
            patientweight=more.get("weight", 80.0),
            statusdescription=more.get("status", "FinishedRunning"),
        )  # fmt: skip

    def order(self, stay: int, start: float, stop: float, drug: str, route: str = "IV") -> None:
        self.add(
            "prescriptions", subject_id=STAYS[stay][0], hadm_id=stay + 1000, pharmacy_id=1,
            starttime=at(stay, start), stoptime=at(stay, stop), drug_type="MAIN", drug=drug,
            route=route,
        )  # fmt: skip

    def culture(self, stay: int, hours: float, *, timed: bool = True) -> None:
        time = at(stay, hours)
        self.add(
            "microbiologyevents", subject_id=STAYS[stay][0], hadm_id=stay + 1000,
            micro_specimen_id=stay * 100 + len(self.tables["microbiologyevents"]),
            chartdate=time.replace(hour=0, minute=0), charttime=time if timed else None,
            spec_type_desc="BLOOD CULTURE",
        )  # fmt: skip

    def septic(self) -> None:
        for hour in range(30):
            self.chart(101, hour + 0.5, 220181, 60 if hour == 12 else 80)
        for hours, platelets in ((2, 200), (12.8, 90)):
            self.lab(101, hours, 51265, platelets)
        self.lab(101, 2, 50885, 0.5)
        self.lab(101, 2, 50912, 1.0)
        self.give(101, 14.2, 17.5, 221906, 0.05)
        self.give(101, 20.2, 22.5, 221906, 0.5, status="Rewritten")
        for start in (10, 22):
            self.give(101, start, start + 1, 225798, None)
        self.culture(101, 9)

    def ventilated(self) -> None:
        for hours in (1, 5, 9):
            self.chart(102, hours, 226732, None, "Endotracheal tube")
        self.chart(102, 12, 226732, None, "Nasal cannula")
        self.chart(102, 1, 226512, 80)
        self.chart(102, 30, 226730, 180)
        for item, number, text in (
            (220739, 1, ""),
            (223901, 1, ""),
            (223900, 1, "No Response-ETT"),
        ):
            self.chart(102, 2, item, number, text)
        for item, number in ((220739, 3), (223901, 6), (223900, 4)):
            self.chart(102, 13, item, number, "Confused" if item == 223900 else "")
        self.chart(102, 15, 220739, 2)
        self.chart(102, 30, 223901, 5)
        self.chart(102, 4, 223835, 0.5)
        self.chart(102, 4.2, 223835, 6)
        for hours, kind, po2 in ((6, "ART.", 90), (7, "VEN.", 30), (20, "ART.", 100)):
            self.lab(102, hours, 52033, None, kind)
            self.lab(102, hours, 50821, po2)
        self.lab(102, 20, 50816, 40)
        for hour in range(1, 31):
            self.add(
                "outputevents", **self.keys(102), charttime=at(102, hour), itemid=226559, value=10
            )
        self.give(102, 30.5, 32.2, 221662, 480, unit="mcg/min", weight=80.0)
        self.add(
            "procedureevents", **self.keys(102), starttime=at(102, 40), endtime=at(102, 44),
            itemid=225792,
        )  # fmt: skip

    def odd(self) -> None:
        for hours in (3, 9, 15):
            self.chart(105, hours, 220045, 90)
        for minute in range(10):
            self.chart(107, 5 + minute / 60, 220045, 100 + minute)
        self.chart(107, 2, 223761, 98.6)
        self.chart(107, 3, 220045, 0)
        self.chart(107, 4, 220277, 90)
        self.chart(107, 4, 220277, 94)
        self.lab(107, 6, 51003, 0.4)
        self.lab(107, 7, 51002, 0.9)
        self.lab(107, 12, 50912, 1.4)
        self.order(108, -5, 40, "CefTRIAXone")
        self.order(108, -6, 40, "Ciprofloxacin 0.3% Ophth Soln", "LEFT EYE")
        for start in (10, 20):
            self.give(109, start, start + 1, 225837, None)
        self.give(109, 130, 131, 999001, None)
        self.culture(109, 8, timed=False)

    def write(
        self,
        folder: Path,
        release: str = "3.1",
        ending: str = "csv.gz",
        without: tuple[str, ...] = (),
    ) -> Path:
        """Write every table; `without` names tables, or columns as "table.column", to leave out."""
        for table, where in FOLDERS.items():
            if table in without:
                continue
            rows = [dict(row) for row in self.tables[table]]
            dropped = [name.split(".")[1] for name in without if name.startswith(f"{table}.")]
            if release == "1.0":
                where = "core" if table in ("patients", "admissions") else where
                dropped += ["caregiver_id", "order_provider_id"]
                for row in rows if table == "admissions" else ():
                    row["ethnicity"] = row.pop("race")
            for row in rows:
                for name in dropped:
                    row.pop(name, None)
            path = folder / where / f"{table}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_table(path, rows)
        return folder


def _write_table(path: Path, rows: list[dict]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data, mtime=0))
    elif path.suffix == ".parquet":
        pl.read_csv(data, try_parse_dates=True, infer_schema_length=None).write_parquet(path)
    else:
        path.write_bytes(data)
