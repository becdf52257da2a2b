"""The page in a real browser: its numbers are the API's, it moves, it comes back, and it complains of nothing."""

from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.models import AlarmPolicy
from onlinecde.serving import ServeSettings, TokenBook, create_app, in_background
from onlinecde.serving.screenshots import browser, find_browser
from onlinecde.serving.webhooks import Target
from onlinecde.streaming import Engine, MemoryStore, SQLiteStore

expect = pytest.importorskip("playwright.sync_api").expect
PATH, WHY = find_browser()
pytestmark = pytest.mark.skipif(PATH is None, reason=WHY)
CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture
def page(chromium):
    context = chromium.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    found = context.new_page()
    found.complaints = []
    found.on(
        "console",
        lambda m: found.complaints.append(m.text) if m.type in ("error", "warning") else None,
    )
    found.on("pageerror", lambda error: found.complaints.append(str(error)))
    yield found
    context.close()


def rows(streams, many=6, seed=None):
    random = np.random.default_rng(seed)
    return [
        {
            "stream": f"bed {i}",
            "time": round(t + float(random.uniform(0, 0.5)), 3),
            "values": {name: round(float(random.normal()), 3) for name in random.permutation(CHANNELS)[:2]},
        }
        for t in range(many)
        for i in range(streams)
    ]  # fmt: skip


def shown(page):
    return page.eval_on_selector_all(
        "tr[data-stream]",
        "all => all.map(row => [row.dataset.stream, Number(row.querySelector('output').dataset.risk), "
        "row.querySelector('output').textContent])",
    )


def percent(p):
    return f"{100 * p:.1f}\u00a0%" if 0 < p < 0.0995 else f"{round(100 * p)}\u00a0%"


def test_all_streams_are_shown_as_the_api_has_them(start, page):
    client, _, url = start(clock_speed=1e-9, threshold=0.5, title="Ward 7")
    client.post("/v1/events", json=rows(250))
    page.goto(url)
    page.wait_for_selector("tr[data-stream]")
    expect(page.locator("tr[data-stream]")).to_have_count(250)
    told = client.get("/v1/streams", params={"limit": 300}).json()
    found = {name: (risk, text) for name, risk, text in shown(page)}
    for one in told["streams"]:
        risk, text = found[one["stream"]]
        assert risk == pytest.approx(one["probabilities"][0], abs=1e-9)
        assert text == percent(risk)
    assert [name for name, *_ in shown(page)] == [one["stream"] for one in told["streams"]]
    assert page.locator("tr.alarmed").count() == told["alarms"]
    assert page.title().endswith("Ward 7")
    # A row is changed, never built anew: nothing flickers, what is chosen stays chosen.
    page.evaluate("document.querySelector('tr[data-stream]').kept = true")
    client.post("/v1/events", json={"stream": "bed 3", "time": 50.0, "values": {"lactate": 3.0}})
    page.wait_for_timeout(1500)
    assert page.evaluate("[...document.querySelectorAll('tr')].filter(row => row.kept).length") == 1
    page.keyboard.press("/")
    page.keyboard.type("bed 24")
    expect(page.locator("tr[data-stream]")).to_have_count(11)
    page.keyboard.press("Enter")
    assert page.locator("tr.chosen").count() == 1
    name = page.locator("tr.chosen").get_attribute("data-stream")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1")
    assert page.locator("h1").text_content() == name
    page.keyboard.press("Escape")
    page.wait_for_selector("table.streams")
    assert page.complaints == []


