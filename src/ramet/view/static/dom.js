// Elements from data. Text becomes text nodes, never markup: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";
// Control characters other than tab and newline, and those that change the direction of text.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const SHOWN = /^(title|aria-.*)$/; // attributes that are shown or read out

/** Text in which nothing is hidden: such characters are shown as their code. */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : SHOWN.test(name) ? visible(value) : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

/** An HTML element: h("p", { class: "note" }, "some text", otherElement). */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function num(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 0) return num(-value, digits).replace(/^(?=.*[1-9])/, "−");
  if (digits !== undefined) return value.toFixed(digits);
  if (Number.isInteger(value) || value >= 1000) return WHOLE.format(value);
  if (value >= 0.1) return value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
  return value >= 1e-4 ? String(Number(value.toPrecision(2))) : value.toExponential(1).replace(".0e", "e").replace("-", "−");
}

/** A number of things: "1 node", "2 nodes". */
export function plural(count, word) {
  return `${num(count)} ${word}${count === 1 ? "" : "s"}`;
}

export function signed(value) {
  return value === null || value === undefined ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${hundredths(value)}%`;
}

/** A share times 100, rounded half up: the rule of `hundredths` in ramet/evaluate/format.py. None is 0, all is 100, nothing else is. */
function hundredths(value) {
  const scaled = Number((100 * value).toFixed(9));
  const rest = Math.min(scaled, Math.abs(100 - scaled));
  const rounded = (number, digits) => (Math.floor(number * 10 ** digits + 0.5 + 1e-7) / 10 ** digits).toFixed(digits);
  if (rest === 0 || (scaled >= 1 && scaled <= 99) || scaled > 100) return rounded(scaled, 0);
  return rest <= 0.05 ? rounded(Math.min(99.99, Math.max(0.01, scaled)), 2) : rounded(scaled, 1);
}

/** The number of a training step as it is shown: from 1 up. Stored steps count from 0; an evaluation is stored with the number of the step it follows. */
export function stepNumber(step, part = "step") {
  return Number(step) + (part === "eval" ? 0 : 1);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${Math.round(1000 * value)} ms` : value < 100 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function ago(time) {
  if (!time) return "";
  const minutes = (Date.now() - time) / 60000;
  if (minutes < 1) return "just now";
  if (minutes < 90) return `${Math.round(minutes)} min ago`;
  return minutes < 2880 ? `${Math.round(minutes / 60)} h ago` : `${Math.round(minutes / 1440)} days ago`;
}

/** The first words of a text on one line. */
export function short(text, most) {
  const line = String(text ?? "").replace(/\s+/g, " ").trim();
  return line.length > most ? line.slice(0, most - 1) + "…" : line;
}

/** The symbol of a verdict: its shape says as much as its colour. */
export function mark(score, state) {
  if (state && state !== "ended") return h("span", { class: "mark busy", title: state }, "◌");
  if (score === null || score === undefined) return h("span", { class: "mark none", title: "no verdict" }, "–");
  if (score >= 1 - 1e-9) return h("span", { class: "mark good", title: "right" }, "●");
  if (score > 0) return h("span", { class: "mark half", title: `score ${num(score, 2)}` }, "◐");
  return h("span", { class: "mark bad", title: "wrong" }, "✕");
}

export function select(label, value, options, onchange) {
  const list = options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text));
  return h("label", { class: "pick" }, h("span", {}, label), h("select", { onchange: (event) => onchange(event.target.value) }, list));
}

export function isTyping(event) {
  return /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName || "");
}
