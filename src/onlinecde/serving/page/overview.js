// All streams, what needs attention first; rows are kept and changed, never built anew.
import { ask } from "/assets/server.js";
import { make, setText } from "/assets/words.js";

const REORDER = 5000;

export class Overview {
  constructor(root, words, { open, acknowledge, counts, chosen = null }) {
    Object.assign(this, { root, words, open, acknowledge, counts });
    this.rows = new Map();
    this.order = [];
    this.chosen = chosen;
    this.limit = 300;
    this.stale = true;
    this.newsAt = this.askedAt = 0;
    this.search = make("input", { type: "search", placeholder: "Search streams  ( / )", "aria-label": "Search streams", maxlength: 200 });
    this.said = make("span", { class: "said" });
    this.body = make("tbody");
    this.more = make("div", { class: "more", hidden: true });
    const heads = [["c-name", "Stream"], ["c-risk", `${words.risk} now`], ["c-trend", words.probability ? "Change, points" : "Change"], ["c-age", "Last observed"], ["c-act", ""]];
    root.replaceChildren(
      make("div", { class: "search" }, this.search, this.said),
      make("table", { class: "streams" },
        make("thead", {}, make("tr", {}, ...heads.map(([name, text]) => make("th", { class: name, scope: "col" }, text)))), this.body),
      this.more,
      ...(words.policy ? [make("p", { class: "note policy" }, words.policy)] : []),
      this.other = make("p", { class: "note shadow", hidden: true }));
    this.search.addEventListener("input", () => { this.orderedAt = 0; this.refresh(); });
    this.body.addEventListener("focusin", (event) => this.choose(event.target.closest("tr").dataset.stream));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (!row) return;
      const held = this.rows.get(row.dataset.stream);
      if (event.target.closest("button")) this.acknowledge(held.told.alarm);
      else if (!event.target.closest("a")) this.open(row.dataset.stream);
    });
  }
  get title() { return ""; }
  // Where all streams are shown, all that is new is heard of; else those that are shown.
  get streams() { return this.all ? "all" : [...this.order].sort(); }
  // Whether to ask: something changed that is not told, or the order may be another by now.
  get due() {
    const waited = Date.now() - this.askedAt;
    return this.stale || (waited > REORDER && (this.newsAt > this.askedAt || !this.all));
  }
  async refresh() {
    const search = this.search.value.trim();
    this.askedAt = Date.now();
    this.stale = true;
    const told = await ask(this.words.asked(`/v1/streams?limit=${this.limit}&search=${encodeURIComponent(search)}`));
    this.compare(await ask("/v1/model/shadow"));
    if (search !== this.search.value.trim()) return;
    this.stale = false;
    this.all = told.total <= this.limit;
    this.show(told);
  }
  // Another model beside the one that serves, and how its answers differ.
  compare(told) {
    this.other.hidden = told.model == null;
    if (told.model == null) return;
    const cut = told.from_cut ? ` ${told.from_cut} streams begin after their first rows, which were deleted.` : "";
    const differ = told.compared ? ` Its answers differ by ${this.words.difference(told.mean_difference)} in the mean, ${this.words.difference(told.largest_difference)} at most; alarms disagree at ${told.alarms_disagree} of ${told.compared} streams.` : "";
    setText(this.other, `Another model, ${told.model.slice(0, 12)}, is ${told.state === "building" ? `being built: ${told.built} of ${told.streams} streams.` : "following."}${differ}${cut}`);
  }
  // A message of the server; true where the view must ask at once.
  heard(message) {
    if (message.type === "changed") return this.stale = true;
    if (message.type !== "predictions") return false;
    for (const one of message.predictions) this.hear(one, message.reason === "rows");
    return false;
  }
  hear(one, rows) {
    const row = this.rows.get(one.stream);
    if (rows) this.newsAt = Date.now();
    if (!row) { if (rows && this.all && !this.search.value.trim()) this.stale = true; return; }
    const { told } = row, before = this.words.said(told), now = this.words.said(one);
    const fresh = { ...told, ...one, now: one.time };
    if (rows && one.time > told.last_time) {
      Object.assign(fresh, { last_time: one.time, rows: told.rows + 1, trend: row.after == null || now == null ? null : now - row.after });
      row.after = now;
    } else if (told.trend != null && now != null && before != null) fresh.trend = told.trend + now - before;
    this.showRow(fresh);
  }
  show(told) {
    this.counts(told);
    const names = told.streams.map((one) => one.stream);
    for (const one of told.streams) {
      this.showRow(one);
      if (one.now === one.last_time) this.rows.get(one.stream).after = this.words.said(one);
    }
    const opened = told.streams.filter((one) => one.alarm).map((one) => one.stream).join("\n");
    const sameSet = names.length === this.order.length && names.every((name) => this.rows.get(name).row.isConnected);
    if (!sameSet || opened !== this.opened || !(Date.now() - this.orderedAt < REORDER)) {
      this.orderedAt = Date.now();
      this.opened = opened;
      this.place(names);
    }
    setText(this.said, told.found === told.total ? "" : `${told.found} of ${told.total}`);
    this.more.hidden = told.total > 0 && told.found <= names.length;
    setText(this.more, told.total === 0 ? "No stream yet. They appear here with their first event." :
      told.found === 0 ? "No stream of this name." : `The ${names.length} that need attention most of ${told.found}.`);
    this.body.parentElement.hidden = names.length === 0;
  }
  place(names) {
    const kept = new Set(names), focused = document.activeElement;
    for (const [name, { row }] of this.rows) if (!kept.has(name)) { row.remove(); this.rows.delete(name); }
    let next = this.body.firstElementChild;
    for (const name of names) {
      const { row } = this.rows.get(name);
      if (row === next) next = next.nextElementSibling;
      else this.body.insertBefore(row, next);
    }
    this.order = names;
    // A row that is moved lets go of the focus.
    if (focused !== document.activeElement && this.body.contains(focused)) focused.focus({ preventScroll: true });
  }
  showRow(told) {
    let held = this.rows.get(told.stream);
    if (!held) { held = this.newRow(told.stream); this.rows.set(told.stream, held); }
    const { about } = this.words, risk = this.words.said(told);
    held.told = told;
    setText(held.value, risk == null ? "no answer" : this.words.value(risk));
    held.value.classList.toggle("none", risk == null);
    held.value.dataset.risk = risk;
    held.fill.style.width = this.words.probability ? `${(100 * risk).toFixed(1)}%` : "0";
    held.value.parentElement.classList.toggle("over", about.threshold != null && risk != null && risk >= about.threshold);
    const change = this.words.change(told.trend);
    setText(held.trend, change);
    held.trend.className = `trend ${change.startsWith("▲") ? "up" : change.startsWith("▼") ? "down" : ""}`;
    const silent = told.now - told.last_time >= about.silent_after - 1e-9;
    setText(held.age, silent ? "silent" : `${this.words.age(told.now - told.last_time)} ago`);
    held.age.classList.toggle("silent", silent);
    held.row.classList.toggle("alarmed", told.alarm != null);
    held.button.hidden = held.why.hidden = told.alarm == null;
    if (told.alarm) setText(held.why, `alarm: ${this.words.value(this.words.reached(told.alarm))} at ${this.words.at(told.alarm.time)}${this.words.rose(told.alarm)}`);
  }
  newRow(name) {
    const { about } = this.words;
    const value = make("output"), why = make("small", { hidden: true }), fill = make("i"), trend = make("span"), age = make("span", { class: "age" });
    const meter = make("span", { class: "meter" }, fill);
    if (about.threshold != null) {
      const tick = make("b", { title: `alarm at ${this.words.value(about.threshold)}` });
      tick.style.left = `${100 * about.threshold}%`;
      meter.append(tick);
    }
    if (!this.words.probability) meter.hidden = true;
    const button = make("button", { class: "ack", hidden: true, title: "Acknowledge the alarm (a)" }, "Acknowledge");
    const link = make("a", { class: "name", href: `#/stream/${encodeURIComponent(name)}` }, name);
    const row = make("tr", {}, make("td", { class: "c-name" }, link, why),
      make("td", { class: "c-risk" }, make("div", { class: "risk" }, value, meter)),
      make("td", { class: "c-trend", title: "against the answer after the row before the newest" }, trend), make("td", { class: "c-age" }, age), make("td", { class: "c-act" }, button));
    row.dataset.stream = name;
    return { row, link, value, why, fill, meter, trend, age, button };
  }
  // What is chosen is what has the focus.
  step(by) {
    if (!this.order.length) return;
    const at = this.order.indexOf(this.chosen);
    this.focus(this.order[Math.min(this.order.length - 1, Math.max(0, at + by))]);
  }
  focus(name) {
    const held = this.rows.get(name);
    if (!held) return false;
    held.link.focus({ preventScroll: true });
    held.row.scrollIntoView({ block: "nearest" });
    return true;
  }
  choose(chosen) {
    this.chosen = chosen;
    for (const [name, { row }] of this.rows) row.classList.toggle("chosen", name === chosen);
  }
  key(event) {
    if (event.key === "j" || event.key === "ArrowDown") this.step(1);
    else if (event.key === "k" || event.key === "ArrowUp") this.step(-1);
    else if (event.key === "Enter" && this.chosen) this.open(this.chosen);
    else if (event.key === "/") this.search.focus();
    else if (event.key === "a" && this.chosen) {
      const alarm = this.rows.get(this.chosen)?.told.alarm;
      if (alarm) this.acknowledge(alarm);
    } else return false;
    return true;
  }
}
