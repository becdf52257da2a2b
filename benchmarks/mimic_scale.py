"""MIMIC-IV at scale: 20 million rows of chartevents -> three tasks, in bounded memory.

    python benchmarks/mimic_scale.py            # 20 million rows as csv.gz, about 5,000 stays
    python benchmarks/mimic_scale.py --rows 2000000 --format parquet

The folder is made by seeded SQL in the layout of release 3.1 and deleted afterwards. The
preparation runs in a process of its own, whose peak memory is what is reported. The peer is pandas
reading the same chartevents in blocks and keeping the same items: the first step of the way alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

RESULTS = Path(__file__).parent / "results" / "mimic_scale.json"
ROWS = 20_000_000
"""What the results are about; smaller runs are printed only."""

# chance(i, k) is the only source of chance: the same rows on every machine.
TABLES = {
    "icu/icustays": """
        select i // 2 + 10000000 as subject_id, i + 20000000 as hadm_id, i + 30000000 as stay_id,
               'MICU' as first_careunit, 'MICU' as last_careunit,
               timestamp '2150-01-01' + to_minutes((i * 14400)::bigint) as intime,
               (240 + 60 * exp(1 + chance(i, 1) % 400 / 100))::bigint as minutes,
               intime + to_minutes(minutes) as outtime, i as number,
               date_diff('second', intime, outtime) / 86400 as los
        from range($stays) as r(i)""",
    "hosp/patients": """
        select distinct i // 2 + 10000000 as subject_id,
               case chance(i // 2, 2) % 2 when 0 then 'F' else 'M' end as gender,
               30 + chance(i // 2, 3) % 60 as anchor_age, 2150 as anchor_year,
               '2014 - 2016' as anchor_year_group, null::date as dod
        from range($stays) as r(i)""",
    "hosp/admissions": """
        select subject_id, hadm_id, intime - interval 6 hours as admittime,
               outtime + interval 2 days as dischtime, 'EMERGENCY' as admission_type,
               ['WHITE', 'BLACK', 'ASIAN', 'UNKNOWN'][1 + chance(hadm_id, 0) % 4] as race,
               (chance(hadm_id, 4) % 10 = 0)::int as hospital_expire_flag
        from stays""",
    "icu/chartevents": """
        select subject_id, hadm_id, stay_id, 1 as caregiver_id, charttime,
               charttime + interval 3 minutes as storetime, itemid,
               case itemid when 226732 then ['Endotracheal tube', 'Nasal cannula'][1 + draw % 2]
                           when 223900 then 'No Response-ETT' else valuenum::varchar end as value,
               valuenum, 'unit' as valueuom, 0 as warning
        from (
            select subject_id, hadm_id, stay_id, chance(i, 5) as draw,
                   intime + to_minutes(chance(i, 6) % minutes) as charttime,
                   items[1 + chance(i, 7) % len(items)] as itemid,
                   case itemid when 220739 then 1 + draw % 4 when 223900 then 1 + draw % 5
                               when 223901 then 1 + draw % 6 when 226732 then null
                               else 50 + draw % 50 end as valuenum
            from range($rows) as r(i)
            join stays on stays.number = i * $stays // $rows, wanted
        )""",
    "hosp/labevents": """
        select i as labevent_id, subject_id, hadm_id, i // 8 as specimen_id,
               labs[1 + chance(i, 8) % len(labs)] as itemid,
               intime + to_minutes(chance(i // 8, 9) % minutes) as charttime,
               1 + chance(i, 10) % 100 as valuenum, valuenum::varchar as value, 'unit' as valueuom
        from range($rows // 20) as r(i)
        join stays on stays.number = i * $stays // ($rows // 20), wanted""",
    "icu/inputevents": """
        select subject_id, hadm_id, stay_id, intime + to_hours(k::bigint) as starttime,
               starttime + interval 90 minutes as endtime,
               [221906, 225798, 225893, 220949][1 + chance(stay_id, k) % 4] as itemid,
               chance(stay_id, k + 100) % 20 / 100 as rate, 'mcg/kg/min' as rateuom,
               80.0 as patientweight, 'FinishedRunning' as statusdescription
        from stays, range(6, 40, 3) as r(k)""",
    "icu/outputevents": """
        select subject_id, hadm_id, stay_id, intime + to_hours(k::bigint) as charttime,
               226559 as itemid, 20 + chance(stay_id, k) % 100 as value, 'ml' as valueuom
        from stays, range(1, 72) as r(k)""",
    "icu/procedureevents": """
        select subject_id, hadm_id, stay_id, intime as starttime, outtime as endtime,
               225792 as itemid
        from stays where stay_id % 4 = 0""",
    "hosp/prescriptions": """
        select subject_id, hadm_id, intime + interval 5 hours as starttime,
               intime + interval 60 hours as stoptime, 'MAIN' as drug_type, 'Vancomycin' as drug,
               'IV' as route
        from stays where stay_id % 3 = 0""",
    "hosp/microbiologyevents": """
        select subject_id, hadm_id, stay_id as micro_specimen_id,
               date_trunc('day', intime) as chartdate,
               intime + interval 8 hours as charttime, 'BLOOD CULTURE' as spec_type_desc
        from stays where stay_id % 2 = 0""",
    "icu/d_items": "select 225798 as itemid, 'Vancomycin' as label, 'Antibiotics' as category",
}


def make_folder(folder: Path, rows: int, ending: str) -> dict[str, int]:
    """Write the tables; return the rows of the largest ones."""
    stays = max(rows // 4_000, 10)
    connection = duckdb.connect()
    connection.execute("set memory_limit = '2GB'")
    connection.execute("set threads = 2")
    connection.execute("create macro chance(i, k) as (hash(i, k) >> 2)::bigint")
    charted = (
        "select list(distinct itemid order by itemid) from items where source = "
        "'{}' and name not in ('antibiotic', 'antiviral')"
    )
    from onlinecde.data.mimic.database import read_concept

    connection.execute(read_concept("items"))
    # One row in three means something, twice as many as in the demo.
    connection.execute(
        f"create table wanted as select list_concat(({charted.format('chart')}), "
        "range(400000, 400068)) as items, "
        f"({charted.format('lab')}) as labs"
    )
    for name, sql in TABLES.items():
        sql = sql.replace("$stays", str(stays)).replace("$rows", str(rows))
        path = folder / f"{name}.{ending}"
        path.parent.mkdir(exist_ok=True)
        how = "format parquet" if ending == "parquet" else "header, compression gzip"
        if name == "icu/icustays":
            connection.execute(f"create table stays as {sql}")
            sql = "from stays"
        connection.execute(f"copy ({sql}) to '{path}' ({how})")
    connection.close()
    return {"stays": stays, "chartevents": rows, "labevents": rows // 20}


def prepare(folder: str, memory: str) -> None:
    """The child: prepare all three tasks and print what it took as JSON."""
    start = time.perf_counter()
    from onlinecde.data.mimic import open_mimic

    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_mimic(folder, memory=memory) as mimic:
        concepts = time.perf_counter() - start
        in_concepts = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report = mimic.report()
        streams = {name: len(mimic.task(name).series) for name in ("mortality", "los", "sepsis")}
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "seconds": round(seconds, 2),
                "seconds_concepts": round(concepts, 2),
                "peak_mib_imports": round(imported / 1024),
                "peak_mib_concepts": round(in_concepts / 1024),
                "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "streams": streams,
                "flow": {step.what: step.stays for step in report.cohort},
            }
        )
    )


def pandas_pass(path: Path) -> None:
    """The peer: read chartevents in blocks, keep the items that mean something."""
    import pandas as pd

    from onlinecde.data.mimic.database import read_concept

    connection = duckdb.connect()
    connection.execute(read_concept("items"))
    items = connection.execute("select itemid from items where source = 'chart'").fetchall()
    wanted = {row[0] for row in items}
    start = time.perf_counter()
    kept = 0
    for block in pd.read_csv(path, chunksize=500_000, parse_dates=["charttime"]):
        kept += int(block["itemid"].isin(wanted).sum())
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"seconds": round(seconds, 2), "kept": kept, "peak_mib": peak}))


