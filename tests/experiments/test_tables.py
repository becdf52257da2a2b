"""The tables that come with the package say what the paper says, and every cell can be built."""

import re

import pytest
import torch

import onlinecde as oc
from onlinecde.data.registry import DATA_SETS
from onlinecde.evaluation.metrics import METRICS
from onlinecde.experiments import (
    BUDGETS,
    PROTOCOLS,
    ExperimentError,
    cells_of,
    load_table,
    table_names,
)
from onlinecde.experiments.protocols import PLAIN
from onlinecde.experiments.slips import slipped_model
from onlinecde.experiments.table import parse_table
from onlinecde.models.flat_settings import flat_of, maker
from onlinecde.training.defaults import model_class, model_settings, parameters_of

CONTROLS = ("natural cubic", "linear", "Hermite", "rectilinear")
# As printed in the paper: mean+-deviation (NFE in thousands).
PUBLISHED_CONTROLS = """
BeijingPM2.5 | 53.3+-0.3 (4.6) | 51.7+-0.8 (5.4) | 52.5+-0.7 (4.8) | 52.0+-1.3 (16.3)
BeijingPM10 | 77.6+-1.7 (4.5) | 77.5+-2.4 (5.7) | 78.5+-1.6 (4.7) | 79.0+-0.7 (15.7)
CharacterTrajectories | 83.6+-6.1 (1.0) | 97.6+-1.5 (2.2) | 99.3+-0.0 (1.9) | 98.6+-0.5 (7.9)
SpeechCommands | 92.9+-0.3 (26.7) | 93.3+-0.7 (63.5) | 92.5+-0.4 (41.6) | 93.7+-0.8 (113)
Mortality | .859+-.003 (14.5) | .910+-.003 (36.9) | .909+-.002 (26.0) | .906+-.002 (96.3)
LOS | .241+-.005 (4.0) | .149+-.037 (7.8) | .138+-.025 (4.2) | .109+-.008 (11.9)
Sepsis | .779+-.003 (16.2) | .784+-.002 (27.8) | .782+-.002 (20.2) | .772+-.004 (136.7)
"""
PUBLISHED_MIMIC = """
GRU | .846+-.05 | .236+-.028 | .791+-.002
GRU-dt | .912+-.003 | .149+-.008 | .800+-.001
GRU-dt-intensity | .924+-.014 | .142+-.013 | .801+-.002
GRU-D | .930+-.002 | .148+-.002 | .801+-.002
ODE-RNN | .524+-.004 | .154+-.004 | .793+-.001
Online NCDE | .908+-.003 | .110+-.009 | .770+-.002
Online NCDE with counts | .943+-.003 | .099+-.001 | .795+-.004
"""
# hidden/width/depth that the paper's search found; Hermite took over what linear had.
FOUND = """
BeijingPM10 | 256/168/1 | 252/120/1 | 249/170/1
BeijingPM2.5 | 180/32/3 | 256/196/1 | 256/171/1
CharacterTrajectories | 238/194/1 | 249/170/1 | 148/89/2
LOS | 108/40/4 | 65/119/2 | 32/126/4
Mortality | 41/55/4 | 33/91/2 | 70/55/2
Sepsis | 82/65/2 | 82/65/2 | 82/65/2
SpeechCommands | 56/125/3 | 77/118/3 | 113/124/3
"""
GRIDS = [name for name in table_names() if load_table(name).kind == "grid"]


def lines(text):
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


def told(cell):
    mean, std, nfe = re.fullmatch(r"([\d.]+)\+-([\d.]+)(?: \(([\d.]+)\))?", cell).groups()
    return float(mean), float(std), None if nfe is None else float(nfe)


def test_the_controls_table_has_the_published_numbers():
    rows = {row.name: row for row in load_table("controls").rows}
    assert set(rows) == {line[0] for line in lines(PUBLISHED_CONTROLS)}
    for name, *cells in lines(PUBLISHED_CONTROLS):
        for control, cell in zip(CONTROLS, cells, strict=True):
            found = rows[name].published[control]
            assert (found.mean, found.std, found.nfe) == told(cell), (name, control)


def test_the_mimic_table_has_the_published_numbers():
    rows = {row.name: row for row in load_table("mimic-iv").rows}
    for model, *cells in lines(PUBLISHED_MIMIC):
        for task, cell in zip(("Mortality", "LOS", "Sepsis"), cells, strict=True):
            found = rows[task].published[model]
            assert (found.mean, found.std, found.nfe) == told(cell), (model, task)


def test_the_sizes_are_those_the_paper_found():
    rows = {row.name: row for row in load_table("controls").rows}
    for name, natural, linear, rectilinear in lines(FOUND):
        for control, cell in zip(CONTROLS, (natural, linear, linear, rectilinear), strict=True):
            found = rows[name].found[control]
            sizes = "/".join(str(found[size]) for size in ("hidden", "width", "depth"))
            assert sizes == cell, (name, control)


def test_there_is_a_table_for_everything_in_the_paper():
    assert {"controls", "mimic-iv", "properties", "accuracy-cost"} <= set(table_names())
    assert {"physionet-2012", "physionet-2019"} <= set(table_names())
    assert len([name for name in table_names() if name.startswith("slip-")]) >= 5


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_cell_has_settings_its_model_and_its_data_take(name, protocol, budget):
    cells = cells_of(load_table(name), protocol=protocol, budget=budget)
    assert len({cell.place for cell in cells}) == len(cells)
    for cell in cells:
        assert set(cell.model) <= set(parameters_of(cell.column.model))
        entry = DATA_SETS[cell.row.data_set]
        assert set(cell.data) <= set(entry.settings())
        assert cell.row.task is None or cell.row.task in entry.tasks
        assert cell.row.metric in METRICS
        assert cell.protocol.name == protocol
        if BUDGETS[budget].epochs is not None:
            assert cell.fit["epochs"] == BUDGETS[budget].epochs
        with torch.device("meta"):
            maker(model_class(cell.column.model).__name__)(
                channels=3, static=1, kind="binary", **cell.model
            )


