// One stream: the curve, its channels on the same axis of time, and what moved it.
import { ask, streamPath } from "/assets/server.js";
import { channelStrip, crossLine, fanChart, riskChart } from "/assets/charts.js";
import { make, plain, setText, spaced, wall } from "/assets/words.js";

const TAIL = 400, TABLE = 100;

export class StreamView {
  constructor(root, words, name, { back, acknowledge }) {
    Object.assign(this, { root, words, name, back, acknowledge });
    this.path = streamPath(name);
    // Spans of time as long as this model needs them: until a stream is silent, and parts of that.
    const silent = words.about.silent_after, spans = [silent / 4, silent / 2, silent, Infinity];
    this.span = silent;
    this.stale = true;
    this.seen = "";
    this.big = make("output");
    this.bigBox = make("div", { class: "big" }, this.big, this.since = make("div"));
    this.facts = make("div", { class: "facts" });
    this.banners = make("div");
    this.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.svg.setAttribute("role", "img");
    this.svg.classList.add("risk-chart");
    this.readout = make("span", { class: "note" });
    this.strips = make("div", { class: "strips" });
    this.cells = make("div", { class: "cells", tabindex: "0", role: "region", "aria-label": "Observations and answers" });
    this.table = make("details", { class: "table" }, make("summary", {}, "As a table"), this.cells);
    this.table.addEventListener("toggle", () => this.told && this.showTable());
    this.moves = make("ol", { class: "moves" });
    this.spans = make("span", { class: "spans", role: "group", "aria-label": "Span of time" }, ...spans.map((span) => {
      const button = make("button", { "aria-pressed": String(span === this.span) }, Number.isFinite(span) ? words.age(span) : "all");
      button.addEventListener("click", () => {
        this.span = span;
        for (const one of this.spans.children) one.setAttribute("aria-pressed", String(one === button));
        this.seen = "";
        this.refresh();
      });
      return button;
    }));
    root.replaceChildren(
      make("div", { class: "head" }, make("a", { class: "back", href: "#/" }, "‹ All streams"),
        this.heading = make("h1", { tabindex: "-1" }, name), this.facts, this.bigBox),
      this.banners,
      make("section", { class: "card" }, make("div", { class: "row" }, make("h2", {}, words.risk), this.readout, this.spans),
        make("div", { class: "strip" }, this.legend(), this.svg), this.strips, words.policy ? make("p", { class: "note policy" }, words.policy) : null, this.table),
      words.about.forecasts ? this.fanCard() : make("section", { class: "card" }, make("div", { class: "row" }, make("h2", {}, `What moved the ${words.risk.toLowerCase()}`),
        make("span", { class: "note" }, words.logOdds ? "newest first; in log-odds, the parts add up exactly" : "newest first; the parts add up exactly")), this.moves));
    this.svgs = [this.svg];
    const card = this.svg.closest(".card");
    card.addEventListener("pointermove", (event) => this.point(event));
    card.addEventListener("pointerleave", () => this.point(null));
    this.resized = new ResizeObserver(() => this.told && this.drawAll());
    this.resized.observe(this.svg);
  }
  // A chosen channel, and what it is to read.
  fanCard() {
    const { about } = this.words, channels = [...new Set(about.forecasts.map((one) => one.channel))];
    this.fanOf = make("select", { class: "fan-of", "aria-label": "Channel that is forecast" }, ...channels.map((name) => make("option", { value: name }, spaced(name))));
    this.fanOf.value = about.forecasts[about.watched_output].channel;
    this.fanOf.addEventListener("change", () => this.told && this.drawFan());
    this.fan = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.fan.setAttribute("role", "img");
    this.fan.classList.add("fan-chart");
    this.ahead = make("ul", { class: "note ahead-list" });
    const widest = Math.round(100 * (about.levels.at(-1) - about.levels[0]));
    return make("section", { class: "card" }, make("div", { class: "row" }, make("h2", {}, "Forecast of "), this.fanOf,
      make("span", { class: "note" }, `shaded: ${about.levels.length} quantiles, ${widest} % between the outermost`)), this.fan, this.ahead);
  }
  drawFan() {
    const { about } = this.words, { info, history, since } = this.told, name = this.fanOf.value, now = info.now;
    const count = about.levels.length, middle = about.levels.indexOf(0.5);
    const fan = about.forecasts.map((one, i) => ({ ...one, quantiles: now.outputs.slice(i * count, (i + 1) * count) }))
      .filter((one) => one.channel === name && one.quantiles.every((q) => q != null));
    if (!fan.length) { this.fan.replaceChildren(); this.ahead.replaceChildren(make("li", {}, "No forecast now.")); return; }
    const points = history.filter((row) => name in row.values).map((row) => [row.time, row.values[name]]);
    fanChart(this.fan, { from: since, points, now: now.time, fan: fan.map((one) => [now.time + one.horizon, one.quantiles]), levels: about.levels, words: this.words, narrow: innerWidth <= 720 });
    const said = fan.map((one) => `in ${Number(one.horizon.toPrecision(6))}\u00a0${this.words.unit}: ${plain(one.quantiles[middle])}, ${plain(one.quantiles[0])} to ${plain(one.quantiles.at(-1))} for ${Math.round(100 * (about.levels.at(-1) - about.levels[0]))}\u00a0%`);
    this.fan.setAttribute("aria-label", `${spaced(name)} ${said.join("; ")}`);
    this.ahead.replaceChildren(...said.map((text) => make("li", {}, text)));
  }
  legend() {
    return make("div", { class: "what" }, make("span", {}, "line: after each observation (○); dotted: moving on without data"));
  }
  close() { this.resized.disconnect(); }
  get title() { return this.name; }
  get streams() { return [this.name]; }
  get due() { return this.stale; }
  // A message of the server; true where the view must ask at once.
  heard(message) {
    if (message.type === "changed") return message.streams.includes(this.name) && (this.stale = true);
    const now = message.predictions?.find((one) => one.stream === this.name);
    if (!now) return false;
    if (message.reason === "rows" || !this.told) return this.stale = true;
    const { info, tail } = this.told;
    if (now.time <= info.now.time) { this.showHead(); return false; }
    tail.times.push(now.time);
    if (this.words.probability) tail.probabilities.push(now.probabilities);
    else for (const key of ["predicted", "lower", "upper"]) for (const name in now[key] ?? {}) tail[key][name].push(now[key][name]);
    // Too many points for the screen: a new tail is asked for.
    if (tail.times.length > TAIL) this.stale = true;
    info.now = now;
    this.told.since = this.from(info);
    this.showHead();
    // What would move by less than two pixels is left as it is.
    if (this.axis.x(now.time) - this.axis.x(this.drawnAt) >= 2) this.drawAll();
    return false;
  }
  from(info) { return Math.max(info.first_time, Number.isFinite(this.span) ? info.now.time - this.span : info.first_time); }

