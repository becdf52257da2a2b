"""`readout_ramps`: the readout sees X, and how long ago each channel was observed, as ramps too."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.models import StateError, online
from onlinecde.models.flat_settings import flat_of, neural_cde
from onlinecde.models.frozen import packed
from onlinecde.streaming import Engine, Event, SQLiteStore
from onlinecde.streaming.codec import StateCodec

D, NAN = torch.float64, float("nan")
CHANNELS = 3
NAMES = ["a", "b", "c"]
CONTROLS = ["rectilinear", "linear", "hermite", "natural_cubic"]
RAMPS = {"readout_sees_path": True, "readout_ramps": 4}
SETTINGS = [
    {},
    {"readout_width": 6},
    {"counts": False, "field_sees_path": True, "rank": 2, "readout_width": 6, "readout_members": 3},
    {"static": 2, "static_in_path": True, "field_sees_path": True, "count_scale": "log"},
    {"static": 2, "clip": 1.0, "gain": 0.4},
]


def series(random, lengths, observed=0.5, dtype=D, static=0):
    times = [random.uniform(-5, 5) + random.uniform(0.2, 1.2, rows).cumsum() for rows in lengths]
    values = [random.normal(40, 7, (rows, CHANNELS)) for rows in lengths]
    for table in values:
        table[random.random(table.shape) >= observed] = np.nan
    features = torch.tensor(random.normal(9, 5, (len(lengths), static))) if static else None
    return oc.SeriesBatch.from_arrays(times, values, features).to(dtype=dtype)


def made(seed=None, lengths=(6, 3, 1, 5), observed=0.5, dtype=D, **settings):
    """A model, its encoding fitted to other series, and a batch of random series."""
    random = np.random.default_rng(seed)
    static = settings.get("static", 0)
    torch.manual_seed(int(random.integers(1000)))
    sizes = {"channels": CHANNELS, "hidden": 5, "width": 7, "outputs": 2, **RAMPS, **settings}
    model = neural_cde(**sizes).to(dtype).eval()
    model.fit_scales(series(random, (20,) * 8, observed, dtype, static))
    return model, series(random, lengths, observed, dtype, static)


def with_another_future(batch):
    """The batch with other values and times from its fifth row on."""
    values, times = batch.values.clone(), batch.times.clone()
    values[:, 4:] = torch.where(values[:, 4:].isnan(), 41.0, torch.nan)
    times[:, 4:] += 0.7
    return oc.SeriesBatch.from_padded(times, values, batch.rows, batch.static)


def for_control(control, **settings):
    """As `made`; with whole rows where the control asks for them."""
    whole = control in ("linear", "hermite")
    return made(control=control, **settings, **({"observed": 1.0} if whole else {}))


def follow(model, batch, rows):
    state = model.init_state(len(batch), batch.static)
    for row in range(rows):
        state = model.observe(state, batch.times[:, row], batch.values[:, row])
    return state


def seen_by_hand(model, batch, path):
    """What the head is to be told besides z, (stream, row, ...), in plain Python."""
    encoding, ramps = model.encoding, model.readout.ramps
    told = []
    for stream in range(len(batch)):
        last = [math.nan] * CHANNELS
        for row in range(batch.times.shape[1]):
            now = float(batch.times[stream, row])
            for channel in range(CHANNELS):
                if not math.isnan(float(batch.values[stream, row, channel])):
                    last[channel] = now
            scale = float(encoding.time_scale)
            since = [0.0 if math.isnan(then) else (now - then) / scale for then in last]
            numbers = path.rows[stream, row].tolist() + since
            line = list(numbers)
            for number, x in enumerate(numbers):
                for ramp in range(ramps.count):
                    way = (x - float(ramps.low[number, ramp])) * float(
                        ramps.steepness[number, ramp]
                    )
                    way = min(max(way, 0.0), 1.0)
                    line.append(3 * way**2 - 2 * way**3)
            told.append(line)
    return torch.tensor(told, dtype=D).unflatten(0, batch.times.shape)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("control", CONTROLS)
def test_the_head_is_told_z_x_and_since_and_their_ramps(control, settings):
    model, batch = made(control=control, **settings)
    path = model.path(batch)
    seen = seen_by_hand(model, batch, path)
    with torch.no_grad():
        z = oc.solve(path, model.field, model.begin(path.rows[:, 0], batch.static)).z
        wanted = model.readout(torch.cat([z, seen], 2))
        torch.testing.assert_close(model(batch), wanted, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(model(batch, final=True), wanted[:, -1], rtol=1e-10, atol=1e-10)
    inside = seen[:, :, model.readout.ramps.inputs :]
    assert ((inside > 0) & (inside < 1)).any(), "some numbers stand on a ramp"
    assert model.readout.inputs == 5 + seen.shape[2]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [D, torch.float32], ids=str)
@pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
@pytest.mark.parametrize("control", CONTROLS[:3])
def test_row_by_row_it_says_what_it_says_of_the_whole(control, grad, dtype, settings):
    model, batch = for_control(control, dtype=dtype, lengths=(6,) * 5, **settings)
    close = 1e-12 if dtype == D else 2e-5
    whole = model(batch).detach()
    with torch.set_grad_enabled(grad):
        state = model.init_state(5, batch.static)
        for row in range(6):
            t, x = batch.times[:, row], batch.values[:, row]
            fast = packed(model) is not None
            assert fast == (control == "rectilinear" and not grad)
            state = model.observe(state, t, x)
            said = model.predict(state).detach()
            torch.testing.assert_close(said, whole[:, row], rtol=close, atol=close)
            assert state.stamps.dtype == D


@pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
@pytest.mark.parametrize("control", CONTROLS[:3])
def test_later_than_its_last_row_it_says_what_a_question_at_that_time_is_told(control, grad):
    model, batch = for_control(control, readout_width=6, lengths=(6,) * 5)
    later = batch.times[:, 3] + 0.9 * (batch.times[:, 4] - batch.times[:, 3])
    with torch.set_grad_enabled(grad):
        state = follow(model, batch, 4)
        said = model.predict(state, later).detach()
        asked = model(batch, at=later[:, None])[:, 0].detach()
        torch.testing.assert_close(said, asked, rtol=1e-12, atol=1e-12)
        # Between rows the future is not known, nor is that nothing came.
        before = oc.SeriesBatch.from_padded(batch.times[:, :4], batch.values[:, :4])
        beyond = model(before, at=later[:, None])[:, 0].detach()
        torch.testing.assert_close(said, beyond, rtol=1e-12, atol=1e-12)
        now = model.predict(state).detach()
        assert torch.equal(said, now) == (control != "rectilinear")


def test_time_that_passes_is_seen_even_by_a_readout_of_since_alone():
    """z and X are cut off: what is left grows with each channel's own silence."""
    model, batch = made(lengths=(6,) * 5, outputs=CHANNELS)
    v = model.encoding.path_channels
    with torch.no_grad():
        model.readout.layers.weight.zero_()
        model.readout.layers.bias.zero_()
        model.readout.layers.weight[:, 5 + v : 5 + v + CHANNELS] = torch.eye(CHANNELS, dtype=D)
        state = follow(model, batch, 6)
        said = model.predict(state, batch.times[:, -1] + 2.0)
    for stream in range(5):
        for channel in range(CHANNELS):
            rows = batch.observed[stream, :, channel].nonzero().flatten().tolist()
            gone = batch.times[stream, -1] + 2 - batch.times[stream, rows[-1]] if rows else 0.0
            assert abs(float(said[stream, channel] * model.encoding.time_scale - gone)) < 1e-10


