"""The page stands alone, is safe to open, shows what was found, and reads on a phone."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import Task, simulate_ward
from onlinecde.evaluation.evaluating import evaluate
from onlinecde.evaluation.following import follow
from onlinecde.evaluation.report import report, write_report
from onlinecde.models.flat_settings import neural_cde

HOSTILE = '<script>alert("$x_{y}$")</script>'


class Page(HTMLParser):
    """Collects elements, what they load, and the text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.loads, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.loads += [v for k, v in attrs if k in ("src", "href", "xlink:href", "data", "action")]

    def handle_data(self, data):
        self.words.append(data)


def made(kind, per="stream"):
    random = np.random.default_rng(2)
    n = 50
    series = oc.SeriesBatch.from_padded(
        np.arange(6.0)[None].repeat(n, 0),
        random.normal(size=(n, 6, 2)).astype(np.float32),
        channels=[HOSTILE, "$a$"],
        streams=[f"{HOSTILE}{i}" for i in range(n)],
    )
    labels = {
        "multiclass": random.integers(0, 3, n),
        "regression": random.normal(size=n),
        "binary": random.integers(0, 2, n),
        "multilabel": random.integers(0, 2, (n, 2)),
    }[kind]
    classes = ("a & b", HOSTILE, "$c$") if kind == "multiclass" else ()
    task = Task.build(HOSTILE, series, labels, kind=kind, classes=classes)
    torch.manual_seed(0)
    model = oc.GRU(channels=2, hidden=4, outputs=task.outputs, kind=kind)
    return task, model.eval()


@pytest.fixture(scope="module")
def ward_page():
    ward = simulate_ward(150, seed=5)
    torch.manual_seed(0)
    sizes = {"channels": 12, "hidden": 6, "outputs": 1, "static": 2, "kind": "binary"}
    models = {"NeuralCDE": neural_cde(**sizes), "GRUD": oc.GRUD(**sizes)}
    for model in models.values():
        model.fit_scales(ward.task.series)
    found = [
        evaluate(
            model,
            ward.task,
            name=name,
            bootstrap=40,
            reference=ward.online_risk,
            event_at=ward.event_hours,
        )
        for name, model in models.items()
    ]
    log = [
        {"epoch": e, "train_loss": 1 / e, "validation_loss": 1.1 / e, "validation_auc": v}
        for e, v in ((1, None), (2, 0.6), (3, 0.7), (4, 0.71))
    ]
    drawn = follow(models, ward.task, reference=ward.online_risk, events=found[0].events)
    return found, report(found[0], against=found[1:], log=log, trajectories=drawn)


def test_the_page_needs_nothing_but_itself(ward_page):
    page = Page(ward_page[1])
    assert (
        page.elements.count("svg") == 10
    )  # ROC, PR, calibration, hours, alarms, training, four streams
    assert "script" not in page.elements
    assert all(load.startswith("#") for load in page.loads)
    assert not re.search(r"url\((?!#)|@import", ward_page[1])
    assert len(ward_page[1]) < 1_500_000


def test_the_page_shows_what_was_found(ward_page):
    (first, other), text = ward_page
    words = " ".join(Page(text).words)
    for one in (first, other, first.reference):
        assert f"{one.metrics['auc'].value:.3f}" in words
    assert f"{first.metrics['auc'].low:.3f} to {first.metrics['auc'].high:.3f}" in words
    assert "best possible" in words
    assert f"{first.before_event[0].auc.value:.3f}" in words
    assert "difference" in words
    assert "40 resamples of whole subjects" in words


def test_the_page_follows_light_and_dark(ward_page):
    text = ward_page[1]
    assert "prefers-color-scheme: dark" in text
    body = text[text.index("<body") :]
    drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6}|var\(--\w+\))", body))
    assert drawn  # every colour of a picture is the page's
    assert all(colour.startswith("var") for colour in drawn), drawn


@pytest.mark.parametrize("kind", ["multiclass", "regression", "binary", "multilabel"])
def test_names_of_the_user_are_text_and_nothing_else(kind):
    task, model = made(kind)
    found = evaluate(model, task, bootstrap=10, name=HOSTILE)
    page = report(found, against=[found], trajectories=follow({HOSTILE: model}, task, streams=2))
    read = Page(page)
    assert "script" not in read.elements
    words = "".join(read.words)
    assert words.count(HOSTILE) > 4
    assert "$a$" in words  # not read as a formula


def test_the_same_evaluation_gives_the_same_page():
    task, model = made("binary")
    pages = [report(evaluate(model, task, bootstrap=10)) for _ in range(2)]
    assert pages[0] == pages[1]


def test_a_metric_without_a_value_says_why_on_the_page():
    task, model = made("binary")
    only = torch.nonzero(task.labels == 1)[:, 0]
    found = evaluate(model, replace(task, splits={"test": only}), bootstrap=10)
    words = " ".join(Page(report(found)).words)
    assert "no value: every label is 1" in words


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target = write_report(tmp_path / "deep" / "page.html", "old")
    reached = []

    def full(handle):  # the page is there by then, under another name
        reached.append(handle)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onlinecde.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(target, "new")
    assert reached
    assert target.read_text() == "old"
    assert [p.name for p in target.parent.iterdir()] == ["page.html"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium here")
def test_a_browser_shows_it_without_asking_for_more_or_running_over(ward_page, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    place = write_report(tmp_path / "page.html", ward_page[1]).as_uri()
    with sync_api.sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        paper = {}
        for width, scheme in ((390, "light"), (1200, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            asked, said = [], []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.on("console", lambda message, said=said: said.append(message.text))
            page.goto(place)
            seen = json.loads(
                page.evaluate(
                    "JSON.stringify([document.documentElement.scrollWidth, innerWidth, "
                    "getComputedStyle(document.body).backgroundColor])"
                )
            )
            assert asked == [place]
            assert not said
            assert seen[0] <= seen[1]
            paper[scheme] = seen[2]
        browser.close()
    assert paper["light"] != paper["dark"]
