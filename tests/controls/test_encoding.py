"""The encoding scales by what training showed, looks only backwards, and keeps its clock exact."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_series import SCHEMES, batches, build, random_batch, same_bits

from onlinecde import Encoding, SeriesBatch, SeriesError
from onlinecde.controls.encoding import bound

NAN = float("nan")


def series(times, *channels, dtype=torch.float64):
    return SeriesBatch.from_arrays([times], [torch.tensor(channels, dtype=dtype).T])


def test_fit_finds_mean_and_deviation_of_what_was_observed():
    batch = random_batch([6, 2, 9], 3, 0)
    encoding = Encoding(3).double().fit(batch)
    values = batch.values[batch.real]
    for channel in range(3):
        seen = values[:, channel][~values[:, channel].isnan()]
        torch.testing.assert_close(encoding.shift[channel], seen.mean())
        torch.testing.assert_close(encoding.scale[channel], seen.std(correction=0))
    clock = batch.times[batch.real]
    torch.testing.assert_close(encoding.time_shift, clock.mean())
    torch.testing.assert_close(encoding.time_scale, clock.std(correction=0))
    scaled = encoding(batch)
    assert abs(float(scaled.time[batch.real].mean())) < 1e-12
    inside = scaled.values[batch.real]
    assert torch.equal(inside.isnan(), values.isnan())
    torch.testing.assert_close(inside.nanmean(0), torch.zeros(3, dtype=torch.float64))


def test_fit_returns_itself_and_knows_only_the_training_series():
    train, test = random_batch([6, 2], 2, 0), random_batch([7], 2, 1)
    encoding = Encoding(2).double()
    assert encoding.fit(train) is encoding
    before = copy.deepcopy(encoding.state_dict())
    encoding(test)
    build("rectilinear", test, encoding=encoding)
    for name, buffer in encoding.state_dict().items():
        same_bits(buffer, before[name])
    scaled = encoding(test).values
    same_bits(scaled, (test.values - before["shift"]) / before["scale"])


def test_fit_keeps_no_graph_of_what_it_learnt_from():
    values = torch.randn(2, 5, 3, requires_grad=True)
    times = torch.arange(5.0).expand(2, 5).clone().requires_grad_()
    encoding = Encoding(3).fit(SeriesBatch.from_padded(times, values))
    assert not any(buffer.requires_grad for buffer in encoding.buffers())
    copy.deepcopy(encoding)


def test_static_features_stand_behind_the_channels_at_the_first_row(rng):
    """Each stream counts once in their scale, however many rows it has."""
    times = [rng.uniform(0.1, 1, rows).cumsum() for rows in (5, 1, 3)]
    values = [torch.tensor(rng.normal(3, 2, (len(t), 2))) for t in times]
    static = torch.tensor(rng.normal(70, 9, (3, 1)))
    batch = SeriesBatch.from_arrays(times, values, static)
    encoding, plain = (Encoding(2, True, static=n).double().fit(batch) for n in (1, 0))
    torch.testing.assert_close(encoding.shift[2:], static.mean(0))
    torch.testing.assert_close(encoding.scale[2:], static.std(0, correction=0))
    scaled, without = encoding(batch), plain(batch)
    same_bits(scaled.values[:, :, :2], without.values)
    same_bits(scaled.counts[:, :, :2], without.counts)
    torch.testing.assert_close(
        scaled.values[:, 0, 2:], (static - static.mean(0)) / encoding.scale[2:]
    )
    assert scaled.values[:, 1:, 2].isnan().all()
    assert (scaled.counts[:, :, 2] == 1).all()
    assert (encoding.value_channels, encoding.path_channels, scaled.static) == (3, 7, 1)
    with pytest.raises(SeriesError, match="2 static features, the encoding was made for 1"):
        encoding(SeriesBatch.from_arrays(times, values, static.repeat(1, 2)))


def test_padding_is_not_training_data():
    short, long = random_batch([2], 2, 0, "none"), random_batch([9], 2, 1, "none")
    both = SeriesBatch.from_arrays(
        [short.times[0], long.times[0]], [short.values[0], long.values[0]]
    )
    encoding = Encoding(2).double().fit(both)
    every = torch.cat([short.values[0], long.values[0]])
    torch.testing.assert_close(encoding.shift, every.mean(0))
    torch.testing.assert_close(
        encoding.time_shift, torch.cat([short.times[0], long.times[0]]).mean()
    )


def test_a_channel_never_observed_or_constant_keeps_scale_1():
    batch = series(
        [0.0, 1.0, 2.0], [NAN, NAN, NAN], [0.1, NAN, 0.1], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]
    )
    encoding = Encoding(4).double().fit(batch)
    assert encoding.shift.tolist() == [0.0, 0.1, 0.0, 2.0]
    assert encoding.scale[:3].tolist() == [1.0, 1.0, 1.0]
    scaled = encoding(batch).values[0]
    assert scaled[:, 0].isnan().all()
    assert scaled[0, 1] == scaled[2, 1] == 0.0
    one = Encoding(1).fit(SeriesBatch.from_arrays([[5.0]], [[[3.0]]]))
    assert (one.time_shift.item(), one.time_scale.item()) == (5.0, 1.0)
    assert (one.shift.item(), one.scale.item()) == (3.0, 1.0)


def test_without_fit_nothing_is_scaled():
    batch = random_batch([4, 2], 2, 0)
    encoding = Encoding(2, True)
    for scheme in SCHEMES:
        same_bits(build(scheme, batch, True).rows, build(scheme, batch, encoding=encoding).rows)
    assert encoding.path_channels == 5
    assert Encoding(2).path_channels == 3


def test_clip_comes_before_gain():
    batch = series([0.0, 1.0, 2.0, 3.0], [-100.0, 1.0, NAN, 9.0])
    encoding = Encoding(1, clip=5.0, gain=0.2)
    scaled = encoding(batch).values.flatten()
    torch.testing.assert_close(scaled[[0, 1, 3]], torch.tensor([-1.0, 0.2, 1.0]).double())
    assert scaled[2].isnan()


def test_counts_are_plain_or_logarithmic():
    batch = series([0.0, 1.0, 2.0, 3.0], [1.0, NAN, 1.0, 1.0])
    raw = torch.tensor([1.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    assert Encoding(1)(batch).counts is None
    for keywords, expected in (
        ({}, raw),
        ({"count_gain": 0.5}, raw / 2),
        ({"count_scale": "log"}, raw.log1p()),
        ({"count_scale": "log", "count_gain": 1 / 3}, raw.log1p() / 3),
    ):
        encoding = Encoding(1, True, **keywords)
        counts = encoding(batch).counts
        assert counts is not None
        torch.testing.assert_close(counts.flatten(), expected)
        same_bits(encoding.scale_counts(raw), counts.flatten())


@given(batch=batches(), row=st.integers(0, 8), scale=st.sampled_from(["linear", "log"]))
def test_every_row_is_encoded_from_the_past_alone(batch, row, scale):
    channels = batch.values.shape[2]
    encoding = Encoding(channels, True, clip=2.0, gain=0.2, count_scale=scale).double()
    encoding.fit(random_batch([5], channels, 0, "none"))
    whole, past = encoding(batch), encoding(batch.first_rows(row + 1))
    real = past.times.shape[1]
    kept = batch.first_rows(row + 1).real
    for name in ("time", "values", "counts"):
        left, right = getattr(whole, name)[:, :real][kept], getattr(past, name)[kept]
        torch.testing.assert_close(left, right, rtol=1e-15, atol=0, equal_nan=True)


def test_state_dict_carries_everything_that_was_learnt():
    batch = random_batch([6, 2], 2, 0)
    encoding, fresh = Encoding(2, True).double().fit(batch), Encoding(2, True).double()
    assert set(encoding.state_dict()) == {"time_shift", "time_scale", "shift", "scale"}
    fresh.load_state_dict(encoding.state_dict())
    one, two = encoding(batch), fresh(batch)
    same_bits(one.values, two.values)
    same_bits(one.time, two.time)
    assert not list(encoding.parameters())


UNIX = 1.7e9


@pytest.mark.parametrize(
    "move",
    [
        lambda encoding: encoding.to(torch.float32),
        lambda encoding: encoding.to(torch.float64),
        lambda encoding: encoding.float(),
        lambda encoding: encoding.double(),
        lambda encoding: encoding.half(),
        lambda encoding: encoding.bfloat16(),
        lambda encoding: encoding.to("cpu", torch.float16),
        lambda encoding: torch.nn.Sequential(encoding).half()[0],
        copy.deepcopy,
    ],
)
def test_the_clock_stays_float64_whatever_the_dtype(move):
    batch = series([UNIX, UNIX + 1, UNIX + 2], [1.0, 2.0, 3.0], dtype=torch.float32)
    encoding = Encoding(1).fit(batch)
    before = encoding(batch).time
    moved = move(encoding)
    assert moved.time_shift.dtype == moved.time_scale.dtype == torch.float64
    assert moved.time_shift.item() == UNIX + 1
    same_bits(moved(batch).time, before)
    assert {name for name, _ in moved.named_buffers()} == set(encoding.state_dict())
    assert build("rectilinear", batch, encoding=moved).rows.isfinite().all()


def test_values_follow_the_dtype_of_the_module():
    assert Encoding(2).double().shift.dtype == torch.float64
    assert Encoding(2).double().float().scale.dtype == torch.float32


def test_an_encoding_can_be_made_without_memory_first():
    with torch.device("meta"):
        encoding = Encoding(2)
    encoding = encoding.to_empty(device="cpu")
    encoding.load_state_dict(Encoding(2).state_dict())
    assert encoding.time_scale.item() == 1.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scaled_unix_seconds_keep_their_differences_in_float32(scheme):
    batch = series([UNIX, UNIX + 1, UNIX + 3], [1.0, 2.0, 3.0], dtype=torch.float32)
    encoding = Encoding(1).fit(batch)
    path = build(scheme, batch, encoding=encoding)
    gaps = path.rows[0, :, 0].diff().double() * encoding.time_scale
    torch.testing.assert_close(gaps, torch.tensor([1.0, 2.0]).double(), rtol=1e-6, atol=0)
    same_bits(path.times, batch.times)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Encoding(0), "channels is 0"),
        (lambda: Encoding(1, static=-1), "static is -1"),
        (lambda: Encoding(1, clip=0.0), "clip is 0.0"),
        (lambda: Encoding(1, clip=float("nan")), "clip is nan"),
        (lambda: Encoding(1, gain=0.0), "gain is 0.0"),
        (lambda: Encoding(1, gain=float("nan")), "gain is nan"),
        (lambda: Encoding(1, count_scale="sqrt"), "count_scale is 'sqrt'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_that_make_no_sense_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_series_with_other_channels_are_refused_and_nothing_is_learnt():
    encoding = Encoding(2)
    before = copy.deepcopy(encoding.state_dict())
    with pytest.raises(SeriesError, match="3 channels, the encoding was made for 2"):
        encoding.fit(random_batch([4], 3, 0))
    for name, buffer in encoding.state_dict().items():
        same_bits(buffer, before[name])


def test_repr_says_what_it_encodes():
    assert repr(Encoding(30, True)) == "Encoding(channels=30, counts=True)"
    assert repr(Encoding(30, static=2)) == "Encoding(channels=30, counts=False, static=2)"


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (series([1.7e9, 1.7e9 + 60], [1.0, 2.0]), r"never fitted, and times reach 2e\+09"),
        (series([0.0, 1.0], [1.0, NAN], [NAN, -2.5e5]), r"never fitted, and values reach 2e\+05"),
    ],
    ids=["unix times", "counts of platelets"],
)
def test_what_was_never_fitted_says_so_where_numbers_are_far_from_0(batch, said):
    encoding = Encoding(batch.values.shape[2]).double()
    with pytest.warns(UserWarning, match=said):
        encoding(batch)
    encoding(series([0.0, 72.0], *[[36.6, 140.0]] * encoding.channels))
    restored = Encoding(encoding.channels).double()
    restored.load_state_dict(encoding.fit(batch).state_dict())
    for fitted in (encoding, restored):
        assert fitted(batch).values.nan_to_num().abs().amax() < 10


@pytest.mark.filterwarnings("ignore:the encoding was never fitted")
def test_a_bounded_encoding_leaves_usual_times_and_counts_as_they_are_and_bounds_the_rest():
    usual, far = torch.linspace(-2, 2, 9), torch.tensor([-1e30, -5.0, 2.5, 7.0, 1e30])
    same_bits(bound(usual), usual)
    assert bound(far).abs().max() <= 3
    assert bound(far).diff().min() > 0
    encoding = Encoding(1, counts=True, bounded=True).double()
    batch = series([0.0, 1.0, 1e9], [1.0, 2.0, 3.0])
    rows = encoding(batch)
    assert rows.time[0].tolist() == [0, 1, 3 - 1 / (1e9 - 1)]
    assert rows.counts[0, :, 0].tolist() == [1, 2, 3]
    path = build("rectilinear", batch, encoding=encoding)
    assert encoding.seen(path.rows)[0, :, 2].tolist() == [1, 2, 2.5]
    stamps = torch.tensor([0.0, NAN], dtype=torch.float64)
    since = encoding.since(torch.tensor(1e12, dtype=torch.float64), stamps)
    assert since.tolist() == pytest.approx([3, 0])