def same_state(one, other):
    for field in fields(one):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if mine is not None:
            same = torch.equal(mine.nan_to_num(-1e9), its.nan_to_num(-1e9))
            assert same, field.name


@pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
def test_events_of_one_instant_in_any_order_leave_the_same_stamps(grad, rng):
    model, batch = made(lengths=(5,), observed=1.0)
    with torch.set_grad_enabled(grad):
        whole = parts = model.init_state(1)
        for row in range(5):
            t, x = batch.times[:, row], batch.values[:, row].clone()
            x[0, rng.integers(CHANNELS)] = NAN
            whole = model.observe(whole, t, x)
            for channel in rng.permutation(CHANNELS):
                alone = torch.full_like(x, NAN)
                alone[0, channel] = x[0, channel]
                parts = model.observe(parts, t, alone)
                parts = model.observe(parts, t, torch.full_like(x, NAN))
            same_state(parts, whole)
            assert torch.equal(model.predict(parts, t + 0.4), model.predict(whole, t + 0.4))
            now = online.stamps_after(whole)[0]
            assert torch.equal(now == t, ~x[0].isnan())


def test_stamps_are_of_the_rows_before_the_last_one():
    """So that a further event of that instant can be taken in as if all had come together."""
    model, _ = made()
    with torch.no_grad():
        state = model.init_state(1)
        assert state.stamps.isnan().all()
        state = model.observe(state, 1.0, [[1.0, 2.0, NAN]])
        assert state.stamps.isnan().all()
        state = model.observe(state, 3.0, [[NAN, 2.0, NAN]])
        assert state.stamps[0, :2].tolist() == [1.0, 1.0]
        assert state.stamps[0, 2].isnan()
        merged = model.observe(state, 3.0, [[5.0, NAN, NAN]])
        assert merged.stamps[0, :2].tolist() == [1.0, 1.0]
        assert online.stamps_after(merged)[0, :2].tolist() == [3.0, 3.0]
        # A model without ramps keeps none.
        assert oc.NeuralCDE(CHANNELS, 4, field={"width": 4}).init_state().stamps is None


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_editing_the_future_leaves_the_past_bit_for_bit(settings):
    model, batch = made(lengths=(8,) * 6, **settings)
    edited = with_another_future(batch)
    at = batch.times[:, 3:4] + 0.1
    with torch.no_grad():
        before, after = model(batch), model(edited)
        assert torch.equal(before[:, :4], after[:, :4])
        assert not torch.equal(before[:, 4:], after[:, 4:])
        assert torch.equal(model(batch, at=at), model(edited, at=at))


