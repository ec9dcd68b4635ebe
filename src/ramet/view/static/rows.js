// One row per node: the tree, its timeline and its ledger in one table. Only the rows in sight exist.
import { fill, h, mark, num, s, short } from "./dom.js";
import { listed, preorder, ticks, used } from "./shape.js";

const HEIGHT = 27;
const INDENT = 13; // a level of depth
const SPARE = 14; // rows above and below those in sight

/** Draws the rows into a container; `show` draws again after a change. */
export function rowsView(container, { onselect, label = "Nodes of the tree" }) {
  const head = h("div", { class: "row head", "aria-hidden": "true" });
  const body = h("div", { class: "rows-body", role: "tree", tabindex: "0", "aria-label": label });
  const scroller = h("div", { class: "rows" }, head, body);
  let state = null;
  let order = [];
  fill(container, scroller);
  scroller.addEventListener("scroll", () => requestAnimationFrame(draw));
  const observer = new ResizeObserver(() => state && draw());
  observer.observe(scroller);
  body.addEventListener("click", (event) => {
    const row = event.target.closest("[data-node]");
    if (!row) return;
    const index = Number(row.dataset.node);
    if (event.target.closest(".fold")) toggle(index);
    else onselect(index);
  });

  function toggle(index) {
    const { folded } = state;
    folded.has(index) ? folded.delete(index) : folded.add(index);
    show(state);
  }

  function show(next) {
    state = next;
    order = preorder(state.shaped, state.folded).filter((index) => !state.shown || state.shown.has(index));
    body.style.setProperty("height", `${order.length * HEIGHT}px`);
    body.style.setProperty("--tick", `${(100 * ticks(state.shaped.total, 5)[1]) / state.shaped.total || 100}%`);
    fill(head, headCells(state));
    draw();
  }

  function draw() {
    if (!state) return;
    const top = Math.max(0, Math.floor((scroller.scrollTop - 30) / HEIGHT) - SPARE);
    const end = Math.min(order.length, top + Math.ceil(scroller.clientHeight / HEIGHT) + 2 * SPARE);
    const rows = [];
    for (let place = top; place < end; place++) rows.push(row(state, order[place], place, order.length));
    fill(body, rows.length ? rows : h("div", { class: "empty", role: "treeitem" }, "No node passes the filters."));
    body.setAttribute("aria-activedescendant", order.includes(state.selected) ? rowId(state, state.selected) : "");
  }

  function reveal(index) {
    const place = order.indexOf(index);
    if (place < 0) return;
    const at = place * HEIGHT + 30;
    if (at < scroller.scrollTop + 40) scroller.scrollTop = Math.max(0, at - 80);
    else if (at > scroller.scrollTop + scroller.clientHeight - 2 * HEIGHT) scroller.scrollTop = at - scroller.clientHeight + 3 * HEIGHT;
    draw();
  }

  return { show, reveal, toggle, order: () => order, focus: () => body.focus({ preventScroll: true }), close: () => observer.disconnect() };
}

function rowId(state, index) {
  return `${state.side || "n"}-${index}`;
}

function headCells({ shaped }) {
  const said = shaped.prefix ? `goal: ${short(shaped.prefix, 60)} …` : "goal";
  return [
    h("div", { class: "name" }, h("span", { class: "no" }, "#"), h("span", { class: "goal", title: shaped.prefix ? `most goals begin with “${shaped.prefix.trim()}”` : null }, said)),
    h("div", { class: "axis" }, axis(shaped)),
    h("div", { class: "tokens" }, "tokens"),
    h("div", { class: "one-line" }, "spent of grant"),
    h("div", {}),
  ];
}

/** Labels of the time axis, over the rows. */
export function axis(shaped) {
  const marks = ticks(shaped.total, 5);
  return marks.map((at, i) =>
    h("span", { class: "tick", style: { left: `${(100 * at) / shaped.total}%` } }, i === marks.length - 1 ? `${num(at, at % 1 ? 1 : 0)} ${shaped.unit}` : num(at, at % 1 ? 1 : 0)),
  );
}

function row(state, index, place, total) {
  const { shaped, selected, folded, marks } = state;
  const node = shaped.nodes[index];
  const classes = ["row"];
  if (index === selected) classes.push("on");
  if (state.hits && state.hits.has(index)) classes.push("hit");
  if (marks) classes.push(`is-${marks[index]}`);
  if (state.firstNode === index) classes.push("first");
  return h(
    "div",
    {
      class: classes.join(" "), id: rowId(state, index), role: "treeitem", "data-node": index,
      "aria-level": node.depth + 1, "aria-selected": String(index === selected), "aria-posinset": place + 1, "aria-setsize": total,
      "aria-expanded": shaped.children[index].length ? String(!folded.has(index)) : null,
      "aria-label": `node ${index}, ${short(node.goal, 80)}, ${node.stop || node.state}`,
      style: { transform: `translateY(${place * HEIGHT}px)` },
    },
    name(state, node),
    h("div", { class: "when", "aria-hidden": "true" }, bar(shaped, node)),
    h("div", { class: "tokens" }, num(used(node))),
    ledger(shaped, node),
    h("div", { class: "dot" }, marks ? sideMark(marks[index]) : null, mark(node.verdict ? node.verdict.score : null, node.state)),
  );
}