@pytest.mark.parametrize("name", GRIDS)
def test_protocols_and_budgets_never_share_a_folder(name):
    seen = [
        {cell.place for cell in cells_of(load_table(name), protocol=protocol, budget=budget)}
        for protocol in PROTOCOLS
        for budget in BUDGETS
    ]
    assert sum(map(len, seen)) == len(set().union(*seen))


def test_the_paper_protocol_repeats_what_the_clean_one_mends():
    def of(name, protocol, cell):
        return cells_of(load_table(name), protocol=protocol, only=[cell])[0]

    cell = "CharacterTrajectories/natural cubic"
    paper, clean = of("controls", "paper", cell), of("controls", "clean", cell)
    assert (paper.data["protocol"], clean.data["protocol"]) == ("paper", "clean")
    assert (paper.fit["scaling"], clean.fit["scaling"]) == ("all", "train")
    assert "padding" in paper.slips
    assert clean.slips == ()
    assert (paper.model["method"], paper.model["step_control"]) == ("dopri5", "batch")
    assert paper.counted_by is None
    assert clean.model["method"] == "rk4"
    assert clean.counted_by == {"method": "dopri5", "rtol": 1e-3, "atol": 1e-5}
    gru, clean_gru = (of("mimic-iv", p, "Mortality/GRU") for p in ("paper", "clean"))
    assert gru.model["layers"] == 3
    assert "layers" not in clean_gru.model
    assert "no static" in gru.slips
    assert (gru.fit["lr"], clean_gru.fit["lr"]) == (0.025304, PROTOCOLS["clean"].fit.lr)
    rmse = of("controls", "paper", "BeijingPM10/linear")
    assert rmse.batch_rmse
    assert not of("controls", "clean", "BeijingPM10/linear").batch_rmse


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_neural_cde_of_a_table_is_the_papers_where_fit_would_add_to_it(protocol):
    task = oc.data.simulate_ward(20, seed=0).task
    chosen = model_settings(task, "neural-cde", {"hidden": 8, "width": 16})
    asked = {**PROTOCOLS[protocol].model("neural-cde"), "hidden": 8, "width": 16}
    built = flat_of(slipped_model(task, "neural-cde", asked, ()).config)
    for name, plain in PLAIN.items():
        assert built[name] == plain
    assert any(chosen.get(name, plain) != plain for name, plain in PLAIN.items())


def test_what_trials_on_validation_found_counts_under_the_clean_protocol_alone():
    rows = {row.name: row for row in load_table("controls").rows}
    told = rows["CharacterTrajectories"].clean_found
    assert told["rectilinear"]["weight_decay"] > 0
    for protocol in PROTOCOLS:
        plain = PROTOCOLS[protocol].fit.weight_decay
        for cell in cells_of(load_table("controls"), protocol=protocol):
            found = cell.row.clean_found.get(cell.column.name, {}) if protocol == "clean" else {}
            assert cell.fit["weight_decay"] == found.get("weight_decay", plain)


def test_settings_found_by_a_search_take_the_place_of_the_papers():
    best = {
        "task": "physionet-2012",
        "model": "gru-d",
        "model_settings": {"hidden": 77},
        "settings": {"lr": 0.0123, "scaling": "all"},
        "searched": ["hidden", "lr"],
    }
    cells = cells_of(load_table("physionet-2012"), found=[best])
    changed = [c for c in cells if c.model["hidden"] == 77]
    assert {c.column.name for c in changed} == {"GRU-D"}
    assert all(c.fit["lr"] == 0.0123 for c in changed)
    assert all(c.fit["scaling"] == "train" for c in changed), "the protocol's stays"
    assert {c.seed for c in changed} == {0, 111, 222}


def test_only_chooses_cells_by_row_and_column():
    table = load_table("controls")
    one = cells_of(table, only=["CharacterTrajectories/rectilinear"])
    assert {c.name for c in one} == {"CharacterTrajectories/rectilinear"}
    assert len(one) == 3
    assert len(cells_of(table, only=["rectilinear"], seeds=[5])) == 7
    assert len(cells_of(table, only=["charactertrajectories"], seeds=[5])) == 4
    with pytest.raises(ExperimentError, match="matches no cell"):
        cells_of(table, only=["Nothing/linear"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title", "titel"), "did you mean 'title'"),
        (("method", "method = = "), "not TOML"),
        (('"rectilinear" = { mean', '"rektilinear" = { mean'), "column 'rektilinear'"),
        (('"rectilinear" = { weight', '"rektilinear" = { weight'), "column 'rektilinear'"),
        (('slips = ["padding", ', 'slips = ["paddling", '), "no slip 'paddling'"),
        (("metric = ", "metrik = "), "did you mean 'metric'"),
    ],
)
def test_a_damaged_table_is_refused_with_the_place(change, message):
    from importlib import resources

    text = (resources.files("onlinecde.experiments") / "tables" / "controls.toml").read_text()
    broken = text.replace(*change, 1)
    assert broken != text
    with pytest.raises(ExperimentError, match=message):
        parse_table("controls", broken)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ExperimentError, match="Did you mean 'controls'"):
        load_table("control")
    for wrong in ({"protocol": "papers"}, {"budget": "large"}):
        with pytest.raises(ExperimentError, match="choose one of"):
            cells_of(load_table("controls"), **wrong)
