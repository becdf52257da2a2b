"""kill -9 while another model is built, takes over or is thrown away, and while what is old is deleted.

`python tests/faults/test_killed_models.py 100` kills a hundred times for each.
"""

import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from killable_engine import BEAT, micro_batches, store_at
from killable_models import SETTINGS, opened, save_models
from killing import Child

from onlinecde.streaming import Engine

BATCHES = 200
WORDS = {
    "shadow": ["child", "begun", "ack", *(f"at {w}" for w in ("begin", "building", "following", "promote", "promote",
               "discard", "clearing"))],
    "retention": ["child", "begun", "ack", "at retention", "at retention", "deleted"],
}  # fmt: skip
"""What a killed engine did last, or a moment before: some of these"""


def kill_often(where, folder, mode, times):
    """Kill it so many times: nothing acknowledged is lost or done twice; what the kills hit."""
    seed = random.getrandbits(32)
    save_models(folder)
    child = Child(where, seed, BATCHES, script="killable_models.py", words=(mode, folder))
    acknowledged, sequence, hit = -1, 0, Counter()
    changed = Counter()
    try:
        while hit.total() < times:
            word = random.choice(WORDS[mode])
            told, ended = child.run(acknowledged + 1, random.uniform(0.0, 0.03), word)
            at = "start"
            for words in told:
                if words[0] == "begun":
                    assert sequence <= int(words[1]) <= sequence + 1, (seed, words)
                    sequence = int(words[1])
                elif words[0] == "ack":
                    acknowledged, sequence, at = int(words[1]), int(words[2]), "apply"
                elif words[0] == "at":
                    at = words[1]
                elif words[0] in ("promoted", "deleted"):
                    changed[words[0]] += 1
            if ended:
                assert ended == signal.SIGKILL
                hit[at] += 1
            else:
                assert told[-1] == ["done"], (seed, told[-3:])
            if acknowledged == BATCHES - 1:
                acknowledged = -1
        told, ended = child.run(0)
        assert ended == 0, seed
        assert told[-1] == ["done"]
        changed.update(words[0] for words in told if words[0] in ("promoted", "deleted"))
    finally:
        child.close()
    compare(where, folder, mode, seed)
    return hit, changed


def compare(where, folder, mode, seed):
    """What is left is what a run that was never killed would have come to, under the model that serves now."""
    store = store_at(where)
    wall = [BEAT * BATCHES]
    broken = opened(store, folder, lambda: wall[0])
    serving = next(
        f for f in sorted(folder.glob("model-*")) if Engine(f).model_hash == broken.model_hash
    )
    unbroken = Engine(serving, **SETTINGS)
    for events in micro_batches(seed)[:BATCHES]:
        unbroken.apply(events)
    streams = unbroken.overview().streams
    assert broken.overview().streams == streams
    for stream in streams:
        assert broken.state(stream) == unbroken.state(stream), (seed, stream)
        rows = [
            [(row.time, row.events) for row in one.history(stream)] for one in (broken, unbroken)
        ]
        assert rows[0] == (rows[1][-len(rows[0]) :] if mode == "retention" else rows[1]), (
            seed,
            stream,
        )
    for ended in ("applied", "corrected", "late_applied", "rows", "streams"):
        assert broken.counters[ended] == unbroken.counters[ended], (seed, ended)
    alarms = [(one.stream, one.time) for one in broken.alarms()]
    assert len(set(alarms)) == len(alarms), seed
    if mode == "shadow":
        assert len(alarms) == broken.counters["alarms"], seed
    broken.close()


@pytest.mark.parametrize("mode", ["shadow", "retention"])
def test_kills_while_models_change_or_rows_are_deleted(mode, tmp_path):
    hit, changed = kill_often(tmp_path / "live.db", tmp_path, mode, times=8)
    assert hit.total() == 8
    assert changed["promoted" if mode == "shadow" else "deleted"], (hit, changed)


if __name__ == "__main__":
    for mode in ("shadow", "retention"):
        with tempfile.TemporaryDirectory() as folder:
            where = sys.argv[2] if len(sys.argv) > 2 else str(Path(folder) / "live.db")
            where = where + f"_{mode}" if "://" in where else where
            print(mode, *kill_often(where, Path(folder), mode, int(sys.argv[1])), flush=True)
