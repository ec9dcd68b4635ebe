// One run: how training went, what an evaluation found, and its trees.
import { ask, follow, isFile } from "./api.js";
import { curve, heat } from "./charts.js";
import { fill, h, num, percent, seconds, select } from "./dom.js";
import { treesTable } from "./trees.js";

// [name, title, whether it is a share]. The first ones are always drawn if they are known.
const CURVES = [
  ["success", "success", true], ["delegated", "trees that delegate", true], ["reward", "reward", false], ["eval_success", "success in evaluation", true],
  ["nodes", "nodes per tree", false], ["tokens", "tokens per tree", false], ["critical_path_tokens", "critical path, tokens", false], ["loss", "loss", false],
  ["entropy", "entropy", false], ["logprob_gap", "log-prob gap", false], ["refused", "refused per tree", false], ["faults", "faults per tree", false],
  ["stops/window", "stopped: window full", true], ["stops/budget", "stopped: out of tokens", true], ["flat", "groups without signal", false], ["collect_s", "seconds to collect", false], ["learn_s", "seconds to learn", false],
];

export async function runPage(root, { run, tab, filters }, { go, replace }) {
  const name = encodeURIComponent(run);
  const head = h("header", { class: "top" });
  const body = h("div", { class: "run-body" });
  let known = null;
  let table = null;
  let revision = null;
  let timer = 0;
  const running = new Map(); // trees in flight: id to what is known of them
  const now = h("section", { class: "running", hidden: true, "aria-label": "Running trees" });
  fill(root, head, h("main", { class: "run" }, now, body));

  async function load() {
    known = await ask("run", { run });
    const trains = known.series.steps.length > 0;
    tab = tab || (trains || known.evaluation.length ? "overview" : "trees");
    drawHead();
  }

  function drawHead() {
    document.title = `${run} · ramet`;
    const tabs = [["overview", "Overview"], ["trees", `Trees ${num(known.trees)}`], ["tasks", "What changed"]];
    fill(
      head, h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("a", { href: "#/" }, "runs"), " / "), h("h1", {}, run), h("span", { class: "chip" }, known.kind), known.live ? h("span", { class: "chip live" }, "● being written") : null,
      h("nav", { class: "tabs", "aria-label": "Parts of the run" }, tabs.map(([key, label]) => h("a", { href: `#/run/${name}/${key}`, "aria-current": tab === key ? "page" : null }, label))),
      h("span", { class: "right-side" }, h("button", { type: "button", onclick: () => document.dispatchEvent(new CustomEvent("help")) }, "keys ?")),
    );
  }

  function draw() {
    if (table) table.close();
    table = null;
    if (tab === "trees") table = treesTable(body, { run, values: { ...known.values, parts: known.parts }, filters, go, onfilter: (next) => replace(`/run/${name}/trees?` + new URLSearchParams(next)) });
    else if (tab === "tasks") tasks();
    else overview();
  }

  function step(number) {
    go(`/run/${name}/trees?part=step&step=${number}`);
  }

  function overview() {
    const { steps, values } = known.series;
    const charts = CURVES.filter(([key]) => values[key]).map(([key, title, share]) => curve({ title, steps, values: values[key], share, onstep: isFile ? null : key.startsWith("eval_") ? (at) => go(`/run/${name}/trees?part=eval&step=${at + 1}`) : step }));
    const pictures = h("div", { class: "pictures" });
    fill(
      body,
      known.notes.length ? h("ul", { class: "notes" }, known.notes.map((note) => h("li", {}, note))) : null,
      evaluation(), pictures, charts.length ? h("div", { class: "charts" }, charts, moreCurves(steps, values)) : null,
      !charts.length && !known.evaluation.length ? h("p", { class: "soft pad" }, "This run has no metrics. Its trees are in the next tab.") : null,
      settings(),
    );
    if (steps.length && !isFile) ask("delegation", { run }).then((found) => fill(pictures, delegation(found)), () => {});
  }

  /** Any other number of the run, by name. */
  function moreCurves(steps, values) {
    const rest = Object.keys(values).filter((key) => !CURVES.some(([one]) => one === key) && values[key].some((value) => value !== null));
    const holder = h("div", {});
    const pick = (key) => fill(holder, key ? curve({ title: key, steps, values: values[key], onstep: isFile ? null : step }) : null);
    return rest.length ? h("figure", { class: "small" }, select("another number", "", [["", "choose …"], ...rest.map((key) => [key, key])], pick), holder) : null;
  }

  function delegation({ steps, by_size, by_depth }) {
    if (!steps.length) return null;
    const sizes = [...new Map(by_size.map((one) => [one.size, one.low])).entries()].sort((a, b) => b[1] - a[1]).map(([size]) => ({ key: size, label: `size ${size}` }));
    const depths = [...new Set(by_depth.map((one) => one.depth))].sort((a, b) => a - b).map((depth) => ({ key: depth, label: depth ? `depth ${depth}` : "root" }));
    const bySize = by_size.map((one) => ({ ...one, row: one.size }));
    const byDepth = by_depth.map((one) => ({ ...one, row: one.depth }));
    const trees = by_depth.filter((one) => one.depth === 0).reduce((sum, one) => sum + one.n, 0);
    const note = `${num(trees)} trees in ${num(steps.length)} steps; click a step for its trees`;
    const common = { steps, onstep: step };
    return [
      sizes.length > 1 ? heat({ ...common, title: "Trees that delegate, by size of their task", note, rows: sizes, cells: bySize, value: (one) => one.delegated, tone: "blue" }) : null,
      sizes.length > 1 ? heat({ ...common, title: "Trees that are right, by size", note: "", rows: sizes, cells: bySize, value: (one) => one.right_, tone: "green" }) : null,
      depths.length > 1 || sizes.length < 2 ? heat({ ...common, title: "Nodes that delegate, by depth", note: sizes.length > 1 ? "" : note, rows: depths, cells: byDepth, value: (one) => one.delegated, tone: "blue" }) : null,
      depths.length > 1 ? heat({ ...common, title: "Nodes that are right, by depth", note: "", rows: depths, cells: byDepth, value: (one) => one.right_, tone: "green" }) : null,
    ];
  }

  function evaluation() {
    if (!known.evaluation.length) return null;
    const cells = known.evaluation;
    const names = ["method", "budget", "tasks", "items", "right", "generated", "critical path", "nodes", "delegated", "time"];
    return h(
      "div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Evaluation" },
      h("table", { class: "plain" }, h("caption", {}, "Evaluation: means over items"), h("thead", {}, h("tr", {}, names.map((one) => h("th", { scope: "col" }, one)))),
        h("tbody", {}, cells.map((cell) => h("tr", {},
          h("th", { scope: "row" }, cell.method), h("td", {}, cell.budget === null ? "the task's" : num(cell.budget)), h("td", { class: "left" }, cell.bucket), h("td", {}, num(cell.items)),
          h("td", {}, h("span", { class: "share" }, h("i", { style: { width: `${100 * cell.right_share}%` } })), percent(cell.right_share)), h("td", {}, num(Math.round(cell.generated))), h("td", {}, num(Math.round(cell.critical))), h("td", {}, num(cell.nodes, 1)), h("td", {}, percent(cell.delegated)), h("td", {}, seconds(cell.seconds)))))),
    );
  }

  function settings() {
    return known.config ? h("details", { class: "settings" }, h("summary", {}, "settings and origin"), h("pre", { tabindex: "0" }, JSON.stringify(known.meta, null, 1) + "\n\n" + known.config)) : null;
  }

  /** Two checkpoints, or two runs, on the same tasks. */
  async function tasks() {
    const all = (await ask("runs", {})).runs.map((one) => one.id);
    const sets = (page) => [...page.parts.filter((part) => part.part !== "replay").map((part) => [`${part.part}:${part.step}`, `${part.part === "eval" ? "evaluation after" : "trees of step"} ${part.step} (${part.trees})`]), ["", "the whole run"]];
    const evals = known.parts.filter((part) => part.part === "eval").map((part) => `eval:${part.step}`);
    const first = { run, set: filters.set ?? evals[0] ?? "" };
    const second = { run: filters.run2 ?? run, set: filters.set2 ?? evals[evals.length - 1] ?? "" };
    const other = second.run === run ? known : await ask("run", { run: second.run });
    const change = (next) => { Object.assign(filters, next); replace(`/run/${name}/tasks?` + new URLSearchParams(filters)); tasks(); };
    const holder = h("div", { class: "tasks" }, h("p", { class: "soft" }, "Reading …"));
    fill(
      body, h("div", { class: "tools" }, select("before", first.set, sets(known), (value) => change({ set: value })), select("after: run", second.run, all.map((one) => [one, one]), (value) => change({ run2: value, set2: "" })), select("after", second.set, sets(other), (value) => change({ set2: value }))), holder);
    const part = (set) => (set ? { part: set.split(":")[0], step: set.split(":")[1] } : {});
    const [a, b] = [part(first.set), part(second.set)];
    const found = await ask("tasks", { run, ...a, run2: second.run, part2: b.part, step2: b.step });
    fill(holder, changes(found, first, second));
  }

  function changes(found, first, second) {
    const { rows } = found;
    if (!rows.length) return h("p", { class: "soft pad" }, `These two share no tasks (${num(found.sizes[0])} and ${num(found.sizes[1])} tasks).`);
    const mean = (side, key) => rows.reduce((sum, row) => sum + (row[side][key] ?? 0), 0) / rows.length;
    const better = rows.filter((row) => row.second.score > row.first.score + 1e-9).length;
    const worse = rows.filter((row) => row.second.score < row.first.score - 1e-9).length;
    const pair = (row, key, draw) => [draw(row.first[key]), h("span", { class: "soft" }, " → "), draw(row.second[key])];
    const summary = `${num(found.shared)} tasks in both: ${better} better, ${worse} worse, ${rows.length - better - worse} as before. ` +
      `Right ${percent(mean("first", "score"))} → ${percent(mean("second", "score"))}, delegated ${percent(mean("first", "delegated"))} → ${percent(mean("second", "delegated"))}, tokens ${num(Math.round(mean("first", "tokens")))} → ${num(Math.round(mean("second", "tokens")))}.`;
    const link = (row) => `#/compare?run=${name}&tree=${encodeURIComponent(row.first.tree)}&run2=${encodeURIComponent(second.run)}&tree2=${encodeURIComponent(row.second.tree)}`;
    return [
      h("p", { class: "lead" }, summary),
      h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Tasks in both" }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ["task", "score", "delegated", "nodes", "tokens", "critical path", ""].map((one) => h("th", { scope: "col" }, one || h("span", { class: "hidden" }, "trees"))))),
        h("tbody", {}, rows.slice(0, 400).map((row) => h("tr", { class: row.second.score > row.first.score ? "better" : row.second.score < row.first.score ? "worse" : "" },
          h("th", { scope: "row" }, row.task_id), h("td", {}, pair(row, "score", (value) => num(value, 2))), h("td", {}, pair(row, "delegated", percent)), h("td", {}, pair(row, "nodes", (value) => num(value, value % 1 ? 1 : 0))),
          h("td", {}, pair(row, "tokens", (value) => num(Math.round(value)))), h("td", {}, pair(row, "critical", (value) => num(Math.round(value)))), h("td", {}, h("a", { href: link(row) }, "side by side"))))))),
      rows.length > 400 ? h("p", { class: "soft" }, `Only the 400 that changed most of ${num(rows.length)}.`) : null,
    ];
  }

  function drawRunning() {
    now.hidden = !running.size;
    fill(now, h("h2", {}, `Running now: ${running.size} ${running.size === 1 ? "tree" : "trees"}`), h("div", { class: "live-list" }, [...running.values()].slice(0, 24).map((tree) =>
      h("a", { href: `#/run/${name}/tree/${encodeURIComponent(tree.id)}`, class: "live-card" }, h("b", {}, tree.id), h("span", { class: "soft" }, tree.question.slice(0, 90)), h("span", { class: "soft" }, `${num(tree.nodes.size)} nodes, ${num([...tree.nodes.values()].reduce((a, b) => a + b, 0))} of ${num(tree.budget.tokens)} tokens`), h("span", { class: "gauge-line" }, h("i", { style: { width: `${Math.min(100, (100 * [...tree.nodes.values()].reduce((a, b) => a + b, 0)) / tree.budget.tokens)}%` } }))))));
  }

  function onevent(event) {
    if (event.kind === "start" || event.kind === "gone") running.clear();
    if (event.kind === "begin") running.set(event.tree, { id: event.tree, question: event.question, budget: event.budget, nodes: new Map(), done: new Map() });
    if (event.kind === "node" && running.has(event.tree)) {
      running.get(event.tree).done.set(event.node.index, event.node.tokens);
      running.get(event.tree).nodes.set(event.node.index, event.node.tokens + event.node.in_flight);
    }
    if (event.kind === "words" && running.has(event.tree)) {
      const tree = running.get(event.tree);
      tree.nodes.set(event.index, (tree.done.get(event.index) || 0) + event.in_flight);
    }
    if (event.kind === "end") running.delete(event.tree);
    clearTimeout(timer);
    timer = setTimeout(drawRunning, 60);
    if (event.kind !== "changed") return;
    if (revision !== null && revision !== event.revision) load().then(() => (table ? table.reload() : tab === "overview" && overview()), () => {});
    revision = event.revision;
  }

  try {
    await load();
    draw();
  } catch (error) {
    fill(body, h("p", { class: "bad-text pad" }, error.message));
  }
  const stop = follow(run, null, onevent);
  return {
    key: (event) => {
      if (event.key === "u" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) { go("/"); return true; }
      return table ? table.key(event) : false;
    },
    close: () => { stop(); clearTimeout(timer); if (table) table.close(); },
  };
}