def test_one_stream_shows_what_the_api_says_and_moves_without_data(start, page):
    client, _, url = start(clock_speed=3600.0, tick=0.3, threshold=0.001, silent_after=1000.0)
    client.post("/v1/events", json=rows(2))
    page.goto(f"{url}/#/stream/bed%201")
    page.wait_for_selector(".risk-chart .now-dot")
    first = page.locator(".now-dot").get_attribute("data-risk")
    line = page.locator(".after").get_attribute("d")
    at, risk = page.eval_on_selector(
        ".big output", "one => [Number(one.dataset.time), Number(one.dataset.risk)]"
    )
    told = client.get("/v1/streams/bed 1/prediction", params={"at": at}).json()
    assert risk == pytest.approx(told["probabilities"][0], abs=1e-6)
    expect(page.locator(".now-dot")).not_to_have_attribute("data-risk", first)
    expect(page.locator(".after")).not_to_have_attribute("d", line)
    history = client.get("/v1/streams/bed 1/history").json()["rows"]
    assert page.locator(".seen-at").count() == len(history)
    seen = {name for row in history for name in row["values"]}
    assert page.locator(".strips .strip").count() == len(seen)
    assert page.locator(".strips .dot").count() == sum(len(row["values"]) for row in history)
    parts = client.get("/v1/streams/bed 1/explanation").json()["rows"][-1]
    newest = page.locator(".moves > li").first
    for name, part in parts["channels"].items():
        assert name.replace("_", " ") in newest.text_content()
        assert f"{abs(part[0]):.2f}" in newest.text_content()
    assert "passing of time" in newest.text_content()
    client.post("/v1/events", json={"stream": "bed 1", "time": 9.0, "values": {"oxygen": 2.0}})
    expect(page.locator(".seen-at")).to_have_count(len(history) + 1)
    assert page.complaints == []


def test_an_alarm_is_acknowledged_by_name(start, page):
    client, _, url = start(threshold=0.001)
    client.post("/v1/events", json=rows(2, many=1))
    page.goto(url)
    page.wait_for_selector("tr.alarmed")
    page.keyboard.press("j")
    name = page.locator("tr.chosen").get_attribute("data-stream")
    page.keyboard.press("a")
    page.fill("#who-name", "nurse Ada")
    page.keyboard.press("Enter")
    expect(page.locator("tr.alarmed")).to_have_count(1)
    alarms = {one["stream"]: one["by"] for one in client.get("/v1/alarms").json()["alarms"]}
    assert alarms[name] == "nurse Ada"
    page.goto(f"{url}/#/stream/{name}")
    page.wait_for_selector(".banner.seen")
    assert "nurse Ada" in page.locator(".banner.seen").text_content()
    assert page.complaints == []


def test_the_policy_is_said_and_where_an_alarm_rose(start, small_model, page):
    policy = AlarmPolicy(0.0002, rearm=0.0001, quiet=0.3, every=0.25)
    store = MemoryStore()
    engine = Engine(small_model, store, channels=CHANNELS, policy=policy)
    client, _, url = start(engine=engine, clock_speed=1e-9)
    client.post("/v1/events", json={"stream": "bed 1", "time": 0.0, "values": {"lactate": 1.0}})
    client.post("/v1/events", json={"stream": "bed 2", "time": 0.0, "values": {"lactate": 1.0}})
    number = next(number for number, one in store._alarms.items() if one.stream == 1)
    store._alarms[number] = replace(store._alarms[number], rose="between rows")
    page.goto(url)
    page.wait_for_selector("tr.alarmed")
    said = "Alarms at 0.0002, again after falling below 0.0001, at most one in 18 minutes; looked at every 15 minutes."
    assert page.locator(".policy").text_content() == said
    reasons = {
        row: page.locator(f"tr[data-stream='{row}'] small").text_content()
        for row in ("bed 1", "bed 2")
    }
    assert reasons["bed 1"].endswith(", between rows")
    assert "between" not in reasons["bed 2"]
    page.locator("tr[data-stream='bed 1'] a").click()
    page.wait_for_selector(".banner")
    assert "h, between rows (alarm at" in page.locator(".banner").text_content()
    assert page.locator(".policy").text_content() == said
    assert "between rows" in page.locator(".mark title").text_content()
    assert page.complaints == []


def test_it_comes_back_after_the_server_does(small_model, page, tmp_path, free_port):
    settings = ServeSettings(port=free_port, tick=0.3)

    def running():
        engine = Engine(small_model, SQLiteStore(tmp_path / "live.db"), channels=CHANNELS)
        return in_background(create_app(engine, settings), settings)

    with running() as url:
        httpx.post(f"{url}/v1/events", json=rows(3), timeout=60)
        page.goto(url)
        expect(page.locator("tr[data-stream]")).to_have_count(3)
    page.wait_for_selector("#lost:not([hidden])")
    assert page.locator("tr[data-stream]").count() == 3
    with running() as url:
        httpx.post(f"{url}/v1/events", json=rows(4)[-1:], timeout=60)
        page.wait_for_selector("#lost", state="hidden", timeout=15_000)
        expect(page.locator("tr[data-stream]")).to_have_count(4)
    # The browser itself notes each request that found no server; nothing else was complained of.
    assert all("ERR_CONNECTION" in text for text in page.complaints)
    assert page.complaints


