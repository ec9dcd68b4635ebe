// The page: what the address names is drawn, and keys go to it.
import { ask } from "./api.js";
import { comparePage } from "./compare.js";
import { fill, h, isTyping } from "./dom.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";
import { treePage } from "./tree.js";

const KEYS = [
  ["↓ ↑ or j k", "next and previous node, tree or run"], ["→ ←", "first clone, parent"], ["space", "fold a node, unfold it"], ["n, p", "next and previous failure; in two trees, next difference"],
  ["[ ]", "previous and next turn"], ["1 2 3", "tree, timeline, budget"], ["/", "search"], ["w", "only failures"], ["l", "shade tokens by log-prob"],
  ["enter", "open; on a phone, the node"], ["x, then c", "tick two trees, compare them"], ["c", "compare this tree"], ["u", "up: from a tree to its run, from a run to all runs"], ["?", "this list"], ["esc", "close, leave a field"],
];

const root = document.getElementById("page");
let current = { key: () => false, close: () => {} };
let drawn = 0;

function parse() {
  const [path, search = ""] = decodeHash().split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { parts, query: Object.fromEntries(new URLSearchParams(search)) };
}

function decodeHash() {
  return location.hash.replace(/^#/, "") || "/";
}

function go(address) {
  location.hash = address;
}

function replace(address) {
  history.replaceState(null, "", "#" + address);
}

async function draw() {
  const mine = ++drawn;
  current.close();
  current = { key: () => false, close: () => {} };
  document.body.className = "";
  const page = h("div", { class: "page" });
  fill(root, page);
  let made;
  try {
    made = await choose(page, parse());
  } catch (error) {
    fill(page, h("header", { class: "top" }, h("a", { href: "#/" }, "runs")), h("p", { class: "bad-text pad" }, error.message));
    return;
  }
  if (mine === drawn) current = made;
  else made.close();
}

async function choose(page, { parts, query }) {
  const tools = { go, replace };
  const [first, run, second, tree, , node, , turn] = parts;
  if (first === "compare") return comparePage(page, query, tools);
  if (first === "newest") return newest(page);
  if (first !== "run") return runsPage(page, tools);
  if (second === "tree" && tree) return treePage(page, { run, tree, node: Number(node) || 0, turn: turn === undefined ? null : Number(turn), drawing: query.view, from: query.from && query.of ? { from: query.from, of: query.of } : null }, tools);
  return runPage(page, { run, tab: second, filters: query }, tools);
}

/** Show the newest run that was created since the viewer was started, or wait for it: `ramet run --view` opens this page. */
async function newest(page) {
  let timer = 0;
  fill(page, h("header", { class: "top" }, h("a", { href: "#/" }, "runs")), h("p", { class: "soft pad", role: "status" }, "Waiting for the run to begin …"));
  const look = async () => {
    const { runs, since } = await ask("runs", {});
    const fresh = runs.filter((run) => Date.parse(run.created) >= 1000 * Math.floor(since) && run.kind !== "warmstart").sort((a, b) => b.created.localeCompare(a.created))[0];
    if (fresh) location.replace(`#/run/${encodeURIComponent(fresh.id)}`);
    else timer = setTimeout(look, 500);
  };
  timer = setTimeout(look, 0);
  return { key: () => false, close: () => clearTimeout(timer) };
}

function help() {
  const open = document.querySelector("dialog[open]");
  if (open) return open.close();
  const dialog = h("dialog", { "aria-labelledby": "help-title", onclose: () => dialog.remove() }, h("h2", { id: "help-title" }, "Keys"), h("dl", { class: "keys" }, KEYS.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))), h("form", { method: "dialog" }, h("button", {}, "close")));
  document.body.append(dialog);
  return dialog.showModal();
}

document.addEventListener("help", help);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?" && !isTyping(event)) {
    help();
    event.preventDefault();
  } else if (!document.querySelector("dialog[open]") && current.key(event)) event.preventDefault();
});
window.addEventListener("hashchange", draw);
draw();
