"""`readout_steps`: single-feature steps are added to the readout, and every contract holds with them."""

import numpy as np
import pytest
import torch
from tests.models.test_readout_ramps import CHANNELS, D, series, with_another_future

import onlinecde as oc
from onlinecde.models import readout
from onlinecde.models.flat_settings import flat_of, neural_cde
from onlinecde.models.steps import Steps

RAMPS = {"readout_ramps": 4, "readout_width": 6, "readout_members": 3}
SETTINGS = [
    {},
    RAMPS,
    {**RAMPS, "static": 2, "static_in_path": True, "field_sees_path": True, "rank": 2},
    {"counts": False, "static": 2},
]


def made(lengths=(6,) * 5, dtype=D, **settings):
    """A model whose steps stand where its numbers are, and a batch."""
    random = np.random.default_rng(np.random.randint(2**31))
    static = settings.get("static", 0)
    model = neural_cde(
        CHANNELS, 5, 7, kind="binary", readout_sees_path=True, readout_steps=40, **settings
    ).to(dtype).eval()  # fmt: skip
    batch = series(random, lengths, dtype=dtype, static=static)
    model.fit_scales(series(random, (20,) * 8, dtype=dtype, static=static))
    path = model.path(batch)
    seen = model.seen(path.rows, model.ages(path.times, model.stamps(batch))).flatten(0, 1)
    place = random.integers(0, seen.shape[1], 30)
    low = seen[torch.tensor(random.integers(0, len(seen), 30)), torch.tensor(place)] - 0.3
    high = low + torch.tensor(random.uniform(0.1, 1.0, 30), dtype=dtype)
    height = random.normal(size=30)
    model.readout.steps.put(-0.7, place.tolist(), low.tolist(), high.tolist(), height.tolist())
    return model, batch


def test_steps_rise_in_straight_lines_and_add_up(rng):
    place, low = rng.integers(0, 4, 9), rng.normal(size=9)
    high, height = low + rng.uniform(0.1, 2, 9), rng.normal(size=9)
    steps = Steps(4, 12).double()
    numbers = torch.tensor(rng.normal(size=(50, 4)) * 2)
    before = torch.randn(50, 1, dtype=D)
    assert torch.equal(steps.beside(before, numbers), before), "nothing is laid yet"
    steps.put(0.3, place.tolist(), low.tolist(), high.tolist(), height.tolist())
    wanted, parts = [], []
    for row in numbers.tolist():
        each = [
            h * min(max((row[p] - a) / (b - a), 0.0), 1.0)
            for p, a, b, h in zip(place, low, high, height, strict=True)
        ]
        wanted.append(0.3 + sum(each))
        own = [sum(x for x, p in zip(each, place, strict=True) if p == n) for n in range(4)]
        parts.append(own)
    wanted = torch.tensor(wanted, dtype=D)[:, None]
    torch.testing.assert_close(steps(numbers), wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(steps.by_input(numbers), torch.tensor(parts, dtype=D))
    torch.testing.assert_close(steps.beside(before, numbers), (before + wanted) / 2)
    # Laid anew, nothing of the old ones is left.
    steps.put(0.0, [1], [0.0], [1.0], [2.0])
    torch.testing.assert_close(steps(numbers)[:, 0], 2 * numbers[:, 1].clamp(0, 1))
    with pytest.raises(ValueError, match="13 steps were given, and there is room for 12"):
        steps.put(0.0, [0] * 13, [0.0] * 13, [1.0] * 13, [1.0] * 13)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [D, torch.float32], ids=str)
@pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
def test_row_by_row_it_says_what_it_says_of_the_whole(grad, dtype, settings):
    model, batch = made(dtype=dtype, **settings)
    close = 1e-11 if dtype == D else 1e-4
    whole = model(batch).detach()
    later = batch.times[:, 3] + 0.9 * (batch.times[:, 4] - batch.times[:, 3])
    asked = model(batch, at=later[:, None])[:, 0].detach()
    with torch.set_grad_enabled(grad):
        state = model.init_state(5, batch.static)
        for row in range(6):
            state = model.observe(state, batch.times[:, row], batch.values[:, row])
            said = model.predict(state).detach()
            torch.testing.assert_close(said, whole[:, row], rtol=close, atol=close)
            if row == 3:
                said = model.predict(state, later).detach()
                torch.testing.assert_close(said, asked, rtol=close, atol=close)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_editing_the_future_leaves_the_past_bit_for_bit(settings):
    model, batch = made(lengths=(8,) * 6, **settings)
    with torch.no_grad():
        before, after = model(batch), model(with_another_future(batch))
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_contributions_still_add_up(settings):
    model, batch = made(lengths=(6, 3, 1, 5), **settings)
    # By quadrature the head's share is off by a little; that of the steps is exact.
    close = 1e-3 if settings.get("readout_ramps") else 1e-9
    with torch.no_grad():
        told, said = model.explain(batch), model(batch)
    for stream, rows in enumerate(batch.rows.tolist()):
        torch.testing.assert_close(
            told.outputs()[stream, :rows], said[stream, :rows], rtol=close, atol=close
        )
    state = model.init_state(1, None if batch.static is None else batch.static[:1])
    for row in range(6):
        t, x = batch.times[:1, row], batch.values[:1, row]
        step = model.explain_observation(state, t, x)
        state = model.observe(state, t, x)
        total = step.start + step.time + step.events.sum(1)
        torch.testing.assert_close(total, model.predict(state), rtol=close, atol=close)


