"""`static_in_path`: static features are channels of X that are observed once, at a stream's first row."""

from dataclasses import fields

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.models import StateError, online
from onlinecde.models.flat_settings import flat_of, neural_cde
from onlinecde.models.frozen import packed
from onlinecde.streaming import Engine, Event, SQLiteStore
from onlinecde.streaming.codec import StateCodec

CHANNELS, STATIC = 3, 2
SEEN = {
    "static": STATIC,
    "static_in_path": True,
    "field_sees_path": True,
    "readout_sees_path": True,
}
NAMES = ["a", "b", "c"]
CONTROLS = ["rectilinear", "linear", "hermite", "natural_cubic"]
SETTINGS = [
    {},
    {"counts": False},
    {"field_sees_path": False, "readout_sees_path": False},
    {"clip": 1.0, "gain": 0.4, "count_scale": "log", "count_gain": 0.3},
    {"restoring": 0.5, "width": 16, "activation": "silu"},
]


def made(seed=None, observed=0.5, dtype=torch.float64, lengths=(6, 3, 1, 5), **settings):
    """A model fitted to a batch of random series, static features far from 0."""
    random = np.random.default_rng(seed)
    times = [random.uniform(0.2, 1.2, rows).cumsum() for rows in lengths]
    values = [random.normal(40, 7, (rows, CHANNELS)) for rows in lengths]
    for table in values:
        table[random.random(table.shape) >= observed] = np.nan
    static = torch.tensor(random.normal(900, 5, (len(lengths), STATIC)))
    batch = oc.SeriesBatch.from_arrays(times, values, static).to(dtype=dtype)
    torch.manual_seed(int(random.integers(1000)))
    sizes = {"channels": CHANNELS, "hidden": 5, "width": 7, "outputs": 2, **SEEN, **settings}
    model = neural_cde(**sizes).to(dtype).eval()
    model.fit_scales(batch)
    return model, batch


def by_hand(model, batch):
    """A plain model of more channels with the same weights, and the series told to it in full."""
    told = torch.full((*batch.times.shape, STATIC), torch.nan, dtype=batch.dtype)
    told[:, 0] = batch.static
    wide = oc.SeriesBatch.from_padded(batch.times, torch.cat([batch.values, told], 2), batch.rows)
    settings = {"channels": CHANNELS + STATIC, "static": 0, "static_in_path": False}
    plain = neural_cde(**{**flat_of(model.config), **settings}).to(model.dtype).eval()
    plain.load_state_dict(model.state_dict())
    return plain, wide


def follow(model, batch, rows):
    """The state after so many rows that every stream has."""
    state = model.init_state(len(batch), batch.static)
    for row in range(rows):
        state = model.observe(state, batch.times[:, row], batch.values[:, row])
    return state


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("control", CONTROLS)
def test_it_is_the_model_of_channels_observed_once(control, settings):
    model, batch = made(control=control, **settings)
    plain, wide = by_hand(model, batch)
    last = batch.times.gather(1, batch.rows[:, None] - 1)
    with torch.no_grad():
        assert torch.equal(model(batch), plain(wide))
        assert torch.equal(model(batch, final=True), plain(wide, final=True))
        at = torch.cat([batch.times[:, :1] + 0.1, last + 0.5], 1)
        assert torch.equal(model(batch, at=at), plain(wide, at=at))
    fitted = oc.Encoding(CHANNELS + STATIC).double().fit(wide)
    assert torch.equal(model.encoding.shift, fitted.shift)
    assert torch.equal(model.encoding.scale, fitted.scale)
    assert model.path(batch).rows.shape[2] == model.encoding.path_channels == plain.field.channels


def test_its_gradients_are_those_of_that_model():
    model, batch = made()
    plain, wide = by_hand(model, batch)
    for one, series in ((model, batch), (plain, wide)):
        one(series).square().sum().backward()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    unmoved = model.field.weight.grad[1 + CHANNELS : 1 + CHANNELS + STATIC]
    assert (unmoved == 0).all(), "static features stand still, so their columns are never used"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("max_step", [None, 0.3])
