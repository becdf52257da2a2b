"""SOFA and Sepsis-3 of one stay worked out from the raw rows, in plain Python and hour by hour.

Shares nothing with the SQL: items, drugs and rules are written down anew, from docs/mimic.md.
"""

import csv
import gzip
import math
from collections import defaultdict
from datetime import datetime, timedelta
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

HOUR = timedelta(hours=1)

ORDERED_ANTIBIOTICS = {
    "*nf* ertapenem sodium", "amoxicillin", "amoxicillin-clavulanic acid", "ampicillin sodium",
    "ampicillin-sulbactam", "azithromycin", "aztreonam", "cefazolin", "cefepime",
    "cefpodoxime proxetil", "ceftazidime", "ceftriaxone", "cephalexin", "ciprofloxacin hcl",
    "ciprofloxacin iv", "clarithromycin", "clindamycin", "daptomycin", "doxycycline hyclate",
    "erythromycin", "gentamicin", "levofloxacin", "linezolid", "meropenem", "metronidazole",
    "metronidazole (flagyl)", "moxifloxacin", "neomycin sulfate",
    "nitrofurantoin monohyd (macrobid)", "piperacillin-tazobactam", "sulfameth/trimethoprim ds",
    "sulfameth/trimethoprim ss", "sulfamethoxazole-trimethoprim", "tigecycline",
    "tobramycin sulfate", "trimethoprim", "vancomycin", "vancomycin oral liquid",
}  # fmt: skip
GIVEN_ANTIBIOTICS = {
    225798, 225840, 225842, 225843, 225845, 225847, 225850, 225851, 225853, 225855, 225859, 225860,
    225862, 225863, 225865, 225866, 225868, 225875, 225876, 225877, 225879, 225881, 225883, 225884,
    225886, 225888, 225890, 225892, 225893, 225895, 225898, 225899, 225902, 227691, 229061, 229064,
    229587,
}  # fmt: skip
URINE = {
    226559, 226560, 226561, 226584, 226563, 226564, 226565, 226567, 226557, 226558, 227489,
}  # fmt: skip


@cache
def rows(folder: str, table: str) -> list[dict[str, str]]:
    """The raw lines of a table, wherever the release keeps it."""
    found = [p for p in Path(folder).rglob(f"{table}.csv*") if p.stem.split(".")[0] == table]
    path = found[0]
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as lines:
        return list(csv.DictReader(lines))


@cache
def of_subject(folder: str, table: str) -> dict[str, list[dict[str, str]]]:
    grouped = defaultdict(list)
    for row in rows(folder, table):
        grouped[row["subject_id"]].append(row)
    return grouped


@cache
def has_texts(folder: str, table: str, items: tuple[str, ...]) -> bool:
    """Whether any line of the items holds words."""
    return any(r["itemid"] in items and _is_text(r.get("value")) for r in rows(folder, table))


@cache
def when(text: str) -> datetime:
    for form in ("%Y-%m-%d %H:%M:%S", "%m/%d/%Y %H:%M", "%Y-%m-%d"):
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    raise ValueError(text)


