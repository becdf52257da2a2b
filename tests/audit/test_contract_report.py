"""`check_model` finds each broken promise, names it, and says nothing against a model that keeps them."""

from dataclasses import replace

import pytest
import torch

import onlinecde as oc
from onlinecde.audit import check_model
from onlinecde.controls import Measurability
from onlinecde.models import StateError


def failed(model, batch=None):
    return {
        result.contract for result in check_model(model, batch).results if result.passed is False
    }


def small(cls, **settings):
    torch.manual_seed(0)
    return cls(channels=2, hidden=4, outputs=1, **settings)


def test_a_report_reads_as_a_table():
    report = check_model(small(oc.GRU))
    lines = str(report).splitlines()
    assert lines[0] == "GRU in float32: 8 of 8 contracts hold"
    assert len(lines) == 9
    assert lines[1].split()[:5] == ["1", "stream", "=", "batch", "ok"]
    assert "(allowed: 1e-05)" in lines[1]


def test_what_does_not_apply_is_told_and_does_not_count_against_it():
    report = check_model(small(oc.NeuralCDE, control="natural_cubic"))
    assert report.ok
    assert [r.number for r in report.results if r.passed is None] == [1, 2, 5]
    assert "not applicable: 3" in str(report)


def test_a_model_of_ones_own_outside_the_library_passes():
    class Doubled(oc.GRU):
        def forward(self, batch, at=None, *, final=False):
            return 2 * super().forward(batch, at, final=final)

        def predict(self, state, t=None):
            return 2 * super().predict(state, t)

    assert check_model(small(Doubled)).ok


class Unfaithful(oc.GRU):
    def predict(self, state, t=None):
        return super().predict(state, t) * 1.0001


class Centred(oc.GRU):
    """Subtracts the mean output of the whole series."""

    def forward(self, batch, at=None, *, final=False):
        out = super().forward(batch, at, final=final)
        return out - 1e-3 * super().forward(batch)[:, :, :1].mean(1, keepdim=True)


class Crowded(oc.GRU):
    """Subtracts the mean over the batch, as a batch norm does."""

    def forward(self, batch, at=None, *, final=False):
        out = super().forward(batch, at, final=final)
        return out - 1e-3 * out[:, :1].mean(0, keepdim=True)


class Padded(oc.GRU):
    """Lets padding count."""

    def forward(self, batch, at=None, *, final=False):
        out = super().forward(batch, at, final=final)
        return out + 1e-3 * batch.times.shape[1]


class Hasty(oc.GRU):
    """Takes each event for a row of its own."""

    def observe(self, state, t, x):
        told = super().observe(state, t, x)
        return replace(told, before=told.before + 1e-6)


class Forgetful(oc.GRU):
    def state_dict(self, *args, **keywords):
        held = super().state_dict(*args, **keywords)
        return {name: torch.zeros_like(value) for name, value in held.items()}


class Boastful(oc.GRU):
    @property
    def measurability(self):
        return Measurability.CONTINUOUS


class Trusting(oc.GRU):
    """Takes infinite values for missing ones."""

    def observe(self, state, t, x):
        return super().observe(state, t, torch.as_tensor(x).nan_to_num(nan=torch.nan, posinf=9.0))


class Careless(oc.GRU):
    """Changes the state it is given, and only then refuses."""

    def observe(self, state, t, x):
        if torch.as_tensor(x).isinf().any():
            state.values.add_(1.0)
        return super().observe(state, t, x)


class Curt(oc.GRU):
    def observe(self, state, t, x):
        try:
            return super().observe(state, t, x)
        except StateError as error:
            raise StateError("bad input") from error


@pytest.mark.parametrize(
    ("cls", "broken"),
    [
        (Unfaithful, "stream = batch"),
        (Centred, "adapted"),
        (Crowded, "batch independence"),
        (Padded, "padding is inert"),
        (Hasty, "events of one instant"),
        (Forgetful, "save and load"),
        (Boastful, "measured = declared"),
        (Trusting, "bad input is refused"),
        (Careless, "bad input is refused"),
        (Curt, "bad input is refused"),
    ],
)
def test_a_broken_promise_is_found(cls, broken):
    model = small(cls)
    assert broken in failed(model)


def test_a_model_that_breaks_down_fails_with_its_error():
    class Broken(oc.GRU):
        def predict(self, state, t=None):
            raise RuntimeError("no such thing")

    report = check_model(small(Broken))
    assert not report.ok
    assert "RuntimeError: no such thing" in str(report)
    assert "FAILED" in str(report)


def test_series_of_ones_own_are_used():
    model = small(oc.NeuralCDE, control="linear")
    gaps = oc.audit.trial_batch(channels=2, missing=0.4)
    assert "stream = batch" in failed(model, gaps), "the linear control takes no gaps online"
    assert not failed(model, oc.audit.trial_batch(channels=2))


def test_the_model_is_left_as_it_was():
    model = small(oc.GRU, channel_dropout=0.5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert check_model(model).ok
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
