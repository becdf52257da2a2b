// Charts as SVG: the curve of the risk, and a strip for each channel on the same axis of time.
const NS = "http://www.w3.org/2000/svg";

function draw(tag, attributes, parent, text) {
  const node = document.createElementNS(NS, tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  if (text != null) node.textContent = text;
  parent.append(node);
  return node;
}

// Steps that are round in each unit of time, in that unit; beyond them, and in other units, 1, 2, 5 and tens of them.
const SIXTY = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080];
const STEPS = {
  s: [...SIXTY.slice(0, 6), ...SIXTY.map((n) => 60 * n)],
  min: SIXTY,
  h: [1 / 12, 1 / 6, 0.25, 0.5, 1, 2, 3, 4, 6, 12, 24, 48, 96, 168, 336, 672],
  d: [0.25, 0.5, 1, 2, 7, 14, 28, 56, 91, 182, 364],
};
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * (1 - 1e-9));
}
export function timeTicks(from, to, most, unit) {
  const span = to - from, known = STEPS[unit] || [];
  const step = (span / most >= (known[0] ?? Infinity) / 2 && known.find((s) => span / s <= most)) || roundStep(span / most);
  const ticks = [];
  for (let t = Math.ceil(from / step - 1e-9) * step; t <= to + 1e-9 * step; t += step) ticks.push(Number(t.toPrecision(12)));
  return ticks;
}

function valueTicks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => s >= rough);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9; v += step) found.push(v);
  return found;
}

function scale(from, to, start, end) {
  const rate = (end - start) / (to - from || 1);
  return (x) => start + (x - from) * rate;
}

