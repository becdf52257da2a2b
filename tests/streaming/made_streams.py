"""Small models, random events, and the engine's meaning in a few plain lines."""

import numpy as np
import torch

import onlinecde as oc
from onlinecde.models.flat_settings import neural_cde
from onlinecde.streaming import Event
from onlinecde.streaming.codec import StateCodec
from onlinecde.streaming.served import served_model

CHANNELS = ["heart rate", "pressure", "lactate"]
NAN = float("nan")


def made_model(kind="NeuralCDE", **settings):
    torch.manual_seed(1)
    sizes = {"channels": 3, "hidden": 5, "outputs": 2, **settings}
    if kind == "NeuralCDE":
        return neural_cde(**{"width": 6, **sizes}).eval()
    return getattr(oc, kind)(**sizes).eval()


def random_events(random, many, streams=3, late=0.0):
    """Events in order of time but for a share `late`, with repeats and corrections among them."""
    clock = np.zeros(streams)
    events = []
    for _ in range(many):
        if events and random.random() < 0.15:
            events.append(events[-int(random.integers(1, 1 + min(len(events), 9)))])
            continue
        stream = int(random.integers(streams))
        clock[stream] += random.integers(0, 3) / 4
        time = clock[stream] - (random.integers(1, 12) / 4 if random.random() < late else 0.0)
        value = float(random.integers(-4, 5)) / 2
        events.append(Event(f"s{stream}", float(time), CHANNELS[random.integers(3)], value))
    return events


class Plain:
    """The rule, one event at a time, in the simplest way: rows as dicts, no states at all."""

    def __init__(self, lateness):
        self.lateness = lateness
        self.rows, self.past, self.ids = {}, {}, {}
        self.gone = {}
        """Times of rows that were pruned: still part of the state, but no longer known one by one"""

    def take(self, event):
        rows = self.rows.setdefault(event.stream, {})
        past = self.past.setdefault(event.stream, set())
        ids = self.ids.setdefault(event.stream, {})
        newest = max(rows, default=-np.inf)
        value = rows.get(event.time, {}).get(event.channel)
        if event.time in self.gone.get(event.stream, ()):
            value = None
        fact = (event.time, event.channel, event.value)
        inside = event.time >= newest - self.lateness
        if event.id is not None:
            known = ids.setdefault(event.id, set())
            if any(time >= newest - self.lateness or time == event.time for time in known):
                return "duplicate"
            if value == event.value:
                if inside:
                    known.add(event.time)
                return "duplicate"
        elif fact in past:
            return "duplicate"
        if not inside:
            return "refused"
        if event.id is not None:
            known.add(event.time)
        past.add(fact)
        rows.setdefault(event.time, {})[event.channel] = event.value
        if value is not None:
            return "corrected"
        return "late_applied" if event.time < newest else "applied"

    def state(self, model, stream, channels=CHANNELS, static=None):
        """The state after the rows in order, fed to the model one by one, as bytes."""
        with torch.no_grad():
            state = model.init_state(1, static)
            codec = StateCodec(state, served_model(model, channels).hash)
            for time in sorted(self.rows[stream]):
                row = [self.rows[stream][time].get(name, NAN) for name in channels]
                state = model.observe(state, time, np.array([row]))
        return codec.encode(state)[0]


def outcomes(receipts):
    return [receipt.outcome.name.lower() for receipt in receipts]
