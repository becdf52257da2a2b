"""An equal search draws the same everywhere, gives every model as many trials, and ends those that fall behind."""

import json

import pytest
from benchmarks import search

from onlinecde.data import simulate_ward
from onlinecde.experiments import load_table
from onlinecde.experiments.cells import cells_of
from onlinecde.training import FitSettings
from onlinecde.training.defaults import build_model
from onlinecde.tuning.spaces import Span

TABLES = ("physionet-2019", "physionet-2012")


@pytest.mark.parametrize("table", TABLES)
def test_what_is_drawn_is_in_its_span_and_makes_a_model(table):
    task = simulate_ward(12, seed=0, hours=6).task
    seen = {}
    for cell, number, _ in search.trials_of(table, 12):
        spans = {**search.EVERY, **search.SIZES[cell.column.model]}
        chosen = {name: cell.model[name] for name in spans} | {
            name: cell.fit[name] for name in search.TRAINING
        }
        for name, span in {**spans, **search.TRAINING}.items():
            value = chosen[name]
            if isinstance(span, Span):
                assert span.low <= value <= span.high, (name, value)
                assert isinstance(value, int) == span.whole
            else:
                assert value in span
        assert cell.model["readout_width"] in search.READOUTS
        FitSettings(**cell.fit)
        if number < 2:
            build_model(task, cell.column.model, cell.model)
        seen.setdefault(cell.column.name, []).append(chosen)
    assert len(seen) == 7
    assert search.RECIPE not in seen
    for draws in seen.values():
        assert len({json.dumps(draw) for draw in draws}) == 12


def test_a_draw_depends_on_its_number_alone():
    few = {str(place): cell.settings for cell, _, place in search.trials_of(TABLES[0], 2)}
    many = {str(place): cell.settings for cell, _, place in search.trials_of(TABLES[0], 5)}
    assert few.items() <= many.items()
    numbers = [number for _, number, _ in search.trials_of(TABLES[0], 3)]
    assert numbers == sorted(numbers)  # the first of every model before the second of any
    assert [numbers.count(n) for n in range(3)] == [7, 7, 7]


def tiny(column="GRU", **more):
    (cell,) = cells_of(load_table(TABLES[0]), seeds=[0], only=[f"Sepsis, hourly/{column}"])
    cell = search.drawn(cell, 0)
    cell.model.update(hidden=4, readout_width=None, layers=1)
    cell.fit.update(epochs=2, horizons=[3.0], **more)
    return cell


def test_a_trial_tells_what_came_of_it(tmp_path):
    task = simulate_ward(60, seed=0, hours=8).task
    told = search.run(tiny(), 3, task, tmp_path / "003", "cpu")
    assert (told["column"], told["number"], len(told["history"])) == ("GRU", 3, 2)
    assert told["validation"] == max(told["history"])
    assert told["ended"] == "all 2 epochs are done"
    assert not (tmp_path / "003").exists()
    assert told["model"]["hidden"] == 4
    json.dumps(told)


def test_a_trial_that_diverges_is_recorded(tmp_path, monkeypatch):
    def fit(*_, **__):
        raise ValueError("epoch 1: the loss is nan")

    monkeypatch.setattr(search, "fit", fit)
    told = search.run(tiny(), 0, simulate_ward(12, seed=0, hours=6).task, tmp_path / "000", "cpu")
    assert "nan" in told["failed"]
    assert "validation" not in told


def others(folder, *histories):
    """Finished trials, and the last one still running."""
    for number, history in enumerate(histories[:-1]):
        (folder / f"{number:03}.json").write_text(json.dumps({"history": history}))
    running = folder / f"{len(histories):03}"
    running.mkdir()
    lines = [json.dumps({"epoch": e, "validation_auc": v}) for e, v in enumerate(histories[-1], 1)]
    (running / "log.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(("mine", "ends"), [(0.69, True), (0.71, False)])
def test_who_falls_behind_most_others_ends_after_four_epochs(tmp_path, mine, ends):
    others(tmp_path, [0.7] * 9, [0.5, 0.6, 0.7, 0.8], [0.9] * 3, [0.7] * 4, [0.6, 0.7, 0.5, 0.5])
    (tmp_path / "099.json").write_text("{")  # being written
    mine_is = tmp_path / "042"
    mine_is.mkdir()
    watch = search._Beside(mine_is, "auc")
    log = []
    for epoch in range(1, 4):
        watch.epoch({"epoch": epoch, "validation_auc": mine}, True)
        log.append(json.dumps({"epoch": epoch, "validation_auc": mine}))
        (mine_is / "log.jsonl").write_text("\n".join(log) + "\n")
    fourth = {"epoch": 4, "validation_auc": mine - 0.1}
    if ends:
        with pytest.raises(search.NotWorthIt):
            watch.epoch(fourth, False)
    else:
        watch.epoch(fourth, False)
    assert watch.history == [mine, mine, mine, mine - 0.1]


def test_beside_few_others_nobody_ends(tmp_path):
    others(tmp_path, [0.9] * 9, [0.9] * 9, [0.9] * 9)
    watch = search._Beside(tmp_path / "042", "auc")
    watch.epoch({"epoch": 1, "validation_auc": 0.1}, True)
    assert search._best_by([0.2, 0.4, 0.3], 2) == 0.4
    assert search._best_by([0.2], 2) is None


def test_work_runs_what_is_missing_and_nobody_else_runs(tmp_path, monkeypatch):
    ran = []

    def run(cell, number, task, folder, device):
        ran.append((cell.column.name, number))
        failed = {"failed": "nan"} if cell.column.name == "GRU-D" else {}
        value = {} if failed else {"validation": 0.5 + number / 10, "ended": search.EARLY}
        told = {"column": cell.column.name, "model": cell.model, "fit": cell.fit}
        return {**told, **failed, **value}

    monkeypatch.setattr(search, "run", run)
    first = search.trials_of(TABLES[0], 2)[0][2]
    busy = search.claim((tmp_path / first).with_suffix(".lock"))
    search.work(TABLES[0], 2, tmp_path, "cpu", load=lambda cell: None)
    assert len(ran) == 13
    assert len(search.gathered(TABLES[0], 2, tmp_path)["trials"]) == 13
    busy.release()
    search.work(TABLES[0], 2, tmp_path, "cpu", load=lambda cell: None)
    assert ran[-1] == ("GRU", 0)
    assert len(ran) == 14
    search.main(
        [
            TABLES[0],
            "--trials",
            "2",
            "--gather",
            f"--home={tmp_path}",
            f"--out={tmp_path}/found.json",
        ]
    )
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["format"] == search.FORMAT
    assert told["trials"][0]["drew"].keys() >= {"hidden", "lr", "gain"}
    table = search.search_table(told)
    assert "| GRU-dt | 2 | 2 | 0 | 0.600 |" in table
    assert "| GRU-D | 2 | 0 | 2 | nan |" in table
