// Who worked when, and how many at once: nodes packed into lanes, level by level, over a profile of parallelism.
import { h, num, percent, plural, s, seconds, short } from "./dom.js";
import { pictureView } from "./picture.js";
import { listed, ticks, used } from "./shape.js";

const LANES = [17, 23]; // height of a lane: of many, of few
const FEW = 26; // lanes
const TOP = 78; // height of the profile and the axis

/** Draws the timeline of a tree. */
export function timelineView(container, { onselect }) {
  return pictureView(container, { onselect, draw });
}

function draw(state, width) {
  const { shaped } = state;
  const x = (at) => 44 + ((width - 60) * at) / shaped.total;
  const { lanes, levels, count } = pack(shaped);
  const lane = LANES[Number(count <= FEW)];
  const height = TOP + count * lane + levels.length * 8 + 20;
  const y = (index) => TOP + lanes[index].lane * lane + lanes[index].level * 8;
  const boxes = shaped.nodes.map((node) => box(state, node, x, y(node.index), lane - 4));
  const found = steps(shaped);
  const words = caption(shaped, found);
  return [
    h("p", { class: "caption" }, words),
    s(
      "svg", { class: "timeline", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
      grid(shaped, x, height), profile(shaped, x, found), levels.map((level) => levelName(level, width, lane)), links(shaped, x, y, lane - 4), boxes,
    ),
  ];
}

function caption(shaped, found) {
  const { mean, most } = parallelism(found);
  const onPath = [...shaped.critical].reduce((sum, index) => sum + used(shaped.nodes[index]), 0);
  const time = shaped.unit === "s" ? seconds(shaped.total) : `${num(shaped.total)} tokens`;
  return `${plural(shaped.nodes.length, "node")} in ${time}; ${num(mean, 1)} sampled at once on average, ${num(most)} at most. ` +
    `The critical path is ${percent(onPath / Math.max(1, shaped.spent[0]))} of all tokens.`;
}

/** Lanes in which no two nodes overlap, one group of lanes per depth. */
function pack(shaped) {
  const lanes = [];
  const levels = [];
  let base = 0;
  const depths = Math.max(...shaped.nodes.map((node) => node.depth));
  for (let depth = 0; depth <= depths; depth++) {
    const ends = [];
    const here = shaped.nodes.filter((node) => node.depth === depth).sort((a, b) => shaped.spans[a.index].start - shaped.spans[b.index].start || a.index - b.index);
    for (const node of here) {
      const { start, end } = shaped.spans[node.index];
      let lane = ends.findIndex((free) => free <= start + 1e-9);
      if (lane < 0) lane = ends.length;
      ends[lane] = Math.max(end, start + shaped.total / 2000);
      lanes[node.index] = { lane: base + lane, level: depth };
    }
    levels.push({ depth, base, lanes: ends.length, nodes: here.length });
    base += ends.length;
  }
  return { lanes, levels, count: base };
}

function levelName({ depth, base, lanes, nodes }, width, lane) {
  const top = TOP + base * lane + depth * 8;
  return s("g", { class: "level" }, s("rect", { x: 0, y: top - 6, width, height: lanes * lane + 8 }), s("text", { x: 38, y: top + lane / 2 + 2, "text-anchor": "end" }, depth ? `${depth}` : "root", s("title", {}, `depth ${depth}: ${plural(nodes, "node")}`)));
}

function grid(shaped, x, height) {
  return ticks(shaped.total, 7).map((at) =>
    s("g", { class: "grid" }, s("line", { x1: x(at), x2: x(at), y1: 14, y2: height }), s("text", { x: x(at), y: 10, "text-anchor": "middle" }, `${num(at, at % 1 ? 1 : 0)} ${shaped.unit}`)),
  );
}

/** How many nodes sample, from each moment on at which the number changes. */
function steps(shaped) {
  const events = [];
  for (const span of shaped.spans) for (const [a, b] of span.turns) if (b > a) events.push([a, 1], [b, -1]);
  events.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  const found = [];
  let level = 0;
  events.forEach(([at, change], i) => {
    level += change;
    if (!events[i + 1] || events[i + 1][0] > at) found.push([at, level]);
  });
  return found;
}

function parallelism(found) {
  let area = 0;
  let busy = 0;
  let most = 0;
  found.forEach(([at, level], i) => {
    const span = (found[i + 1] ? found[i + 1][0] : at) - at;
    area += level * span;
    busy += level > 0 ? span : 0;
    most = Math.max(most, level);
  });
  return { mean: busy ? area / busy : 0, most };
}

/** How many nodes sampled at each moment. */
function profile(shaped, x, found) {
  const { most } = parallelism(found);
  if (!found.length) return null;
  const y = (level) => 64 - (40 * level) / Math.max(1, most);
  let path = `M${x(0)},${y(0)}`;
  for (const [at, level] of found) path += `H${x(at).toFixed(1)}V${y(level).toFixed(1)}`;
  return s("g", { class: "profile" }, s("path", { d: path + `L${x(shaped.total)},${y(0)}Z` }), s("text", { x: 38, y: 30, "text-anchor": "end" }, `${most}`), s("text", { x: 38, y: 66, "text-anchor": "end" }, "0"), s("text", { class: "halo", x: x(0) + 4, y: 30 }, "nodes sampling at once"), s("title", {}, "nodes that sample at the same time"));
}

/** The critical path: from the turn of a parent that waits to the child it waits for. */
function links(shaped, x, y, high) {
  return [...shaped.critical].filter((index) => shaped.nodes[index].parent !== null).map((index) => {
    const node = shaped.nodes[index];
    const { start, end } = shaped.spans[index];
    const from = y(node.parent) + high;
    const to = y(index);
    return s("g", { class: "path" }, s("path", { d: `M${x(start)},${from}L${x(start)},${to}` }), s("path", { d: `M${x(end)},${to}L${x(end)},${from}` }));
  });
}

function box(state, node, x, top, high) {
  const { shaped, shown } = state;
  const { start, end, turns } = shaped.spans[node.index];
  const width = Math.max(1.5, x(end) - x(start));
  const classes = ["box"];
  if (shaped.critical.has(node.index)) classes.push("critical");
  if (shown && !shown.has(node.index)) classes.push("out");
  if (node.verdict && node.verdict.score < 1 - 1e-9) classes.push("wrong");
  const label = `${node.index}  ${listed(shaped, node)}`;
  const fits = Math.floor((width - 6) / 6.4);
  return s(
    "g", { class: classes.join(" "), "data-node": node.index },
    s("rect", { class: "life", x: x(start), y: top, width, height: high, rx: 2 }),
    s("path", { class: "work", d: work(turns, x, top, high) }),
    fits > 2 ? s("text", { x: x(start) + 4, y: top + high / 2 + 4 }, short(label, fits)) : fits > 0 ? s("text", { x: x(start) + 3, y: top + high / 2 + 4 }, short(String(node.index), 3)) : null,
  );
}

/** Where a node sampled: a block per turn, as one path. */
function work(turns, x, top, high) {
  let path = "";
  for (const [a, b] of turns) {
    const wide = x(b) - x(a);
    if (wide > 0.3) path += `M${x(a).toFixed(1)},${top}h${Math.max(0.8, wide - 0.4).toFixed(1)}v${high}h${-Math.max(0.8, wide - 0.4).toFixed(1)}z`;
  }
  return path;
}
