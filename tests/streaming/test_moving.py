"""A stream moves from one engine to another as a parcel, exactly; what does not fit is refused whole."""

from pathlib import Path

import numpy as np
import pytest
from made_streams import CHANNELS, made_model, outcomes, random_events

from onlinecde.streaming import (
    CodecError,
    Engine,
    Event,
    MemoryStore,
    ModelMismatch,
    SQLiteStore,
    StreamingError,
)
from onlinecde.streaming.codec import decode_row
from onlinecde.streaming.stores.base import RowRecord
from onlinecde.streaming.transfer import outline, unpack

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("cut", [7, 60, 190])
@pytest.mark.parametrize("ids", [False, True])
def test_a_moved_stream_goes_on_as_if_it_had_stayed(cut, ids, tmp_path, rng):
    model = made_model()
    events = random_events(rng, 200, late=0.3)
    if ids:
        events = [
            Event(e.stream, e.time, e.channel, e.value, f"{e.stream} {n // 2}")
            for n, e in enumerate(events)
        ]
    here = Engine(model, channels=CHANNELS, lateness=1.0, checkpoint_rows=4)
    there = Engine(
        model, SQLiteStore(tmp_path / "live.db"), channels=CHANNELS, lateness=1.0, checkpoint_rows=5
    )
    here.apply(events[:cut])
    names = here.overview().streams
    assert sorted(there.take(here.export(name) for name in names)) == sorted(names)
    assert len(there) == len(names)
    for name in names:
        assert there.state(name) == here.state(name)
        assert there.stream(name).rows == here.stream(name).rows
    for place in range(cut, len(events), 16):
        mine, other = (e.apply(events[place : place + 16]) for e in (here, there))
        # What lies beyond the lateness changes nothing; only whether it is known may be forgotten.
        for one, two in zip(outcomes(mine), outcomes(other), strict=True):
            assert one == two or (one, two) == ("duplicate", "refused")
    for name in here.overview().streams:
        assert there.state(name) == here.state(name)
        known = {row.time: row for row in here.history(name)}
        for row in there.history(name):
            assert row.events == known[row.time].events
            assert row.superseded == known[row.time].superseded
            np.testing.assert_allclose(row.outputs, known[row.time].outputs, rtol=1e-6, atol=1e-7)
            assert len(row.revised) == len(known[row.time].revised)
    there.close()


def test_static_features_and_origin_move_too():
    model = made_model(static=2)
    here, there = (Engine(model, channels=CHANNELS) for _ in range(2))
    here.open_stream("a", static=[1.0, -2.0], origin=50.0)
    with pytest.raises(StreamingError, match="no row yet"):
        here.export("a")
    here.apply([Event("a", 0.0, CHANNELS[0], 1.0)])
    parcel = here.export("a")
    assert outline(parcel).stream.origin == 50.0
    there.take([parcel])
    # The same instant again: the row is integrated from the beginning, with the static features.
    for engine in (here, there):
        engine.apply([Event("a", 0.0, CHANNELS[1], 2.0)])
    assert there.state("a") == here.state("a")
    assert there.stream("a").origin == 50.0


def test_what_cannot_be_taken_is_refused_whole(rng):
    events = [Event(name, float(t), CHANNELS[0], 1.0) for name in "ab" for t in range(40)]
    here = Engine(made_model(), channels=CHANNELS, lateness=1.0, checkpoint_rows=4)
    here.apply(events)
    parcels = [here.export("a"), here.export("b")]
    assert outline(parcels[0]).floor > 30.0

    def refused(engine, bodies, code):
        with pytest.raises(StreamingError) as caught:
            engine.take(bodies)
        assert caught.value.code == code
        assert len(engine) == 0

    def fresh(**settings):
        return Engine(made_model(), channels=CHANNELS, **{"lateness": 1.0, **settings})

    refused(fresh(), [parcels[0], parcels[0]], "stream_known")
    refused(fresh(lateness=20.0), parcels, "lateness_short")
    refused(fresh(most_streams=1), parcels, "stream_limit")
    other = Engine(made_model(hidden=7), channels=CHANNELS)
    refused(other, parcels, ModelMismatch.code)
    for cut in rng.integers(1, len(parcels[1]), 20).tolist():
        refused(fresh(), [parcels[0], parcels[1][:cut]], CodecError.code)
    for place in rng.integers(0, len(parcels[1]), 20).tolist():
        body = bytearray(parcels[1])
        body[place] ^= 1 << int(rng.integers(8))
        refused(fresh(), [parcels[0], bytes(body)], CodecError.code)
    with pytest.raises(StreamingError, match="known already"):
        here.take(parcels)


def test_a_moved_stream_is_never_rebuilt_from_a_part_of_its_rows():
    here = Engine(made_model(), channels=CHANNELS, checkpoint_rows=4)
    here.apply([Event("a", float(t), CHANNELS[0], 1.0) for t in range(40)])
    store = MemoryStore()
    there = Engine(made_model(), store, channels=CHANNELS)
    there.take([here.export("a")])
    assert len(there.history("a")) < 40
    with pytest.raises(StreamingError, match="without its first rows"):
        there.repair("a")
    with pytest.raises(StreamingError, match="without its first rows"):
        Engine(made_model(hidden=7), store, channels=CHANNELS, rebuild=True)
    assert Engine(made_model(), store, channels=CHANNELS).state("a") == here.state("a")


def test_parcels_of_version_1_can_be_read():
    """They lie in the checkpoints of Spark jobs: what was written once must be read for good."""
    parcel = unpack((GOLDEN / "parcel_v1.bin").read_bytes())
    told = parcel.outline
    assert told.stream == (0, "bed 7 é", np.array([0.5]).tobytes(), 1763200000.0)
    assert told.state[1:7] == (7.0, 9, 0, 0.0, 1.5045034885406494, 12.0)
    assert told.state.body[:4] == b"OCDS"
    assert (told.rows, told.floor, told.next_floor) == (6, 2.0, 5.0)
    assert [time for time, _ in parcel.checkpoints] == [2.0, 5.0, 7.0]
    assert [row[0] for row in parcel.rows] == [3.0, 4.0, 5.0, 5.5, 6.0, 7.0]
    rows = [decode_row(RowRecord(0, row[0], 0, *row[1:])) for row in parcel.rows]
    assert [row.values for row in rows[2:5]] == [{2: 2.5}, {1: -1.0}, {0: 9.0}]
    assert [row.ids for row in rows[2:5]] == [["id 5"], [], ["id 6"]]
    assert rows[4].superseded == [(0, 3.0)]
    assert [time for time, _ in parcel.revised] == [6.0, 7.0, 6.0, 7.0]