def test_light_and_dark_and_a_phone(start, page):
    client, _, url = start(threshold=0.5)
    client.post("/v1/events", json=rows(30))

    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page.goto(url)
    page.wait_for_selector("tr[data-stream]")
    light = ground()
    page.keyboard.press("t")
    assert ground() != light
    page.reload()
    page.wait_for_selector("tr[data-stream]")
    assert ground() != light
    for where in ("#/", "#/stream/bed%201"):
        page.set_viewport_size({"width": 360, "height": 740})
        page.goto(f"{url}/{where}")
        page.wait_for_selector("tr[data-stream], .moves li")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.complaints == []


def test_with_tokens_one_signs_in(start, page):
    book = TokenBook()
    text = book.add("nurse", ["read"])
    _, _, url = start(tokens=book)
    page.goto(url)
    assert page.url.endswith("/login")
    page.fill("#token", "nonsense")
    page.keyboard.press("Enter")
    page.wait_for_selector(".wrong")
    page.fill("#token", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".link.live")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector("#token")
    page.goto(url)
    assert page.url.endswith("/login")


def test_without_tokens_there_is_nothing_to_sign_out_of(start, page):
    _, _, url = start()
    page.goto(url)
    page.wait_for_selector(".link.live")
    expect(page.locator("#sign-out")).to_be_hidden()


def test_an_address_that_is_no_address_is_told_and_one_typed_as_it_is_found(start, page):
    client, _, url = start()
    page.goto(f"{url}/#/stream/100%")
    page.get_by_text("There is no such stream.").wait_for()
    assert "live" in page.locator("#link").get_attribute("class")
    client.post("/v1/events", json={"stream": "100%", "time": 0, "values": {"lactate": 1.0}})
    page.goto(f"{url}/#/")
    page.goto(f"{url}/#/stream/100%")
    expect(page.locator("h1")).to_have_text("100%")


def test_what_the_server_refuses_is_told_and_is_not_a_lost_server(start, page):
    client, _, url = start(tick=0.1)
    client.post("/v1/events", json=rows(1, many=1))
    page.goto(url)
    page.wait_for_selector("tr[data-stream]")
    page.fill("input[type=search]", "x" * 300)
    assert len(page.input_value("input[type=search]")) == 200
    page.evaluate("document.querySelector('input[type=search]').maxLength = 1000")
    with page.expect_response(lambda answer: answer.status == 422):
        page.fill("input[type=search]", "x" * 300)
    expect(page.locator("#lost")).to_contain_text("search")
    assert "live" in page.locator("#link").get_attribute("class")
    page.fill("input[type=search]", "bed")
    expect(page.locator("#lost")).to_be_hidden()


def test_labels_do_not_overlap_for_one_row_and_long_names(start, page):
    names = ("mean_arterial_pressure_by_a_cuff_on_the_left_upper_arm", *CHANNELS[1:])
    model = oc.NeuralCDE(
        4, 8, outputs=1, field={"width": 8, "depth": 1}, readout={"kind": "binary"}
    ).eval()
    client, _, url = start(engine=Engine(model, channels=names), clock_speed=1e-9)
    told = {"stream": "a", "time": 0.0, "values": {names[0]: 92.0}}
    client.post("/v1/events", json=told)
    page.goto(f"{url}/#/stream/a")
    page.wait_for_selector(".risk-chart .now-text")
    assert "1 row " in page.locator(".facts").text_content().replace("\u00b7", " ")
    now = page.locator(".now-text").bounding_box()
    for label in page.locator(".risk-chart text:not(.now-text)").all():
        box = label.bounding_box()
        apart = box["x"] + box["width"] <= now["x"] or now["x"] + now["width"] <= box["x"]
        assert apart or box["y"] + box["height"] <= now["y"] + 1
    client.post("/v1/events", json={**told, "time": 0.1})
    expect(page.locator(".facts")).to_contain_text("2 rows")
    for size in (1200, 420):
        page.set_viewport_size({"width": size, "height": 800})
        value = (
            page.locator(".moves .what", has=page.locator(".channel")).first.locator("span").last
        )
        assert value.text_content() == "92.0"
        inside, box = page.locator(".moves .what").first.bounding_box(), value.bounding_box()
        assert box["width"] > 10
        assert box["x"] + box["width"] <= inside["x"] + inside["width"] + 0.5


