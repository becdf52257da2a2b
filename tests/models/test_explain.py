"""Attribution: contributions add up to the output, and each is what its event really did."""

import numpy as np
import pytest
import torch

from onlinecde import SeriesBatch
from onlinecde.models.flat_settings import neural_cde

D = torch.float64
NAN = float("nan")


def random_batch(lengths=(6, 3, 1, 5), channels=3, observed=0.5, seed=0, static=0):
    numbers = np.random.default_rng(seed)
    times, values = [], []
    for rows in lengths:
        times.append(numbers.uniform(-1, 1) + numbers.uniform(0.2, 1.2, rows).cumsum())
        table = numbers.normal(size=(rows, channels))
        table[numbers.random(table.shape) >= observed] = np.nan
        values.append(torch.tensor(table, dtype=D))
    features = torch.tensor(numbers.normal(size=(len(lengths), static))) if static else None
    return SeriesBatch.from_arrays(times, values, features)


def make(**keywords):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = {"channels": 3, "hidden": 5, "width": 7, "outputs": 2, **keywords}
        return neural_cde(**settings).double()


VARIANTS = [
    {},
    {"counts": False},
    {"static": 2},
    {"method": "dopri5", "steps": 2},
    {"method": "euler", "backend": "torch"},
    {"max_step": 0.3},
    {"field_sees_path": True},
    {"readout_sees_path": True},
    {"field_sees_path": True, "readout_sees_path": True, "count_scale": "log", "gain": 0.5},
    {"outputs": 1, "kind": "binary", "activation": "silu", "depth": 1},
    {"static": 2, "static_in_path": True, "field_sees_path": True, "readout_sees_path": True},
    {"static": 2, "static_in_path": True, "counts": False},
    {"readout_sees_path": True, "readout_ramps": 3},
    {
        "readout_sees_path": True,
        "readout_ramps": 2,
        "static": 2,
        "static_in_path": True,
        "counts": False,
    },
]
CONTROLS = ("rectilinear", "linear", "hermite", "natural_cubic")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("control", CONTROLS)
def test_contributions_add_up_to_the_output_to_rounding(control, variant):
    if control != "rectilinear" and "max_step" in variant:
        pytest.skip("max_step is for time legs")
    batch = random_batch(static=variant.get("static", 0))
    model = make(control=control, **variant)
    model.fit_scales(batch)
    parts = model.explain(batch)
    outputs = model(batch)
    assert parts.start.shape == (4, outputs.shape[2])
    assert parts.time.shape == (4, 6, outputs.shape[2])
    assert parts.events.shape == (4, 6, 3, outputs.shape[2])
    torch.testing.assert_close(parts.outputs(), outputs.detach(), rtol=1e-12, atol=1e-12)
    assert not parts.events.requires_grad
    # Row by row too: what a row added is the difference it made.
    added = (parts.time + parts.events.sum(2))[:, 1:]
    torch.testing.assert_close(added, outputs.detach().diff(dim=1), rtol=1e-11, atol=1e-12)
    assert (parts.time[:, 0] == 0).all()
    assert (parts.events[:, 0] == 0).all()


SEEN = [
    {},
    {"readout_sees_path": True},
    {"readout_sees_path": True, "readout_ramps": 3},
]


@pytest.mark.parametrize("hidden", [1, 2, 4, 5])
@pytest.mark.parametrize("seen", SEEN, ids=str)
@pytest.mark.parametrize("control", CONTROLS)
def test_contributions_to_a_small_mlp_add_up_to_rounding(control, seen, hidden):
    """However sharply layer norm of a few numbers bends: what quadrature leaves over is shared out."""
    batch = random_batch()
    model = make(control=control, readout_width=4, hidden=hidden, **seen)
    if seen.get("readout_ramps"):
        model.fit_scales(batch)
    parts = model.explain(batch)
    torch.testing.assert_close(parts.outputs(), model(batch).detach(), rtol=1e-12, atol=1e-12)


