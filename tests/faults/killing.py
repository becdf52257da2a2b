"""Kills engines at random moments, and looks at what is left of their work."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from killable_engine import BATCHES, BEAT, made_engine, micro_batches, store_at


class Child:
    """The process that forks engines, and what the engine of the moment has told."""

    def __init__(self, where, seed, batches, script="killable_engine.py", words=()):
        script = Path(__file__).with_name(script)
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(where), str(seed), str(batches), *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def run(self, first, kill_after=None, word="begun"):
        """An engine from micro-batch `first` on, killed so many seconds after a word: all it said, its end."""
        self.process.stdin.write(f"{first}\n")
        told, timer, child = [], None, 0
        while True:
            words = self.process.stdout.readline().split()
            if words[0] == "child":
                child = int(words[1])
            elif words[0] == "ended":
                if timer is not None:
                    timer.cancel()
                return told, int(words[1])
            else:
                told.append(words)
            if kill_after is not None and timer is None and " ".join(words).startswith(word):
                timer = threading.Timer(kill_after, os.kill, (child, signal.SIGKILL))
                timer.start()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def kill_often(where, times, batches=BATCHES):
    """Kill the engine on a store so many times at random moments: it ends as one that was never killed."""
    seed = random.getrandbits(32)
    child = Child(where, seed, batches)
    acknowledged, sequence, kills, at_work = -1, 0, 0, 0
    try:
        while kills < times:
            # Most are killed at work, some while they come back.
            word = "begun" if random.random() < 0.8 else "child"
            told, ended = child.run(acknowledged + 1, random.uniform(0.0, 0.12), word)
            for words in told:
                if words[0] == "begun":
                    # What was acknowledged is there; one more commit may be, whose word was not heard.
                    assert sequence <= int(words[1]) <= sequence + 1, (seed, words)
                    sequence = int(words[1])
                elif words[0] == "ack":
                    acknowledged, sequence = int(words[1]), int(words[2])
            if ended:
                assert ended == signal.SIGKILL
                kills += 1
                at_work += any(words[0] == "ack" for words in told)
            if acknowledged == batches - 1:
                # All were sent: send them again, as a sender who lost its place would.
                acknowledged = -1
        told, ended = child.run(0)
        assert ended == 0
        assert told[-1] == ["done"]
    finally:
        child.close()
    assert kills == times
    assert at_work >= times // 4

    wall = [0.0]
    unbroken, broken = (made_engine(store, lambda: wall[0]) for store in (None, store_at(where)))
    for number, events in enumerate(micro_batches(seed)[:batches]):
        wall[0] = BEAT * number
        unbroken.apply(events)
    wall[0] += 10.0
    for engine in (unbroken, broken):
        engine.look()
    # None twice, none lost; those of a look that was due when a row came are raised then at the latest.
    alarms = [
        sorted((one.stream, one.time, one.rose) for one in e.alarms()) for e in (unbroken, broken)
    ]
    assert alarms[0] == alarms[1], seed
    assert len(alarms[0]) > 5
    if batches == BATCHES:
        assert {rose for *_, rose in alarms[0]} == {"at a row", "between rows"}
    streams = unbroken.overview().streams
    assert broken.overview().streams == streams
    for stream in streams:
        assert broken.state(stream) == unbroken.state(stream), (seed, stream)
        told = [
            [(row.time, row.events) for row in one.history(stream)] for one in (broken, unbroken)
        ]
        assert told[0] == told[1], (seed, stream)
    for ended in ("applied", "corrected", "late_applied", "rows", "streams"):
        assert broken.counters[ended] == unbroken.counters[ended], (seed, ended)
    broken.close()
