"""Each slip is the one the paper's code made: judged by torchcde, or by what it must change."""

import pytest
import torch
import torchcde

import onlinecde as oc
from onlinecde.data import simulate_ward
from onlinecde.experiments.slips import SlippedCDE, slipped_model, slipped_task
from onlinecde.models.flat_settings import flat_of, neural_cde
from onlinecde.training import FitError, graphs


def random_series(streams, rows, channels, seed, lengths=None):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = lengths or [rows] * streams
    times = [draw(n).abs().add(0.1).cumsum(0) for n in lengths]
    return oc.SeriesBatch.from_arrays(times, [draw(n, channels) for n in lengths])


def slipped(series, slips, **settings):
    torch.manual_seed(3)
    return SlippedCDE(
        slips=slips,
        longest=int(series.rows.max()),
        channels=series.values.shape[2],
        outputs=2,
        **{"hidden": 5, "width": 7, "depth": 2, "counts": False} | settings,
    ).double()


class Field(torch.nn.Module):
    """The model's field as torchcde wants it."""

    def __init__(self, field):
        super().__init__()
        self.field = field

    def forward(self, t, z):
        return self.field.matrix(z)


@pytest.mark.parametrize("control", ["linear", "rectilinear"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_left_slope_is_what_torchcde_and_torchdiffeq_compute(control, backend):
    series = random_series(6, 9, 3, seed=int(torch.randint(10**6, ())))
    model = slipped(series, "left slope", control=control, backend=backend)
    path = model.path(series)
    steps = path.rows if control == "linear" else path.evaluate(path.knots)
    theirs = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(steps))
    z0 = model.begin(path.rows[:, 0], None)
    wanted = torchcde.cdeint(
        theirs,
        Field(model.field),
        z0,
        theirs.grid_points,
        adjoint=False,
        method="rk4",
        options={"step_size": 1.0},
    )[:, :: path.pieces_per_row]
    torch.testing.assert_close(model(series), model.read(wanted, None), rtol=1e-9, atol=1e-10)
    clean = neural_cde(
        **{k: v for k, v in flat_of(model.config).items() if k not in ("slips", "longest")}
    )
    clean.double().load_state_dict(model.state_dict())
    assert float((clean(series) - model(series)).detach().abs().max()) > 1e-3


def test_left_slope_has_exact_gradients():
    series = random_series(4, 6, 2, seed=5, lengths=[6, 4, 2, 1])
    fast = slipped(series, "left slope", control="rectilinear")
    slow = slipped(
        series, "left slope", control="rectilinear", backend="torch", gradient="backprop"
    )
    for model in (fast, slow):
        model(series, final=True).square().sum().backward()
    for mine, other in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-10)


def test_left_slope_changes_nothing_on_a_smooth_path():
    series = random_series(3, 7, 2, seed=6)
    model = slipped(series, "left slope", control="hermite")
    plain = neural_cde(
        **{k: v for k, v in flat_of(model.config).items() if k not in ("slips", "longest")}
    )
    plain.double().load_state_dict(model.state_dict())
    torch.testing.assert_close(model(series), plain(series))


def test_padding_carries_the_last_slope_on_to_the_longest_stream():
    series = random_series(3, 8, 2, seed=7, lengths=[8, 5, 2])
    model = slipped(series, "padding", control="natural_cubic")
    path, clean = model.path(series), oc.NeuralCDE.path(model, series)
    assert path.lengths.tolist() == [8, 8, 8]
    s = torch.linspace(0, 4, 9, dtype=torch.float64)
    torch.testing.assert_close(path.evaluate(s)[1], clean.evaluate(s)[1])
    end = clean.slopes[1, 4]
    later = path.derivative(torch.tensor([4.5, 5.0, 6.9], dtype=torch.float64))[1]
    torch.testing.assert_close(later, end.expand(3, -1))
    assert float(clean.derivative(5.0)[1].abs().max()) == 0
    # It is the whole data set that decides how far, not the batch.
    alone = model(series[[1]], final=True)
    torch.testing.assert_close(alone, model(series, final=True)[[1]])
    assert model(series[[1]]).shape[1] == 5


def test_shared_layers_have_one_set_of_weights(tmp_path):
    series = random_series(3, 5, 2, seed=8)
    model = slipped(series, "shared layers", depth=4, control="linear")
    inner = model.field.inner
    assert inner[1] is inner[2] is inner[3]
    assert inner[0] is not inner[1]
    separate = oc.NeuralCDE(
        channels=2, outputs=2, hidden=5, counts=False, field={"width": 7, "depth": 4}
    )
    saved = sum(p.numel() for p in separate.parameters()) - sum(
        p.numel() for p in model.parameters()
    )
    assert saved == 2 * (7 * 7 + 7)
    before = model(series)
    before.sum().backward()
    oc.save(model, tmp_path / "model")
    again = oc.artifacts.load(tmp_path / "model", classes=[SlippedCDE])
    assert torch.equal(again(series), before)
    assert again.field.inner[1] is again.field.inner[3]


def test_slips_of_the_task_take_static_features_and_times_away():
    task = simulate_ward(30, seed=1).task
    bare = slipped_task(task, ["no static"])
    assert bare.series.static is None
    assert bare.series.features == ()
    rows = slipped_task(task, ["rows as time"]).series
    assert rows.times[0, : int(rows.rows[0])].tolist() == list(range(int(rows.rows[0])))
    assert float(rows.times.max()) == float(rows.rows.max()) - 1
    assert slipped_task(task, []) is task
    model = slipped_model(bare, "gru", {"hidden": 4}, ["no static"])
    assert isinstance(model, oc.GRU)
    assert model.static == 0


def test_a_slipped_model_is_never_trained_by_the_captured_step_of_the_right_one():
    model = slipped(random_series(2, 4, 1, seed=9), "left slope", control="rectilinear")
    assert graphs.why_not(model) == "SlippedCDE has no captured step"


def test_slips_that_do_not_fit_are_refused():
    series = random_series(2, 4, 1, seed=9)
    with pytest.raises(ValueError, match="natural cubic"):
        slipped(series, "padding", control="linear")
    with pytest.raises(ValueError, match="rk4"):
        slipped(series, "left slope", method="heun")
    with pytest.raises(ValueError, match="rows alone"):
        slipped(series, "left slope")(series, at=[1.0])
    task = simulate_ward(30, seed=1).task
    with pytest.raises(FitError, match="no setting"):
        slipped_model(task, "neural-cde", {"hiden": 4}, ["shared layers"])