TRAINED = [
    {"readout_width": 4, "readout_dropout": 0.5},
    {"readout_width": 4, "readout_members": 3},
    {"readout_sees_path": True, "readout_steps": 3, "kind": "binary", "outputs": 1},
    {"channel_dropout": 0.5},
]


@pytest.mark.parametrize("settings", TRAINED, ids=str)
def test_in_training_too_what_is_explained_is_the_model_in_use(settings):
    batch, model = random_batch(), make(**settings).eval()
    if model.readout.steps is not None:
        model.readout.steps.put(-1.0, [1], [0.0], [0.5], [2.0])
    state = model.observe(model.init_state(), 0.0, [[1.0, NAN, 2.0]])
    wanted, step = model.explain(batch), model.explain_observation(state, 1.0, [[2.0, 1.0, NAN]])
    model.train()
    model.field.eval()
    found = model.explain(batch)
    for part in ("start", "time", "events"):
        assert torch.equal(getattr(found, part), getattr(wanted, part))
    again = model.explain_observation(state, 1.0, [[2.0, 1.0, NAN]])
    torch.testing.assert_close(again.events, step.events)
    assert model.training
    assert model.readout.training
    assert not model.field.training


def shared_out_by_hand(monkeypatch, nodes, halvings):
    """The contributions, and by how much quadrature alone is off on any leg."""
    from onlinecde.models import explain

    monkeypatch.setattr(explain, "NODES", nodes)
    monkeypatch.setattr(explain, "HALVINGS", halvings)
    share_out, left = explain._share_out, []

    def noted(added, difference, touched):
        left.append(float((difference - added.sum(1)).abs().max()))
        return share_out(added, difference, touched)

    with monkeypatch.context() as inside:
        inside.setattr(explain, "_share_out", noted)
        return make(hidden=2, readout_width=4).explain(random_batch()), max(left)


