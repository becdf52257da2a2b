"""What is in memory of the streams: one file writes it, and only what is durable."""

import ast
from pathlib import Path

import numpy as np
import pytest
from made_streams import CHANNELS, made_model

import onlinecde.streaming
from onlinecde.streaming import Engine, Event
from onlinecde.streaming.stores.memory import MemoryStore

ROOM = Path(onlinecde.streaming.__file__).parent
CHANNEL = CHANNELS[0]


def engine(store=None):
    return Engine(made_model(), store, channels=CHANNELS)


def test_cached_arrays_cannot_be_written_from_outside():
    follows = engine()
    follows.apply([Event("s0", 0.0, CHANNEL, 1.0)])
    state = follows._state
    columns = [name for name in vars(type(state))["__annotations__"] if hasattr(state, name)]
    assert "last" in columns
    for name in columns:
        column = getattr(state, name)
        assert isinstance(column, np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


@pytest.mark.parametrize("file", sorted(ROOM.rglob("*.py")), ids=lambda file: file.stem)
def test_no_other_file_reaches_for_what_is_behind_them(file):
    private = {"_columns", "_capacity", "_doubtful", "_torn"}
    reached = {
        n.attr for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Attribute)
    }
    assert bool(private & reached) == (file.name == "state.py")


class Away(MemoryStore):
    away = False

    def commit(self, commit):
        if self.away:
            raise OSError("the store is away")
        super().commit(commit)


def test_a_transaction_that_fails_changes_nothing_and_is_read_anew():
    store = Away()
    follows = engine(store=store)
    follows.apply([Event("s0", 0.0, CHANNEL, 1.0)])
    before = follows.predict("s0")
    store.away = True
    with pytest.raises(OSError, match="away"):
        follows.apply([Event("s0", 1.0, CHANNEL, 5.0), Event("s1", 0.0, CHANNEL, 1.0)])
    assert follows._state._doubtful
    store.away = False
    assert np.array_equal(follows.predict("s0"), before)
    assert list(follows.overview().streams) == ["s0"]
    assert not follows._state._doubtful