function sideMark(kind) {
  const [sign, words] = { same: ["=", "the same in both trees"], changed: ["≠", "other texts in the other tree"], only: ["+", "only in this tree"] }[kind];
  return h("span", { class: `beside ${kind}`, title: words }, sign);
}

function name({ shaped, folded }, node) {
  const kids = shaped.children[node.index].length;
  const hidden = folded.has(node.index) ? shaped.size[node.index] - 1 : 0;
  return h(
    "div", { class: "name" },
    h("span", { class: "no" }, node.index),
    twig(shaped, node),
    h("span", { class: kids ? "fold" : "fold leaf", title: kids ? (hidden ? "show its clones" : "hide its clones") : null }, kids ? (hidden ? "▸" : "▾") : ""),
    h("span", { class: "goal", title: node.goal }, short(listed(shaped, node), 160)),
    hidden ? h("span", { class: "more" }, `+${hidden}`) : null,
  );
}

/** Branches from the root to a node: a line for every ancestor that has more clones below, and a corner to the node. */
function twig(shaped, node) {
  const width = node.depth * INDENT;
  let path = "";
  let at = node;
  for (let level = node.depth - 1; at.parent !== null; level--) {
    const siblings = shaped.children[at.parent];
    const last = siblings[siblings.length - 1] === at.index;
    const x = level * INDENT + 6.5;
    if (at === node) path += `M${x},0V${last ? HEIGHT / 2 : HEIGHT}M${x},${HEIGHT / 2}H${width}`;
    else if (!last) path += `M${x},0V${HEIGHT}`;
    at = shaped.nodes[at.parent];
  }
  return s("svg", { class: "twig", width, height: HEIGHT, viewBox: `0 0 ${width || 1} ${HEIGHT}`, "aria-hidden": "true" }, s("path", { d: path }));
}

/** When a node was there (line) and sampled (blocks), on the scale of the whole tree. */
export function bar(shaped, node) {
  const { start, end, turns } = shaped.spans[node.index];
  const x = (at) => (1000 * at) / shaped.total;
  const busy = node.state && node.state !== "ended";
  const parts = [s("line", { x1: x(start), x2: Math.max(x(end), x(start) + 1), y1: 13.5, y2: 13.5, "vector-effect": "non-scaling-stroke" })];
  let last = -1;
  turns.forEach(([a, b], i) => {
    const left = x(a);
    const right = Math.max(x(b), left + 2.2);
    if (right - last < 0.5) return; // smaller than a hair
    last = right;
    const open = busy && node.state === "sampling" && i === turns.length - 1;
    parts.push(s("rect", { class: open ? "open" : null, x: left, width: Math.max(1, right - left - 1), y: 8, height: 11, rx: 1.5 }));
  });
  node.turns.forEach((turn, i) => {
    const at = turns[i] ? x(turns[i][1]) : null;
    if (at !== null && turn.refusals.length) parts.push(s("rect", { class: "refused", x: at - 1.5, width: 3.5, y: 3, height: 21 }));
    else if (at !== null && turn.faults) parts.push(s("rect", { class: "fault", x: at - 1, width: 2.5, y: 20, height: 4 }));
  });
  return s("svg", { class: "bar" + (shaped.critical.has(node.index) ? " critical" : ""), viewBox: "0 0 1000 27", preserveAspectRatio: "none" }, parts);
}

/** What a node said, what its clones spent, and what it gave back of its grant. */
export function ledger(shaped, node) {
  const own = used(node);
  const clones = shaped.spent[node.index] - own;
  const grant = Math.max(1, node.grant);
  const share = (value) => `${Math.min(100, (100 * value) / grant)}%`;
  const back = Math.max(0, node.grant - own - clones);
  const left = node.state && node.state !== "ended" ? "left" : "returned";
  return h(
    "div", { class: "led", title: `said ${num(own)}, clones ${num(clones)}, ${left} ${num(back)} of ${num(node.grant)}` },
    h("span", { class: "own", style: { width: share(own) } }),
    h("span", { class: "lent", style: { width: share(clones) } }),
  );
}