def test_more_nodes_and_halvings_leave_less_over(monkeypatch):
    _, rough = shared_out_by_hand(monkeypatch, 8, 0)
    halved, little = shared_out_by_hand(monkeypatch, 8, 8)
    fine, least = shared_out_by_hand(monkeypatch, 64, 12)
    assert rough > 100 * little
    assert least <= little < 1e-3
    torch.testing.assert_close(halved.events, fine.events, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(halved.time, fine.time, rtol=1e-3, atol=1e-3)


def test_a_difference_that_no_part_has_seen_goes_to_the_channels_that_moved():
    from onlinecde.models.explain import _share_out

    nothing, rise = torch.zeros(1, 3, 1), torch.tensor([[0.5]])
    moved = torch.tensor([[[0.0], [1.0], [1.0]]])
    assert _share_out(nothing, rise, moved).flatten().tolist() == [0.0, 0.25, 0.25]
    assert not _share_out(nothing, 0 * rise, 0 * moved).any()


@pytest.mark.parametrize("seen", SEEN, ids=str)
@pytest.mark.parametrize("control", CONTROLS)
def test_pieces_together_give_what_each_gives_alone(control, seen, monkeypatch):
    from onlinecde.models import explain

    batch = random_batch(lengths=(6, 3, 1, 5, 9))
    model = make(control=control, readout_width=4, **seen)
    model.fit_scales(batch)
    together = model.explain(batch)
    for at_once in (1, 11):
        monkeypatch.setattr(explain, "AT_ONCE", at_once)
        found = model.explain(batch)
        for part in ("start", "time", "events"):
            one, other = getattr(found, part), getattr(together, part)
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("control", CONTROLS)
def test_streams_of_one_row_have_a_start_alone(control):
    model = make(control=control, readout_width=4)
    parts = model.explain(random_batch(lengths=(1, 1)))
    assert not parts.events.any()
    assert not parts.time.any()


def test_gradients_of_a_long_path_are_found_in_few_calls(monkeypatch):
    from onlinecde.models import explain

    batch, model = random_batch(lengths=(60, 40)), make(readout_width=4)
    called, head = [], model.readout.forward
    monkeypatch.setattr(model.readout, "forward", lambda x: called.append(1) or head(x))
    model.explain(batch)
    assert len(called) < 5 * explain.NODES
    monkeypatch.setattr(explain, "AT_ONCE", 1)
    called.clear()
    model.explain(batch)
    assert len(called) > 100 * explain.NODES  # two pieces a row, one by one


@pytest.mark.parametrize("readout_width", [None, 4])
@pytest.mark.parametrize("seen", SEEN, ids=str)
def test_what_was_not_observed_contributes_exactly_0(readout_width, seen):
    batch = random_batch(observed=0.4)
    model = make(readout_width=readout_width, field_sees_path=bool(seen), **seen)
    model.fit_scales(batch)
    parts = model.explain(batch)
    observed = batch.observed.clone()
    observed[:, 0] = False
    assert (parts.events[~observed] == 0).all()
    assert (parts.events[observed] != 0).any(1).all()
    real = torch.arange(6) < batch.rows[:, None]
    assert (parts.time[~real] == 0).all()
    assert (parts.time[real][:, 0] != 0).sum() == int((batch.rows - 1).sum())


def test_a_repeated_value_contributes_through_its_count_alone():
    batch = SeriesBatch.from_arrays([[0.0, 1.0]], [torch.ones(2, 3, dtype=D)])
    assert (make(counts=False).explain(batch).events == 0).all()
    assert (make(counts=True).explain(batch).events[:, 1] != 0).all()


@pytest.mark.parametrize(
    "variant",
    [
        *VARIANTS,
        {"readout_width": 4, "readout_sees_path": True},
        {"readout_width": 4, "readout_sees_path": True, "readout_ramps": 3},
    ],
    ids=str,
)
def test_one_observation_is_explained_as_its_row_of_the_series(variant):
    batch = random_batch(static=variant.get("static", 0))
    model = make(**variant)
    model.fit_scales(batch)
    parts = model.explain(batch)
    for stream, rows in enumerate(batch.rows.tolist()):
        static = None if batch.static is None else batch.static[stream : stream + 1]
        state = model.init_state(1, static)
        for row in range(rows):
            t, x = float(batch.times[stream, row]), batch.values[stream, row][None]
            step = model.explain_observation(state, t, x)
            said = None if row == 0 else model.predict(state).detach()
            state = model.observe(state, t, x)
            tolerance = {"rtol": 1e-10, "atol": 1e-11}
            torch.testing.assert_close(step.time[0], parts.time[stream, row], **tolerance)
            torch.testing.assert_close(step.events[0], parts.events[stream, row], **tolerance)
            torch.testing.assert_close(
                step.start, parts.start[stream][None] if row == 0 else said, **tolerance
            )
            if "readout_width" not in variant:
                total = step.start + step.time + step.events.sum(1)
                torch.testing.assert_close(total, model.predict(state).detach(), **tolerance)


@pytest.mark.parametrize("seen", SEEN, ids=str)
def test_more_events_of_an_instant_explain_the_instant_anew(seen):
    """As if they had come together: the same channels, nothing for the time that had passed already."""
    model = make(**seen)
    model.fit_scales(random_batch())
    state = model.observe(model.init_state(), 0.0, [[1.0, 2.0, 3.0]])
    together = model.explain_observation(state, 2.0, [[0.5, NAN, 1.0]])
    begun = model.observe(state, 2.0, [[0.5, NAN, NAN]])
    step = model.explain_observation(begun, 2.0, [[NAN, NAN, 1.0]])
    torch.testing.assert_close(step.events, together.events, rtol=1e-12, atol=1e-12)
    assert (step.time == 0).all()
    torch.testing.assert_close(step.start, together.start + together.time, rtol=1e-12, atol=1e-12)
    said = model.predict(model.observe(begun, 2.0, [[NAN, NAN, 1.0]])).detach()
    torch.testing.assert_close(step.start + step.events.sum(1), said, rtol=1e-12, atol=1e-12)


def test_explaining_takes_nothing_in():
    model = make()
    state = model.observe(model.init_state(), 0.0, [[1.0, 2.0, 3.0]])
    said = model.predict(state, 5.0)
    model.explain_observation(state, 2.0, [[0.5, NAN, 1.0]])
    assert (model.predict(state, 5.0) == said).all()


def test_a_lone_events_contribution_is_the_difference_it_made():
    """With one channel observed at the last row, leaving it out removes just its contribution."""
    values = torch.full((1, 3, 3), NAN, dtype=D)
    values[0, 0] = torch.tensor([1.0, 2.0, 3.0])
    values[0, 1, 1] = 0.5
    values[0, 2, 2] = -1.0
    times = torch.tensor([[0.0, 1.0, 2.5]], dtype=D)
    without = values.clone()
    without[0, 2, 2] = NAN
    model = make()
    batch = SeriesBatch.from_padded(times, values)
    made = model(batch)[:, 2] - model(SeriesBatch.from_padded(times, without))[:, 2]
    torch.testing.assert_close(
        model.explain(batch).events[:, 2, 2], made.detach(), rtol=1e-12, atol=1e-12
    )


def test_small_events_of_one_instant_contribute_what_each_does_alone():
    """To first order: halving an instant's increments quarters what is left over."""
    model = make(counts=False, activation="tanh")

    def left(size):
        base = torch.tensor([[1.0, 2.0, 3.0]], dtype=D)
        state = model.observe(model.init_state(), 0.0, base)
        rise = size * torch.tensor([[0.3, -0.8, 0.5]], dtype=D)
        parts = model.explain_observation(state, 1.0, base + rise).events[0]
        nothing = model.predict(state, 1.0)[0]
        worst = 0.0
        for channel in range(3):
            x = torch.full((1, 3), NAN, dtype=D)
            x[0, channel] = (base + rise)[0, channel]
            alone = model.predict(model.observe(state, 1.0, x))[0] - nothing
            worst = max(worst, float((alone.detach() - parts[channel]).abs().max()))
        return worst

    coarse, fine = left(0.02), left(0.01)
    assert 0 < fine < 0.3 * coarse < 0.01


def test_a_channel_the_readout_cannot_feel_contributes_nothing():
    """Its column of the field is zero, so its events change nothing and are given nothing."""
    model = make(counts=False)
    with torch.no_grad():
        model.field.weight[2] = 0.0
        model.field.bias[2] = 0.0
    parts = model.explain(random_batch(observed=1.0))
    assert (parts.events[:, :, 1] == 0).all()
    assert (parts.events[0, 1:, 0] != 0).all()


def test_padding_behind_the_longest_stream_is_explained_by_nothing():
    batch = random_batch((3, 2))
    padded = SeriesBatch.from_padded(
        torch.nn.functional.pad(batch.times, (0, 2)),
        torch.nn.functional.pad(batch.values, (0, 0, 0, 2)),
        batch.rows,
    )
    for control in CONTROLS:
        model = make(control=control)
        short, long = model.explain(batch), model.explain(padded)
        torch.testing.assert_close(long.events[:, :3], short.events, rtol=1e-12, atol=1e-12)
        assert (long.events[:, 3:] == 0).all()
        assert (long.time[:, 3:] == 0).all()


def test_what_cannot_be_explained_is_said():
    batch = random_batch(observed=1.0)
    with pytest.raises(ValueError, match="fixed steps: build the model without rtol and atol"):
        make(method="dopri5", rtol=1e-3, atol=1e-3).explain(batch)
    linear = make(control="linear")
    with pytest.raises(ValueError, match="rectilinear control"):
        linear.explain_observation(
            linear.observe(linear.init_state(), 0.0, [[1.0] * 3]), 1.0, [[2.0] * 3]
        )
