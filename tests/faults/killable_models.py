"""An engine whose model changes, or whose rows are deleted in time, in a process that can be killed.

`python killable_models.py STORE SEED BATCHES MODE FOLDER`: as `killable_engine`, but between micro-batches another
model is built, takes over or is thrown away (MODE shadow), or what is old is deleted (MODE retention). `at WHAT` is
told before each of these.
"""

import os
import random
import sys

import torch
from killable_engine import BEAT, CHANNELS, POLICY, micro_batches, store_at, tell

import onlinecde as oc
from onlinecde.streaming import Engine, Event, ModelMismatch, StreamClock
from onlinecde.streaming.retention import Deleted, Retention
from onlinecde.streaming.shadow import ShadowStatus, successor

SETTINGS = {"lateness": 2.0, "recent": 3, "checkpoint_rows": 8, "policy": POLICY}


def save_models(folder):
    """Two models that may take each other's place."""
    for seed in (3, 4):
        torch.manual_seed(seed)
        model = oc.NeuralCDE(channels=4, hidden=8, field={"width": 8}).eval()
        oc.save(model, folder / f"model-{seed}", channels=CHANNELS)
    return folder / "model-3"


def opened(store, folder, wall):
    """An engine on the model that the store says serves."""
    clock = {"clock": wall, "stream_clock": StreamClock(1.0, 5.0)}
    try:
        return Engine(folder / "model-3", store, **SETTINGS, **clock)
    except ModelMismatch:
        return Engine(successor(store, folder / "model-3"), store, **SETTINGS, **clock)


def change_models(engine, folder, dice):
    """The next piece of what happens to models."""
    shadow = engine.shadow
    state = shadow.status().state
    if state == "none":
        serving = engine.model_hash
        other = next(f for f in sorted(folder.glob("model-*")) if Engine(f).model_hash != serving)
        tell("at begin")
        shadow.begin(other)
    elif state == "following" and dice.random() < 0.5:
        if dice.random() < 0.7:
            tell("at promote")
            pieces, result = shadow.promote_pieces(), None
            while not isinstance(result, ShadowStatus):
                result = next(pieces)
            tell("promoted")
        else:
            tell("at discard")
            shadow.discard()
    else:
        tell(f"at {state}")
        shadow.piece()


def delete_old(engine, store):
    """What is old by the wall clock, all of it."""
    tell("at retention")
    for piece in engine.retain_pieces(Retention(received=40 * BEAT)):
        if isinstance(piece, Deleted) and piece.rows:
            tell(f"deleted {piece.rows}")
    store.compact(1)


def follow(where, folder, batches, first, mode):
    wall, dice = [BEAT * first], random.Random(os.getpid())
    store = store_at(where)
    engine = opened(store, folder, lambda: wall[0])
    tell(f"begun {engine.counters['commits']}")
    for number, events in enumerate(batches[first:], first):
        wall[0] = BEAT * number
        receipts = engine.apply(events)
        tell(f"ack {number} {receipts.sequence}")
        if mode == "shadow":
            change_models(engine, folder, dice)
        elif number % 5 == 0:
            delete_old(engine, store)
    engine.close()
    tell("done")


def main():
    from pathlib import Path

    where, seed, batches, mode, folder = sys.argv[1:6]
    folder = Path(folder)
    made = micro_batches(int(seed))[: int(batches)]
    torch.set_num_threads(1)
    Engine(folder / "model-3").apply([Event("warm", 0.0, "a", 1.0)])
    tell("ready")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                tell(f"child {os.getpid()}")
                follow(where, folder, made, int(line), mode)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        tell(f"ended {os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}")


if __name__ == "__main__":
    main()
