// What a model wrote, formatted: tool calls, code, the signs of the terse dialect. All of it stays text.
import { h, short, visible } from "./dom.js";

const CALL = /<tool_call>([\s\S]*?)(?:<\/tool_call>|$)/g;
const CODE = /<python>([\s\S]*?)(?:<\/python>|$)|```(?:python|py)?\s*\n([\s\S]*?)(?:```|$)/g;

/** A sampled text as elements, by dialect. `children`: nodes that this turn started, linked from their goals. */
export function said(text, dialect, { children = [], goals = [], onnode = () => {} } = {}) {
  const link = childLinks(children, goals, onnode);
  if (dialect === "terse") return terse(text, link);
  if (dialect === "python") return split(text, CODE, (found) => h("pre", { class: "code" }, found[1] ?? found[2] ?? ""));
  return split(text, CALL, (found) => call(found[1], link));
}

function split(text, pattern, draw) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(pattern)) {
    parts.push(words(text.slice(at, found.index)), draw(found));
    at = found.index + found[0].length;
  }
  parts.push(words(text.slice(at)));
  return parts.filter(Boolean);
}

function words(text) {
  const trimmed = text.replace(/^\n+|\n+$/g, "");
  if (!trimmed.trim()) return null;
  const found = /^([\s\S]*?)(^|\n)(Answer:)([\s\S]*)$/.exec(trimmed);
  if (!found) return h("p", {}, trimmed);
  return h("p", {}, found[1] + found[2], h("b", {}, found[3] + found[4]));
}

function call(body, link) {
  let parsed = null;
  try {
    parsed = JSON.parse(body);
  } catch {
    return h("div", { class: "call broken" }, h("b", {}, "malformed call"), h("pre", {}, body.trim()));
  }
  const given = parsed && typeof parsed === "object" ? parsed.arguments : null;
  const name = String(parsed && typeof parsed === "object" ? parsed.name ?? "call" : "call");
  if (name === "delegate" && given && Array.isArray(given.goals)) return delegate(given, link);
  const list = given && typeof given === "object" && !Array.isArray(given) ? Object.entries(given) : [["", given]];
  return h(
    "div", { class: "call" }, h("b", {}, name),
    list.map(([key, value]) => h("div", { class: "argument" }, key ? h("span", {}, key) : null, h("code", {}, short(typeof value === "string" ? value : JSON.stringify(value), 1200)))),
  );
}

function delegate(given, link) {
  const tokens = Array.isArray(given.tokens) ? given.tokens : [];
  return h(
    "div", { class: "call" }, h("b", {}, "delegate"),
    given.goals.map((goal, i) => h("div", { class: "ask" }, link(typeof goal === "string" ? goal : JSON.stringify(goal), i), tokens[i] ? h("span", { class: "soft" }, ` ${tokens[i]} tokens`) : null)),
    given.context && given.context.length ? h("div", { class: "argument" }, h("span", {}, "context"), h("code", {}, JSON.stringify(given.context))) : null,
  );
}

function terse(text, link) {
  let asked = 0;
  return text.split("\n").map((line) => {
    if (line.startsWith(">")) return h("div", { class: "ask" }, link(line.slice(1).trim(), asked++));
    if (line.startsWith("=")) return h("p", {}, h("b", {}, line));
    return line.trim() ? h("p", {}, line) : null;
  }).filter(Boolean);
}

/** A goal that a turn asked for, as a link to the clone that got it. */
function childLinks(children, goals, onnode) {
  const left = children.map((index) => [index, goals[index]]);
  return (goal) => {
    const wanted = goal.replace(/\s+[@#]\S+/g, "").trim();
    const place = left.findIndex(([, known]) => known === goal || known === wanted || (known && wanted.startsWith(known)));
    if (place < 0) return h("span", {}, "→ ", goal);
    const [[index]] = left.splice(place, 1);
    return h("a", { href: "#", onclick: (event) => { event.preventDefault(); onnode(index); } }, "→ ", h("span", { class: "no" }, `${index} `), goal);
  };
}

/** Sampled tokens shaded by how unlikely they were; without their texts, a strip of cells. */
export function shaded(piece) {
  if (!piece.logprobs) return h("p", { class: "soft" }, "no log-probs were recorded");
  const cell = (value, text) => {
    const level = value === null ? 0 : Math.min(8, Math.round(-value / 0.6));
    const chance = value === null ? "unknown" : `${(100 * Math.exp(value)).toFixed(value > -5 ? 1 : 4)}%, log-prob ${value.toFixed(3)}`;
    return h("span", { class: `t t${level}`, title: `${JSON.stringify(visible(text ?? "token"))}: ${chance}` }, text ?? " ");
  };
  if (piece.tokens) return h("div", { class: "shaded" }, piece.logprobs.map((value, i) => cell(value, piece.tokens[i])));
  return h("div", {}, h("div", { class: "strip" }, piece.logprobs.map((value) => cell(value, null))), h("p", { class: "soft" }, "one cell per token; the run's tokenizer is not on this machine, so their texts are not known"));
}

/** The mean log-prob of the sampled tokens; null if none is known. */
export function meanLogprob(piece) {
  const known = (piece.logprobs || []).filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
