// One run: how training went, what an evaluation found, and its trees.
import { ask, follow, isFile } from "./api.js";
import { curve, heat } from "./charts.js";
import { fill, h, isTyping, num, percent, plural, seconds, select, stepNumber } from "./dom.js";
import { KINDS } from "./runs.js";
import { treesTable } from "./trees.js";

// [name, title, whether it is a share]. The first ones are always drawn if they are known.
const CURVES = [
  ["success", "success", true], ["delegated", "trees that delegate", true], ["reward", "reward", false], ["eval_success", "success in evaluation", true],
  ["nodes", "nodes per tree", false], ["tokens", "tokens per tree", false], ["critical_path_tokens", "critical path, tokens", false], ["loss", "loss", false],
  ["entropy", "entropy", false], ["grad_norm", "gradient norm", false], ["logprob_gap", "log-prob gap", false], ["refused", "refused per tree", false], ["faults", "faults per tree", false],
  ["stops/window", "stopped: window full", true], ["stops/budget", "stopped: out of tokens", true], ["flat", "groups without signal", false], ["collect_s", "seconds to collect", false], ["learn_s", "seconds to learn", false],
];

const OF_ORACLE = ["success", "delegated", "reward", "nodes", "tokens", "critical_path_tokens", "refused", "faults", "stops/window", "stops/budget"]; // in a supervised start, whose trees are demonstrations

const METHOD = /^([^.:]+\.(?:own|\d+))\./; // how the id of a tree of an evaluation begins

