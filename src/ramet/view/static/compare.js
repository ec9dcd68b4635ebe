// Two trees side by side: another policy, another seed, before and after. Their first difference is marked.
import { ask } from "./api.js";
import { fill, h, isTyping, mark, num, percent, plural, seconds, select, short } from "./dom.js";
import { rowsView } from "./rows.js";
import { said } from "./said.js";
import { shape } from "./shape.js";
import { stepOf } from "./trees.js";

export async function comparePage(root, query, { go }) {
  document.title = "two trees · ramet";
  const head = h("header", { class: "top" });
  const body = h("main", { class: "compare" });
  fill(root, head, body);
  const views = [];
  let timer = 0;
  let closed = false;
  let pair = null;
  let selected = [0, 0];

  function drawHead(found) {
    const crumb = (run, tree) => h("a", { href: `#/run/${encodeURIComponent(run)}/tree/${encodeURIComponent(tree)}` }, `${run} / ${tree}`);
    fill(head, h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("a", { href: "#/" }, "runs"), " / "), h("h1", {}, "two trees"), crumb(query.run, query.tree), h("span", { class: "soft" }, "and"), query.tree2 ? crumb(query.run2, query.tree2) : "…",
      found ? h("span", { class: "right-side soft" }, "keys: ↓ ↑, n next difference") : null);
  }

  /** Choose the other tree: of the same task first. */
  async function choose() {
    drawHead(null);
    const own = await ask("tree", { run: query.run, tree: query.tree });
    const runs = (await ask("runs", {})).runs;
    const other = query.run2 || query.run;
    const same = await ask("trees", { run: other, task_id: own.task_id === "task" ? "" : own.task_id, limit: 100 });
    const others = same.rows.filter((row) => row.tree !== query.tree || other !== query.run);
    fill(
      body, h("div", { class: "tools" }, select("other run", other, runs.map((run) => [run.id, run.id]), (value) => go(`/compare?run=${encodeURIComponent(query.run)}&tree=${encodeURIComponent(query.tree)}&run2=${encodeURIComponent(value)}`))),
      h("h2", { class: "pad" }, own.task_id === "task" ? "Choose the other tree" : `Other trees of ${own.task_id}`),
      others.length ? choices(others, other) : h("p", { class: "soft pad" }, "There is no other tree of this task in that run."),
    );
  }

  function choices(others, other) {
    const address = (row) => `#/compare?run=${encodeURIComponent(query.run)}&tree=${encodeURIComponent(query.tree)}&run2=${encodeURIComponent(other)}&tree2=${encodeURIComponent(row.tree)}`;
    const cells = (row) => [h("td", { class: "left" }, h("a", { href: address(row) }, row.tree)), h("td", {}, stepOf(row)), h("td", {}, num(row.nodes)), h("td", {}, num(row.tokens)), h("td", {}, num(row.critical)), h("td", { class: "left clip" }, short(row.answer, 90))];
    const names = ["", "tree", "step", "nodes", "tokens", "critical path", "answer"];
    return h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Other trees" }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, names.map((one) => h("th", { scope: "col", class: one === "tree" || one === "answer" ? "left" : null }, one || h("span", { class: "hidden" }, "verdict"))))),
      h("tbody", {}, others.map((row) => h("tr", {}, h("td", { class: "left" }, mark(row.score)), cells(row))))));
  }

  async function load() {
    try {
      const found = await ask("compare", query);
      if (!closed) draw(found);
    } catch (error) {
      drawHead(null);
      fill(body, h("p", { class: "soft pad", role: "status" }, `${error.message} · waiting for both trees to be stored …`), query.tree2 ? h("p", { class: "pad" }, h("a", { href: `#/run/${encodeURIComponent(query.run2)}/tree/${encodeURIComponent(query.tree2)}` }, "watch the second one run")) : null);
      if (!closed) timer = setTimeout(load, 1000);
    }
  }

  function draw(found) {
    pair = found;
    drawHead(found);
    const shaped = onOneScale(found.trees.map(shape));
    const first = found.first;
    selected = first ? first.nodes.map((index) => index ?? 0) : [0, 0];
    const stages = [0, 1].map((side) => h("section", { class: "stage", "aria-label": side ? "second tree" : "first tree" }));
    const details = h("div", { class: "difference" });
    fill(body, h("p", { class: "lead" }, summary(found, shaped)), details, h("div", { class: "sides" }, [0, 1].map((side) => h("div", {}, title(found.trees[side], shaped[side]), stages[side]))));
    [0, 1].forEach((side) => {
      views[side] = rowsView(stages[side], { label: side ? "nodes of the second tree" : "nodes of the first tree", onselect: (index) => pick(side, index) });
    });
    const states = [0, 1].map((side) => ({ shaped: shaped[side], selected: selected[side], folded: new Set(), shown: null, marks: found.marks[side], side: side ? "b" : "a", firstNode: first ? first.nodes[side] : null }));

    function show() {
      [0, 1].forEach((side) => {
        states[side].selected = selected[side];
        views[side].show(states[side]);
        if (selected[side] !== null) views[side].reveal(selected[side]);
      });
    }

    /** Select a node, and the node at its place in the other tree. */
    function pick(side, index) {
      const path = JSON.stringify(shaped[side].nodes[index].path);
      const beside = shaped[1 - side].nodes.find((node) => JSON.stringify(node.path) === path);
      selected[side] = index;
      selected[1 - side] = beside ? beside.index : null;
      show();
      drawDetails();
    }

    async function drawDetails() {
      const turns = await Promise.all([0, 1].map((side) => (selected[side] === null ? { pieces: [] } : ask("node", { run: found.trees[side].run, tree: found.trees[side].id, node: selected[side] }, { keep: true }))));
      const texts = turns.map((one) => one.pieces.filter((piece) => piece.sampled).map((piece) => piece.text));
      const at = Array.from({ length: Math.max(...texts.map((list) => list.length)) }, (_, i) => i).find((i) => texts[0][i] !== texts[1][i]);
      const same = at === undefined;
      const number = same ? 0 : at;
      fill(details, h("div", { class: "sides" }, [0, 1].map((side) => h("div", { class: "turn" },
        h("p", { class: "turn-head" }, h("b", {}, selected[side] === null ? "no such node" : `node ${selected[side]}`), h("span", {}, same ? "every turn is the same" : `turn ${number}: first difference`), selected[side] === null ? null : h("a", { href: `#/run/${encodeURIComponent(found.trees[side].run)}/tree/${encodeURIComponent(found.trees[side].id)}/node/${selected[side]}/turn/${number}` }, "open")),
        h("div", { class: "said" }, texts[side][number] === undefined ? h("p", { class: "soft" }, "no such turn") : said(texts[side][number], found.trees[side].dialect))))));
    }

    pair.pick = pick;
    show();
    drawDetails();
  }

  /** The same scale of time and the same words left out of goals, so that rows of both sides can be compared. */
  function onOneScale(both) {
    const [one, other] = both;
    const prefix = one.prefix || other.prefix;
    const total = one.unit === other.unit ? Math.max(one.total, other.total) : null;
    return both.map((side) => ({ ...side, prefix, total: total ?? side.total, own: side.total }));
  }

  function summary({ first, marks, trees }, shaped) {
    const same = marks[0].filter((one) => one === "same").length;
    const where = first ? `First difference: node ${first.nodes[0] ?? first.nodes[1]}, turn ${first.turn}.` : "Every turn has the same text.";
    const count = (side, kind) => marks[side].filter((one) => one === kind).length;
    return `${where} Nodes: ${same} the same, ${count(0, "changed")} different, ${count(0, "only")} only in the first, ${count(1, "only")} only in the second. ` +
      `Tokens ${num(shaped[0].spent[0])} → ${num(shaped[1].spent[0])}, critical path ${num(trees[0].critical_tokens)} → ${num(trees[1].critical_tokens)}.`;
  }

  function title(tree, shaped) {
    const root_ = tree.nodes[0];
    return h("p", { class: "turn-head pad side-title" }, mark(root_.verdict ? root_.verdict.score : null), h("b", {}, tree.id), h("span", {}, `${plural(tree.nodes.length, "node")}, ${num(shaped.spent[0])} tokens (${percent(shaped.spent[0] / Math.max(1, tree.budget.tokens))})`), shaped.unit === "s" ? h("span", {}, seconds(shaped.own)) : null, h("span", { class: "clip" }, root_.answer === null ? "no answer" : `answer: ${short(root_.answer, 160)}`));
  }

  /** The next node that is not the same in both. */
  function difference(step) {
    const order = views[0].order();
    const start = order.indexOf(selected[0] ?? 0);
    for (let i = 1; i <= order.length; i++) {
      const index = order[(start + step * i + order.length * 2) % order.length];
      if (pair.marks[0][index] !== "same") return pair.pick(0, index);
    }
    return undefined;
  }

  function key(event) {
    if (!pair || isTyping(event)) return false;
    const move = (by) => { const order = views[0].order(); pair.pick(0, order[Math.max(0, Math.min(order.length - 1, order.indexOf(selected[0] ?? 0) + by))]); };
    const actions = { ArrowDown: () => move(1), j: () => move(1), ArrowUp: () => move(-1), k: () => move(-1), n: () => difference(1), p: () => difference(-1), u: () => go(`/run/${encodeURIComponent(query.run)}/tree/${encodeURIComponent(query.tree)}`) };
    if (!(event.key in actions)) return false;
    actions[event.key]();
    return true;
  }

  if (query.tree2) await load();
  else await choose();
  return { key, close: () => { closed = true; clearTimeout(timer); views.forEach((view) => view.close()); } };
}