  async refresh() {
    this.stale = true;
    const asked = (part) => ask(this.words.asked(`${this.path}${part}`));
    const info = await asked("");
    if (info.now == null) { setText(this.facts, "No observation yet."); return; }
    const { last_time: last, now } = info;
    const stamp = `${info.rows} ${last} ${info.received} ${this.span}`;
    const since = this.from(info);
    const until = Math.max(now.time, last);
    const tail = asked(`/curve?since=${last}&until=${until}&points=${until > last ? 40 : 2}`);
    let told = this.told;
    if (stamp !== this.seen) {
      const [curve, history, explained] = await Promise.all([
        asked(`/curve?since=${since}&until=${last > since ? last : until}&points=500`),
        asked(`/history?since=${since}&most=2000`),
        this.fan ? null : asked(`/explanation?last=20`).catch((error) => { if (error.status === 422) return null; throw error; }),
      ]);
      told = { curve, history: history.rows, explained };
      this.seen = stamp;
      this.showMoves(told);
    }
    const fresh = told !== this.told;
    this.told = { ...told, info, since, tail: await tail };
    this.stale = false;
    this.showHead();
    this.drawAll();
    if (fresh) this.showTable();
  }
  showHead() {
    const { info } = this.told, { about } = this.words;
    const risk = this.words.said(info.now);
    setText(this.big, this.words.value(risk));
    this.big.dataset.risk = risk;
    this.big.dataset.time = info.now.time;
    this.bigBox.classList.toggle("over", about.threshold != null && risk >= about.threshold);
    const age = info.now.time - info.last_time;
    setText(this.since, age >= about.silent_after - 1e-9 ? "silent: no longer moving" : [this.words.between(info.now), `now, at ${this.words.at(info.now.time)}`].filter(Boolean).join(", "));
    const facts = about.static.map((name, i) => `${spaced(name)} ${info.static ? plain(info.static[i]).replace(/\.?0+$/, "") : ""}`);
    facts.push(`${info.rows} row${info.rows === 1 ? "" : "s"}`, `last observed ${this.words.age(age)} ago`);
    setText(this.facts, facts.join("  ·  "));
    this.showAlarms(info.alarms);
  }
  showAlarms(alarms) {
    const key = JSON.stringify(alarms);
    if (key === this.alarmed) return;
    this.alarmed = key;
    const open = alarms.filter((one) => one.acknowledged == null);
    this.openAlarm = open[0];
    const found = open.slice(0, 1).map((one) => {
      const button = make("button", { class: "ack", title: "Acknowledge (a)" }, "Acknowledge");
      button.addEventListener("click", () => this.acknowledge(one));
      return make("div", { class: "banner", role: "alert" }, make("span", {},
        make("b", {}, "Alarm. "), `${this.words.alarmed} reached ${this.words.value(this.words.reached(one))} at ${this.words.at(one.time)}${this.words.rose(one)} (alarm at ${this.words.value(one.threshold)}), ${wall(one.raised)}${open.length > 1 ? `; and ${open.length - 1} earlier` : ""}.`), button);
    });
    const seen = alarms.find((one) => one.acknowledged != null);
    if (seen && !open.length) found.push(make("div", { class: "banner seen" }, `Alarm at ${this.words.at(seen.time)}${this.words.rose(seen)} (${this.words.value(this.words.reached(seen))}) acknowledged by ${seen.by}, ${wall(seen.acknowledged)}.`));
    this.banners.replaceChildren(...found);
  }
  drawAll() {
    const { info, curve, tail, history, since } = this.told, { about } = this.words, output = about.watched_output;
    const narrow = innerWidth <= 720;
    const later = this.words.followed(tail), end = tail.times.map((t, i) => [t, later[i]]);
    const now = [info.now.time, this.words.said(info.now)];
    this.drawnAt = now[0];
    const after = [...end.filter(([t]) => t < now[0]), now];
    if (after.length === 1) after.unshift([info.last_time, this.words.said(info)]);
    const to = Math.max(now[0], since + about.silent_after / 96);
    this.axis = riskChart(this.svg, { from: since, to, curve, tail: after, band: [...this.words.band(curve, curve.times), ...this.words.band(tail, tail.times)], output, threshold: about.threshold, alarms: info.alarms, words: this.words, narrow });
    this.svg.setAttribute("aria-label", `${this.words.risk} from ${this.words.at(since)} to ${this.words.at(to)}, now ${this.words.value(now[1])}`);
    this.drawStrips(history, since, to, narrow);
    if (this.fan) this.drawFan();
    if (this.pointed != null) crossLine(this.svgs, this.axis.x(this.pointed));
  }
  drawStrips(history, from, to, narrow) {
    const found = [];
    for (const { name, unit } of this.words.about.channels) {
      const points = history.filter((row) => name in row.values).map((row) => [row.time, row.values[name]]);
      if (points.length) found.push({ name, unit, points });
    }
    const key = found.map((one) => one.name).join("\n");
    if (key !== this.shown) {
      this.shown = key;
      this.strips.replaceChildren(...found.map(({ name, unit }) => make("div", { class: "strip" },
        make("div", { class: "what" }, make("b", {}, spaced(name)), make("span", {}, make("em"), unit ? ` ${unit}` : "", make("i", { hidden: true }))),
        document.createElementNS("http://www.w3.org/2000/svg", "svg"))));
      this.svgs = [this.svg, ...this.strips.querySelectorAll("svg")];
    }
    found.forEach(({ name, points }, place) => {
      const box = this.strips.children[place];
      setText(box.querySelector("em"), plain(points.at(-1)[1]));
      box.querySelector("svg").setAttribute("role", "img");
      box.querySelector("svg").setAttribute("aria-label", `${spaced(name)}, ${points.length} observed`);
      channelStrip(box.querySelector("svg"), { from, to, points, narrow, axis: this.axis });
    });
  }
  // The charts as numbers: the newest observations, and the answer after each.
  showTable() {
    if (!this.table.open) return;
    const { history } = this.told, { channels } = this.words.about;
    const rows = history.slice(-TABLE).reverse();
    const shown = channels.filter(({ name }) => rows.some((row) => name in row.values));
    const heads = ["Time", this.words.risk, ...shown.map(({ name, unit }) => `${spaced(name)}${unit ? `, ${unit}` : ""}`)];
    this.cells.replaceChildren(make("table", {},
      make("caption", {}, !rows.length ? "No observation in this span of time" : `${rows.length < history.length ? `The newest ${rows.length} of ${history.length} observations` : "Observations"}, newest first, and the answer after each`),
      make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, make("th", { scope: "row" }, this.words.at(row.time)),
        make("td", {}, this.words.value(this.words.said(row))),
        ...shown.map(({ name }) => make("td", {}, name in row.values ? plain(row.values[name]) : "")))))));
  }
  showMoves({ explained, history }) {
    if (this.fan) return;
    if (!explained) { this.moves.replaceChildren(make("li", { class: "note" }, "This kind of model does not say.")); return; }
    const output = this.words.about.watched_output, rows = explained.rows.slice(explained.rows.length > 1 ? 1 : 0).reverse();
    const parts = (row) => [...Object.entries(row.channels).map(([name, part]) => [name, part[output]]), [null, row.passing_of_time[output]]];
    const most = Math.max(1e-9, ...rows.flatMap((row) => parts(row).map(([, part]) => Math.abs(part))));
    const link = this.words.logOdds ? (o) => 1 / (1 + Math.exp(-o)) : (o) => o;
    this.moves.replaceChildren(...rows.map((row) => {
      const end = row.start[output] + parts(row).reduce((sum, [, part]) => sum + part, 0);
      const box = make("div", { class: "parts" });
      for (const [name, part] of parts(row).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))) {
        const bar = make("i", { class: part > 0 ? "up" : "down" });
        bar.style.width = `${(50 * Math.abs(part)) / most}%`;
        bar.style[part > 0 ? "left" : "right"] = "50%";
        const what = name == null ? make("span", { class: "what time-part" }, "passing of time") :
          make("span", { class: "what", title: spaced(name) }, make("span", { class: "channel" }, spaced(name)), " ", make("span", {}, plain(row.values[name])));
        box.append(what,
          make("span", { class: "bar-box" }, bar), make("span", { class: "num" }, `${part >= 0 ? "+" : "−"}${Math.abs(part).toFixed(2)}`));
      }
      const went = this.words.logOdds ? `${this.words.value(link(row.start[output]))} → ${this.words.value(link(end))}` : `${plain(row.start[output])} → ${plain(end)}`;
      const item = make("li", {}, make("span", { class: "when" }, this.words.at(row.time)), make("span", { class: "went" }, went), box);
      item.dataset.time = row.time;
      return item;
    }));
  }
  point(event) {
    if (!this.axis) return;
    const box = this.svg.getBoundingClientRect();
    const x = event && event.clientX - box.left;
    this.pointed = event && x >= this.axis.left && x <= this.axis.right ? this.axis.from + ((x - this.axis.left) / (this.axis.right - this.axis.left)) * (this.axis.to - this.axis.from) : null;
    crossLine(this.svgs, this.pointed == null ? null : x);
    const { curve, tail, info, history } = this.told;
    let text = "", row = null;
    if (this.pointed != null) {
      const from = this.pointed > info.last_time && tail.times.length ? tail : curve;
      const near = from.times.reduce((best, t, i) => (Math.abs(t - this.pointed) < Math.abs(from.times[best] - this.pointed) ? i : best), 0);
      row = history.filter((one) => one.time <= this.pointed).at(-1);
      text = `${this.words.at(this.pointed)}: ${this.words.value(this.words.followed(from)[near])}`;
      if (info.origin != null && this.words.about.clock_speed === 1) text += `, ${wall(info.origin + this.pointed * this.words.unitSeconds)}`;
    }
    setText(this.readout, text);
    for (const item of this.moves.children) item.classList.toggle("pointed", row != null && Number(item.dataset.time) === row.time);
  }
  key(event) {
    if (event.key === "a" && this.openAlarm) this.acknowledge(this.openAlarm);
    else if (event.key === "Escape") this.back();
    else return false;
    return true;
  }
}
