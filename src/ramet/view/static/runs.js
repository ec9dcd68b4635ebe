// All runs, newest first.
import { ask } from "./api.js";
import { spark } from "./charts.js";
import { ago, fill, h, isTyping, num, percent, plural, short } from "./dom.js";

export const KINDS = { run: "question", train: "training", warmstart: "supervised start", eval: "evaluation", fork: "fork", serve: "server" };

const CELLS = 4; // of an evaluation: methods, at each budget and on each split, that its line shows

export async function runsPage(root, { go }) {
  document.title = "ramet: runs";
  const list = h("div", { class: "runs-list", role: "list" });
  const search = h("input", { type: "search", placeholder: "Search runs", "aria-label": "Search runs", oninput: draw });
  let runs = [];
  let selected = 0;
  let timer = 0;
  fill(root, h("header", { class: "top" }, h("h1", {}, "runs"), h("span", { class: "right-side" }, search, h("button", { type: "button", onclick: () => document.dispatchEvent(new CustomEvent("help")) }, "keys ?"))), h("main", { class: "runs" }, list));

  async function load() {
    try {
      runs = (await ask("runs", {})).runs.sort((a, b) => String(b.created || "").localeCompare(String(a.created || "")));
      draw();
    } catch (error) {
      fill(list, h("p", { class: "bad-text pad", role: "listitem" }, error.message));
    }
    clearTimeout(timer);
    if (runs.some((run) => run.live) || !runs.length) timer = setTimeout(load, 3000);
  }

  function shown() {
    const words = search.value.toLowerCase();
    return runs.filter((run) => `${run.id} ${run.kind} ${run.task}`.toLowerCase().includes(words));
  }

  function draw() {
    const found = shown();
    fill(list, found.length ? [header(), ...found.map(card)] : h("p", { class: "soft pad", role: "listitem" }, runs.length ? "No run matches." : "No runs here yet. They appear as soon as they are created."));
  }

  function header() {
    return h("div", { class: "run-card run-head", role: "presentation" }, ["run", "kind", "task", "last step, or share of items right", "success or loss", "created"].map((name) => h("span", {}, name)));
  }

  function card(run, place) {
    const last = run.last;
    const numbers = [
      last.success !== undefined ? ["success", percent(last.success)] : null, last.reward !== undefined ? ["reward", num(last.reward, 2)] : null,
      last.delegated !== undefined ? ["delegated", percent(last.delegated)] : null, last.eval_success !== undefined ? ["eval", percent(last.eval_success)] : null,
      last.tokens !== undefined ? ["tokens", num(Math.round(last.tokens))] : null, run.kind === "warmstart" && last.loss !== undefined ? ["loss", num(last.loss, 3)] : null,
      ...(last.success === undefined ? run.cells.slice(0, CELLS).map((one) => [one.name, `${percent(one.right)} of ${num(one.items)}`]) : []),
      run.cells.length > CELLS ? [`and ${num(run.cells.length - CELLS)} more`, ""] : null,
    ].filter(Boolean);
    return h("div", { role: "listitem" }, h(
      "a", { class: "run-card" + (place === selected ? " on" : ""), href: `#/run/${encodeURIComponent(run.id)}` },
      h("span", { class: "run-name" }, run.id, run.live ? h("span", { class: "chip live" }, "● being written") : null),
      h("span", { class: "soft" }, `${KINDS[run.kind] || run.kind}${run.steps ? `, ${plural(run.steps, "step")}` : ""}`),
      h("span", { class: "run-task" }, short(run.task, 90)),
      h("span", { class: "numbers" }, numbers.map(([name, value]) => h("span", {}, h("i", {}, name), ` ${value}`))),
      spark(run.course, run.kind === "warmstart" ? "loss" : "success"),
      h("span", { class: "soft when-made" }, ago(Date.parse(run.created))),
    ));
  }

  function key(event) {
    if (isTyping(event)) {
      if (event.key === "Escape" || event.key === "ArrowDown") event.target.blur();
      return event.key === "Escape";
    }
    const found = shown();
    const move = (by) => { selected = Math.max(0, Math.min(found.length - 1, selected + by)); draw(); list.children[selected + 1]?.scrollIntoView({ block: "nearest" }); };
    const actions = { ArrowDown: () => move(1), j: () => move(1), ArrowUp: () => move(-1), k: () => move(-1), "/": () => search.focus(), Enter: () => found[selected] && go(`/run/${encodeURIComponent(found[selected].id)}`) };
    if (!(event.key in actions) || (event.key === "Enter" && event.target.closest?.("a, button"))) return false;
    actions[event.key]();
    return true;
  }

  await load();
  return { key, close: () => clearTimeout(timer) };
}