def test_a_live_state_is_the_batch_solve_bit_for_bit(dtype, max_step):
    settings = {"max_step": max_step, "field_sees_path": False}
    model, batch = made(dtype=dtype, lengths=(5,) * 7, **settings)
    with torch.no_grad():
        path = model.path(batch)
        start = model.begin(path.rows[:, 0], batch.static)
        z = oc.solve(path, model.field, start, max_step=max_step).z
        for rows in range(1, 6):
            state = follow(model, batch, rows)
            assert torch.equal(state.z, z[:, rows - 1])
            told = online.row(model, state.time, state.values, state.counts)
            assert torch.equal(told, path.rows[:, rows - 1])
            torch.testing.assert_close(model.predict(state), model(batch)[:, rows - 1])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_live_it_holds_what_the_model_of_channels_observed_once_holds(dtype, settings):
    """Bit for bit, by the kernels and without them."""
    model, batch = made(dtype=dtype, lengths=(5,) * 7, **settings)
    plain, wide = by_hand(model, batch)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            state, other = model.init_state(7, batch.static), plain.init_state(7)
            for row in range(5):
                t, x = batch.times[:, row], batch.values[:, row]
                assert (packed(model) is None) == grad
                state, other = (
                    model.observe(state, t, x),
                    plain.observe(other, t, wide.values[:, row]),
                )
                for name in ("z", "before", "values", "counts"):
                    assert torch.equal(getattr(state, name), getattr(other, name)), name
                assert torch.equal(model.predict(state, t + 0.3), plain.predict(other, t + 0.3))


@pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
def test_the_first_instant_may_come_in_parts(grad, rng):
    model, batch = made(lengths=(4,), observed=1.0)
    with torch.set_grad_enabled(grad):
        whole = follow(model, batch, 1)
        parts = model.init_state(1, batch.static)
        for channel in rng.permutation(CHANNELS):
            x = torch.full((1, CHANNELS), torch.nan, dtype=model.dtype)
            x[0, channel] = batch.values[0, 0, channel]
            parts = model.observe(parts, batch.times[:, 0], x)
        for field in fields(whole):
            one, other = getattr(whole, field.name), getattr(parts, field.name)
            if one is not None:
                assert torch.equal(one.nan_to_num(), other.nan_to_num()), field.name
        empty = model.observe(
            model.init_state(1, batch.static), 0.0, torch.full((1, CHANNELS), torch.nan)
        )
    assert (empty.values[:, :CHANNELS] == 0).all()
    assert torch.equal(empty.values[:, CHANNELS:], whole.values[:, CHANNELS:])


def test_what_z_forgets_the_path_keeps():
    """z is pulled back to 0, so that static features in z(t0) alone no longer matter after a while."""
    kept = {}
    for in_path in (False, True):
        settings = {"static_in_path": in_path, "restoring": 1.0, "width": 64, "depth": 1}
        model, batch = made(seed=3, lengths=(2,) * 8, max_step=0.3, **settings)
        told = (batch.static - 900) / 5
        if not in_path:  # a model that is not told in its path gets them scaled, as in training
            batch = oc.SeriesBatch.from_padded(batch.times, batch.values, batch.rows, told)
        other = oc.SeriesBatch.from_padded(
            batch.times, batch.values, batch.rows, batch.static.flip(0)
        )
        with torch.no_grad():
            soon, late = batch.times[:, :1], batch.times[:, 1:] + 60
            moved = [(model(batch, at=t) - model(other, at=t)).abs().max() for t in (soon, late)]
        assert moved[0] > 0.1
        kept[in_path] = float(moved[1] / moved[0])
    assert kept[False] < 0.02 < 0.1 < kept[True], kept


def test_static_features_belong_to_the_start_of_an_explanation():
    model, batch = made(lengths=(5, 5))
    parts = model.explain(batch)
    assert parts.events.shape == (2, 5, CHANNELS, 2)
    first = model(batch).detach()[:, 0]
    torch.testing.assert_close(parts.start, first, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.outputs(), model(batch).detach(), rtol=1e-12, atol=1e-12)
    step = model.explain_observation(follow(model, batch, 3), batch.times[:, 3], batch.values[:, 3])
    assert step.events.shape == (2, CHANNELS, 2)
    torch.testing.assert_close(step.events, parts.events[:, 3], rtol=1e-10, atol=1e-11)


def test_channel_dropout_never_hides_static_features():
    model, batch = made(channel_dropout=0.9, lengths=(5,) * 40, observed=1.0)
    seen = []
    model.encoding.register_forward_hook(lambda *told: seen.append(told[2].values))
    model.train()(batch)
    model.eval()(batch)
    hidden, whole = seen
    assert hidden[:, :, :CHANNELS].isnan().sum() > whole[:, :, :CHANNELS].isnan().sum()
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(hidden[:, :, CHANNELS:], whole[:, :, CHANNELS:], **same)


