"""An engine in a process of its own that can be killed: `python killable_engine.py STORE SEED BATCHES`.

Imports once, then forks a child for each line `FIRST` on its input: the child opens the store and applies
micro-batches from number FIRST on, writing `ack N SEQUENCE` after each.
"""

import os
import sys

import numpy as np
import torch

import onlinecde as oc
from onlinecde.models import AlarmPolicy
from onlinecde.streaming import Engine, Event, PostgresStore, SQLiteStore, StreamClock

CHANNELS = ["a", "b", "c", "d"]
STREAMS = 40
BATCHES = 600


POLICY = AlarmPolicy(5.9, rearm=5.88, quiet=0.5, every=0.25)
BEAT = 0.05
"""How much later each micro-batch comes, by a wall clock that runs as the streams do"""


def made_engine(store=None, wall=None):
    """An engine, one that raises alarms between rows by a wall clock, where there is one."""
    clock = {} if wall is None else {"clock": wall, "stream_clock": StreamClock(1.0, 5.0)}
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = oc.NeuralCDE(channels=4, hidden=8, field={"width": 8}).eval()
    return Engine(
        model, store, channels=CHANNELS, lateness=2.0, recent=3, checkpoint_rows=8, policy=POLICY, **clock
    )  # fmt: skip


def micro_batches(seed):
    """Events of many streams with late ones, corrections and repeats; the same for the same seed."""
    random = np.random.default_rng(seed)
    clock = random.random(STREAMS)
    batches = []
    for _ in range(BATCHES):
        events = []
        for stream in random.integers(0, STREAMS, random.integers(1, 30)):
            clock[stream] += random.integers(0, 3) / 8
            time = clock[stream] - (random.integers(1, 24) / 8 if random.random() < 0.15 else 0.0)
            channel, value = CHANNELS[random.integers(4)], float(random.normal())
            events.append(Event(f"bed {stream}", float(time), channel, value))
            if random.random() < 0.1:
                events.append(events[int(random.integers(len(events)))])
        batches.append(events)
    return batches


def tell(line):
    os.write(1, f"{line}\n".encode())


def store_at(where):
    """A store in PostgreSQL at a URL, or in a SQLite file."""
    return PostgresStore(where) if "://" in str(where) else SQLiteStore(where)


def follow(where, batches, first):
    wall = [BEAT * first]
    engine = made_engine(store_at(where), lambda: wall[0])
    tell(f"begun {engine.counters['commits']}")
    for number, events in enumerate(batches[first:], first):
        wall[0] = BEAT * number
        receipts = engine.apply(events)
        engine.look()
        tell(f"ack {number} {receipts.sequence}")
    engine.close()
    tell("done")


def main():
    where, batches = sys.argv[1], micro_batches(int(sys.argv[2]))[: int(sys.argv[3])]
    made_engine().apply(
        [Event("warm", 0.0, "a", 1.0)]
    )  # what is compiled is compiled before the forks
    tell("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                tell(f"child {os.getpid()}")
                follow(where, batches, int(line))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        tell(f"ended {os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}")


if __name__ == "__main__":
    main()
