// Where the tokens went: an icicle. Each cell is a grant; its dark part is what the node said, the rest below is its
// clones', and what stays pale was given back.
import { h, num, percent, plural, s, short } from "./dom.js";
import { pictureView } from "./picture.js";
import { listed, used } from "./shape.js";

const ROW = 54;
const GAUGE = 11;

/** Draws the budget of a tree. Cells are as wide as what was spent in them, or as what was lent to them. */
export function budgetView(container, { onselect }) {
  let mode = "spent";
  const view = pictureView(container, { onselect, draw: (state, width) => draw(state, width, mode, choose) });

  function choose(next) {
    mode = next;
    view.again();
  }

  return view;
}

function draw(state, width, mode, choose) {
  const { shaped } = state;
  const cells = lay(shaped, width, mode);
  const depth = Math.max(...cells.map((cell) => cell.depth), 0);
  const height = (depth + 1) * (ROW + 2) + 4;
  const words = caption(shaped);
  return [
    h(
      "p", { class: "caption" }, words,
      h("span", { class: "switch" }, ["spent", "lent"].map((one) => h("button", { type: "button", "aria-pressed": String(mode === one), onclick: () => choose(one) }, `width: tokens ${one}`))),
    ),
    h("p", { class: "legend" }, key("own", "said"), key("lent", "spent by clones"), key("back", "returned, of what was lent")),
    s("svg", { class: "icicle", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words }, cells.map((cell) => box(state, cell))),
  ];
}

function key(kind, text) {
  return h("span", {}, h("i", { class: `key ${kind}` }), text);
}

function caption(shaped) {
  const lent = shaped.nodes.slice(1).reduce((sum, node) => sum + node.grant, 0);
  const used_ = shaped.spent[0];
  const clones = used_ - used(shaped.nodes[0]);
  return `${num(used_)} of ${num(shaped.nodes[0].grant)} tokens spent (${percent(used_ / Math.max(1, shaped.nodes[0].grant))}); ` +
    (shaped.nodes.length > 1 ? `${num(lent)} were lent in ${plural(shaped.nodes.length - 1, "grant")}, clones spent ${num(clones)} themselves. ` : "");
}

/** A cell per node, children below their parent. Cells narrower than a hair are left out. */
function lay(shaped, width, mode) {
  const cells = [];
  const weight = (index) => (mode === "spent" ? shaped.spent[index] : shaped.nodes[index].grant);
  const walk = [[0, 0, width]];
  while (walk.length) {
    const [index, left, wide] = walk.pop();
    const node = shaped.nodes[index];
    cells.push({ index, left, wide, depth: node.depth });
    const kids = shaped.children[index];
    const lent = kids.reduce((sum, child) => sum + weight(child), 0);
    const whole = mode === "spent" ? shaped.spent[index] : Math.max(node.grant, lent + used(node));
    let at = left + (wide * used(node)) / Math.max(1, whole);
    for (const child of kids) {
      const own = (wide * weight(child)) / Math.max(1, whole);
      if (own > 0.35) walk.push([child, at, own]);
      at += own;
    }
  }
  return cells;
}

function box({ shaped, shown }, { index, left, wide, depth }) {
  const node = shaped.nodes[index];
  const own = used(node);
  const clones = shaped.spent[index] - own;
  const grant = Math.max(1, node.grant);
  const top = 2 + depth * (ROW + 2);
  const classes = ["cell"];
  if (shown && !shown.has(index)) classes.push("out");
  if (shaped.critical.has(index)) classes.push("critical");
  if (node.verdict && node.verdict.score < 1 - 1e-9) classes.push("wrong");
  const inner = Math.max(0.5, wide - 1.2);
  const part = (value) => Math.min(inner, (inner * value) / grant);
  const fits = Math.floor((wide - 8) / 6.5);
  const back = Math.max(0, node.grant - own - clones);
  const amounts = [`${num(own + clones)} of ${num(node.grant)}, ${num(back)} returned`, `${num(own + clones)} of ${num(node.grant)}`, num(own + clones)].find((text) => text.length <= fits);
  return s(
    "g", { class: classes.join(" "), "data-node": index, "data-more": `said ${num(own)}, clones ${num(clones)}, returned ${num(back)} of ${num(node.grant)}` },
    s("rect", { class: "frame", x: left + 0.6, y: top, width: inner, height: ROW, rx: 2 }),
    s("rect", { class: "gauge own", x: left + 0.6, y: top + ROW - GAUGE, width: part(own), height: GAUGE }),
    clones ? s("rect", { class: "gauge lent", x: left + 0.6 + part(own), y: top + ROW - GAUGE, width: Math.max(0, Math.min(part(clones), inner - part(own))), height: GAUGE }) : null,
    fits > 3 ? s("text", { x: left + 5, y: top + 16 }, short(`${index}  ${listed(shaped, node)}`, fits)) : wide > 15 ? s("text", { x: left + 3, y: top + 16 }, index) : null,
    amounts ? s("text", { class: "small", x: left + 5, y: top + 32 }, amounts) : null,
  );
}
