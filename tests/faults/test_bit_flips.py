"""Bits flipped in a store's file: each answer is right, or an error that names what is damaged."""

import json
import random
import shutil

import pytest
from killable_engine import made_engine, micro_batches

from onlinecde.cli.app import main
from onlinecde.streaming import CodecError, SQLiteStore, StoreError

FLIPS = 64


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that was closed, and what its engine said of each stream."""
    folder = tmp_path_factory.mktemp("whole")
    wall = [100.0]
    engine = made_engine(SQLiteStore(folder / "live.db"), lambda: wall[0])
    for number, events in enumerate(micro_batches(seed=21)[:160]):
        wall[0] = 100.0 + 0.05 * number
        engine.apply([*events, *ids(events, number)])
        engine.look()
    known = answers(engine)
    assert len(known["alarms"]) > 5
    assert any(row.revised for told in known["history"].values() for row in told)
    engine.close()
    return folder / "live.db", known


def ids(events, number):
    from dataclasses import replace

    return [replace(one, id=f"{number}-{place}") for place, one in enumerate(events[:3])]


def answers(engine):
    streams = [f"bed {n}" for n in range(40)]
    return {
        "state": {name: engine.state(name) for name in streams},
        "info": {name: replace_residence(engine.stream(name)) for name in streams},
        "history": {name: engine.history(name) for name in streams},
        "alarms": {(one.number): one for one in engine.alarms()},
        "of": {name: engine.alarms(name) for name in streams},
        "counters": dict(engine.counters),
    }


def replace_residence(info):
    from dataclasses import replace

    return replace(info, resident=True, looked=None)


def asked(what, *, names=""):
    """An answer, or the error in its place, which names what it is about."""
    try:
        return what(), None
    except (CodecError, StoreError) as error:
        said = error
    assert names in str(said), said
    return None, said


def judge(file, known):
    """How many questions were refused; none is answered otherwise than before."""
    try:
        engine = made_engine(SQLiteStore(file), lambda: 200.0)
    except (CodecError, StoreError):  # not even opened: its record about itself, or its schema
        return len(known["state"])
    refused = 0
    try:
        for name in known["state"]:
            for kind, ask in (
                ("state", engine.state), ("history", engine.history), ("of", engine.alarms),
                ("info", lambda name: replace_residence(engine.stream(name))),
            ):  # fmt: skip
                said, error = asked(lambda ask=ask, name=name: ask(name), names=name)
                refused += error is not None
                assert error is not None or said == known[kind][name], (kind, name)
        said, error = asked(engine.alarms)
        assert error is not None or {one.number: one for one in said} == known["alarms"]
        said, error = asked(lambda: dict(engine.counters))
        assert error is not None or said == known["counters"]
    finally:
        engine.close()
    return refused


def flip(file, random_bits, bits=1):
    data = bytearray(file.read_bytes())
    for _ in range(bits):
        place = random_bits.randrange(100, len(data))
        data[place] ^= 1 << random_bits.randrange(8)
    file.write_bytes(bytes(data))


@pytest.mark.parametrize("bits", [1, 64])
def test_flipped_bits_are_never_answered(whole, tmp_path, bits):
    file, known = whole
    assert judge(file, known) == 0
    seed = random.getrandbits(32)
    numbers, refused = random.Random(seed), 0
    for round_ in range(12 if bits == 1 else 3):
        broken = tmp_path / f"{round_}.db"
        shutil.copy(file, broken)
        flip(broken, numbers, bits)
        refused += judge(broken, known) > 0
    assert refused or bits == 1, seed


def exits(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code or 0


def test_a_store_is_checked_repaired_and_written_out(whole, tmp_path, capsys):
    source, known = whole
    file = tmp_path / "live.db"
    shutil.copy(source, file)
    assert exits(["store", "check", str(file)]) == 0
    damage(file)
    assert exits(["store", "check", str(file)]) == 1
    out = capsys.readouterr().out
    assert "stream 'bed 3': states" in out
    assert "stream 'bed 5': rows at" in out
    assert "stream 'bed 7': rows" in out
    assert exits(["store", "repair", str(file)]) == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    assert "'bed 3': states" in out
    assert "one bit was flipped, and is put right" in out
    assert "stream 'bed 7': a row is lost; it goes on from its state at" in out
    aside = [
        json.loads(line)
        for line in (tmp_path / "live.db.quarantine.jsonl").read_text().splitlines()
    ]
    assert any(one["table"] == "rows" for one in aside)
    engine = made_engine(SQLiteStore(file), lambda: 200.0)
    for name, state in known["state"].items():
        assert engine.state(name) == state
        if name != "bed 7":
            assert engine.history(name) == known["history"][name]
    left = len(engine.history("bed 7"))
    assert left + sum(one["table"] == "rows" for one in aside) == len(known["history"]["bed 7"]) - 1
    # Live goes on; what lies before the cut is refused by name.
    from onlinecde.streaming import Event

    newest = engine.stream("bed 7").last_time
    assert engine.apply([Event("bed 7", newest + 1.0, "a", 1.0)]).counts["applied"] == 1
    engine.close()
    assert exits(["store", "compact", str(file)]) == 0
    for name in ("events.csv", "events.parquet"):
        assert exits(["store", "export", str(file), str(tmp_path / name)]) == 0
    import polars

    table = polars.read_parquet(tmp_path / "events.parquet")
    assert table.columns == ["stream", "time", "channel", "value"]
    assert table.equals(polars.read_csv(tmp_path / "events.csv"))
    mine = table.filter(polars.col("stream") == "bed 3")
    wanted = [
        (row.time, name, value)
        for row in known["history"]["bed 3"]
        for name, value in row.events.items()
    ]
    assert list(mine.select("time", "channel", "value").iter_rows()) == wanted


def damage(file):
    """A flipped bit in a state and in a row, and a row that is gone."""
    import sqlite3

    with sqlite3.connect(file) as db:
        number = dict(db.execute("SELECT name, number FROM streams"))
        (body,) = db.execute(
            "SELECT body FROM states WHERE stream = ?", (number["bed 3"],)
        ).fetchone()
        body = body[:90] + bytes([body[90] ^ 4]) + body[91:]
        db.execute("UPDATE states SET body = ? WHERE stream = ?", (body, number["bed 3"]))
        sql = "SELECT rowid, outputs FROM rows WHERE stream = ? ORDER BY rowid LIMIT 1"
        place, outputs = db.execute(sql, (number["bed 5"],)).fetchone()
        wrong = outputs[:-1] + bytes([outputs[-1] ^ 1])
        db.execute("UPDATE rows SET outputs = ? WHERE rowid = ?", (wrong, place))
        sql = "SELECT rowid FROM rows WHERE stream = ? ORDER BY time LIMIT 1 OFFSET 5"
        (gone,) = db.execute(sql, (number["bed 7"],)).fetchone()
        db.execute("DELETE FROM rows WHERE rowid = ?", (gone,))
    db.close()


def test_an_engine_with_a_damaged_stream_goes_on_for_the_others(whole, tmp_path):
    file = tmp_path / "live.db"
    shutil.copy(whole[0], file)
    damage(file)
    engine = made_engine(SQLiteStore(file), lambda: 200.0)
    late = [
        event
        for stream in ("bed 3", "bed 7", "bed 9")
        for event in late_events(engine, whole[1], stream)
    ]
    told = engine.apply(late)
    codes = [one.refusal.code if one.refusal else one.outcome.name for one in told]
    # A row that is missing long before the change concerns no state.
    assert codes == ["state_unreadable", "LATE_APPLIED", "LATE_APPLIED"]
    with pytest.raises(CodecError, match="bed 7"):
        engine.history("bed 7")
    engine.close()


def late_events(engine, known, stream):
    from onlinecde.streaming import Event

    last = known["history"][stream][-1].time
    return [Event(stream, last - 0.01, "a", 0.5)]


if (
    __name__ == "__main__"
):  # python tests/faults/test_bit_flips.py ROUNDS: one flipped bit a round, and 64 of them
    import sys
    import tempfile
    from pathlib import Path

    class Folders:
        """What the fixture needs of pytest."""

        def mktemp(self, name):
            return Path(tempfile.mkdtemp())

    source, answered = whole.__wrapped__(Folders())
    dice = random.Random(5)
    for bits in (1, FLIPS):
        refusing = questions = 0
        for _ in range(int(sys.argv[1])):
            broken = source.with_name("broken.db")
            for part in source.parent.glob("broken.db*"):
                part.unlink()
            shutil.copy(source, broken)
            flip(broken, dice, bits)
            count = judge(broken, answered)
            refusing, questions = refusing + (count > 0), questions + count
        print(
            f"{sys.argv[1]} stores with {bits} flipped: {refusing} refuse {questions} questions, 0 answered otherwise",
            flush=True,
        )