@pytest.mark.parametrize("sees", [False, True])
@pytest.mark.parametrize("control", CONTROLS)
def test_a_readout_in_training_skips_the_padding_and_changes_nothing(control, sees):
    settings = RAMPS if sees else {"readout_sees_path": False, "readout_ramps": 0}
    model, batch = made(control=control, readout_width=6, lengths=(1, 7, 3, 7, 2), **settings)
    rows = []
    model.readout.register_forward_hook(lambda _, inputs, out: rows.append(out[..., 0].numel()))
    weights = torch.randn(5, 7, 2, dtype=D) * batch.real[:, :, None]
    found = []
    for training in (False, True):
        model.train(training).zero_grad()
        outputs = model(batch)
        (outputs * weights).sum().backward()
        found.append([outputs.detach(), *(p.grad.clone() for p in model.parameters())])
    assert rows == [35, 20], "in training the head reads the real rows alone"
    for plain, spared in zip(*found, strict=True):
        torch.testing.assert_close(spared, plain, rtol=1e-12, atol=1e-12)
    assert found[1][1:][-1].abs().sum() > 0


def test_gradients_reach_the_readout_the_field_and_the_values():
    model, batch = made(readout_width=6, lengths=(5, 5, 5))
    model.train()(batch).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    assert not any(p.requires_grad for p in model.readout.ramps.parameters())

    values = batch.values[:1].clone()
    known = ~values.isnan()

    def outputs(told):
        filled = values.clone()
        filled[known] = told
        one = oc.SeriesBatch.from_padded(batch.times[:1], filled)
        return model(one).sum()

    told = values[known].requires_grad_()
    (slope,) = torch.autograd.grad(outputs(told), told)
    for place in range(len(told)):
        step = torch.zeros_like(told)
        step[place] = 1e-6
        with torch.no_grad():
            wanted = (outputs(told + step) - outputs(told - step)) / 2e-6
        torch.testing.assert_close(slope[place], wanted, rtol=1e-4, atol=1e-6)


def test_readout_dropout_is_for_training_and_follows_the_seed():
    model, batch = made(readout_width=32, readout_dropout=0.5)
    assert torch.equal(model(batch), model(batch))
    model.train()
    said = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        said.append(model(batch).detach())
    assert torch.equal(said[0], said[1])
    assert not torch.allclose(said[0], said[2])
    # What stands in the padding repeats the last row, dropout and all.
    assert torch.equal(said[0][2, 1:], said[0][2, :1].expand(5, -1))
    torch.testing.assert_close(said[0][:, -1], said[0][torch.arange(4), batch.rows - 1])


def _by_members(head, x):
    """What each member of a head says of x (row, input), in plain sums: (member, row, output)."""
    shared, last, said = head.layers[0], head.layers[-1], []
    for inward, bias, outward in zip(shared.inward, shared.bias, shared.outward, strict=True):
        rows = []
        for row in x:
            units = [
                sum(w * f * v for w, f, v in zip(weights, inward, row, strict=True)) + start + more
                for weights, start, more in zip(
                    shared.linear.weight, shared.linear.bias, bias, strict=True
                )
            ]
            units = torch.stack([u / (1 + (-u).exp()) for u in units]) * outward
            rows.append(last.weight @ units + last.bias)
        said.append(torch.stack(rows))
    return torch.stack(said)