export async function runPage(root, { run, tab, filters }, { go, replace }) {
  const name = encodeURIComponent(run);
  const head = h("header", { class: "top" });
  const body = h("div", { class: "run-body" });
  let known = null;
  let table = null;
  let revision = null;
  let timer = 0;
  const pictures = h("div", { class: "pictures" }); // kept while a run grows: the old ones stay until the new ones are there
  const running = new Map(); // trees in flight: id to what is known of them
  const now = h("section", { class: "running", hidden: true, "aria-label": "Running trees" });
  fill(root, head, h("main", { class: "run" }, now, body));

  async function load() {
    known = await ask("run", { run });
    const measured = known.series.steps.length > 0 || known.evaluation.length > 0;
    tab = tab || (measured || ["train", "warmstart", "eval"].includes(known.kind) ? "overview" : "trees");
    drawHead();
  }

  function drawHead() {
    document.title = `${run} · ramet`;
    const tabs = [["overview", "Overview"], ["trees", `Trees ${num(known.trees)}`], ["tasks", "What changed"]];
    const kind = KINDS[known.kind] || known.kind;
    fill(
      head, h("nav", { class: "crumbs", "aria-label": "Where you are" }, h("a", { href: "#/" }, "runs"), " / "), h("h1", {}, run), h("span", { class: "chip" }, kind), known.live ? h("span", { class: "chip live" }, "● being written") : null,
      h("nav", { class: "tabs", "aria-label": "Parts of the run" }, tabs.map(([key, label]) => h("a", { href: `#/run/${name}/${key}`, "aria-current": tab === key ? "page" : null }, label))),
      h("span", { class: "right-side" }, h("button", { type: "button", onclick: () => document.dispatchEvent(new CustomEvent("help")) }, "keys ?")),
    );
  }

  function draw() {
    if (table) table.close();
    table = null;
    if (tab === "trees") table = treesTable(body, { run, values: { ...known.values, parts: known.parts, methods: known.methods }, filters, go, onfilter: (next) => replace(`/run/${name}/trees?` + new URLSearchParams(next)) });
    else if (tab === "tasks") tasks();
    else overview();
  }

  function step(number) {
    go(`/run/${name}/trees?part=step&step=${number}`);
  }

  function overview() {
    const { steps, values } = known.series;
    const charts = curves().filter(([key]) => values[key]).map(([key, title, share]) => curve({ title, steps, values: values[key], share, onstep: isFile ? null : key.startsWith("eval_") ? (at) => go(`/run/${name}/trees?part=eval&step=${at + 1}`) : step }));
    fill(
      body,
      known.notes.length ? h("ul", { class: "notes" }, known.notes.map((note) => h("li", {}, note))) : null,
      evaluation(), pictures, charts.length ? h("div", { class: "charts" }, charts, moreCurves(steps, values)) : null,
      !charts.length && !known.evaluation.length ? h("p", { class: "soft pad" }, known.live ? "No step has ended yet." : "This run has no metrics. Its trees are in the next tab.") : null,
      settings(),
    );
    if (steps.length && !isFile) ask("delegation", { run }).then((found) => fill(pictures, delegation(found)), () => {});
  }

  /** The curves of this kind of run: a supervised start begins with its loss, and other numbers say that they are the oracle's. */
  function curves() {
    if (known.kind !== "warmstart") return CURVES;
    const named = CURVES.map(([key, title, share]) => [key, OF_ORACLE.includes(key) ? `${title} (oracle)` : title, share]);
    return [...named.filter(([key]) => key === "loss"), ...named.filter(([key]) => key !== "loss")];
  }

  /** Any other number of the run, by name. */
  function moreCurves(steps, values) {
    const rest = Object.keys(values).filter((key) => !CURVES.some(([one]) => one === key) && values[key].some((value) => value !== null));
    const holder = h("div", {});
    const pick = (key) => fill(holder, key ? curve({ title: key, steps, values: values[key], onstep: isFile ? null : step }) : null);
    return rest.length ? h("figure", { class: "small" }, select("another number", "", [["", "choose …"], ...rest.map((key) => [key, key])], pick), holder) : null;
  }

  function delegation({ steps, of, by_size, by_depth, unit }) {
    if (!steps.length) return null;
    const sizes = [...new Map(by_size.map((one) => [one.size, one.low])).entries()].sort((a, b) => b[1] - a[1]).map(([size]) => ({ key: size, label: unit ? `${size} ${unit}` : `size ${size}` }));
    const depths = [...new Set(by_depth.map((one) => one.depth))].sort((a, b) => a - b).map((depth) => ({ key: depth, label: depth ? `depth ${depth}` : "root" }));
    const bySize = by_size.map((one) => ({ ...one, row: one.size }));
    const byDepth = by_depth.map((one) => ({ ...one, row: one.depth }));
    const trees = by_depth.filter((one) => one.depth === 0).reduce((sum, one) => sum + one.n, 0);
    const note = `${plural(trees, "tree")} in ${steps.length < of ? `${steps.length} of ` : ""}${plural(of, "step")}, first → last beside a row; click a step for its trees`;
    const longest = Math.max(...[...(sizes.length > 1 ? sizes : []), ...depths].map((row) => row.label.length));
    const common = { steps, longest, onstep: step };
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
    const names = ["method", "tasks", "right", "items", "budget, tokens", "generated", "critical path", "nodes", "delegated", "time"];
    const trees = (cell, wrong) => { const set = METHOD.exec(cell.tree ?? ""); return set && !isFile ? `#/run/${name}/trees?method=${encodeURIComponent(set[1])}${wrong ? "&wrong=root" : ""}` : null; };
    const linked = (address, text) => (address ? h("a", { href: address }, text) : text);
    return h(
      "div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Evaluation" },
      h("table", { class: "plain" }, h("caption", {}, h("span", { class: "head" }, "Evaluation", h("span", { class: "soft" }, " means over items, generated and critical path in tokens; a method opens its trees, a share those that are wrong"))), h("thead", {}, h("tr", {}, names.map((one, i) => h("th", { scope: "col", class: i < 3 ? "left" : null }, one)))),
        h("tbody", {}, cells.map((cell) => h("tr", {},
          h("th", { scope: "row" }, linked(trees(cell, false), cell.method)), h("td", { class: "left" }, cell.bucket),
          h("td", { class: "left" }, h("span", { class: "share" }, h("i", { style: { width: `${100 * cell.right_share}%` } })), linked(trees(cell, true), percent(cell.right_share))), h("td", {}, num(cell.items)), h("td", {}, cell.budget === null ? "the task's" : num(cell.budget)), h("td", {}, num(Math.round(cell.generated))), h("td", {}, num(Math.round(cell.critical))), h("td", {}, num(cell.nodes, 1)), h("td", {}, percent(cell.delegated)), h("td", {}, seconds(cell.seconds)))))),
    );
  }

  function settings() {
    return known.config ? h("details", { class: "settings" }, h("summary", {}, "settings and origin"), h("pre", { tabindex: "0" }, JSON.stringify(known.meta, null, 1) + "\n\n" + known.config)) : null;
  }

  /** Two checkpoints, or two runs, on the same tasks. */
  async function tasks() {
    const runs = (await ask("runs", {})).runs;
    const all = runs.map((one) => one.id);
    const evals = (page) => page.parts.filter((part) => part.part === "eval").map((part) => `eval:${part.step}`);
    const method = (page) => (page.methods.length ? `method:${(page.methods.find((one) => one.method.startsWith("clones")) ?? page.methods[0]).method}` : "");
    const second = { run: filters.run2 ?? partner(runs), set: "" };
    const other = second.run === run ? known : await ask("run", { run: second.run });
    const first = { run, set: filters.set ?? evals(known)[0] ?? method(known) };
    second.set = filters.set2 ?? evals(other).at(-1) ?? (other.methods.some((one) => `method:${one.method}` === first.set) ? first.set : method(other));
    const change = (next) => { Object.assign(filters, next); replace(`/run/${name}/tasks?` + new URLSearchParams(filters)); tasks(); };
    const holder = h("div", { class: "tasks" }, h("p", { class: "soft" }, "Reading …"));
    fill(
      body, h("div", { class: "tools" }, h("span", {}, h("b", {}, "before "), run), select("trees", first.set, sets(known), (value) => change({ set: value })), h("b", { class: "after" }, "after"), select("run", second.run, all.map((one) => [one, one]), (value) => { delete filters.set2; change({ run2: value }); }), select("trees", second.set, sets(other), (value) => change({ set2: value }))), holder);
    const [a, b] = [part(first.set), part(second.set)];
    const found = await ask("tasks", { run, ...a, run2: second.run, part2: b.part, step2: b.step, method2: b.method });
    fill(holder, changes(found, first, second));
  }

  /** The sets of trees of a run that can be compared, as [value, label]. */
  function sets(page) {
    const methods = page.methods.map(({ method, trees }) => [`method:${method}`, `${method.replace(/\.own$/, "").replace(/\.(\d+)$/, ", $1 tokens")} (${num(trees)})`]);
    const parts = page.parts.filter((one) => one.part !== "replay").map((one) => [`${one.part}:${one.step}`, `${one.part === "eval" ? "evaluation after step" : "step"} ${stepNumber(one.step, one.part)} (${num(one.trees)})`]);
    return [...methods, ...parts, ["", "all trees"]];
  }

  function part(set) {
    const [kind, which] = [set.slice(0, set.indexOf(":")), set.slice(set.indexOf(":") + 1)];
    return !set ? {} : kind === "method" ? { method: which } : { part: kind, step: which };
  }

  /** The run to compare with: for an evaluation another one of the same tasks, else the run itself. */
  function partner(runs) {
    const own = runs.find((one) => one.id === run);
    return known.methods.length ? (runs.find((one) => one.id !== run && one.kind === known.kind && one.task === own?.task)?.id ?? run) : run;
  }

  function changes(found, first, second) {
    const { rows } = found;
    if (!rows.length) return h("div", { class: "pad soft" }, h("p", {}, `No task is in both: ${num(found.sizes[0])} tasks before, ${num(found.sizes[1])} after.`), h("p", {}, "Every training step has new tasks. To compare checkpoints, choose two evaluations: those of a training (eval.every=10), or two runs of ramet eval on the same tasks."));
    const mean = (side, key) => rows.reduce((sum, row) => sum + (row[side][key] ?? 0), 0) / rows.length;
    const better = rows.filter((row) => row.second.score > row.first.score + 1e-9).length;
    const worse = rows.filter((row) => row.second.score < row.first.score - 1e-9).length;
    const pair = (row, key, draw) => [draw(row.first[key]), h("span", { class: "soft" }, " → "), draw(row.second[key])];
    const summary = `${plural(rows.length, "task")} in both: ${better} better, ${worse} worse, ${rows.length - better - worse} as before. ` +
      `Mean score ${percent(mean("first", "score"))} → ${percent(mean("second", "score"))}, delegated ${percent(mean("first", "delegated"))} → ${percent(mean("second", "delegated"))}, tokens ${num(Math.round(mean("first", "tokens")))} → ${num(Math.round(mean("second", "tokens")))}.`;
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
    now.hidden = !running.size && !known?.live;
    const cards = [...running.values()].slice(0, 24).map(liveCard);
    const idle = h("p", { class: "live-idle soft" }, "No tree is running. Trees appear here when they begin.");
    fill(now, h("h2", {}, `Running now: ${plural(running.size, "tree")}`), h("div", { class: "live-list", tabindex: "0", role: "group", "aria-label": "Running trees" }, cards.length ? cards : idle));
  }

  function liveCard(tree) {
    const spent = [...tree.nodes.values()].reduce((a, b) => a + b, 0);
    return h("a", { href: `#/run/${name}/tree/${encodeURIComponent(tree.id)}`, class: "live-card" }, h("b", {}, tree.id), h("span", { class: "soft" }, tree.question.slice(0, 90)), h("span", { class: "soft" }, `${plural(tree.nodes.size, "node")}, ${num(spent)} of ${num(tree.budget.tokens)} tokens`), h("span", { class: "gauge-line" }, h("i", { style: { width: `${Math.min(100, (100 * spent) / tree.budget.tokens)}%` } })));
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
      if (event.key === "u" && !isTyping(event)) { go("/"); return true; }
      return table ? table.key(event) : false;
    },
    close: () => { stop(); clearTimeout(timer); if (table) table.close(); },
  };
}