class Stay:
    """The raw rows of one stay, and what they say."""

    def __init__(self, folder: str | Path, stay_id: int) -> None:
        folder = str(folder)
        self.stay = next(r for r in rows(folder, "icustays") if r["stay_id"] == str(stay_id))
        self.subject, self.hadm = self.stay["subject_id"], self.stay["hadm_id"]
        self.intime, self.outtime = when(self.stay["intime"]), when(self.stay["outtime"])
        mine = {
            table: of_subject(folder, table)[self.subject]
            for table in ("chartevents", "inputevents", "outputevents", "procedureevents")
        }
        for table, lines in mine.items():
            setattr(self, table, [r for r in lines if r["stay_id"] == str(stay_id)])
        self.labs = of_subject(folder, "labevents")[self.subject]
        self.orders = of_subject(folder, "prescriptions")[self.subject]
        self.cultures = of_subject(folder, "microbiologyevents")[self.subject]
        everyone = rows(folder, "icustays")
        same = {r["stay_id"] for r in everyone if r["hadm_id"] == self.hadm}
        self.given = [
            r for r in of_subject(folder, "inputevents")[self.subject] if r["stay_id"] in same
        ]
        self.texts = has_texts(folder, "chartevents", ("223900", "226732"))
        self.specimens = has_texts(folder, "labevents", ("52033",))

    # -- readings ------------------------------------------------------------------------------

    def charted(self, *items: int, low: float = 0, high: float = 1e9) -> dict[datetime, float]:
        """Mean by time of plausible values of the items."""
        values = defaultdict(list)
        for row in self.chartevents:
            number = float(row["valuenum"] or "nan")
            if int(row["itemid"]) in items and low < number <= high:
                values[when(row["charttime"])].append(number)
        return {time: sum(v) / len(v) for time, v in values.items()}

    def lab(self, item: int, high: float) -> dict[datetime, float]:
        values = defaultdict(list)
        for row in self.labs:
            number = float(row["valuenum"] or "nan")
            if int(row["itemid"]) == item and 0 < number <= high:
                values[when(row["charttime"])].append(number)
        return {time: sum(v) / len(v) for time, v in values.items()}

    @cached_property
    def ventilated(self) -> list[tuple[datetime, datetime]]:
        spells = [
            (when(r["starttime"]), when(r["endtime"]))
            for r in self.procedureevents
            if r["itemid"] == "225792" and when(r["starttime"]) < when(r["endtime"])
        ]
        if self.texts:
            spells += self._charted_spells()
        return spells

    def _charted_spells(self) -> list[tuple[datetime, datetime]]:
        """From an endotracheal tube to the next other device (made folders use devices only)."""
        devices = sorted(
            (when(r["charttime"]), r["value"])
            for r in self.chartevents
            if r["itemid"] == "226732" and _is_text(r["value"])
        )
        spells = []
        for (time, device), (after, _) in pairwise(devices):
            if device == "Endotracheal tube" and after - time < 14 * HOUR:
                spells.append((time, after))
        return spells

    def is_ventilated(self, time: datetime) -> bool:
        return any(start <= time <= end for start, end in self.ventilated)

    # -- the six parts: scores of the events, each at its time -----------------------------------

    def ratios(self) -> list[tuple[datetime, float, bool]]:
        gases = defaultdict(dict)
        for row in self.labs:
            key = row.get("specimen_id") or row["charttime"]
            gas = gases[key]
            if row["itemid"] == "50821" and row["valuenum"] and float(row["valuenum"]) > 0:
                gas["po2"] = max(gas.get("po2", 0), float(row["valuenum"]))
                gas["time"] = when(row["charttime"])
            if row["itemid"] == "50816" and row["valuenum"]:
                fio2 = float(row["valuenum"])
                fio2 = 100 * fio2 if 0.2 < fio2 <= 1 else fio2
                if 20 < fio2 <= 100:
                    gas["fio2"] = max(gas.get("fio2", 0), fio2)
            if row["itemid"] == "52033":
                gas["kind"] = row.get("value")
        charted = {}
        for time, value in self.charted(223835, high=100).items():
            if value <= 1 and value >= 0.2:
                charted[time] = 100 * value
            elif value >= 20:
                charted[time] = value
        found = []
        for gas in gases.values():
            if "po2" not in gas or (self.specimens and gas.get("kind") != "ART."):
                continue
            if not self.intime - 24 * HOUR < gas["time"] <= self.outtime:
                continue
            fio2 = gas.get("fio2")
            if fio2 is None:
                before = [t for t in charted if gas["time"] - 4 * HOUR <= t <= gas["time"]]
                fio2 = charted[max(before)] if before else None
            if fio2 is not None:
                ratio = 100 * gas["po2"] / fio2
                found.append((gas["time"], ratio, self.is_ventilated(gas["time"])))
        return found

    def coma(self) -> dict[datetime, int]:
        parts = defaultdict(dict)
        names = {"220739": "eyes", "223900": "verbal", "223901": "motor"}
        for row in self.chartevents:
            if row["itemid"] in names and row["valuenum"]:
                time, name = when(row["charttime"]), names[row["itemid"]]
                parts[time][name] = max(parts[time].get(name, 0), int(float(row["valuenum"])))
                if name == "verbal":
                    tube = row.get("value") == "No Response-ETT"
                    if not self.texts:
                        tube = parts[time]["verbal"] == 1 and self.is_ventilated(time)
                    parts[time]["tube"] = tube
        scores, last_time = {}, None
        for time in sorted(parts):
            now = parts[time]
            recent = last_time is not None and last_time > time - 6 * HOUR
            before = parts[last_time] if recent else {}
            if now.get("tube", before.get("tube", False)):
                scores[time] = 15
            else:
                known = {} if before.get("tube") else before
                scores[time] = sum(
                    now.get(name, known.get(name, normal))
                    for name, normal in (("eyes", 4), ("verbal", 5), ("motor", 6))
                )
            last_time = time
        return scores

    def urine_24h(self) -> dict[datetime, float]:
        volumes = defaultdict(float)
        for row in self.outputevents:
            if row["value"] and int(row["itemid"]) in URINE:
                volumes[when(row["charttime"])] += float(row["value"])
            elif row["value"] and row["itemid"] == "227488":
                volumes[when(row["charttime"])] -= abs(float(row["value"]))
        times = sorted(volumes)
        covered = {}
        for i, time in enumerate(times):
            since = times[i - 1] if i else self.intime
            # Whole clock minutes, as date_diff counts them.
            minutes = (time.replace(second=0) - since.replace(second=0)) / timedelta(minutes=1)
            covered[time] = minutes / 60
        day = {}
        for time in times:
            window = [t for t in times if time - 23 * HOUR <= t <= time]
            hours = sum(covered[t] for t in window)
            if 22 <= hours <= 30:
                day[time] = 24 * sum(volumes[t] for t in window) / hours
        return day

    def infusions(self) -> list[tuple[str, datetime, datetime, float]]:
        agents = {
            "221906": "epinephrine", "221289": "epinephrine", "229617": "epinephrine",
            "221662": "dopamine", "221653": "dobutamine",
        }  # fmt: skip
        weights = {
            t: v for t, v in self.charted(226512, 224639, low=25, high=350).items()
            if t <= self.intime + 24 * HOUR
        }  # fmt: skip
        found = []
        for row in self.inputevents:
            done = row.get("statusdescription") != "Rewritten"
            if done and row["itemid"] in agents and float(row["rate"] or 0) > 0:
                rate = float(row["rate"])
                if row.get("rateuom") == "mcg/min":
                    rate /= float(row.get("patientweight") or weights[min(weights)])
                start, end = when(row["starttime"]), when(row["endtime"])
                found.append((agents[row["itemid"]], start, end, rate))
        return found

    def hour_of(self, time: datetime) -> int:
        return math.ceil((time - self.intime) / HOUR)

    def sofa(self) -> dict[int, dict[str, int]]:
        """For each hour from 0 on, the six parts: worst of the last 24 hours."""
        hourly = defaultdict(lambda: defaultdict(list))

        def note(part: str, time: datetime, score: int) -> None:
            hourly[part][self.hour_of(time)].append(score)

        for time, ratio, machine in self.ratios():
            steps = (100, 4), (200, 3), (300, 2), (400, 1)
            score = next((points for below, points in steps if ratio < below), 0)
            note("respiration", time, score if machine else min(score, 2))
        for time, value in self.lab(51265, 100000).items():
            steps = (20, 4), (50, 3), (100, 2), (150, 1)
            note("coagulation", time, next((p for b, p in steps if value < b), 0))
        for time, value in self.lab(50885, 1000).items():
            steps = (12, 4), (6, 3), (2, 2), (1.2, 1)
            note("liver", time, next((p for b, p in steps if value >= b), 0))
        for time, value in self.lab(50912, 150).items():
            steps = (5, 4), (3.5, 3), (2, 2), (1.2, 1)
            note("renal", time, next((p for b, p in steps if value >= b), 0))
        urine = defaultdict(list)
        for time, value in self.urine_24h().items():
            urine[self.hour_of(time)].append(value)
        for hour, values in urine.items():
            most = max(values)
            hourly["renal"][hour].append(4 if most < 200 else 3 if most < 500 else 0)
        for time, value in self.charted(220052, 225312, 220181, high=300).items():
            note("cardiovascular", time, int(value < 70))
        for time, value in self.coma().items():
            steps = (6, 4), (10, 3), (13, 2), (15, 1)
            note("nerves", time, next((p for b, p in steps if value < b), 0))
        last = math.ceil((self.outtime - self.intime) / HOUR)
        infusions = self.infusions()
        for hour in range(-23, last + 1):
            end = self.intime + hour * HOUR
            running = [i for i in infusions if i[1] < end <= i[2]]
            for agent, _, _, rate in running:
                if agent == "epinephrine":
                    points = 4 if rate > 0.1 else 3
                elif agent == "dopamine":
                    points = 4 if rate > 15 else 3 if rate > 5 else 2
                else:
                    points = 2
                hourly["cardiovascular"][hour].append(points)
        parts = ("respiration", "coagulation", "liver", "cardiovascular", "nerves", "renal")
        return {
            hour: {
                part: max(
                    (s for h in range(hour - 23, hour + 1) for s in hourly[part].get(h, [])),
                    default=0,
                )
                for part in parts
            }
            for hour in range(last + 1)
        }

    # -- Sepsis-3, clean settings ----------------------------------------------------------------

    def antibiotic_starts(self) -> list[datetime]:
        """The starts of courses with a further dose within 96 hours."""
        doses = [
            (when(r["starttime"]), when(r["endtime"]), r["itemid"], False)
            for r in self.given
            if int(r["itemid"]) in GIVEN_ANTIBIOTICS
        ]
        for r in self.orders:
            topical = (
                any(word in r["route"].upper() for word in ("EYE", "EAR")) or r["route"] == "TP"
            )
            known = r["drug"].strip().lower() in ORDERED_ANTIBIOTICS
            if r["hadm_id"] == self.hadm and known and not topical and r["starttime"]:
                start = when(r["starttime"])
                stop = when(r["stoptime"]) if r["stoptime"] else start
                several = stop >= start + 24 * HOUR
                doses.append((start, max(start, stop), r["drug"].lower(), several))
        doses.sort(key=lambda dose: dose[:2])
        repeated = [
            several or (i + 1 < len(doses) and doses[i + 1][0] <= end + 96 * HOUR)
            for i, (_, end, _, several) in enumerate(doses)
        ]
        starts = []
        for name in {dose[2] for dose in doses}:
            course, end_before = [], None
            for (start, end, drug, _), again in zip(doses, repeated, strict=True):
                if drug != name:
                    continue
                if end_before is not None and start > end_before + 96 * HOUR:
                    starts += [course[0][0]] if any(a for _, a in course) else []
                    course = []
                course.append((start, again))
                end_before = end
            starts += [course[0][0]] if any(a for _, a in course) else []
        return starts

    def suspicions(self) -> set[datetime]:
        specimens = defaultdict(list)
        for row in self.cultures:
            specimens[row["micro_specimen_id"]].append(row)
        found, starts = set(), self.antibiotic_starts()
        for lines in specimens.values():
            times = [when(r["charttime"] or r["chartdate"]) for r in lines]
            taken, timed = min(times), any(r["charttime"] for r in lines)
            latest = taken + (72 if timed else 96) * HOUR
            for start in starts:
                if taken - 24 * HOUR <= start <= latest:
                    found.add(min(start, taken))
        return found

    def onset(self) -> datetime | None:
        """The first of suspicion and SOFA rise (2 over the window's first, -48 to +24 h)."""
        score = {hour: sum(parts.values()) for hour, parts in self.sofa().items()}
        onsets = []
        for suspicion in self.suspicions():
            window = [
                (self.intime + hour * HOUR, points)
                for hour, points in score.items()
                if suspicion - 48 * HOUR <= self.intime + hour * HOUR <= suspicion + 24 * HOUR
            ]
            rise = [time for time, points in window if points >= window[0][1] + 2]
            if rise:
                onsets.append(min(suspicion, rise[0]))
        return min(onsets, default=None)


def _is_text(value: str | None) -> bool:
    if not value:
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False
