// Numbers and times in words.
const SHORT = { milliseconds: "ms", seconds: "s", minutes: "min", hours: "h", days: "d", weeks: "w", years: "y" };

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export function setText(node, text) { if (node.textContent !== text) node.textContent = text; }

export class Words {
  // horizon: of time to an event, how far ahead the risk is to look, or what stands for it in the page's address.
  constructor(about, horizon) {
    this.about = about;
    this.ahead = about.horizon ?? null;
    const asked = Number(horizon);
    if (this.ahead != null && horizon && asked > 0 && asked <= about.edges.at(-1)) this.ahead = asked;
    // Alarms watch the risk within one horizon: their numbers mean nothing to another.
    this.other = this.ahead !== (about.horizon ?? null);
    if (this.other) this.about = { ...about, threshold: null };
    this.logOdds = about.kind === "binary" || this.ahead != null;
    this.probability = about.kind !== "regression" && about.kind !== "forecast";
    this.unitSeconds = about.unit_seconds;
    this.unit = SHORT[about.time_unit];
    const named = about.classes[about.watched_output];
    this.watched = named;
    this.risk = about.kind === "binary" ? "Risk" : this.ahead != null ? this.within(this.ahead) : (named || (this.probability ? "Probability" : "Value"));
    this.alarmed = this.ahead == null ? this.risk : this.within(about.horizon);
  }
  within(horizon) { return `Risk within ${Number(horizon.toPrecision(6))}\u00a0${this.unit}`; }
  // A question to the server, with the horizon a person chose.
  asked(path) { return this.ahead == null ? path : `${path}${path.includes("?") ? "&" : "?"}horizon=${this.ahead}`; }
  // What an answer says of the watched output: a probability, or a regression's number by its name.
  said(told) { return this.probability ? told.probabilities[this.about.watched_output] : told.predicted[this.watched]; }
  // The ends of the interval around it, as text, where the model has intervals.
  between(told) {
    const { interval_level: level } = this.about;
    if (level == null || told.lower == null) return "";
    return `${this.value(told.lower[this.watched])} to ${this.value(told.upper[this.watched])} for ${Math.round(100 * level)} %`;
  }
  // Both sides of the interval as time goes, [time, lower, upper]; empty where there is none.
  band(told, times) {
    if (told.lower == null) return [];
    const lower = told.lower[this.watched], upper = told.upper[this.watched];
    return times.map((t, i) => [t, lower[i], upper[i]]);
  }
  followed(told, prefix = "") {
    return this.probability ? told[`${prefix}probabilities`].map((one) => one[this.about.watched_output]) : told[`${prefix}predicted`][this.watched];
  }
  // Where an alarm rose, if not at a row.
  rose(alarm) { return alarm.rose === "between rows" ? ", between rows" : ""; }
  get policy() {
    const words = this.about.alarm_policy?.words ?? "";
    return words && `${words[0].toUpperCase()}${words.slice(1)}.`;
  }
  difference(d) { return this.probability ? `${(100 * d).toFixed(2)}\u00a0points` : plain(d); }
  reached(alarm) { return this.probability ? alarm.probability : alarm.value; }
  value(p) {
    if (p == null) return "";
    if (!this.probability) return plain(p);
    if (p > 0 && p < 0.0995) return `${(100 * p).toFixed(1)}\u00a0%`;
    return `${Math.round(100 * p)}\u00a0%`;
  }
  change(d) {
    if (d == null) return "";
    const text = this.probability ? Math.abs(100 * d).toFixed(Math.abs(d) < 0.0995 ? 1 : 0) : plain(Math.abs(d));
    if (Number(text) === 0) return "steady";
    return `${d > 0 ? "▲" : "▼"} ${text}`;
  }
  at(time) { return `${time.toFixed(time < 100 ? 2 : 1)}\u00a0${this.unit}`; }
  age(units) {
    const seconds = units * this.unitSeconds;
    if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    const hours = Math.floor(seconds / 3600), minutes = Math.round((seconds % 3600) / 60);
    if (hours < 48) return minutes && hours < 10 ? `${hours} h ${minutes} min` : `${hours} h`;
    return hours < 24 * 730 ? `${Math.floor(hours / 24)} d` : `${Math.floor(hours / (24 * 365.25))} y`;
  }
}

export function plain(x) {
  const size = Math.abs(x);
  if (size >= 1000) return x.toFixed(0);
  if (size >= 100) return x.toFixed(0);
  if (size >= 10) return x.toFixed(1);
  return x.toFixed(2);
}

export const spaced = (name) => name.replaceAll("_", " ");
export const wall = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
