"""Trees beside the readout: told of running statistics, and every contract holds with them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.models.test_readout_ramps import CHANNELS, D, series, with_another_future

import onlinecde as oc
from onlinecde.artifacts import ArtifactError
from onlinecde.models import forest as forest_module
from onlinecde.models import past
from onlinecde.models.export import export_online
from onlinecde.models.flat_settings import neural_cde
from onlinecde.models.forest import Forest

RAMPS = {"readout_ramps": 4, "readout_width": 6, "readout_sees_path": True}
SETTINGS = [
    {},
    RAMPS,
    {**RAMPS, "static": 2, "static_in_path": True, "field_sees_path": True, "rank": 2},
    {"counts": False, "static": 2, "outputs": 2, "kind": "multilabel"},
]


def random_forest(lines, random, trees=40, depth=4, outputs=1, share=0.6):
    """Trees whose thresholds are numbers that some line has, so that a bit decides the way."""
    arrays = {
        name: [] for name in ("number", "threshold", "missing_left", "left", "right", "value")
    }
    deepest = 0

    def lay(level):
        nonlocal deepest
        at, leaf = len(arrays["number"]), level == depth or random.random() < 0.1
        deepest = max(deepest, level)
        number = int(random.integers(lines.shape[1]))
        seen = lines[:, number][~np.isnan(lines[:, number])]
        cut = 0.0 if leaf or not len(seen) else float(random.choice(seen))
        for name, one in (
            ("number", number), ("threshold", cut), ("missing_left", bool(random.integers(2))),
            ("left", at), ("right", at), ("value", random.normal() if leaf else 0.0),
        ):  # fmt: skip
            arrays[name].append(one)
        if not leaf:
            arrays["left"][at], arrays["right"][at] = lay(level + 1), lay(level + 1)
        return at

    root = [lay(0) for _ in range(trees)]
    made = Forest(trees, len(arrays["number"]), deepest, outputs)
    output = random.integers(0, outputs, trees)
    base = random.normal(size=outputs)
    return made.put(root=root, output=output, base=base, share=share, **arrays)


def told(model, batch, rows=None):
    path = model.path(model.prepare(batch))
    row = torch.arange(path.times.shape[1]).expand(path.times.shape)
    return model.past_along(path, batch.static, row, path.times)


def made(lengths=(6, 3, 1, 5), dtype=D, **settings):
    """A model with trees over the numbers of a batch, and the batch."""
    random = np.random.default_rng(np.random.randint(2**31))
    static = settings.get("static", 0)
    model = neural_cde(CHANNELS, 5, 7, **{"kind": "binary", **settings}).to(dtype).eval()
    batch = series(random, lengths, dtype=dtype, static=static)
    model.fit_scales(series(random, (20,) * 8, dtype=dtype, static=static))
    lines = told(model, batch)[batch.real].numpy()
    model.plant(random_forest(lines, random, outputs=model.outputs))
    return model, batch


def test_numbers_are_those_of_the_past(rng):
    """Against numpy on what was observed so far."""
    model, batch = made(**RAMPS)
    scaled = model.encoding.scale_values(batch.values).numpy()
    numbers = told(model, batch).reshape(*batch.times.shape, -1)
    own = numbers[..., : 9 * CHANNELS].unflatten(-1, (9, CHANNELS)).numpy()
    for stream, rows in enumerate(batch.rows.tolist()):
        for row in range(rows):
            for channel in range(CHANNELS):
                x = scaled[stream, : row + 1, channel]
                t = batch.times[stream, : row + 1].numpy()[~np.isnan(x)]
                x = x[~np.isnan(x)]
                found = dict(zip(past.STATISTICS, own[stream, row, :, channel], strict=True))
                assert found["count"] == len(x)
                if not len(x):
                    assert all(np.isnan(found[n]) for n in past.STATISTICS if n != "count")
                    continue
                wanted = {
                    "last": x[-1], "mean": x.mean(), "min": x.min(), "max": x.max(), "deviation": x.std(),
                    "first": x[0], "since": float(batch.times[stream, row]) - t[-1],
                }  # fmt: skip
                for name, number in wanted.items():
                    assert found[name] == pytest.approx(number, rel=1e-5, abs=1e-6), name
                if len(x) > 1:
                    assert found["slope"] == pytest.approx(
                        np.polyfit(t, x, 1)[0], rel=1e-4, abs=1e-5
                    )


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [D, torch.float32], ids=str)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
def test_row_by_row_it_says_what_it_says_of_the_whole(settings, dtype, compiled, monkeypatch):
    model, batch = made(lengths=(6,) * 5, dtype=dtype, **settings)
    close = 1e-11 if dtype == D else 1e-5
    with torch.no_grad():
        whole = model(batch)
        if not compiled:  # the history by kernels, the rows without them
            monkeypatch.setattr(past, "_compiled", lambda *_: False)
            monkeypatch.setattr(forest_module, "_compiled", lambda *_: False)
            torch.testing.assert_close(model(batch), whole, rtol=1e-12 if dtype == D else 1e-6, atol=1e-12)  # fmt: skip
        later = batch.times[:, 3] + 0.9 * (batch.times[:, 4] - batch.times[:, 3])
        asked = model(batch, at=later[:, None])[:, 0]
        last = model(batch, final=True)
        live = model.frozen() if compiled else model
        state = model.init_state(5, batch.static)
        for row in range(6):
            values = batch.values[:, row].clone()
            if row == 2:  # one instant, channel by channel
                alone = torch.full_like(values, torch.nan)
                alone[:, 0], values[:, 0] = values[:, 0], torch.nan
                state = live.observe(state, batch.times[:, row], alone)
            state = live.observe(state, batch.times[:, row], values)
            torch.testing.assert_close(live.predict(state), whole[:, row], rtol=close, atol=close)
            if row == 3:
                torch.testing.assert_close(
                    live.predict(state, later), asked, rtol=close, atol=close
                )
        torch.testing.assert_close(last, whole[:, -1], rtol=close, atol=close)


@pytest.mark.parametrize("settings", SETTINGS[1:3], ids=str)
def test_editing_the_future_leaves_the_past_bit_for_bit(settings):
    model, batch = made(lengths=(8,) * 6, dtype=torch.float32, **settings)
    with torch.no_grad():
        before, after = model(batch), model(with_another_future(batch))
        alone = model(batch[2:3])
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])
    torch.testing.assert_close(alone[0], before[2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_contributions_still_add_up(settings):
    model, batch = made(**settings)
    close = 1e-3 if settings.get("readout_ramps") else 1e-9
    with torch.no_grad():
        parts, said = model.explain(batch), model(batch)
    for stream, rows in enumerate(batch.rows.tolist()):
        torch.testing.assert_close(
            parts.outputs()[stream, :rows], said[stream, :rows], rtol=close, atol=close
        )
        silent = batch.values[stream, :rows].isnan()
        assert (parts.events[stream, :rows][silent] == 0).all(), (
            "what was not observed adds nothing"
        )
    state = model.init_state(1, None if batch.static is None else batch.static[:1])
    for row in range(6):
        t, x = batch.times[:1, row], batch.values[:1, row]
        step = model.explain_observation(state, t, x)
        torch.testing.assert_close(step.events, parts.events[:1, row], rtol=close, atol=close)
        state = model.observe(state, t, x)
        total = step.start + step.time + step.events.sum(1)
        torch.testing.assert_close(total, model.predict(state), rtol=close, atol=close)


def test_saved_and_loaded_it_says_the_same_bit_for_bit(tmp_path):
    model, batch = made(dtype=torch.float32, **RAMPS)
    oc.save(model, tmp_path / "model")
    again = oc.load(tmp_path / "model")
    assert torch.equal(again(batch), model(batch))
    for name, tensor in model.trees.state_dict().items():
        assert torch.equal(again.trees.state_dict()[name], tensor)
    model.uproot()
    assert not torch.equal(model(batch), again(batch))
    oc.save(model, tmp_path / "without")
    assert oc.load(tmp_path / "without").trees is None


def test_trees_that_lead_nowhere_are_refused(tmp_path):
    model, _ = made(dtype=torch.float32)
    for name, wrong, said in (
        ("left", -1, "leads out of its arrays"),
        ("number", 10_000, "asks about number 10000"),
        ("root", 5_000, "leads out of its arrays"),
        ("output", 3, "leads out of its arrays"),
    ):
        own = getattr(model.trees, name)
        kept, inner = (
            own.clone(),
            int((model.trees.left != torch.arange(model.trees.nodes)).nonzero()[0]),
        )
        own[inner if name in ("left", "number") else 0] = wrong
        oc.save(model, tmp_path / name)
        with pytest.raises(ArtifactError, match=said):
            oc.load(tmp_path / name)
        own.copy_(kept)
    manifest = tmp_path / "left" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["config"]["readout"]["trees"] = [1, 10**9, 2]
    manifest.write_text(json.dumps(content))
    with pytest.raises(ArtifactError):
        oc.load(tmp_path / "left")
    before = {name: tensor.clone() for name, tensor in model.trees.state_dict().items()}
    with pytest.raises(ValueError, match="needs `output`"):
        model.trees.put(root=model.trees.root)
    assert all(torch.equal(before[n], x) for n, x in model.trees.state_dict().items())
    for other, said in ((Forest(1, 1, 0, 2), "2 outputs"), (None, "rectilinear")):
        with pytest.raises(ValueError, match=said):
            (model if other else neural_cde(2, 4, 4, control="linear")).plant(
                other or Forest(1, 1, 0)
            )


def test_thresholds_stay_exact_in_any_dtype():
    model, _ = made(dtype=torch.float32, **RAMPS)
    before = model.trees.threshold.clone()
    assert torch.equal(model.double().trees.threshold, before)
    assert torch.equal(model.bfloat16().trees.threshold, before)


def test_exported_programs_have_the_trees():
    model, batch = made(lengths=(6,) * 5, dtype=torch.float32, **RAMPS)
    programs = export_online(model)
    observe, predict = programs.observe.module(), programs.predict.module()
    with torch.no_grad():
        state = model.init_state(5)
        kept = [getattr(state, name).clone() for name in programs.state]
        for row in range(6):
            state = model.observe(state, batch.times[:, row], batch.values[:, row])
            kept = observe(*kept, batch.times[:, row], batch.values[:, row])
            torch.testing.assert_close(
                predict(*kept, batch.times[:, row]), model.predict(state), rtol=1e-5, atol=1e-5
            )


def test_rows_in_blocks_as_a_gpu_reads_them_say_the_same(monkeypatch):
    from onlinecde.models import readout

    model, batch = made(lengths=(6,) * 5, dtype=torch.float32, **RAMPS)
    monkeypatch.setattr(readout, "BLOCK", 7)
    with torch.no_grad():
        wanted = model(batch)
        by_blocks = lambda r, z, seen, _, past: readout.read_rounded_once(r, z, seen, past)  # noqa: E731
        monkeypatch.setattr("onlinecde.models.neural_cde.read_rows", by_blocks)
        torch.testing.assert_close(model(batch), wanted, rtol=1e-5, atol=1e-5)
