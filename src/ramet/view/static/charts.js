// Curves over steps and pictures of shares, as SVG.
import { h, num, percent, plural, s, stepNumber } from "./dom.js";
import { between } from "./shape.js";

const W = 320;
const H = 132;
const LEFT = 46; // of the curve: room for the numbers beside it

/** One curve over the steps of a run. A click on a step opens its trees. */
export function curve({ title, steps, values, share = false, onstep, others = [] }) {
  const points = steps.map((step, i) => [stepNumber(step), values[i]]).filter(([, value]) => value !== null && value !== undefined);
  if (!points.length) return null;
  const all = [points, ...others.map((other) => other.points)].flat();
  let low = Math.min(...all.map(([, value]) => value));
  let high = Math.max(...all.map(([, value]) => value));
  if (share) [low, high] = [0, 1];
  else if (low >= 0 && low < 0.4 * high) low = 0;
  if (high === low) high = low + Math.max(1e-6, Math.abs(low) * 0.1 || 1);
  const first = stepNumber(Math.min(...steps));
  const last = Math.max(stepNumber(Math.max(...steps)), first + 1);
  const x = (step) => LEFT + ((W - LEFT - 12) * (step - first)) / (last - first);
  const y = (value) => H - 22 - ((H - 34) * (value - low)) / (high - low);
  const shown = (value) => (share ? percent(value) : num(value));
  const cursor = s("g", { class: "cursor-line", visibility: "hidden" }, s("line", { y1: 8, y2: H - 22 }), s("circle", { r: 3.2 }), s("text", { y: 9 }));
  const near = (event) => {
    const box = svg.getBoundingClientRect();
    const at = first + (((event.clientX - box.left) * W) / box.width - LEFT) * ((last - first) / (W - LEFT - 12));
    return points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
  };
  const place = (point) => {
    const [line, dot, text] = cursor.children;
    for (const name of ["x1", "x2"]) line.setAttribute(name, x(point[0]));
    dot.setAttribute("cx", x(point[0]));
    dot.setAttribute("cy", y(point[1]));
    text.setAttribute("x", Math.min(W - 4, Math.max(LEFT + 4, x(point[0]))));
    text.setAttribute("text-anchor", x(point[0]) > W / 2 ? "end" : "start");
    text.textContent = `step ${point[0]}: ${shown(point[1])}`;
    cursor.setAttribute("visibility", "visible");
  };
  const path = (list) => list.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)},${y(value).toFixed(1)}`).join("");
  const newest = points[points.length - 1];
  const svg = s(
    "svg", { viewBox: `0 0 ${W} ${H}`, class: "curve" + (onstep ? " clickable" : ""), role: "img", "aria-label": `${title}: ${points.length} points, first ${shown(points[0][1])}, last ${shown(newest[1])}`,
      onmousemove: (event) => place(near(event)), onmouseleave: () => cursor.setAttribute("visibility", "hidden"), onclick: (event) => onstep && onstep(near(event)[0] - 1) },
    levels(low, high, share).map((value) => s("g", { class: "grid" }, s("line", { x1: LEFT, x2: W - 10, y1: y(value), y2: y(value) }), s("text", { x: LEFT - 5, y: y(value) + 3.5, "text-anchor": "end" }, shown(value)))),
    (steps.length > 1 ? stepMarks(first, last) : [first]).map((at) => s("text", { class: "axis-text", x: x(at), y: H - 6, "text-anchor": "middle" }, at === first ? `step ${num(at)}` : num(at))),
    others.map((other) => s("path", { class: "line other", d: path(other.points) })),
    s("path", { class: "line", d: path(points) }),
    points.length <= 40 ? points.map(([step, value]) => s("circle", { class: "point", cx: x(step), cy: y(value), r: points.length > 20 ? 1.4 : 2.2 })) : null,
    cursor,
  );
  return h("figure", { class: "small" }, h("figcaption", {}, h("b", {}, title), h("span", {}, `${shown(points[0][1])} → ${shown(newest[1])}`)), svg);
}

/** Steps that are named below a curve: the first, the last, and round numbers that keep away from both. */
function stepMarks(first, last) {
  const gap = (last - first) / 8;
  const inner = between(first, last, 5).filter((at) => Number.isInteger(at) && at > first + 1.5 * gap && at < last - 0.8 * gap);
  return [first, ...inner, last];
}

function levels(low, high, share) {
  const found = share ? [0, 0.5, 1] : [3, 5].map((wanted) => between(low, high, wanted)).find((marks) => marks.length > 1);
  return found ?? [low, high];
}

/** Shares by row and step: darker is more. Every cell has its number of trees in its title. `longest`: characters of a label. */
export function heat({ title, note, rows, longest, steps, cells, value, onstep, tone }) {
  const narrow = window.innerWidth < 700;
  const left = Math.max(narrow ? 66 : 84, 14 + 6.6 * longest); // labels have a size of 12
  const right = narrow ? 108 : 176;
  const wide = narrow ? 430 : 860;
  const cell = (wide - left - right) / steps.length;
  const high = 24;
  const height = rows.length * (high + 1) + 24;
  const table = new Map(cells.map((one) => [`${one.row}|${one.step}`, one]));
  const parts = [];
  rows.forEach((row, r) => {
    const known = [];
    const top = r * (high + 1);
    parts.push(s("text", { class: "heat-name", x: left - 10, y: top + 16, "text-anchor": "end" }, row.label));
    steps.forEach((step, i) => {
      const one = table.get(`${row.key}|${step}`);
      if (!one || !one.n) return;
      const share = value(one) / one.n;
      known.push([share, one.n]);
      parts.push(s("rect", { class: `heat ${tone}${one.n < 5 ? " thin" : ""}`, x: left + i * cell, y: top, width: Math.max(0.6, cell - 0.6), height: high, style: { "fill-opacity": 0.04 + 0.96 * share }, "data-step": step },
        s("title", {}, `${row.label}, step ${stepNumber(step)}: ${percent(share)} of ${one.n}`)));
    });
    if (known.length) parts.push(s("text", { class: "heat-end", x: wide - right + 10, y: top + 16 }, `${percent(ends(known, steps.length, 0))} → ${percent(ends(known, steps.length, 1))}`, s("title", {}, `first and last ${plural(Math.min(known.length, tenth(steps.length)), "step")} with such trees`)));
    if (known.length && !narrow) parts.push(s("text", { class: "heat-name", x: wide, y: top + 16, "text-anchor": "end" }, `n ${num(known.reduce((sum, [, n]) => sum + n, 0))}`));
  });
  for (const i of new Set([0, ...(narrow ? [] : [Math.floor(steps.length / 3), Math.floor((2 * steps.length) / 3)]), steps.length - 1])) {
    parts.push(s("text", { class: "axis-text", x: left + (i + 0.5) * cell, y: height - 6, "text-anchor": "middle" }, i ? num(stepNumber(steps[i])) : `step ${stepNumber(steps[i])}`));
  }
  return h(
    "figure", { class: "wide-figure" }, h("figcaption", {}, h("b", {}, title), h("span", {}, note)),
    s("svg", { class: "heatmap", viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": `${title}, ${rows.length} rows, ${steps.length} steps`, onclick: (event) => { const found = event.target.closest("[data-step]"); if (found && onstep) onstep(Number(found.dataset.step)); } }, parts),
  );
}

function tenth(steps) {
  return Math.max(1, Math.floor(steps / 10));
}

/** The share in the first or the last steps that have such trees, a tenth of all steps: as in the report. */
function ends(known, steps, side) {
  const part = side ? known.slice(-tenth(steps)) : known.slice(0, tenth(steps));
  return part.reduce((sum, [share, n]) => sum + share * n, 0) / part.reduce((sum, [, n]) => sum + n, 0);
}

/** A line without axes, for a list. */
export function spark(values, name) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return h("span", {});
  const points = values.map((value, i) => (value === null || value === undefined ? null : [(100 * i) / (values.length - 1), 20 - 18 * value])).filter(Boolean);
  const area = `M${points[0][0]},22` + points.map(([a, b]) => `L${a.toFixed(1)},${b.toFixed(1)}`).join("") + `L${points[points.length - 1][0]},22Z`;
  return s("svg", { class: "spark", viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" }, s("title", {}, `${name} by step`), s("path", { class: "area", d: area }), s("path", { d: points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)},${b.toFixed(1)}`).join("") }));
}