def test_a_regression_is_shown_in_its_own_numbers_with_its_line_on_the_chart(start, page):
    model = oc.NeuralCDE(
        len(CHANNELS), 8, outputs=2, field={"width": 8, "depth": 1}, readout={"kind": "regression"}
    ).eval()
    with torch.no_grad():
        model.readout.layers.bias.copy_(torch.tensor([3.0, -30.0]))
    engine = Engine(model, channels=CHANNELS, threshold=-45.0, output=1)
    client, _, url = start(engine=engine, classes=("SOFA", "platelets"), clock_speed=1e-9)
    client.post("/v1/events", json=rows(2))
    page.goto(url)
    page.wait_for_selector("tr[data-stream]")
    told = client.get("/v1/streams").json()["streams"]
    found = {name: number for name, number, _ in shown(page)}
    assert found == pytest.approx({one["stream"]: one["predicted"]["platelets"] for one in told})
    assert page.locator("tr.alarmed").count() == len(told) == 2
    assert page.locator("th.c-risk").text_content() == "platelets now"
    page.goto(f"{url}/#/stream/bed%201")
    page.wait_for_selector(".risk-chart .now-dot")
    height = page.evaluate("document.querySelector('.risk-chart').viewBox.baseVal.height")
    for mark, name in ((".threshold", "y1"), (".risk-chart .now-dot", "cy")):
        assert 0 < float(page.locator(mark).get_attribute(name)) < height - 20, mark
    seen = page.eval_on_selector_all(
        ".seen-at", "all => all.map(one => Number(one.getAttribute('cy')))"
    )
    assert len(seen) == 6
    assert all(0 < y < height - 20 for y in seen), "the curve leaves the chart"
    scale = page.eval_on_selector_all(
        ".risk-chart text[text-anchor=end]",
        "all => all.map(one => [Number(one.textContent), Number(one.getAttribute('y'))])",
    )
    assert len(scale) > 1
    assert scale == sorted(scale, key=lambda mark: -mark[1]), "the axis is upside down"
    assert [value for value, _ in scale] == sorted(value for value, _ in scale)
    assert page.complaints == []


def asked_for(page, url):
    """The paths the page asks for from now on."""
    paths = []
    page.on("request", lambda request: paths.append(request.url.removeprefix(url)))
    return paths


def test_what_is_told_over_the_socket_is_not_asked_for(start, page):
    client, _, url = start(clock_speed=3600.0, tick=0.2, silent_after=1000.0, threshold=0.9999)
    client.post("/v1/events", json=rows(3))
    for where, moving in (("", "tr[data-stream] output"), ("#/stream/bed%201", ".now-dot")):
        page.goto(f"{url}/{where}")
        page.wait_for_selector(moving)
        page.wait_for_timeout(1500)  # until the socket is open
        asked, first = asked_for(page, url), page.locator(moving).first.get_attribute("data-risk")
        expect(page.locator(moving).first).not_to_have_attribute("data-risk", first)
        page.wait_for_timeout(1000)
        assert asked == []
    page.goto(f"{url}/#/")
    expect(page.locator("tr[data-stream]")).to_have_count(3)
    page.wait_for_timeout(1000)
    event = {"stream": "a new one", "time": 0.0, "values": {"lactate": 1.0}}
    client.post("/v1/events", json=event)
    expect(page.locator("tr[data-stream]")).to_have_count(4)
    assert page.complaints == []


def test_alarms_that_nobody_could_be_told_of_are_on_the_page(start, page):
    away = Target(
        "pager",
        "http://127.0.0.1:9/x",
        "whsec_" + "A" * 32,
        retry_seconds=0.05,
        give_up_seconds=0.1,
    )
    client, _, url = start(threshold=1e-6, webhooks=(away,))
    page.goto(url)
    expect(page.locator("#undelivered")).to_be_hidden()
    client.post("/v1/events", json=rows(2, many=1))
    while len(client.get("/v1/webhooks").json()["targets"][0]["dead"]) < 2:
        page.wait_for_timeout(100)
    page.reload()
    expect(page.locator("#undelivered")).to_have_text(
        "Alarms that could not be delivered: 2 to pager."
    )
    assert page.complaints == []


