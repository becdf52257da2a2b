"""Whatever is done to an engine, in whatever order, it agrees with the plain rule."""

import tempfile
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from made_streams import CHANNELS, Plain, made_model, outcomes

from onlinecde.streaming import Engine, Event, SQLiteStore

MODEL = made_model()
# A failure is a short list of steps already; making it shorter takes minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
EVENT = st.builds(
    Event,
    stream=st.sampled_from(["a", "b"]),
    time=st.integers(0, 24).map(lambda n: n / 4),
    channel=st.sampled_from(CHANNELS),
    value=st.integers(-2, 2).map(float),
    id=st.one_of(st.none(), st.none(), st.sampled_from(["x", "y", "z"])),
)


class Followed(RuleBasedStateMachine):
    """An engine on disk beside the plain rule."""

    @initialize(recent=st.integers(1, 4), checkpoint_rows=st.integers(1, 6))
    def begin(self, recent, checkpoint_rows):
        self.folder = tempfile.TemporaryDirectory()
        self.settings = {"lateness": 1.5, "recent": recent, "checkpoint_rows": checkpoint_rows}
        self.plain, self.sent = Plain(lateness=1.5), []
        self.open()

    def open(self):
        store = SQLiteStore(Path(self.folder.name) / "live.db", synchronous="NORMAL")
        self.engine = Engine(MODEL, store, channels=CHANNELS, **self.settings)

    def send(self, events):
        assert outcomes(self.engine.apply(events)) == [self.plain.take(event) for event in events]
        self.sent += events

    @rule(events=st.lists(EVENT, max_size=8))
    def new_events(self, events):
        self.send(events)

    @rule(
        step=st.integers(1, 3), stream=st.sampled_from(["a", "b"]), value=st.floats(-3, 3, width=32)
    )
    def a_row_in_order(self, step, stream, value):
        newest = max(self.plain.rows.get(stream, {}), default=0.0)
        self.send([Event(stream, newest + step / 4, name, value) for name in CHANNELS[:2]])

    @rule(data=st.data())
    def some_events_again(self, data):
        if self.sent:
            self.send(data.draw(st.lists(st.sampled_from(self.sent), max_size=5)))

    @rule(stream=st.sampled_from(["a", "b"]))
    def evict(self, stream):
        self.engine.evict([stream])

    @rule()
    def restart(self):
        self.engine.close()
        self.open()

    @rule()
    def prune(self):
        self.engine.prune(4.0)
        # What is pruned is no longer known to be a duplicate: too late, it is refused.
        for stream, rows in self.plain.rows.items():
            left = {row.time for row in self.engine.history(stream)}
            self.plain.past[stream] = {one for one in self.plain.past[stream] if one[0] in left}
            self.plain.ids[stream] = {i: t & left for i, t in self.plain.ids[stream].items()}
            for time in rows.keys() - left:
                self.plain.gone.setdefault(stream, set()).add(time)

    @invariant()
    def states_are_those_of_rows_in_order(self):
        for stream in self.plain.rows:
            if self.plain.rows[stream]:
                assert self.engine.state(stream) == self.plain.state(MODEL, stream)
                assert self.engine.stream(stream).rows == len(self.plain.rows[stream])

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.close()
            self.folder.cleanup()


TestFollowed = Followed.TestCase
TestFollowed.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, phases=PHASES
)