@torch.no_grad()
def test_members_share_a_matrix_and_their_mean_is_said():
    head = oc.models.Readout(4, 2, "multilabel", width=3, members=5).double()
    for weight in head.parameters():
        weight.add_(0.3 * torch.randn_like(weight))
    x = torch.randn(60, 4, dtype=D)
    each = _by_members(head, x)
    torch.testing.assert_close(head.eval()(x), each.mean(0), rtol=1e-10, atol=1e-10)
    said = head.train()(x)
    # In training a row goes through one member; among 60 rows each of the five comes up.
    away = (said - each).abs().amax(-1)
    assert float(away.amin(0).max()) < 1e-10
    assert set(away.argmin(0).tolist()) == set(range(5))
    torch.manual_seed(1)
    first = head(x)
    torch.manual_seed(1)
    assert torch.equal(head(x), first)
    assert not torch.equal(head(x), first)


def test_members_begin_apart_and_a_step_moves_all_that_were_drawn():
    head = oc.models.Readout(6, 1, "binary", width=8, members=4).double()
    shared = head.layers[0]
    assert set(shared.inward.flatten().tolist()) == {-1.0, 1.0}
    assert len({tuple(row) for row in shared.inward.tolist()}) > 1
    x, labels = torch.randn(50, 6, dtype=D), torch.randint(0, 2, (50, 1)).double()
    torch.manual_seed(0)
    drawn = set(torch.randint(4, (1,)).tolist())
    torch.manual_seed(0)
    head.loss(head(x[:1]), labels[:1]).backward()
    moved = shared.inward.grad.abs().amax(1) > 0
    assert {i for i in range(4) if moved[i]} == drawn
    assert shared.linear.weight.grad.abs().min() > 0


def test_a_channel_that_is_hidden_in_training_was_never_observed():
    model, batch = made(channel_dropout=0.5, lengths=(6,) * 30, observed=0.7)
    told = []
    model.readout.ramps.register_forward_hook(lambda _, inputs, out: told.append(inputs[0]))
    model.train()(batch)
    model.eval()(batch)
    v = model.encoding.path_channels
    counted = slice(v - CHANNELS, v)
    hidden = (told[0][:, -1, counted] == 0) & (told[1][:, -1, counted] > 0)
    assert 10 < int(hidden.sum()) < 80
    since = told[0][:, :, v:].transpose(1, 2)
    assert (since[hidden] == 0).all()
    assert (told[1][:, :, v:].transpose(1, 2)[hidden] > 0).any()
    kept = (told[0][:, -1, counted] > 0).nonzero(as_tuple=True)
    assert torch.equal(since[kept], told[1][:, :, v:].transpose(1, 2)[kept])


def test_state_bytes_go_and_come_back_with_their_stamps():
    model, batch = made(lengths=(5,) * 4, dtype=torch.float32, readout_width=6)
    with torch.no_grad():
        codec = StateCodec(model.init_state(1), "0f" * 32)
        state = follow(model, batch, 3)
        again = codec.decode(codec.encode(state))
        same_state(again, state)
        t, x = batch.times[:, 3], batch.values[:, 3]
        assert codec.encode(model.observe(again, t, x)) == codec.encode(model.observe(state, t, x))
        forgotten = replace(state, stamps=torch.full_like(state.stamps, torch.nan))
        assert not torch.allclose(model.predict(forgotten, t), model.predict(state, t))


def test_states_are_taken_apart_and_put_together_with_their_stamps():
    model, batch = made(lengths=(5,) * 4)
    with torch.no_grad():
        state = follow(model, batch, 4)
        same_state(type(state).concatenate([state[:1], state[1:]]), state)
        blank = model.init_state(4)
        same_state(blank.put([2, 0], state[[2, 0]])[[0, 2]], state[[0, 2]])


