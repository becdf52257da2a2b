// The page: which view is shown, whether the server answers, light or dark, keys.
import { Live } from "/assets/live.js";
import { Lost, acknowledge, ask } from "/assets/server.js";
import { Overview } from "/assets/overview.js";
import { StreamView } from "/assets/stream.js";
import { Words, make, setText } from "/assets/words.js";

const $ = (id) => document.getElementById(id);
const store = {
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* private window */ } },
};

let words = null, live = null, view = null, alarms = 0, total = null, refusal = false, failures = 0, answeredAt = null, timer = null, turn = 0;

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  store.set("theme", theme);
}
const system = matchMedia("(prefers-color-scheme: dark)");
document.documentElement.dataset.theme = store.get("theme") || (system.matches ? "dark" : "light");
system.addEventListener("change", () => { if (!store.get("theme")) document.documentElement.dataset.theme = system.matches ? "dark" : "light"; });
const otherTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
$("theme").addEventListener("click", otherTheme);
$("help-button").addEventListener("click", () => $("help").showModal());

const singleKeys = $("single-keys");
singleKeys.checked = store.get("keys") !== "off";
singleKeys.addEventListener("change", () => store.set("keys", singleKeys.checked ? "on" : "off"));

function counts(told) {
  ({ alarms } = told);
  total = told.total ?? total;
  const some = `${alarms} alarm${alarms === 1 ? "" : "s"}`;
  $("counts").replaceChildren(...(alarms ? [make("b", {}, some), total == null ? "" : ` of ${total}`] : [total == null ? "" : `${total} stream${total === 1 ? "" : "s"}`]));
  showTitle();
}
function showTitle() {
  document.title = `${alarms ? `(${alarms}) ` : ""}${view?.title ? `${view.title} · ` : ""}${words.about.title}`;
}
// Of the other streams one view needs to know only how many have an open alarm.
async function countAlarms() {
  const told = await ask("/v1/alarms?unacknowledged=true");
  counts({ alarms: new Set(told.alarms.map((one) => one.stream)).size });
}

function connected(ok) {
  $("link").className = `link ${ok ? "live" : "off"}`;
  if (ok) { failures = 0; answeredAt = new Date(); }
  setText($("link-text"), ok ? (words.about.clock_speed === 1 ? "live" : `replay, ${words.about.clock_speed} times`) : "no answer");
  refusal = false;
  $("lost").hidden = ok || failures < 2;
  if (!ok) setText($("lost"), `The server does not answer${answeredAt ? `; this is what it said at ${answeredAt.toLocaleTimeString()}` : ""}. Trying again.`);
}

async function sayAcknowledged(alarm) {
  const dialog = $("who"), name = $("who-name");
  setText($("who-what"), `${alarm.stream}: ${words.value(words.reached(alarm))} at ${words.at(alarm.time)}`);
  name.value = store.get("by") || "";
  dialog.returnValue = "no";
  dialog.showModal();
  name.select();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue !== "yes" || !name.value.trim()) return;
  store.set("by", name.value.trim());
  try {
    const { alarms } = await ask(`/v1/alarms?unacknowledged=true&stream=${encodeURIComponent(alarm.stream)}`);
    for (const one of alarms) await acknowledge(one.number, name.value.trim());
  } catch (error) {
    setText($("lost"), error instanceof Lost ? "The server did not answer: the alarm is not acknowledged." : error.message);
    $("lost").hidden = false;
  }
  refresh();
}
$("who-name").addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); if ($("who-name").value.trim()) $("who").close("yes"); }
});

function decoded(text) {
  // Someone may have typed a name as it is: a % that begins no escape stands for itself.
  try { return decodeURIComponent(text); } catch { return text; }
}

function refused(error, shown) {
  if (shown instanceof StreamView) {
    const text = error.status === 404 ? "There is no such stream." : error.message;
    $("view").replaceChildren(make("div", { class: "empty" }, `${text} `, make("a", { href: "#/" }, "All streams")));
  } else {
    setText($("lost"), error.message);
    $("lost").hidden = false;
    refusal = true;
  }
}

