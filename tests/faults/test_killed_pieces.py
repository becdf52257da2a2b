"""kill -9 while a late event is integrated in pieces: what was acknowledged is there, and the rest is gone on with."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from killable_pieces import LATE, made_engine, rows

from onlinecde.streaming import SQLiteStore

KILLS = [("prepare", 1), ("prepare", 20), ("ack", 1), ("rework", 1), ("rework", 20)]


def answers(engine):
    return [(r.time, r.events, np.round(r.outputs, 5).tolist()) for r in engine.history("far")]


def test_a_kill_between_any_two_pieces_loses_nothing_and_repeats_nothing(tmp_path):
    script = Path(__file__).with_name("killable_pieces.py")
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    unbroken = made_engine()
    unbroken.apply(rows())
    unbroken.apply([LATE])
    try:
        assert process.stdout.readline() == "ready\n"
        for place, (word, count) in enumerate(KILLS):
            file = tmp_path / f"{place}.db"
            process.stdin.write(f"{file}\n")
            child, heard = 0, []
            while True:
                words = process.stdout.readline().split()
                if words[0] == "ended":
                    break
                if words[0] == "child":
                    child = int(words[1])
                heard.append(words[0])
                if heard.count(word) == count and words[0] == word:
                    os.kill(child, signal.SIGKILL)
            assert int(words[1]) == signal.SIGKILL
            assert "done" not in heard
            with made_engine(SQLiteStore(file), piece_rows=8, recent=2) as engine:
                known = engine.counters["late_applied"]
                assert known == 1 if "ack" in heard else known in (0, 1)
                half = answers(engine) != answers(unbroken)
                assert half or word == "rework"
                receipts = engine.apply([LATE])
                assert receipts.counts["duplicate" if known else "late_applied"] == 1
                assert engine.state("far") == unbroken.state("far")
                assert answers(engine) == answers(unbroken)
                revised = [
                    [len(row.revised) for row in one.history("far")] for one in (engine, unbroken)
                ]
                assert revised[0] == revised[1]
                assert engine.counters["rows"] == unbroken.counters["rows"]
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)
