"""Scores of files: the same in little memory, killed and started again; there whole, or not at all."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from killable_scoring import score
from made_ward import LONG, made_cde, made_vitals

import onlinecde as oc
from onlinecde.data import DataError
from onlinecde.scoring.files import Display, predict_file
from onlinecde.scoring.output import OutputFile
from onlinecde.scoring.request import Request

pytestmark = pytest.mark.filterwarnings("ignore::onlinecde.SchemaWarning")
CHUNK = 1 << 17


@pytest.fixture
def home(tmp_path, vitals, stays):
    vitals.write_csv(tmp_path / "vitals.csv")
    vitals.write_parquet(tmp_path / "vitals.parquet", row_group_size=100)
    stays.write_csv(tmp_path / "stays.csv")
    return tmp_path


def write(cde, events, out, at="rows", memory=CHUNK, **more):
    request = Request.build(cde, events, at=at, **{**LONG, **more})
    return predict_file(request, OutputFile.named(out, overwrite=True), memory=memory)


def read(file):
    return pl.read_parquet(file) if file.suffix == ".parquet" else pl.read_csv(file)


@pytest.mark.parametrize("at", ["rows", "end", "every=30min", "table"])
def test_files_in_little_memory_have_the_scores_of_frames_in_all_of_it(
    cde, vitals, stays, home, at
):
    if at == "table":
        at = vitals.select("stay", "hours").sample(fraction=0.3, seed=2)
        at.write_csv(home / "asked.csv")
    wanted = oc.predict(cde, vitals, at=at, static=stays, **LONG)
    asked = f"table={home / 'asked.csv'}" if isinstance(at, pl.DataFrame) else at
    for events, out, memory in (
        ("vitals.csv", "scores.parquet", 1 << 17),
        ("vitals.parquet", "scores.csv", 1 << 18),
        ("vitals.csv", "scores.csv", 1 << 30),
    ):
        done = write(cde, home / events, home / out, asked, memory, static=home / "stays.csv")
        scores = read(home / out)
        assert scores.select("stream", "time").equals(wanted.select("stream", "time"))
        assert (scores["probability"] - wanted["probability"]).abs().max() < 1e-6
        assert (done.lines, done.streams) == (wanted.height, len(stays))
    assert not list(home.glob("*.work"))


def test_a_bucket_too_large_is_divided_and_a_stream_is_not(cde, home):
    ids = np.concatenate([np.full(3000, 7), np.arange(10, 3010)])
    hours = np.concatenate([np.arange(3000.0), np.full(3000, 0.5)])
    table = pl.DataFrame({"stay": ids, "hours": hours, "name": "hr", "value": 1.0})
    table.write_parquet(home / "uneven.parquet")
    divided = []

    class Watch(Display):
        def stage(self, name, share):
            divided.extend(home.glob("*.work/*-*.events"))

    request = Request.build(cde, home / "uneven.parquet", at="end", **LONG)
    out = OutputFile.named(home / "scores.parquet")
    done = predict_file(request, out, memory=1 << 19, display=Watch())
    scores = read(home / "scores.parquet")
    assert divided
    assert done.streams == scores.height == 3001
    assert scores["stream"].to_list() == [7, *range(10, 3010)]


def test_killed_again_and_again_it_ends_with_the_same_scores(home):
    made_vitals(150).write_csv(home / "vitals.csv")
    score(home, out="calm.csv")
    script = Path(__file__).with_name("killable_scoring.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        env={**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    kills = resumed = 0
    stages, finished = set(), False
    while not finished:
        process.stdin.write("go\n")
        child, lines, after = 0, 0, random.randint(1, 25) if kills < 6 else 10**9
        while True:
            word, *rest = process.stdout.readline().strip().split(maxsplit=1)
            if word == "child":
                child = int(rest[0])
            elif word == "note":
                resumed += rest[0].startswith("going on in")
            elif word == "stage":
                stages.add(rest[0].split()[0])
                lines += 1
                if lines == after:
                    os.kill(child, signal.SIGKILL)
            elif word == "done":
                finished = True
            elif word == "ended":
                kills += rest == ["9"]
                break
        assert finished == (home / "scores.csv").exists()
    process.communicate()
    assert kills >= 3
    assert resumed >= 3
    assert stages == {"reading", "scoring", "writing"}
    assert (home / "scores.csv").read_bytes() == (home / "calm.csv").read_bytes()
    assert not list(home.glob("*.work"))


class Stop(Display):
    """Stops a scoring at a stage, as Ctrl-C would."""

    def __init__(self, stage, share=0.0):
        self.at, self.share, self.notes = stage, share, []

    def stage(self, name, share):
        if name == self.at and share >= self.share:
            raise KeyboardInterrupt

    def note(self, text):
        self.notes.append(text)


def stopped(home, display, **changes):
    with pytest.raises(KeyboardInterrupt):
        score(home, display=display, **changes)
    return display.notes


def test_what_was_begun_for_another_table_is_begun_anew(home, vitals):
    assert stopped(home, Stop("scoring", 0.5)) == []
    assert stopped(home, Stop("writing"))[0].startswith("going on in")
    vitals[:-30].write_csv(home / "vitals.csv")
    assert stopped(home, Stop("scoring", 0.5))[0].endswith("begun anew")
    score(home)
    wanted = oc.predict(
        made_cde(), home / "vitals.csv", at="every=1h", static=home / "stays.csv", **LONG
    )
    assert read(home / "scores.csv").height == wanted.height


def test_nobody_writes_twice_or_over_what_is_there(home):
    score(home)
    before = (home / "scores.csv").read_bytes()
    with pytest.raises(DataError, match=r"scores\.csv is there already: .*--overwrite"):
        score(home)
    assert (home / "scores.csv").read_bytes() == before

    class Second(Display):
        def stage(self, name, share):
            with pytest.raises(DataError, match="another process is working in"):
                score(home, "other.csv")

    score(home, "other.csv", display=Second())


def test_a_damaged_work_folder_says_so(home):
    stopped(home, Stop("scoring", 0.5))
    large = max((home / "scores.csv.work").glob("*.events"), key=lambda file: file.stat().st_size)
    os.truncate(large, 10)
    with pytest.raises(DataError, match=r"the folder is damaged\. Delete"):
        score(home)


@pytest.mark.parametrize("bad", ["two values", "text", "other ids"])
def test_a_table_that_is_refused_leaves_nothing_behind(cde, home, vitals, bad):
    changed = {
        "two values": lambda: pl.concat([vitals, vitals[-1:].with_columns(value=9.0)]),
        "text": lambda: vitals.with_columns(
            value=pl.when(pl.int_range(pl.len()) == 500).then(pl.lit("high")).otherwise("value")
        ),
        "other ids": lambda: vitals.with_columns(stay=pl.col("stay") + "!"),
    }[bad]()
    changed.write_csv(home / "vitals.csv")
    with pytest.raises(DataError, match=r"two values|line 502.*'high' is no|no line of any stream"):
        score(home)
    assert {file.name for file in home.iterdir()} == {"vitals.csv", "vitals.parquet", "stays.csv"}


def test_a_full_disk_is_said_and_with_room_it_goes_on(home, small_disk, vitals, cde):
    many = pl.concat(
        [vitals.with_columns(stay=pl.lit(f"{k} ") + pl.col("stay")) for k in range(50)]
    )
    many.write_parquet(home / "many.parquet")
    ballast = small_disk / "ballast"
    ballast.write_bytes(os.urandom(int(11.6 * 2**20)))
    out = small_disk / "scores.parquet"
    with pytest.raises(DataError, match=r"the disk is full, at .*goes on where it stopped"):
        write(cde, home / "many.parquet", out, "end", 1 << 22)
    assert not out.exists()
    ballast.unlink()
    display = Stop("never")
    request = Request.build(cde, home / "many.parquet", at="end", **LONG)
    predict_file(request, OutputFile.named(out), memory=1 << 22, display=display)
    assert display.notes[0].startswith("going on in")
    assert read(out).height == 50 * 60
