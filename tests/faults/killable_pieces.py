"""An engine whose late event is integrated in pieces: `python killable_pieces.py`, a store's file a line on its input.

Forks a child for each, which tells each piece of its work: `prepare`, `ack`, `rework`, and in the end `done`.
"""

import os
import sys

import numpy as np
import torch

import onlinecde as oc
from onlinecde.streaming import Engine, Event, EventBatch, Receipts, SQLiteStore

CHANNELS = ["a", "b"]
LATE = Event("far", 1.1, "b", 2.0)


def made_engine(store=None, **settings):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = oc.NeuralCDE(channels=2, hidden=4, field={"width": 4}).eval()
    return Engine(model, store, channels=CHANNELS, lateness=1e4, checkpoint_rows=4, **settings)


def rows(count=120):
    values = np.tile([[1.0, np.nan]], (count, 1))
    return EventBatch.from_rows(["far"] * count, np.arange(count) / 4, values)


def tell(line):
    os.write(1, f"{line}\n".encode())


def work(file):
    with made_engine(SQLiteStore(file), piece_rows=8, recent=2) as engine:
        engine.apply(rows())
        for piece in engine.apply_pieces([LATE]):
            tell("ack" if isinstance(piece, Receipts) else "prepare")
        for _ in engine.rework_pieces():
            tell("rework")
    tell("done")


def main():
    made_engine().apply(rows(3))  # what is compiled is compiled before the forks
    tell("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                tell(f"child {os.getpid()}")
                work(line.strip())
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        tell(f"ended {os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}")


if __name__ == "__main__":
    main()