function route(event) {
  const left = view?.title;
  view?.close?.();
  const found = location.hash.match(/^#\/stream\/(.+)$/);
  const open = (name) => { location.hash = `#/stream/${encodeURIComponent(name)}`; };
  const back = () => { location.hash = "#/"; };
  view = found
    ? new StreamView($("view"), words, decoded(found[1]), { back, acknowledge: sayAcknowledged })
    : new Overview($("view"), words, { open, acknowledge: sayAcknowledged, counts, chosen: left || null });
  scrollTo(0, 0);
  showTitle();
  if (event) (view.heading || $("view")).focus({ preventScroll: true });
  refresh().then(() => { if (event && left && document.activeElement === $("view")) view.focus?.(left); });
}

// Asks where the view has something to ask for, or the server does not tell by itself; then waits for the next turn.
async function refresh() {
  clearTimeout(timer);
  const mine = ++turn, shown = view;
  let wait = 1000 * words.about.tick;
  try {
    if (!live.up || shown.due || failures || refusal) {
      if ((failures || live.dropped) && (await ask("/v1/model")).model !== words.about.model) location.reload();
      live.dropped = false;
      await shown.refresh();
      if (shown instanceof StreamView) await countAlarms();
      if (mine === turn) { connected(true); live.subscribe(shown.streams); }
    }
  } catch (error) {
    if (error.status) {
      if (mine === turn) { connected(true); refused(error, shown); }
    } else {
      if (!(error instanceof Lost)) console.error(error);
      failures += 1;
      wait = Math.min(5000, 500 * 2 ** failures);
      if (mine === turn) connected(false);
    }
  }
  if (mine === turn) timer = setTimeout(refresh, document.hidden ? 5000 : wait);
}
function heard(message) {
  if (!view) return;
  answeredAt = new Date();
  if (message.type === "changed" && view instanceof StreamView) countAlarms().catch(() => {});
  if (view.heard(message)) { clearTimeout(timer); timer = setTimeout(refresh, 50); }
}
document.addEventListener("visibilitychange", () => { if (!document.hidden && view) refresh(); });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !view || document.querySelector("dialog[open]")) return;
  if (event.defaultPrevented) return;
  if (event.target.matches("select")) return;
  if (event.target.matches("input")) {
    if (event.key === "Escape") { event.target.value = ""; event.target.dispatchEvent(new Event("input")); event.target.blur(); }
    else if (event.key === "Enter" || event.key === "ArrowDown") { event.preventDefault(); view.step?.(1); }
    return;
  }
  // A button or a link that has the focus does what it is for.
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  if (event.key.length === 1 && !singleKeys.checked) return;
  if (event.key === "t") otherTheme();
  else if (event.key === "?") $("help").showModal();
  else if (!view.key(event)) return;
  event.preventDefault();
});

// Alarms that servers outside were to be told of and have not taken, at most once a minute.
async function showUndelivered() {
  const told = await ask("/v1/webhooks").catch(() => ({ targets: [] }));
  const dead = told.targets.filter((one) => one.dead.length).map((one) => `${one.dead.length} to ${one.name}`);
  $("undelivered").hidden = !dead.length;
  setText($("undelivered"), dead.length ? `Alarms that could not be delivered: ${dead.join(", ")}.` : "");
  setTimeout(showUndelivered, 60_000);
}

// The choice stands in the address, so that it can be kept and passed on.
function offerHorizons() {
  const { ahead, about } = words;
  $("ahead").hidden = ahead == null;
  if (ahead == null) return;
  const choices = [...new Set([...about.horizons, ahead])].sort((a, b) => a - b);
  $("horizon").replaceChildren(...choices.map((one) => make("option", { value: one, selected: one === ahead }, `${Number(one.toPrecision(6))}\u00a0${words.unit}`)));
  $("horizon").addEventListener("change", (event) => { location.search = `?horizon=${event.target.value}`; });
}

async function begin() {
  try {
    words = new Words(await ask("/v1/model"), new URLSearchParams(location.search).get("horizon"));
  } catch {
    setText($("link-text"), "no answer");
    setTimeout(begin, 2000);
    return;
  }
  live = new Live(words.about.tick, heard, words.ahead);
  offerHorizons();
  setText($("title"), words.about.title);
  $("sign-out").hidden = !words.about.guarded;
  addEventListener("hashchange", route);
  route();
  showUndelivered();
}
begin();