@pytest.mark.parametrize("control", ["linear", "hermite"])
def test_features_told_once_are_no_gaps(control):
    model, batch = made(control=control, observed=1.0)
    assert model.path(batch).measurability is oc.Measurability.DISCRETE
    values = batch.values.clone()
    values[0, 2, 1] = torch.nan
    gaps = oc.SeriesBatch.from_padded(batch.times, values, batch.rows, batch.static)
    assert model.path(gaps).measurability is oc.Measurability.OFFLINE
    state = follow(model, batch[:2], 2)
    with pytest.raises(StateError, match=f"channel 1 is missing: the {control}"):
        model.observe(state, 99.0, values[0, 2].expand(2, -1))


def test_state_bytes_go_and_come_back():
    model, batch = made(lengths=(5,) * 4, dtype=torch.float32)
    with torch.no_grad():
        codec = StateCodec(model.init_state(1, batch.static[:1]), "0f" * 32)
        state = follow(model, batch, 3)
        again = codec.decode(codec.encode(state))
        t, x = batch.times[:, 3], batch.values[:, 3]
        assert codec.encode(model.observe(again, t, x)) == codec.encode(model.observe(state, t, x))


def test_an_engine_follows_streams_with_their_static_features(tmp_path):
    """Late first rows, an end and a new beginning included, it holds what the batch says."""
    model, batch = made(lengths=(6, 6), dtype=torch.float32)
    oc.save(model, tmp_path / "model", channels=NAMES)
    store = tmp_path / "streams.db"
    events = [
        Event(f"s{stream}", float(batch.times[stream, row]), NAMES[channel], float(value))
        for stream in range(2)
        for row in (1, 0, 2, 3, 5, 4)
        for channel, value in enumerate(batch.values[stream, row])
        if not value.isnan()
    ]
    for part in (events[: len(events) // 2], events[len(events) // 2 :]):
        with Engine(tmp_path / "model", SQLiteStore(store), lateness=10.0) as follows:
            for stream in range(2):
                follows.open_stream(f"s{stream}", static=batch.static[stream].double().tolist())
            receipts = follows.apply(part)
            assert all(receipt.refusal is None for receipt in receipts)
            if part[-1] is events[-1]:
                said = [[row.outputs for row in follows.history(f"s{i}")] for i in range(2)]
    for stream in range(2):
        some = batch.observed[stream].any(1)
        alone = oc.SeriesBatch.from_padded(
            batch.times[stream, some][None],
            batch.values[stream, some][None],
            static=batch.static[stream][None],
        )
        with torch.no_grad():
            np.testing.assert_allclose(said[stream], model(alone)[0], rtol=1e-5, atol=1e-5)


def test_training_scales_static_features_once_in_the_encoding(rng):
    from onlinecde.training.objectives import Scales, learn_scales

    model, batch = made()
    assert learn_scales(model, batch, torch.zeros(4), target=False) == Scales()
    level = rng.normal(size=150)
    static = np.stack([900 + 5 * level, rng.normal(size=150)], 1)
    times = [rng.uniform(0.5, 1.5, 4).cumsum() for _ in level]
    values = [np.where(rng.random((4, 1)) < 0.7, rng.normal(size=(4, 1)), np.nan) for _ in times]
    series = oc.SeriesBatch.from_arrays(times, values, torch.tensor(static, dtype=torch.float32))
    task = oc.data.Task.build(
        "level", series, (level > 0).astype(float), kind="binary", per="stream"
    )
    settings = {"hidden": 4, "width": 8, "static_in_path": True, "readout_sees_path": True}
    done = oc.fit(task, "neural-cde", model_settings=settings, epochs=25, lr=0.03)
    train, _ = task.split("train")
    shift = done.model.encoding.shift[1:].double()
    torch.testing.assert_close(shift, train.static.double().mean(0), rtol=1e-5, atol=1e-5)
    judged = oc.evaluate(done.model, task, metrics=["auc"], bootstrap=0)
    assert judged.metrics["auc"].value > 0.95


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="static_in_path is for static features"):
        oc.NeuralCDE(channels=2, encoding={"static_in_path": True})
    model, batch = made()
    with pytest.raises(StateError, match="takes 2 static features: give static"):
        model.init_state()
    with pytest.raises(StateError, match="known and finite"):
        model.init_state(1, [[0.0, float("nan")]])
    with pytest.raises(
        StateError, match=r"x has shape \(4, 5\): give \(stream, channel\) = \(4, 3\)"
    ):
        model.observe(model.init_state(4, batch.static), 0.0, torch.zeros(4, 5))
    bare = oc.SeriesBatch.from_padded(batch.times, batch.values, batch.rows)
    with pytest.raises(oc.SeriesError, match="0 static features, the encoding was made for 2"):
        model.fit_scales(bare)
    with pytest.raises(ValueError, match="0 static features, the model was made for 2"):
        model(bare)
