"""The paper's table as measured, and paths that break one condition each."""

import math
from functools import partial

import pytest
import torch
from custom_paths import (
    Jumping,
    LeftSlope,
    Rounded,
    SplineInTime,
    Wrapped,
    accumulated,
    centred,
    clipped_counts,
    filled_backwards,
)

from onlinecde import audit, controls
from onlinecde.audit import Smoothness, Uniqueness, trial_batch
from onlinecde.controls import Measurability
from onlinecde.series import SeriesBatch

SCHEMES = {
    "natural_cubic": controls.natural_cubic,
    "linear": controls.linear,
    "hermite": controls.hermite,
    "rectilinear": controls.rectilinear,
}
LENGTHS = (4, 8, 16, 32, 64, 128)


class TestTable:
    @pytest.fixture
    def table(self, measured_table):
        return {row.control: row for row in measured_table}

    def test_measured_is_what_the_paper_says(self, table):
        found = {name: tuple(row.measured.verdicts().values()) for name, row in table.items()}
        assert found == {
            "natural cubic": ("offline", "offline", "C2", "yes", "with counts"),
            "linear": ("discrete", "offline", "piecewise", "yes", "with counts"),
            "Hermite": ("discrete", "offline", "C1", "yes", "with counts"),
            "rectilinear": ("continuous", "continuous", "piecewise", "yes", "with counts"),
            "quadratic spline": ("discrete", "offline", "C1", "no", "with counts"),
        }

    def test_every_cell_agrees_with_the_claim_beside_it(self, table):
        assert all(row.agrees(name) for row in table.values() for name in row.measured.verdicts())

    def test_every_verdict_has_its_reason(self, table):
        reasons = table["linear"].measured.reasons()
        assert "moved the path at time" in reasons["values missing"]
        assert "without counts 48 of 84 pairs collided" in reasons["unique"]
        assert "the paper's counterexample" in reasons["unique"]


class TestMeasurability:
    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("counts", [False, True])
    @pytest.mark.parametrize("missing", [0.0, 0.4])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_measured_is_declared(self, scheme, counts, missing, dtype):
        build = partial(SCHEMES[scheme], counts=counts)
        batch = trial_batch(5, missing=missing).to(dtype=dtype)
        found = audit.path_measurability(build, batch, cuts_per_stream=6)
        assert found.measurability is build(batch).measurability

    def test_values_missing_only_before_the_first_leave_linear_discrete(self):
        batch = trial_batch(1)
        batch.values[:, :3, 0] = math.nan
        found = audit.path_measurability(controls.linear, batch)
        assert found.measurability is Measurability.DISCRETE
        assert controls.linear(batch).measurability is Measurability.DISCRETE

    def test_series_of_unequal_length(self):
        whole = trial_batch(2, missing=0.3)
        batch = whole.first_rows(torch.tensor([9, 1, 5, 2, 8, 9]))
        found = audit.path_measurability(controls.rectilinear, batch)
        assert found.measurability is Measurability.CONTINUOUS

    def test_an_encoding_fitted_elsewhere_keeps_the_path_online(self):
        encoding = controls.Encoding(2, counts=True, count_scale="log").fit(trial_batch(8))
        build = partial(controls.rectilinear, encoding=encoding)
        batch = trial_batch(2, missing=0.3)
        found = audit.path_measurability(build, batch)
        assert found.measurability is Measurability.CONTINUOUS

    def test_scaling_by_the_series_own_mean_is_caught(self):
        found = audit.path_measurability(centred, trial_batch())
        assert found.measurability is Measurability.OFFLINE
        assert "after time" in found.reason
        assert "stream" in found.reason

    def test_filling_backwards_is_caught_once_values_are_missing(self):
        whole, gaps = trial_batch(), trial_batch(missing=0.6)
        assert audit.path_measurability(filled_backwards, whole).edits == 16 * 7
        found = audit.path_measurability(filled_backwards, gaps)
        assert found.measurability is Measurability.OFFLINE

    def test_rounding_is_told_from_a_leak_and_can_be_allowed(self):
        def build(batch: SeriesBatch):
            return Rounded(controls.rectilinear(batch))

        found = audit.path_measurability(build, trial_batch())
        assert found.measurability is Measurability.OFFLINE
        assert "That is rounding: allow it with tolerance=" in found.reason
        found = audit.path_measurability(build, trial_batch(), tolerance=1e-13)
        assert found.measurability is Measurability.CONTINUOUS

    def test_a_users_own_class_is_measured(self):
        found = audit.path_measurability(SplineInTime, trial_batch(), cuts_per_stream=2)
        assert found.measurability is Measurability.OFFLINE

    def test_one_row_cannot_be_edited(self):
        with pytest.raises(ValueError, match="one row: give series"):
            audit.path_measurability(controls.linear, trial_batch(rows=1))


