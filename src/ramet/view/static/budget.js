// Where the tokens went: an icicle. Each cell is a grant; its dark part is what the node said, the rest below is its
// clones', and what stays pale was given back.
import { fill, h, num, percent, s, short } from "./dom.js";
import { listed, used } from "./shape.js";

const ROW = 54;
const GAUGE = 11;

/** Draws the budget of a tree. Cells are as wide as what was spent in them, or as what was lent to them. */
export function budgetView(container, { onselect }) {
  const scroller = h("div", { class: "chart" });
  let mode = "spent";
  let state = null;
  fill(container, scroller);
  const observer = new ResizeObserver(() => state && show(state));
  observer.observe(scroller);
  scroller.addEventListener("click", (event) => {
    const found = event.target.closest("[data-node]");
    if (found) onselect(Number(found.dataset.node));
  });

  function show(next) {
    state = next;
    const { shaped } = state;
    const width = Math.max(320, scroller.clientWidth - 24);
    const cells = lay(shaped, width, mode);
    const depth = Math.max(...cells.map((cell) => cell.depth), 0);
    const height = (depth + 1) * (ROW + 2) + 4;
    fill(
      scroller,
      h(
        "p", { class: "caption" }, caption(shaped),
        h("span", { class: "switch" }, ["spent", "lent"].map((one) =>
          h("button", { type: "button", "aria-pressed": String(mode === one), onclick: () => { mode = one; show(state); } }, `width: tokens ${one}`))),
      ),
      h("p", { class: "legend" }, key("own", "said"), key("lent", "spent by clones"), key("back", "returned, of what was lent")),
      s(
        "svg", { class: "icicle", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": caption(shaped) },
        cells.map((cell) => draw(state, cell)),
      ),
    );
  }

  return { show, reveal: () => scroller.querySelector(".on")?.scrollIntoView({ block: "nearest" }), order: () => state.shaped.nodes.map((n) => n.index).filter((i) => !state.shown || state.shown.has(i)), focus() {}, toggle() {}, close: () => observer.disconnect() };
}

function key(kind, text) {
  return h("span", {}, h("i", { class: `key ${kind}` }), text);
}

function caption(shaped) {
  const lent = shaped.nodes.slice(1).reduce((sum, node) => sum + node.grant, 0);
  const used_ = shaped.spent[0];
  const clones = used_ - used(shaped.nodes[0]);
  return `${num(used_)} of ${num(shaped.nodes[0].grant)} tokens spent (${percent(used_ / Math.max(1, shaped.nodes[0].grant))}); ` +
    (shaped.nodes.length > 1 ? `${num(lent)} were lent in ${num(shaped.nodes.length - 1)} grants, clones spent ${num(clones)} themselves. ` : "");
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

function draw({ shaped, selected, shown }, { index, left, wide, depth }) {
  const node = shaped.nodes[index];
  const own = used(node);
  const clones = shaped.spent[index] - own;
  const grant = Math.max(1, node.grant);
  const top = 2 + depth * (ROW + 2);
  const classes = ["cell"];
  if (index === selected) classes.push("on");
  if (shown && !shown.has(index)) classes.push("out");
  if (shaped.critical.has(index)) classes.push("critical");
  if (node.verdict && node.verdict.score < 1 - 1e-9) classes.push("wrong");
  const inner = Math.max(0.5, wide - 1.2);
  const part = (value) => Math.min(inner, (inner * value) / grant);
  const fits = Math.floor((wide - 8) / 6.5);
  const back = Math.max(0, node.grant - own - clones);
  const amounts = [`${num(own + clones)} of ${num(node.grant)}, ${num(back)} returned`, `${num(own + clones)} of ${num(node.grant)}`, num(own + clones)].find((text) => text.length <= fits);
  return s(
    "g", { class: classes.join(" "), "data-node": index },
    s("rect", { class: "frame", x: left + 0.6, y: top, width: inner, height: ROW, rx: 2 }),
    s("rect", { class: "gauge own", x: left + 0.6, y: top + ROW - GAUGE, width: part(own), height: GAUGE }),
    s("rect", { class: "gauge lent", x: left + 0.6 + part(own), y: top + ROW - GAUGE, width: Math.max(0, Math.min(part(clones), inner - part(own))), height: GAUGE }),
    fits > 3 ? s("text", { x: left + 5, y: top + 16 }, short(`${index}  ${listed(shaped, node)}`, fits)) : wide > 15 ? s("text", { x: left + 3, y: top + 16 }, index) : null,
    amounts ? s("text", { class: "small", x: left + 5, y: top + 32 }, amounts) : null,
    s("title", {}, `node ${index}: ${short(node.goal, 160)}\nsaid ${num(own)}, clones ${num(clones)}, returned ${num(back)} of ${num(node.grant)}`),
  );
}