def test_one_stream_never_asks_for_all_of_them(start, page):
    client, _, url = start(tick=0.2, threshold=0.001)
    client.post("/v1/events", json=rows(3))
    page.add_init_script(
        "delete window.WebSocket; window.WebSocket = class { addEventListener() {} }"
    )
    asked = asked_for(page, url)
    page.goto(f"{url}/#/stream/bed%201")
    page.wait_for_selector(".now-dot")
    page.wait_for_timeout(1500)
    assert len([path for path in asked if path == "/v1/streams/bed%201"]) > 2, "no longer polled"
    assert not [path for path in asked if path.split("?")[0] == "/v1/streams"]
    expect(page.locator("#counts")).to_contain_text("3 alarms")


def test_what_others_acknowledge_is_seen_at_once(start, page):
    client, _, url = start(threshold=0.001, tick=30.0)
    client.post("/v1/events", json=rows(2, many=1))
    page.goto(url)
    expect(page.locator("tr.alarmed")).to_have_count(2)
    page.wait_for_timeout(500)
    client.post("/v1/alarms/1/acknowledge", json={"by": "another"})
    expect(page.locator("tr.alarmed")).to_have_count(1)


def test_the_keyboard_moves_the_focus_and_single_keys_can_be_switched_off(start, page):
    client, _, url = start(clock_speed=1e-9)
    client.post("/v1/events", json=rows(4))
    page.goto(url)
    expect(page.locator("tr[data-stream]")).to_have_count(4)
    page.keyboard.press("j")
    page.keyboard.press("j")
    name = page.locator("tr[data-stream]").nth(1).get_attribute("data-stream")
    assert page.evaluate("document.activeElement.textContent") == name
    assert page.locator("tr.chosen").get_attribute("data-stream") == name
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_be_focused()
    assert page.title().startswith(f"{name} ")
    page.keyboard.press("Escape")
    expect(page.locator("tr.chosen a")).to_be_focused()
    assert name not in page.title()
    page.keyboard.press("?")
    page.get_by_label("Keys of a single letter or sign").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.locator("tr.chosen").get_attribute("data-stream") == name
    page.reload()
    page.wait_for_selector("tr[data-stream]")
    page.keyboard.press("j")
    assert page.locator("tr.chosen").count() == 0
    page.keyboard.press("ArrowDown")
    assert page.locator("tr.chosen").count() == 1


def test_the_charts_are_there_as_a_table_too(start, page):
    client, _, url = start(clock_speed=1e-9)
    client.post("/v1/events", json=rows(2))
    page.goto(f"{url}/#/stream/bed%201")
    page.wait_for_selector(".now-dot")
    page.get_by_text("As a table").click()
    expect(page.locator(".cells tbody tr")).to_have_count(6)
    newest = client.get("/v1/streams/bed 1/history").json()["rows"][-1]
    cells = page.locator(".cells tbody tr").first.locator("th, td").all_text_contents()
    assert cells[1] == percent(newest["probabilities"][0])
    assert {f"{value:.2f}" for value in newest["values"].values()} <= set(cells)


def test_time_axes_are_round_in_the_unit_of_the_model(start, page):
    _, _, url = start()
    page.goto(url)
    page.wait_for_selector(".link.live")
    ticks = "([from, to, unit]) => import('/assets/charts.js').then(m => m.timeTicks(from, to, 5, unit))"
    for span, unit, wanted in (
        ((0, 24), "h", [0, 6, 12, 18, 24]),
        ((0, 90), "s", [0, 30, 60, 90]),
        ((0, 600), "s", [0, 120, 240, 360, 480, 600]),
        ((0, 30), "d", [0, 7, 14, 21, 28]),
        ((0, 1000), "ms", [0, 200, 400, 600, 800, 1000]),
        ((2000, 2024), "y", [2000, 2005, 2010, 2015, 2020]),
        ((0, 0.01), "h", [0, 0.002, 0.004, 0.006, 0.008, 0.01]),
    ):
        assert page.evaluate(ticks, [*span, unit]) == pytest.approx(wanted), unit