def test_an_engine_keeps_stamps_across_a_restart(tmp_path):
    """Late rows included, each part of the events in an engine of its own."""
    model, batch = made(lengths=(9, 9), dtype=torch.float32, readout_width=6)
    oc.save(model, tmp_path / "model", channels=NAMES)
    events = [
        Event(f"s{stream}", float(batch.times[stream, row]), NAMES[channel], float(value))
        for row in (1, 0, 2, 3, 5, 4, 6, 7, 8)
        for stream in range(2)
        for channel, value in enumerate(batch.values[stream, row])
        if not value.isnan()
    ]
    third = len(events) // 3
    parts = [events[:third], events[third : 2 * third], events[2 * third :]]
    for number, part in enumerate(parts):
        store = SQLiteStore(tmp_path / "streams.db")
        with Engine(tmp_path / "model", store, lateness=10.0) as follows:
            assert all(receipt.refusal is None for receipt in follows.apply(part))
            if number < 2:
                continue
            said = [[row.outputs for row in follows.history(f"s{i}")] for i in range(2)]
            later = [follows.predict(f"s{i}", float(batch.times[i, -1]) + 3) for i in range(2)]
    for stream in range(2):
        some = batch.observed[stream].any(1)
        times, values = batch.times[stream, some][None], batch.values[stream, some][None]
        alone = oc.SeriesBatch.from_padded(times, values)
        at = batch.times[stream, -1:] + 3
        with torch.no_grad():
            np.testing.assert_allclose(said[stream], model(alone)[0], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(
                later[stream], model(alone, at=at)[0, 0], rtol=1e-5, atol=1e-5
            )


def test_a_saved_model_says_the_same_to_the_last_bit(tmp_path):
    settings = {"readout_width": 6, "readout_dropout": 0.2, "static": 2, "static_in_path": True}
    settings |= {"readout_members": 3}
    model, batch = made(dtype=torch.float32, **settings)
    oc.save(model, tmp_path / "model")
    loaded = oc.load(tmp_path / "model")
    assert loaded.config == model.config
    assert loaded.readout.ramps.steepness.any()
    with torch.no_grad():
        assert torch.equal(loaded(batch), model(batch))


def test_silence_belongs_to_time_and_its_end_to_the_event():
    """A readout of one channel's since: it grows with time, and the event sets it back."""
    model, _ = made(outputs=1, control="rectilinear")
    encoding = model.encoding
    with torch.no_grad():
        model.readout.layers.weight.zero_()
        model.readout.layers.weight[0, 5 + encoding.path_channels + 1] = 1.0
        state = model.observe(model.init_state(1), 0.0, [[40.0, 41.0, NAN]])
        quiet = model.explain_observation(state, 2.0, [[39.0, NAN, NAN]])
        state = model.observe(state, 2.0, [[39.0, NAN, NAN]])
        broken = model.explain_observation(state, 5.0, [[NAN, 42.0, 43.0]])
    scale = float(encoding.time_scale)
    assert abs(float(quiet.time) * scale - 2) < 1e-10
    assert (quiet.events.abs() < 1e-12).all()
    assert abs(float(broken.time) * scale - 3) < 1e-10
    wanted = torch.tensor([0.0, -5.0, 0.0], dtype=D)
    torch.testing.assert_close(broken.events[0, :, 0] * scale, wanted, rtol=1e-10, atol=1e-10)


def test_fit_lays_the_ramps_on_the_training_split(tmp_path):
    task = oc.data.simulate_ward(60, seed=0, hours=12).task
    settings = {"hidden": 6, "width": 12, "readout_ramps": 3, "readout_width": 8}
    settings |= {"readout_sees_path": True, "readout_dropout": 0.1}
    # At rows; taught at query times, ramps lie on what the readout sees at those.
    taught = {"epochs": 2, "at": "rows", "validate_at": "rows"}
    done = oc.fit(task, "neural-cde", model_settings=settings, out=tmp_path / "run", **taught)
    found = done.model.readout
    train, _ = task.split("train")
    wanted = neural_cde(**flat_of(done.model.config)).fit_scales(train).readout
    assert torch.equal(found.ramps.low, wanted.ramps.low)
    assert found.ramps.steepness.any()
    loaded = oc.load(tmp_path / "run" / "model")
    some = train[:4]
    with torch.no_grad():
        assert torch.equal(loaded(some), done.model.eval()(some))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="give the readout sees_path=True"):
        oc.NeuralCDE(channels=2, readout={"ramps": 3})
    with pytest.raises(ValueError, match="the readout's dropout is for an MLP: give it a width"):
        oc.NeuralCDE(channels=2, readout={"dropout": 0.1})
    with pytest.raises(ValueError, match=r"dropout is 1\.0: give a share from 0 up to 1"):
        oc.NeuralCDE(channels=2, readout={"width": 4, "dropout": 1.0})
    with pytest.raises(
        ValueError, match="members is 3: give 1, or more where the readout has a width"
    ):
        oc.NeuralCDE(channels=2, readout={"members": 3})
    with pytest.raises(ValueError, match="members is 0"):
        oc.NeuralCDE(channels=2, readout={"width": 4, "members": 0})
    with pytest.raises(ValueError, match="-1 ramps: give at least 1"):
        oc.NeuralCDE(channels=2, readout={"sees_path": True, "ramps": -1})
    model, _ = made(control="natural_cubic")
    with pytest.raises(StateError, match="natural cubic"):
        model.init_state()