def test_a_step_counts_for_its_own_channel():
    """A head that says nothing leaves the steps alone: each event is told by its own."""
    model, batch = made(counts=False)
    with torch.no_grad():
        for weight in model.readout.parameters():
            weight.zero_()
        model.readout.steps.put(0.0, [2], [-0.5], [0.5], [3.0])
        told = model.explain(batch)
        said = model(batch)
    assert said.abs().sum() > 0
    torch.testing.assert_close(told.outputs(), said, rtol=1e-10, atol=1e-10)
    assert told.time.abs().sum() == 0
    assert told.events[:, :, [0, 2]].abs().sum() == 0
    assert told.events[:, :, 1].abs().sum() > 0


def test_in_training_the_head_learns_by_itself():
    model, batch = made(readout_width=4)
    wanted = model.readout.layers(model.readout.features(*_told(model, batch)))
    assert not torch.allclose(model(batch), wanted)
    torch.testing.assert_close(model.train()(batch), wanted)
    assert not [name for name, _ in model.named_parameters() if name.startswith("readout.steps")]


def _told(model, batch):
    path = model.path(batch)
    z = oc.solve(path, model.field, model.begin(path.rows[:, 0], batch.static)).z
    return z, model.seen(path.rows, model.ages(path.times, model.stamps(batch)))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_in_blocks_as_a_gpu_reads_them_rows_say_the_same(settings, monkeypatch):
    model, batch = made(dtype=torch.float32, **settings)
    monkeypatch.setattr(readout, "BLOCK", 7)
    with torch.no_grad():
        z, view = _told(model, batch)
        wanted = model.double().read(z.double(), view.double()).float()
        model.float()
        for found, at in (
            (readout.read_rounded_once(model.readout, z, view), slice(None)),
            (readout.read_rounded_once(model.readout, z[:, 2], view[:, 2]), 2),
        ):
            torch.testing.assert_close(found, wanted[:, at], rtol=1e-6, atol=1e-6)
        assert readout.read_rounded_once(model.readout, z[:0], view[:0]).shape == (0, 6, 1)


def test_steps_are_saved_with_the_model(tmp_path):
    model, batch = made(dtype=torch.float32, **RAMPS)
    oc.save(model, tmp_path / "model")
    again = oc.load(tmp_path / "model")
    assert torch.equal(again(batch), model(batch))
    assert float(again.readout.steps.share) == 0.5
    # One that was saved before there were steps is as it was.
    config = {k: v for k, v in flat_of(model.config).items() if k != "readout_steps"}
    assert neural_cde(**config).readout.steps is None


def test_what_steps_cannot_be_of_is_said():
    for settings, said in (
        ({"kind": "binary"}, "give the readout sees_path=True"),
        ({"readout_sees_path": True}, "kind='binary' and one output"),
        ({"readout_sees_path": True, "kind": "binary", "outputs": 2}, "one output"),
    ):
        with pytest.raises(ValueError, match=said):
            neural_cde(2, 4, 4, readout_steps=8, **settings)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (([0, 1, 0, 1], [0.0] * 4, [1.0] * 4, [1.0] * 4), "4 steps were given"),
        (([0, 1], [0.0], [1.0, 1.0], [1.0, 1.0]), "2 places, 1 lows, 2 highs and 2 heights"),
        (([2], [0.0], [1.0], [1.0]), "step 0 is of number 2: there are 2, from 0 on"),
        (([-1], [0.0], [1.0], [1.0]), "step 0 is of number -1"),
        (([0, 1], [0.0, 3.0], [1.0, 3.0], [1.0, 1.0]), r"step 1 goes from 3\.0 to 3\.0"),
        (([0], [0.0], [float("nan")], [1.0]), "step 0 goes from 0.0 to nan"),
    ],
)
def test_steps_that_cannot_be_laid_are_refused_and_those_there_stay(steps, said):
    laid = Steps(2, 3).put(1.0, [1], [0.0], [1.0], [2.0])
    before = {name: tensor.clone() for name, tensor in laid.state_dict().items()}
    with pytest.raises(ValueError, match=said):
        laid.put(0.0, *steps)
    for name, tensor in laid.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_there_is_at_least_one_step():
    with pytest.raises(ValueError, match="there are to be -1 steps"):
        Steps(2, -1)
