// The page of one tree: three drawings, filters, the keyboard, and the panel of the selected node.
import { ask, follow } from "./api.js";
import { budgetView } from "./budget.js";
import { fill, h, isTyping, mark, num, plural, seconds, select, short, signed, stepNumber } from "./dom.js";
import { liveTree } from "./live.js";
import { nodePanel } from "./node.js";
import { rowsView } from "./rows.js";
import { failed, shape } from "./shape.js";
import { timelineView } from "./timeline.js";

const DRAWINGS = [["tree", "Tree", rowsView], ["timeline", "Timeline", timelineView], ["budget", "Budget", budgetView]];

/** Draws the page into `root`; the returned object handles keys and ends it. */
export async function treePage(root, { run, tree, node = 0, turn = null, drawing = "tree", from = null }, { go, replace }) {
  const base = `/run/${encodeURIComponent(run)}/tree/${encodeURIComponent(tree)}`;
  const state = { run, base, shaped: null, selected: node, turn, folded: new Set(), shown: null, hits: null, credit: null, fork: null, stored: false, texts: null };
  const filters = { wrong: false, stop: "", depth: "", verdict: "", q: "" };
  const head = h("header", { class: "top" });
  const stats = h("div", { class: "stats", role: "region", "aria-label": "What the tree used" });
  const tools = h("div", { class: "tools", role: "region", "aria-label": "Drawings and filters" });
  const stage = h("section", { class: "stage", "aria-label": "The tree" });
  const side = h("aside", { class: "node", "aria-labelledby": "node-title", tabindex: "-1" });
  const close = h("button", { type: "button", class: "close-node", onclick: () => document.body.classList.remove("has-node") }, "← back to the tree");
  let view = null;
  let stop = () => {};
  let timer = 0;
  fill(root, head, stats, tools, h("main", { class: "two" }, stage, h("div", { class: "side" }, close, side)));

  const panel = nodePanel(side, {
    onnode: (index) => pick(index),
    onturn: (number) => pick(state.selected, number),
    onfork: (job, place) => go(`/run/${encodeURIComponent(job.run)}/tree/${encodeURIComponent(job.tree)}/node/${place.node}?` + new URLSearchParams({ from: run, of: tree })),
  });

  function open(kind) {
    drawing = DRAWINGS.some(([name]) => name === kind) ? kind : "tree";
    if (view) view.close();
    view = DRAWINGS.find(([name]) => name === drawing)[2](stage, { onselect: (index) => pick(index, null, true) });
    drawTools();
    show();
  }

  function address() {
    const place = state.turn === null ? `/node/${state.selected}` : `/node/${state.selected}/turn/${state.turn}`;
    const query = new URLSearchParams({ ...(drawing === "tree" ? {} : { view: drawing }), ...from });
    return base + (state.selected || state.turn !== null ? place : "") + (query.size ? `?${query}` : "");
  }

  /** The address that compares this tree: with the one that it was forked from, or with one to choose. */
  function comparison() {
    const own = { run, tree };
    return "/compare?" + new URLSearchParams(from ? { run: from.from, tree: from.of, run2: run, tree2: tree } : own);
  }

  function pick(index, number = null, touched = false) {
    if (!state.shaped || !state.shaped.nodes[index]) return;
    state.selected = index;
    state.turn = number;
    for (let at = state.shaped.nodes[index].parent; at !== null; at = state.shaped.nodes[at].parent) state.folded.delete(at);
    replace(address());
    show(false);
    view.reveal(index);
    if (touched && window.matchMedia("(max-width: 900px)").matches) {
      document.body.classList.add("has-node");
      side.focus({ preventScroll: true });
    }
  }

  function show(filter = true) {
    if (!state.shaped) return;
    if (filter) state.shown = passing();
    view.show(state);
    panel.show(state);
  }

  /** The nodes that pass the filters; null if there are none set. */
  function passing() {
    const { wrong, stop: why, depth, verdict, q } = filters;
    if (!wrong && !why && depth === "" && !verdict && !q) return null;
    return new Set(state.shaped.nodes.filter((one) =>
      (!wrong || failed(one)) && (!why || one.stop === why) && (depth === "" || one.depth === Number(depth)) &&
      (!verdict || (one.verdict ? one.verdict.how : "none") === verdict) && (!q || (state.hits && state.hits.has(one.index)))).map((one) => one.index));
  }

  function drawHead() {
    const known = state.shaped.tree;
    const root_ = known.nodes[0];
    const [, id, member] = /^(.*?)-(\d+-\d+)$/.exec(tree) || [null, tree, ""];
    fill(
      head,
      h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("a", { href: "#/" }, "runs"), " / ", h("a", { href: `#/run/${encodeURIComponent(run)}` }, run), " / ", member ? crumb(id) : null),
      h("h1", {}, "tree ", short(tree, 60)),
      h("span", { class: "chip" }, mark(root_?.verdict ? root_.verdict.score : null, known.live ? "running" : "ended"), known.live ? "running" : root_?.verdict ? (root_.verdict.score >= 1 - 1e-9 ? "right" : "wrong") : root_?.stop || ""),
      known.task_id && known.task_id !== "task" ? h("a", { class: "chip", href: `#/run/${encodeURIComponent(run)}/trees?task_id=${encodeURIComponent(known.task_id)}` }, known.task_id) : null,
      h("span", { class: "right-side" }, h("a", { href: "#" + comparison() }, from ? "compare with the tree it was forked from" : "compare with …"), h("button", { type: "button", onclick: () => document.dispatchEvent(new CustomEvent("help")) }, "keys ?")),
    );
    document.title = `${tree} · ${run} · ramet`;
  }

  /** The step of a tree of a training, by the first part of its id: `000007`, or `eval-000010` after a step. */
  function crumb(id) {
    const [, part, digits] = /^(eval-)?(\d+)$/.exec(id) || [];
    if (!digits) return null;
    const kind = part ? "eval" : "step";
    return [h("a", { href: `#/run/${encodeURIComponent(run)}/trees?part=${kind}&step=${Number(digits)}` }, `${part ? "evaluation after step" : "step"} ${stepNumber(digits, kind)}`), " / "];
  }

  function drawStats() {
    const { tree: known, spent, nodes, total, unit, critical } = state.shaped;
    const budget = known.budget;
    const clones = nodes.slice(1).filter((one) => one.verdict);
    const onPath = known.live ? [...critical].reduce((sum, i) => sum + nodes[i].usage.tokens + (nodes[i].in_flight || 0), 0) : known.critical_tokens;
    const credit = state.credit && state.credit.nodes ? state.credit.nodes[0] : null;
    const refused = nodes.reduce((sum, one) => sum + one.turns.reduce((all, one_) => all + one_.refusals.length, 0), 0);
    const stat = (name, value, share) => h("div", { class: "stat" }, h("span", {}, name), h("strong", {}, value), share === undefined ? null : h("div", { class: "gauge-line" }, h("i", { style: { width: `${Math.min(100, 100 * share)}%` } })));
    fill(
      stats,
      stat(known.live ? "tokens so far" : "tokens", `${num(spent[0] || 0)} of ${num(budget.tokens)}`, (spent[0] || 0) / budget.tokens),
      stat("nodes", `${num(nodes.length)} of ${num(budget.nodes)}`, nodes.length / budget.nodes),
      stat("depth", `${Math.max(...nodes.map((one) => one.depth))} of ${num(budget.depth)}`, Math.max(...nodes.map((one) => one.depth)) / Math.max(1, budget.depth)),
      stat("critical path", `${num(onPath)} tokens`, onPath / Math.max(1, spent[0])),
      unit === "s" ? stat("wall clock", seconds(total) + (budget.seconds ? ` of ${num(budget.seconds)}` : ""), budget.seconds ? total / budget.seconds : undefined) : null,
      clones.length ? stat("clones right", `${clones.filter((one) => one.verdict.score >= 1 - 1e-9).length} of ${clones.length}`, clones.filter((one) => one.verdict.score >= 1 - 1e-9).length / clones.length) : null,
      refused ? stat("refused", num(refused)) : null,
      credit ? stat("advantage, root", signed(credit.advantage)) : null,
    );
  }

  const search = h("input", { type: "search", placeholder: "Search goals and texts", "aria-label": "Search goals and texts of this tree", oninput: (event) => later(() => find(event.target.value)) });

  function drawTools() {
    const nodes = state.shaped ? state.shaped.nodes : [];
    const values = (read) => [...new Set(nodes.map(read))].filter((value) => value !== null && value !== undefined).sort();
    const options = (list, all) => [["", all], ...list.map((value) => [value, String(value)])];
    fill(
      tools,
      h("div", { class: "tabs", role: "tablist", "aria-label": "Drawings" }, DRAWINGS.map(([name, label], i) =>
        h("button", { type: "button", role: "tab", "aria-selected": String(drawing === name), title: `key ${i + 1}`, onclick: () => { open(name); replace(address()); } }, label))),
      search,
      h("button", { type: "button", class: "more-filters", "aria-expanded": String(tools.classList.contains("open")), onclick: () => { tools.classList.toggle("open"); drawTools(); } }, "filters"),
      h("label", { class: "pick" }, h("input", { type: "checkbox", checked: filters.wrong, onchange: (event) => set("wrong", event.target.checked) }), h("span", {}, "only failures")),
      select("stop", filters.stop, options(values((one) => one.stop), "any"), (value) => set("stop", value)),
      select("depth", filters.depth, options(values((one) => one.depth), "any"), (value) => set("depth", value)),
      select("verdict", filters.verdict, options(values((one) => (one.verdict ? one.verdict.how : "none")), "any"), (value) => set("verdict", value)),
      h("span", { class: "soft count", role: "status" }, count()),
    );
  }

  function count() {
    if (!state.shaped) return "";
    const all = state.shaped.nodes.length;
    const shown = state.shown ? state.shown.size : all;
    return shown === all ? plural(all, "node") : `${num(shown)} of ${num(all)} nodes`;
  }

  function set(name, value) {
    filters[name] = value;
    show();
    tools.querySelector(".count").textContent = count();
  }

  async function find(text) {
    filters.q = text.trim();
    if (!filters.q) state.hits = null;
    else if (state.stored) state.hits = new Set((await ask("search", { run, tree, q: filters.q })).nodes);
    else state.hits = new Set(state.shaped.nodes.filter((one) => (one.goal + (one.answer || "")).toLowerCase().includes(filters.q.toLowerCase())).map((one) => one.index));
    set("q", filters.q);
  }

  function later(work) {
    clearTimeout(timer);
    timer = setTimeout(work, 120);
  }

  /** The next or previous node that went wrong, in the order of the drawing. */
  function failure(step) {
    const order = view.order();
    const start = order.indexOf(state.selected);
    for (let i = 1; i <= order.length; i++) {
      const index = order[(start + step * i + order.length * 2) % order.length];
      if (failed(state.shaped.nodes[index])) return pick(index);
    }
    return undefined;
  }

  function move(step) {
    const order = view.order();
    const next = order[Math.max(0, Math.min(order.length - 1, order.indexOf(state.selected) + step))];
    if (next !== undefined) pick(next);
  }

  function key(event) {
    if (!state.shaped) return false;
    const node_ = state.shaped.nodes[state.selected];
    if (isTyping(event)) {
      if (event.key === "Escape") { event.target.blur(); view.focus(); return true; }
      if (event.target === search && event.key === "Enter") { view.focus(); move(0); return true; }
      return false;
    }
    const kids = state.shaped.children[state.selected] || [];
    const actions = {
      ArrowDown: () => move(1), j: () => move(1), ArrowUp: () => move(-1), k: () => move(-1),
      ArrowRight: () => (state.folded.has(state.selected) ? view.toggle(state.selected) : kids.length && pick(kids[0])),
      ArrowLeft: () => (kids.length && !state.folded.has(state.selected) && drawing === "tree" && event.shiftKey ? view.toggle(state.selected) : node_.parent !== null && pick(node_.parent)),
      " ": () => kids.length && view.toggle(state.selected),
      n: () => failure(1), N: () => failure(-1), p: () => failure(-1),
      Home: () => pick(view.order()[0]), End: () => pick(view.order()[view.order().length - 1]),
      "]": () => step(1), "[": () => step(-1), l: () => panel.shade(),
      w: () => { set("wrong", !filters.wrong); drawTools(); },
      1: () => { open("tree"); replace(address()); }, 2: () => { open("timeline"); replace(address()); }, 3: () => { open("budget"); replace(address()); },
      "/": () => search.focus(), u: () => go(`/run/${encodeURIComponent(run)}/trees`),
      c: () => go(comparison()),
      Enter: () => { document.body.classList.add("has-node"); side.focus({ preventScroll: true }); },
      Escape: () => { document.body.classList.remove("has-node"); view.focus(); },
    };
    if (!(event.key in actions) || (event.key === "Enter" && event.target.closest?.("a, button"))) return false;
    actions[event.key]();
    return true;
  }

  function step(by) {
    const turns = state.shaped.nodes[state.selected].turns.length;
    if (!turns) return;
    const next = state.turn === null ? (by > 0 ? 0 : turns - 1) : Math.max(0, Math.min(turns - 1, state.turn + by));
    pick(state.selected, next);
    document.getElementById(`turn-${next}`)?.scrollIntoView({ block: "start" });
  }

  async function load() {
    const known = await ask("tree", { run, tree });
    Object.assign(state, { shaped: shape(known), stored: true, texts: null, fork: known.fork });
    if (!state.shaped.nodes[state.selected]) state.selected = 0;
    drawHead();
    drawStats();
    drawTools();
    show();
    view.reveal(state.selected);
    tools.querySelector(".count").textContent = count();
    ask("credit", { run, tree }).then((credit) => { state.credit = credit; drawStats(); panel.show(state); }, () => {});
  }

  const linked = node > 0 || turn !== null; // the address names more than the tree: on a phone, show the node
  if (linked) document.body.classList.add("has-node");
  open(drawing);
  try {
    await load();
  } catch (problem) {
    watch(problem);
  }

  /** A tree that is not stored yet: follow it, and read it when it is. */
  function watch(problem) {
    const running = liveTree(run, tree);
    fill(head, h("nav", { class: "crumbs" }, h("a", { href: "#/" }, "runs"), " / ", h("a", { href: `#/run/${encodeURIComponent(run)}` }, run), " / "), h("h1", {}, "tree ", short(tree, 60)), h("span", { class: "chip", role: "status" }, problem.message));
    let drawn = 0;
    let pending = 0;
    const redraw = () => {
      pending = 0;
      drawn = performance.now();
      const first = !state.shaped;
      Object.assign(state, { shaped: shape(running.tree), texts: running.texts, stored: false });
      drawHead();
      drawStats();
      if (first) drawTools();
      show();
      tools.querySelector(".count").textContent = count();
    };
    stop = follow(run, tree, (event) => {
      const changed = running.apply(event);
      if (event.kind === "changed" && !state.stored) {
        load().then(() => stop(), () => {});
        return;
      }
      if (changed && running.begun && !pending) pending = setTimeout(redraw, Math.max(0, 120 - (performance.now() - drawn)));
    });
  }

  return { key, close: () => { stop(); view.close(); clearTimeout(timer); document.body.classList.remove("has-node"); } };
}
