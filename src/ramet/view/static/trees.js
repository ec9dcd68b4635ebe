// A table of the trees of a run, of any length: pages are fetched as they come into sight.
import { ask } from "./api.js";
import { commonStart } from "./shape.js";
import { fill, h, isTyping, mark, num, plural, seconds, select, short, stepNumber } from "./dom.js";

const NARROW = window.matchMedia("(max-width: 900px)");
const HEIGHT = NARROW.matches ? 52 : 30; // on a phone a tree has two lines
const PAGE = 100;
const PARTS = { step: "training steps", eval: "evaluations", replay: "replays" };
const COLUMNS = [
  ["", ""], ["step", "step"], ["tree", "tree"], ["task_id", "task"], ["", "question and answer"], ["score", "verdict"], ["nodes", "nodes"], ["depth", "depth"],
  ["tokens", "tokens"], ["critical", "critical path"], ["refused", "refused"], ["seconds", "time"],
];

/** The step of a tree, as it is listed; files of an evaluation or a server have no steps. */
export function stepOf({ part, step }) {
  if (step === null || part === "chunk") return "";
  return part === "step" ? `${stepNumber(step)}` : `${part} ${stepNumber(step, part)}`;
}

/** Draws the table; `filters` come from the address and go back to it. */
export function treesTable(root, { run, values, filters, onfilter, go }) {
  const pages = new Map();
  const ticked = new Map();
  const body = h("div", { class: "table-body", role: "rowgroup" });
  const header = h("div", { class: "trow thead", role: "row" });
  const scroller = h("div", { class: "table", role: "table", "aria-label": "Trees", tabindex: "0" }, h("div", { role: "rowgroup", class: "table-head" }, header), body);
  const tools = h("div", { class: "tools" });
  const note = h("span", { class: "soft count", role: "status" });
  const compare = h("button", { type: "button", class: "go", hidden: true, onclick: both }, "compare the two");
  const search = h("input", { type: "search", placeholder: "Search tasks and goals", "aria-label": "Search tasks, questions, goals", value: filters.q || "" });
  let total = 0;
  let selected = 0;
  let timer = 0;
  let asked = 0;
  let start = ""; // words with which most questions begin
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => change("q", search.value.trim()), 250); });
  scroller.addEventListener("scroll", () => requestAnimationFrame(draw));
  const observer = new ResizeObserver(draw);
  observer.observe(scroller);
  fill(root, tools, scroller);

  function change(name, value) {
    if (value === "") delete filters[name];
    else filters[name] = value;
    selected = 0;
    scroller.scrollTop = 0;
    onfilter(filters);
    reload();
  }

  function drawTools() {
    const any = (list) => [["", "any"], ...list.filter((value) => value !== null).map((value) => [value, String(value)])];
    const parts = [...new Set(values.parts.map((part) => part.part))];
    fill(
      tools, search,
      select("verdict", filters.wrong || "", [["", "any"], ["right", "right"], ["root", "wrong"], ["any", "a wrong node"]], (value) => change("wrong", value)),
      select("verdict by", filters.verdict || "", any(values.verdict), (value) => change("verdict", value)),
      select("stop", filters.stop || "", any(values.stop), (value) => change("stop", value)),
      select("depth", filters.depth || "", any(values.depth), (value) => change("depth", value)),
      values.methods.length > 1 ? select("method", filters.method || "", any(values.methods.map((one) => one.method)), (value) => change("method", value)) : null,
      parts.length > 1 ? select("from", filters.part || "", [["", "any"], ...parts.map((part) => [part, PARTS[part] ?? part])], (value) => { delete filters.step; change("part", value); }) : null,
      filters.step !== undefined ? h("button", { type: "button", title: "show all steps", onclick: () => change("step", "") }, `${filters.part === "eval" ? "after step" : "step"} ${stepNumber(filters.step, filters.part)} ✕`) : null,
      filters.task_id ? h("button", { type: "button", onclick: () => change("task_id", "") }, `${filters.task_id} ✕`) : null,
      compare, note,
    );
    drawHeader();
  }

  function drawHeader() {
    fill(header, COLUMNS.map(([sort, label], i) => h("div", { role: "columnheader", class: `c${i}`, "aria-sort": sort && filters.sort === sort ? (filters.down ? "descending" : "ascending") : null },
      sort ? h("button", { type: "button", onclick: () => order(sort) }, label, filters.sort === sort ? (filters.down ? " ↓" : " ↑") : "") : label ? `${label}${start ? `: ${short(start, 60)} …` : ""}` : h("span", { class: "offscreen" }, "compare"))));
  }

  function order(sort) {
    if (filters.sort === sort && filters.down) delete filters.sort, delete filters.down;
    else if (filters.sort === sort) filters.down = "1";
    else [filters.sort, filters.down] = [sort, undefined];
    if (!filters.down) delete filters.down;
    onfilter(filters);
    reload();
  }

  /** Forget the pages, for instance because trees were added, and read those in sight again. */
  async function reload() {
    pages.clear();
    drawTools();
    await fetchPage(Math.floor(scroller.scrollTop / HEIGHT / PAGE));
    draw();
  }

  async function fetchPage(page) {
    if (pages.has(page)) return;
    const mine = asked;
    pages.set(page, null);
    try {
      const answer = await ask("trees", { run, ...filters, offset: page * PAGE, limit: PAGE });
      total = answer.total;
      pages.set(page, answer.rows);
      if (!page) {
        start = commonStart(answer.rows.map((one) => one.question || ""));
        drawHeader();
      }
      note.textContent = plural(total, "tree");
    } catch (error) {
      note.textContent = error.message;
      pages.delete(page);
    }
    if (mine === asked) draw();
  }

  function draw() {
    body.style.setProperty("height", `${Math.max(1, total) * HEIGHT}px`);
    const top = Math.max(0, Math.floor(scroller.scrollTop / HEIGHT) - 8);
    const end = Math.min(total, top + Math.ceil(scroller.clientHeight / HEIGHT) + 18);
    const rows = [];
    for (let place = top; place < end; place++) {
      const page = Math.floor(place / PAGE);
      const known = pages.get(page);
      if (known === undefined) fetchPage(page);
      rows.push(row(place, known ? known[place - page * PAGE] : null));
    }
    fill(body, rows);
    scroller.setAttribute("aria-rowcount", total);
  }

  function row(place, tree) {
    const attributes = { class: "trow" + (place === selected ? " on" : ""), role: "row", "aria-rowindex": place + 2, style: { transform: `translateY(${place * HEIGHT}px)` } };
    if (!tree) return h("div", attributes, h("div", { role: "cell", class: "c4 soft" }, "…"));
    const key = tree.tree;
    const box = h("input", { type: "checkbox", "aria-label": `compare tree ${key}`, checked: ticked.has(key), onchange: () => tick(tree) });
    const cells = [
      box, stepOf(tree),
      h("a", { href: link(tree) }, short(tree.tree, 40)), short(tree.task_id === "task" ? "" : tree.task_id, 40),
      [h("span", { class: "q", title: tree.question }, short(start && tree.question.startsWith(start) ? "… " + tree.question.slice(start.length) : tree.question, 150)), tree.answer ? h("span", { class: "soft" }, "  →  ", short(tree.answer, 60)) : null],
      [mark(tree.score), tree.wrong && tree.nodes > 1 ? h("span", { class: "soft tiny", title: "nodes that are wrong, of all" }, ` ${tree.wrong} of ${tree.nodes}`) : null],
      num(tree.nodes), num(tree.depth), num(tree.tokens), num(tree.critical), tree.refused ? num(tree.refused) : "", tree.seconds ? seconds(tree.seconds) : "",
    ];
    return h("div", { ...attributes, onclick: (event) => { if (!event.target.closest("input, a")) go(link(tree).slice(1)); } }, cells.map((cell, i) => h("div", { role: "cell", class: `c${i}` }, cell)));
  }

  function link(tree) {
    return `#/run/${encodeURIComponent(run)}/tree/${encodeURIComponent(tree.tree)}`;
  }

  function tick(tree) {
    ticked.has(tree.tree) ? ticked.delete(tree.tree) : ticked.set(tree.tree, tree);
    if (ticked.size > 2) ticked.delete(ticked.keys().next().value);
    compare.hidden = ticked.size !== 2;
    draw();
  }

  function both() {
    const [one, other] = [...ticked.keys()];
    const name = encodeURIComponent(run);
    go(`/compare?run=${name}&tree=${encodeURIComponent(one)}&run2=${name}&tree2=${encodeURIComponent(other)}`);
  }

  function at(place) {
    const known = pages.get(Math.floor(place / PAGE));
    return known ? known[place % PAGE] : null;
  }

  function move(by) {
    selected = Math.max(0, Math.min(total - 1, selected + by));
    const top = selected * HEIGHT;
    if (top < scroller.scrollTop + 2 * HEIGHT) scroller.scrollTop = Math.max(0, top - 3 * HEIGHT);
    else if (top > scroller.scrollTop + scroller.clientHeight - 3 * HEIGHT) scroller.scrollTop = top - scroller.clientHeight + 4 * HEIGHT;
    draw();
  }

  function key(event) {
    if (isTyping(event) && event.target.type !== "checkbox") {
      if (event.key === "Escape") { event.target.blur(); return true; }
      return false;
    }
    const actions = {
      ArrowDown: () => move(1), j: () => move(1), ArrowUp: () => move(-1), k: () => move(-1), PageDown: () => move(20), PageUp: () => move(-20),
      Home: () => move(-total), End: () => move(total), "/": () => search.focus(), x: () => at(selected) && tick(at(selected)), c: () => ticked.size === 2 && both(),
      w: () => { change("wrong", filters.wrong === "root" ? "" : "root"); },
      Enter: () => at(selected) && go(link(at(selected)).slice(1)),
    };
    if (!(event.key in actions) || (event.key === "Enter" && event.target.closest?.("a, button"))) return false;
    actions[event.key]();
    return true;
  }

  drawTools();
  reload();
  return { key, reload, close: () => { observer.disconnect(); clearTimeout(timer); asked = -1; } };
}