def run_child(*arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--format", choices=("csv.gz", "parquet"), default="csv.gz")
    parser.add_argument("--memory", default="1GB", help="DuckDB's limit")
    parser.add_argument("--limit-mib", type=int, default=2048, help="fail above this peak")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--scratch", default=None, help="where the made folder goes")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--pandas", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        prepare(*chosen.child)
    elif chosen.pandas:
        pandas_pass(Path(chosen.pandas))
    else:
        measure(chosen)


def measure(chosen: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="onlinecde-mimic-scale-", dir=chosen.scratch) as place:
        start = time.perf_counter()
        made = make_folder(Path(place), chosen.rows, chosen.format)
        chart = Path(place) / "icu" / f"chartevents.{chosen.format}"
        size = chart.stat().st_size
        took = time.perf_counter() - start
        print(f"made {made} in {took:.0f} s; chartevents {size / 2**20:.0f} MiB")
        ours = run_child("--child", place, chosen.memory)
        peer = None
        if chosen.format == "csv.gz" and not chosen.no_peer:
            peer = run_child("--pandas", str(chart))
    rate = chosen.rows / ours["seconds"]
    print(
        f"onlinecde: {ours['seconds']} s, {rate:,.0f} rows/s, peak {ours['peak_mib']} MiB "
        f"(imports alone {ours['peak_mib_imports']}), {ours['streams']}"
    )
    if peer:
        print(
            f"pandas, the reading pass alone: {peer['seconds']} s, peak {peer['peak_mib']} MiB; "
            f"onlinecde does everything in {ours['seconds'] / peer['seconds']:.2f} of that time"
        )
    result = {
        "command": " ".join(["python benchmarks/mimic_scale.py", *sys.argv[1:]]),
        "made": made,
        "format": chosen.format,
        "chartevents_mib": round(size / 2**20),
        "memory_limit": chosen.memory,
        "rows_per_second": round(rate),
        "onlinecde": ours,
        "pandas_reading_pass": peer,
        "machine": {
            "cpus": os.cpu_count(),
            "load": os.getloadavg()[1],
            "platform": platform.platform(),
        },
        "versions": {"duckdb": duckdb.__version__, "python": platform.python_version()},
    }
    if chosen.rows >= ROWS:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    if ours["peak_mib"] > chosen.limit_mib:
        raise SystemExit(f"peak memory {ours['peak_mib']} MiB is over {chosen.limit_mib} MiB.")


if __name__ == "__main__":
    main()
