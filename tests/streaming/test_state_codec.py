"""States as bytes: what old versions wrote is read for ever, and nothing else is taken for a state."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from made_streams import made_model

from onlinecde.models import CDEState, RecurrentState
from onlinecde.streaming import CodecError, ModelMismatch
from onlinecde.streaming.codec import StateCodec

GOLDEN = Path(__file__).parent / "golden"
HASH = "0123456789abcdef" * 4


def known_cde_state():
    """A state of known numbers, no model needed: 2 streams, 3 hidden, 2 channels, 1 static feature."""

    def count(*shape):
        return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) / 4

    return CDEState(
        z=count(2, 3) - 0.5, before=-count(2, 3), time=torch.tensor([1.5, torch.nan], dtype=torch.float64),
        values=count(2, 2), counts=count(2, 2) * 4, observed=torch.tensor([[True, False], [False, True]]),
        previous=count(2, 2) + 9, previous_time=torch.tensor([torch.nan, -0.25], dtype=torch.float64),
        static=torch.tensor([[66.0], [float("inf")]]),
    )  # fmt: skip


def known_recurrent_state():
    """The same for the recurrent models, in float64."""
    h = torch.arange(12, dtype=torch.float64).reshape(2, 2, 3) / 8
    x = torch.tensor([[0.1, -7.0], [1e300, 5e-324]], dtype=torch.float64)
    return RecurrentState(
        h=h, before=-h, time=torch.tensor([0.0, 3.25], dtype=torch.float64), values=x,
        observed=torch.tensor([[True, True], [False, True]]), previous=x * 2, since=x - 1,
    )  # fmt: skip


KNOWN = {"cde_v1.bin": known_cde_state, "recurrent_v1.bin": known_recurrent_state}


def same(one, other):
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if a is None or b is None:
            assert a is b
        else:
            assert a.dtype == b.dtype
            assert a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("name", KNOWN)
def test_what_version_1_wrote_is_read_and_written_the_same(name):
    state = KNOWN[name]()
    codec = StateCodec(state, HASH)
    stored = (GOLDEN / name).read_bytes()
    half = len(stored) // 2
    bodies = [stored[:half], stored[half:]]
    same(codec.decode(bodies), state)
    assert codec.encode(state) == bodies


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("NeuralCDE", {}), ("NeuralCDE", {"static": 2}), ("GRUD", {}), ("ODERNN", {"static": 1})],
    ids=str,
)
def test_states_of_models_come_back_bit_for_bit(kind, settings):
    model = made_model(kind, **settings)
    static = torch.randn(6, settings["static"]) if settings else None
    with torch.no_grad():
        state = model.observe(model.init_state(6, static), 0.5, torch.randn(6, 3))
    codec = StateCodec(model.init_state(1, None if static is None else static[:1]), HASH)
    bodies = codec.encode(state)
    same(codec.decode(bodies), state)
    for stream in range(6):
        same(codec.decode([bodies[stream]]), state[stream])
        assert codec.encode(state[stream]) == [bodies[stream]]


def test_any_damage_is_noticed(rng):
    state = known_cde_state()
    codec = StateCodec(state, HASH)
    body = codec.encode(state)[0]
    for place in range(len(body)):
        damaged = bytearray(body)
        damaged[place] ^= int(rng.integers(1, 256))
        with pytest.raises((CodecError, ModelMismatch)):
            codec.decode([bytes(damaged)])
    for length in range(len(body)):
        with pytest.raises((CodecError, ModelMismatch)):
            codec.decode([body[:length]])
    for length in (0, 1, 50, 5000):
        with pytest.raises(CodecError):
            codec.decode([rng.bytes(length)])
    with pytest.raises(CodecError):
        codec.decode([body + b"\0"])


def test_each_kind_of_wrong_has_its_own_words():
    state = known_cde_state()
    body = StateCodec(state, HASH).encode(state)[0]
    with pytest.raises(ModelMismatch, match="belongs to model 0123456789ab"):
        StateCodec(state, "ff" * 32).decode([body])
    later = bytearray(body)
    later[4] = 9
    with pytest.raises(CodecError, match="version 9"):
        StateCodec(state, HASH).decode([bytes(later)])
    with pytest.raises(CodecError, match="fields are not those"):
        StateCodec(known_recurrent_state(), HASH).decode([body])
    with pytest.raises(CodecError, match="checksum"):
        StateCodec(state, HASH).decode([body[:-1] + bytes([body[-1] ^ 1])])


def test_numbers_states_are_not_stored_in_are_refused():
    state = known_recurrent_state()._map(lambda tensor: tensor.to(torch.bfloat16))
    with pytest.raises(CodecError, match="bfloat16"):
        StateCodec(state, HASH)
