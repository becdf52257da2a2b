"""A model whose answer swings between rows, rows for it, and the alarms that the offline model raises on them."""

import numpy as np
import torch
from made_streams import CHANNELS

import onlinecde as oc
from onlinecde.models import AlarmPolicy
from onlinecde.streaming import Engine, Event, MemoryStore, StreamClock


def swinging_model():
    """Its answer swings from row to row and between them."""
    torch.manual_seed(23)
    model = oc.NeuralCDE(channels=3, hidden=6, outputs=1, field={"width": 8}, counts=False)
    with torch.no_grad():
        model.field.weight *= 4
        for layer in model.field.inner:
            layer.weight *= 3
        model.readout.layers.weight *= 3
    return model.double().eval()


MODEL = swinging_model()
CLOCK = StreamClock(rate=1.0, silent_after=3.0)
POLICY = AlarmPolicy(0.05, rearm=0.0, quiet=0.5, every=0.25)


class Wall:
    """A wall clock that a test moves."""

    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def made_engine(store=None, wall=None, clock=CLOCK, policy=POLICY, **changes):
    return Engine(
        MODEL, store or MemoryStore(), channels=CHANNELS, clock=wall or Wall(), stream_clock=clock,
        policy=policy, **{"lateness": 2.0, "recent": 2, "checkpoint_rows": 4, **changes},
    )  # fmt: skip


def random_rows(random, streams=6, rows=20):
    """(time, stream, values) in order of time; gaps of all sizes, some longer than a stream is followed."""
    made = []
    for stream in range(streams):
        times = np.cumsum(
            random.choice([0.1, 0.25, 0.6, 1.3, 5.0], rows, p=[0.2, 0.2, 0.3, 0.2, 0.1])
        )
        for time in times + random.integers(0, 4) / 8:
            made.append((float(time), f"s{stream}", random.normal(size=3) * 2))
    return sorted(made, key=lambda row: row[:2])


def sent(row, **changes):
    time, stream, values = row
    return [
        Event(stream, time, name, value)
        for name, value in zip(CHANNELS, values.tolist(), strict=True)
    ]


def alarms_of(engine):
    return sorted(
        (one.stream, one.time, round(one.probability, 9), one.rose) for one in engine.alarms()
    )


def offline(rows, until, policy=POLICY):
    """What the model says on the grid of all rows, and where the policy raises alarms there."""
    found = []
    for stream in sorted({row[1] for row in rows}):
        own = [row for row in rows if row[1] == stream]
        times = np.array([[row[0] for row in own]])
        batch = oc.SeriesBatch.from_padded(
            torch.tensor(times), torch.tensor(np.array([[row[2] for row in own]]))
        )
        looks, real = policy.looks(times, [until[stream]], silent_after=CLOCK.silent_after)
        with torch.no_grad():
            said = MODEL(batch, at=torch.tensor(looks))[..., 0].numpy()
        for look in np.flatnonzero(policy.alarm_times(said, looks, real)[0]):
            at = float(looks[0, look])
            rose = "at a row" if at in times else "between rows"
            found.append((stream, at, round(float(said[0, look]), 9), rose))
    return found


def rising_rows(policy, streams=3):
    """Rows after which the answer is below the threshold, and comes to it within the next time of silence."""
    random, found = np.random.default_rng(0), []
    at = torch.tensor([[0.0, *(np.arange(1, 13) * policy.every)]])
    while len(found) < streams:
        values = random.normal(size=3) * 2
        batch = oc.SeriesBatch.from_padded(
            torch.zeros(1, 1, dtype=torch.float64), torch.tensor(values)[None, None]
        )
        with torch.no_grad():
            said = MODEL(batch, at=at)[0, :, 0]
        high = said >= policy.threshold
        if not high[:4].any() and int((high[1:] & ~high[:-1]).sum()) == 1:
            found.append((0.0, f"s{len(found)}", values))
    return found