const path = (points, x, y) =>
  points.map(([t, v], i) => `${i ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("");

// Grid points and both sides of the jump at each row, in order of time.
export function curvePoints(curve, output, words) {
  const between = words.followed(curve), at = words.followed(curve, "row_");
  const points = curve.times.map((t, i) => [t, between[i], 2]);
  curve.row_times.forEach((t, i) => {
    const before = curve.row_before[i][output];
    if (before != null) points.push([t, before, 0]);
    points.push([t, at[i], 1]);
  });
  return points.sort((a, b) => a[0] - b[0] || a[2] - b[2]);
}

export const EDGE = { left: 44, right: 58 };

export function riskChart(svg, { from, to, curve, tail, band, output, threshold, alarms, words, narrow }) {
  const width = svg.clientWidth || 600, height = narrow ? 190 : 250, bottom = height - 22, top = 12;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren();
  const left = narrow ? 38 : EDGE.left, right = width - (narrow ? 44 : EDGE.right);
  const x = scale(from, to, left, right);
  // The window moves on with the clock while the curve is as it was asked for: what lies before is cut.
  const solid = curvePoints(curve, output, words).filter(([t]) => t <= tail[0][0] + 1e-9).map(([t, v]) => [Math.max(t, from), v]);
  const around = band.filter(([t]) => t >= from && t <= to);
  const values = [...solid, ...tail].map((p) => p[1]).concat(threshold ?? [], around.flatMap(([, lower, upper]) => [lower, upper]));
  let low = words.probability ? 0 : Math.min(...values), high = Math.max(...values);
  if (words.probability) high = Math.min(1, Math.max(1.12 * high, 0.1));
  else { const room = 0.1 * (high - low) || 0.1 * Math.abs(high) || 1; low -= room; high += room; }
  const y = scale(low, high, bottom, top);
  const [now, risk] = tail.at(-1), nowAt = Math.max(x(now), left + 14);
  for (const v of valueTicks(low, high)) {
    draw("line", { class: "grid", x1: left, x2: right, y1: y(v), y2: y(v) }, svg);
    draw("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, svg, words.probability ? `${Math.round(100 * v)} %` : Number(v.toPrecision(3)));
  }
  timeAxis(svg, x, from, to, bottom, narrow ? 5 : 10, words.unit, nowAt);
  if (threshold != null) {
    draw("line", { class: "threshold", x1: left, x2: right, y1: y(threshold), y2: y(threshold) }, svg);
    draw("text", { class: "threshold-text", x: right + 6, y: y(threshold) + 4 }, svg, narrow ? "alarm" : "alarm at");
    if (!narrow) draw("text", { class: "threshold-text", x: right + 6, y: y(threshold) + 17 }, svg, words.value(threshold));
  }
  if (around.length > 1) {
    const ends = [...around.map(([t, lower]) => [t, lower]), ...around.slice().reverse().map(([t, , upper]) => [t, upper])];
    draw("path", { class: "area band", d: `${path(ends, x, y)}Z` }, svg);
  } else if (solid.length) {
    draw("path", { class: "area", d: `${path(solid, x, y)}L${x(solid.at(-1)[0])} ${bottom}L${x(solid[0][0])} ${bottom}Z` }, svg);
  }
  if (solid.length) draw("path", { class: "curve", d: path(solid, x, y) }, svg);
  draw("path", { class: "after", d: path(tail, x, y) }, svg);
  const seen = words.followed(curve, "row_");
  curve.row_times.forEach((t, i) => {
    if (t >= from) draw("circle", { class: "seen-at", cx: x(t), cy: y(seen[i]), r: narrow ? 2.2 : 3 }, svg);
  });
  for (const alarm of alarms) {
    if (alarm.time < from || alarm.time > to) continue;
    const shown = words.other ? [...solid, ...tail].findLast(([t]) => t <= alarm.time + 1e-9) : null;
    const at = x(alarm.time), tip = y(shown ? shown[1] : words.reached(alarm)) - 8;
    const mark = draw("path", { class: alarm.acknowledged == null ? "mark" : "mark acked", d: `M${at} ${tip}l-5 -9h10z` }, svg);
    draw("title", {}, mark, `${words.value(words.reached(alarm))} at ${words.at(alarm.time)}${words.rose(alarm)}`);
  }
  draw("line", { class: "now-line", x1: x(now), x2: x(now), y1: top, y2: bottom }, svg);
  draw("circle", { class: "now-dot", cx: x(now), cy: y(risk), r: 4.5 }, svg).dataset.risk = risk;
  draw("text", { x: nowAt, y: height - 7, "text-anchor": "middle", class: "now-text" }, svg, "now");
  return { x, from, to, left, right };
}

function timeAxis(svg, x, from, to, bottom, most, unit, nowAt) {
  const ticks = timeTicks(from, to, most, unit);
  for (const t of ticks) {
    draw("line", { class: "grid", x1: x(t), x2: x(t), y1: bottom, y2: bottom + 4 }, svg);
    if (Math.abs(x(t) - nowAt) > 34) draw("text", { x: x(t), y: bottom + 15, "text-anchor": "middle" }, svg, `${Number(t.toPrecision(Math.abs(t) < 1e5 ? 5 : 9))} ${unit}`);
  }
}

export function channelStrip(svg, { from, to, points, narrow, axis }) {
  const width = svg.clientWidth || 600, height = narrow ? 40 : 46;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren();
  const x = axis.x, values = points.map((p) => p[1]);
  let low = Math.min(...values), high = Math.max(...values);
  const room = 0.1 * (high - low) || Math.abs(high) * 0.1 || 1;
  low -= room; high += room;
  const y = scale(low, high, height - 6, 6);
  const held = points.flatMap(([t, v], i) => (i ? [[t, points[i - 1][1]], [t, v]] : [[t, v]]));
  held.push([to, points.at(-1)[1]]);
  draw("path", { class: "held", d: path(held.map(([t, v]) => [Math.max(t, from), v]), x, y) }, svg);
  for (const [t, v] of points) if (t >= from) draw("circle", { class: "dot", cx: x(t), cy: y(v), r: narrow ? 1.9 : 2.4 }, svg);
  draw("text", { x: axis.right + 6, y: 14 }, svg, Number(Math.max(...values).toPrecision(3)));
  if (high - low > 3 * room) draw("text", { x: axis.right + 6, y: height - 5 }, svg, Number(Math.min(...values).toPrecision(3)));
}

// A channel as it was observed, and behind now the quantiles of what it will read: fan holds [time, quantiles].
export function fanChart(svg, { from, points, now, fan, levels, words, narrow }) {
  const width = svg.clientWidth || 600, height = narrow ? 170 : 220, bottom = height - 22, top = 12;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren();
  const left = narrow ? 38 : EDGE.left, right = width - (narrow ? 20 : EDGE.right), to = fan.at(-1)[0];
  const values = [...points.map((p) => p[1]), ...fan.flatMap(([, quantiles]) => quantiles)];
  let low = Math.min(...values), high = Math.max(...values);
  const room = 0.1 * (high - low) || 0.1 * Math.abs(high) || 1;
  low -= room; high += room;
  const x = scale(from, to, left, right), y = scale(low, high, bottom, top);
  for (const v of valueTicks(low, high)) {
    draw("line", { class: "grid", x1: left, x2: right, y1: y(v), y2: y(v) }, svg);
    draw("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, svg, Number(v.toPrecision(3)));
  }
  const nowAt = x(now);
  timeAxis(svg, x, from, to, bottom, narrow ? 5 : 10, words.unit, nowAt);
  const middle = levels.indexOf(0.5), last = points.at(-1)?.[1];
  const whole = last == null ? fan : [[now, levels.map(() => last)], ...fan];
  for (let i = 0; i < middle; i++) {
    const up = whole.map(([t, q]) => [t, q[levels.length - 1 - i]]), down = whole.map(([t, q]) => [t, q[i]]).reverse();
    draw("path", { class: "area fan", d: `${path([...up, ...down], x, y)}Z` }, svg);
  }
  const held = points.flatMap(([t, v], i) => (i ? [[t, points[i - 1][1]], [t, v]] : [[t, v]]));
  if (last != null) {
    draw("path", { class: "held", d: path([...held, [now, last]].map(([t, v]) => [Math.max(t, from), v]), x, y) }, svg);
    for (const [t, v] of points) if (t >= from) draw("circle", { class: "dot", cx: x(t), cy: y(v), r: narrow ? 1.9 : 2.4 }, svg);
  }
  draw("path", { class: "curve", d: path(whole.map(([t, q]) => [t, q[middle]]), x, y) }, svg);
  for (const [t, q] of fan) draw("circle", { class: "seen-at", cx: x(t), cy: y(q[middle]), r: 3 }, svg);
  draw("line", { class: "now-line", x1: nowAt, x2: nowAt, y1: top, y2: bottom }, svg);
  draw("text", { x: nowAt, y: height - 7, "text-anchor": "middle", class: "now-text" }, svg, "now");
}

// One line through all charts at the time pointed at.
export function crossLine(svgs, x) {
  for (const svg of svgs) {
    svg.querySelector(".cross")?.remove();
    if (x != null) draw("line", { class: "cross", x1: x, x2: x, y1: 0, y2: svg.viewBox.baseVal.height }, svg);
  }
}