class TestSmoothness:
    @pytest.mark.parametrize(
        ("build", "expected"),
        [
            (controls.natural_cubic, Smoothness.C2),
            (controls.hermite, Smoothness.C1),
            (controls.linear, Smoothness.PIECEWISE),
            (controls.rectilinear, Smoothness.PIECEWISE),
            (SplineInTime, Smoothness.C2),
            (lambda batch: Jumping(controls.linear(batch)), Smoothness.BROKEN),
        ],
    )
    def test_classes(self, build, expected):
        found = audit.path_smoothness(build, trial_batch(4))
        assert found.smoothness is expected
        if expected is not Smoothness.BROKEN:
            assert found.derivative_error < 1e-9

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_missing_values_and_short_streams_change_no_class(self, scheme):
        build = SCHEMES[scheme]
        ragged = trial_batch(4, missing=0.4).first_rows(torch.tensor([9, 7, 5, 3, 8, 9]))
        expected = audit.path_smoothness(build, trial_batch(4)).smoothness
        assert audit.path_smoothness(build, ragged).smoothness is expected

    def test_a_path_that_only_curves_sharply_is_not_called_piecewise(self):
        class Bend(Wrapped):
            def evaluate(self, s):
                value = torch.tanh(20 * (s - 3.5))[:, :, None]
                return torch.cat([s[:, :, None], value, value], 2)

        found = audit.path_smoothness(lambda b: Bend(controls.linear(b)), trial_batch())
        assert found.smoothness is Smoothness.C2

    def test_a_left_slope_at_knots_is_told(self):
        found = audit.path_smoothness(lambda b: LeftSlope(controls.linear(b)), trial_batch())
        assert found.derivative_error > 0.1
        assert "not the right slope" in found.reason

    def test_two_rows_have_no_inner_knot(self):
        with pytest.raises(ValueError, match="at least 3 rows"):
            audit.path_smoothness(controls.linear, trial_batch(rows=2))

    def test_float32_paths_are_refused(self):
        def coarse(batch: SeriesBatch):
            return controls.linear(batch.to(dtype=torch.float32))

        with pytest.raises(ValueError, match="keep the dtype"):
            audit.path_smoothness(coarse, trial_batch())


class TestBoundedness:
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_the_four_controls_with_counts_are_bounded(self, scheme):
        build = partial(SCHEMES[scheme], counts=True)
        assert audit.path_boundedness(build, rows=LENGTHS).bounded

    def test_the_worst_of_straight_lines_is_known(self):
        found = audit.path_boundedness(controls.linear, rows=LENGTHS)
        assert set(found.values) == {1.0}
        assert set(found.slopes) == {2.0}
        assert set(found.variations) == {4.0}

    def test_quadratic_splines_resonate(self):
        found = audit.path_boundedness(audit.quadratic, rows=LENGTHS)
        assert not found.bounded
        # Alternating values: m_{i+1} = 4 - m_i in size, so slopes grow by 4 a row.
        assert found.slopes[-1] / found.slopes[-2] == pytest.approx(2, rel=0.05)
        assert "keeps growing" in found.reason

    def test_quadratic_pieces_meet_their_rows_and_each_other(self):
        batch = trial_batch(7)
        path = audit.quadratic(batch)
        assert torch.allclose(path.evaluate(path.knots)[:, :, 1:], batch.values, atol=1e-12)
        assert path.coefficients()[:, :, 3].abs().max() < 1e-12
        assert audit.path_smoothness(audit.quadratic, batch).jumps[1] < 1e-9

    def test_running_sums_are_unbounded(self):
        assert not audit.path_boundedness(accumulated, rows=LENGTHS).bounded

    def test_slow_growth_is_seen(self):
        def logarithmic(batch: SeriesBatch):
            path = controls.linear(batch)
            path.rows[:, :, 1] *= torch.arange(1.0, path.rows.shape[1] + 1).log1p()
            return path

        assert not audit.path_boundedness(logarithmic).bounded

    @pytest.mark.parametrize("rows", [(4,), (8, 4), (1, 2)])
    def test_lengths_that_cannot_show_growth_are_refused(self, rows):
        with pytest.raises(ValueError, match="rows is"):
            audit.path_boundedness(controls.linear, rows=rows)


class TestUniqueness:
    COUNTEREXAMPLE = "a value repeated (the paper's counterexample)"

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_only_counts_tell_the_papers_counterexample_apart(self, scheme):
        build = SCHEMES[scheme]
        found = audit.path_uniqueness(build, partial(build, counts=True), pairs_of_a_kind=3)
        assert found.uniqueness is Uniqueness.WITH_COUNTS
        assert self.COUNTEREXAMPLE in found.collisions
        assert found.collisions_with_counts == ()
        # Pairs that differ in what was told are never confused.
        assert not {"a value changed", "a time moved", "unrelated series"} & set(found.collisions)

    def test_without_a_builder_with_counts(self):
        found = audit.path_uniqueness(controls.linear, pairs_of_a_kind=2)
        assert found.uniqueness is Uniqueness.NEVER
        assert found.collisions_with_counts is None
        counted = partial(controls.linear, counts=True)
        assert audit.path_uniqueness(counted, pairs_of_a_kind=2).uniqueness is Uniqueness.ALWAYS

    def test_counts_that_do_not_count_are_caught(self):
        found = audit.path_uniqueness(controls.linear, clipped_counts, pairs_of_a_kind=3)
        assert found.uniqueness is Uniqueness.NEVER
        assert self.COUNTEREXAMPLE in (found.collisions_with_counts or ())

    def test_a_curve_cut_at_other_knots_is_seen_to_be_the_same_curve(self):
        """A natural spline in time does not change where a row is added on it."""

        def build(batch: SeriesBatch):
            known = torch.where(batch.values.isnan(), 0.0, batch.values)
            return SplineInTime(SeriesBatch.from_padded(batch.times, known))

        found = audit.path_uniqueness(build, pairs_of_a_kind=3)
        assert "a row added where the path passes" in found.collisions


class TestBorder:
    def test_a_missing_member_is_named(self):
        with pytest.raises(ValueError, match=r"has no `knots`.*ControlPath"):
            audit.path_properties(lambda batch: object())  # pyright: ignore[reportArgumentType]

    def test_a_wrong_shape_is_told(self):
        class Flat(Wrapped):
            def evaluate(self, s):
                return self.path.evaluate(s)[:, 0]

        with pytest.raises(ValueError, match="evaluate gave shape"):
            audit.path_measurability(lambda b: Flat(controls.linear(b)), trial_batch())

    def test_trial_series_want_a_share(self):
        with pytest.raises(ValueError, match=r"missing is 1\.5"):
            trial_batch(missing=1.5)
