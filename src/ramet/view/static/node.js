// One node: its ledger, its credit, and everything it saw and said, turn by turn.
import { ask, isFile, post } from "./api.js";
import { fill, h, mark, num, percent, seconds, short, signed } from "./dom.js";
import { ledger, bar } from "./rows.js";
import { meanLogprob, said, shaded } from "./said.js";
import { used } from "./shape.js";

/** The panel of one node. `show` draws a node; texts of stored nodes come from the server, those of running ones live. */
export function nodePanel(container, { onnode, onturn, onfork }) {
  let state = null;
  let shading = false;
  let edit = null; // the turn that is being edited, how, and the text by now
  let forking = null; // the turn from which a fork begins, and what is known of it by now
  let texts = null;
  let asked = "";

  async function show(next) {
    const other = !state || next.selected !== state.selected || next.shaped.tree.id !== state.shaped.tree.id;
    state = next;
    if (other) {
      edit = null;
      container.scrollTop = 0;
    }
    const node = state.shaped.nodes[state.selected];
    if (!node) return fill(container, h("p", { class: "soft pad" }, "Waiting for the first node …"));
    const live = state.texts ? state.texts.get(node.index) : null;
    if (live) {
      texts = live;
      return draw();
    }
    const key = `${state.run}/${state.shaped.tree.id}/${node.index}`;
    if (asked !== key) {
      asked = key;
      texts = null;
      draw();
      try {
        const answer = await ask("node", { run: state.run, tree: state.shaped.tree.id, node: node.index }, { keep: true });
        if (asked === key) texts = answer;
      } catch (error) {
        if (asked === key) texts = { problem: error.message, pieces: [] };
      }
      if (asked !== key) return undefined;
      if (shading) {
        shading = false;
        shade();
      }
    }
    return draw(other);
  }

  function draw(first = false) {
    const { shaped, selected } = state;
    const node = shaped.nodes[selected];
    const scroll = container.scrollTop;
    const typing = document.activeElement instanceof HTMLTextAreaElement && container.contains(document.activeElement) ? document.activeElement.selectionEnd : null;
    fill(
      container,
      h("div", { class: "panel" }, title(node), chips(node, shaped), facts(node, shaped), flow(node, shaped), result(node), toolbar(), turns(node)),
    );
    container.scrollTop = scroll;
    const area = typing === null ? null : container.querySelector("textarea");
    if (area) {
      area.focus({ preventScroll: true });
      area.setSelectionRange(typing, typing);
    }
    if (first && state.turn !== null && state.turn !== undefined) container.querySelector(`#turn-${state.turn}`)?.scrollIntoView({ block: "start" });
    return undefined;
  }

  function title(node) {
    return h("h2", { id: "node-title" }, h("span", { class: "soft" }, `Node ${node.index} `), h("span", { class: "goal-text" + (node.goal.length > 110 ? " long" : "") }, node.goal));
  }

  function chips(node, shaped) {
    const verdict = node.verdict;
    return h(
      "p", { class: "chips" },
      h("span", { class: "chip" }, mark(verdict ? verdict.score : null, node.state), verdict ? (verdict.score >= 1 - 1e-9 ? "right" : verdict.score > 0 ? `score ${num(verdict.score, 2)}` : "wrong") : node.state === "ended" ? "no verdict" : node.state),
      node.stop ? h("span", { class: "chip" + (node.stop === "answered" ? "" : " warn") }, node.stop === "answered" ? node.stop : `stop: ${node.stop}`) : null,
      h("span", { class: "chip" }, `depth ${node.depth}`),
      shaped.critical.has(node.index) ? h("span", { class: "chip path" }, "critical path") : null,
      node.parent !== null ? h("a", { class: "chip", href: "#", onclick: (event) => { event.preventDefault(); onnode(node.parent); } }, `↑ parent ${node.parent}`) : null,
    );
  }

  function facts(node, shaped) {
    const credit = state.credit && state.credit.nodes ? state.credit.nodes[node.index] : null;
    const { start, end } = shaped.spans[node.index];
    const pairs = [
      ...(credit ? [["reward", num(credit.reward, 2)], ["baseline", num(credit.baseline, 2)], ["advantage", signed(credit.advantage)], ["weight", num(credit.weight, 2)]] : []),
      ["turns", `${node.turns.length} of ${shaped.tree.budget.turns ?? "∞"}`],
      ["peak window", `${num(node.usage.peak_window)} of ${num(shaped.tree.budget.window)}`],
      ["time", shaped.unit === "s" ? seconds(end - start) : "not measured"],
      ["critical path", `${num(node.usage.critical_path_tokens)} tok`],
      ["prompt", `${num(node.usage.prompt_tokens)}${node.usage.cached_tokens ? `, ${percent(node.usage.cached_tokens / Math.max(1, node.usage.prompt_tokens))} cached` : ""}`],
      ["calls", num(node.usage.calls)],
    ];
    return h(
      "div", {},
      h("dl", { class: "kv" }, pairs.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value)))),
      credit ? h("p", { class: "soft tiny" }, `credit by rule ${state.credit.rule}${state.credit.note ? `, ${state.credit.note}` : ""}`) : state.credit && state.credit.why ? h("p", { class: "soft tiny" }, `no credit: ${state.credit.why}`) : null,
    );
  }

  function flow(node, shaped) {
    const own = used(node);
    const clones = shaped.spent[node.index] - own;
    const back = Math.max(0, node.grant - own - clones);
    const running = node.state && node.state !== "ended";
    return h(
      "div", { class: "flow" }, h("div", { class: "when wide", "aria-hidden": "true" }, bar(shaped, node)), ledger(shaped, node),
      h("p", { class: "legend" }, h("span", {}, h("i", { class: "key own" }), `said ${num(own)}`), h("span", {}, h("i", { class: "key lent" }), `clones ${num(clones)}`), h("span", {}, h("i", { class: "key back" }), `${running ? "left" : "returned"} ${num(back)} of ${num(node.grant)} tok`), node.usage.lost_tokens ? h("span", {}, `lost ${num(node.usage.lost_tokens)}`) : null),
    );
  }

  /** The answer, the verdict and why. */
  function result(node) {
    const verdict = node.verdict;
    if (node.answer === null && !verdict && !node.error) return null;
    return h(
      "div", { class: "result" },
      node.answer !== null ? h("div", {}, h("span", { class: "what" }, "answer"), h("div", { class: "answer" }, node.answer)) : h("div", {}, h("span", { class: "what" }, "answer"), h("div", { class: "answer soft" }, "none")),
      state.selected === 0 && state.shaped.tree.reference && state.shaped.tree.reference !== "None" ? h("div", {}, h("span", { class: "what" }, "reference"), h("div", { class: "answer" }, state.shaped.tree.reference)) : null,
      verdict ? h("div", {}, h("span", { class: "what" }, "verdict"), h("div", { class: "answer" }, `${num(verdict.score, 2)}, ${{ exact: "exact check", judge: "by a judge", root: "copied from the root" }[verdict.how] || verdict.how}${verdict.reason ? `: ${verdict.reason}` : ""}`, verdict.judgement ? h("details", {}, h("summary", {}, `reply of the judge ${verdict.judgement.model}`), h("pre", {}, verdict.judgement.reply)) : null)) : null,
      node.error ? h("div", {}, h("span", { class: "what" }, "error"), h("div", { class: "answer bad-text" }, node.error)) : null,
    );
  }

  function toolbar() {
    const has = texts && texts.pieces.some((piece) => piece.logprobs);
    if (!has) return null;
    return h(
      "p", { class: "switch" },
      h("button", { type: "button", "aria-pressed": String(shading), onclick: shade }, "shade by log-prob"),
      shading ? h("span", { class: "soft" }, "likely ", [0, 2, 4, 6, 8].map((level) => h("span", { class: `t t${level}` }, "  ")), " unlikely") : null,
    );
  }

  function turns(node) {
    if (!texts) return h("p", { class: "soft" }, "Reading …");
    if (texts.problem) return h("p", { class: "bad-text" }, texts.problem);
    const blocks = [];
    let given = [];
    let number = 0;
    for (const piece of texts.pieces) {
      if (!piece.sampled) given.push(piece);
      else {
        blocks.push(turn(node, number, given, piece));
        given = [];
        number += 1;
      }
    }
    const running = node.state && node.state !== "ended";
    if (given.length || texts.stream || running) blocks.push(unfinished(node, number, given, running));
    return h("div", { class: "turns" }, blocks);
  }

  function turn(node, number, given, piece) {
    const facts_ = node.turns[number];
    return h(
      "section", { class: "turn" + (state.turn === number ? " linked" : ""), id: `turn-${number}`, "aria-label": `turn ${number}` },
      given.map((one) => told(node, number, one)),
      turnHead(number, facts_, piece), forkStatus(number),
      edit && edit.turn === number && edit.kind === "say" ? editor(number, "say") : h("div", { class: "said" }, shading ? shaded(piece) : said(piece.text, state.shaped.tree.dialect, links(facts_))),
      facts_ ? consequences(facts_) : null,
    );
  }

  function links(facts_) {
    return { children: facts_ ? facts_.children : [], goals: state.shaped.nodes.map((one) => one.goal), onnode };
  }

  function turnHead(number, facts_, piece) {
    const mean = meanLogprob(piece);
    return h(
      "p", { class: "turn-head" },
      h("a", { href: `#${state.base}/node/${state.selected}/turn/${number}`, class: "turn-link", onclick: () => onturn(number) }, `turn ${number}`),
      facts_ ? h("span", {}, `${num(facts_.tokens)} tokens`) : null,
      facts_ && state.shaped.unit === "s" ? h("span", {}, `${num(facts_.started_s, 1)} to ${num(facts_.sampled_s, 1)} s`) : null,
      mean !== null ? h("span", { title: "mean log-prob of its tokens" }, `log-prob ${num(mean, 2)}`) : null,
      facts_ && facts_.finish !== "stop" ? h("span", { class: "warn-text" }, facts_.finish === "cut" ? "call was cancelled" : "cut at its limit") : null,
      facts_ && facts_.closing ? h("span", { class: "warn-text" }, `last turn: ${facts_.closing}`) : null,
      piece.taught === false ? h("span", { class: "warn-text" }, "not trained on") : null,
      piece.version ? h("span", {}, `version ${piece.version}`) : null,
      forkButton(number),
    );
  }

  function forkButton(number) {
    if (isFile || !state.fork || !state.fork.possible || !state.stored) return null;
    return h("span", { class: "fork" },
      h("button", { type: "button", disabled: isForking(), title: "say something else in this turn, and go on", onclick: () => change(number, "say") }, "edit"),
      h("button", { type: "button", disabled: isForking(), title: "sample this turn again, and go on", onclick: () => fork(number, {}) }, "fork from here"));
  }

  function isForking() {
    return forking !== null && !forking.failed;
  }

  function forkStatus(number) {
    if (!forking || forking.node !== state.selected || forking.turn !== number) return null;
    return h("p", { class: forking.failed ? "bad-text" : "busy", role: "status" }, forking.text);
  }

  /** Open the editor of a turn: what the node says, or what it reads before. */
  function change(turn_, kind) {
    edit = { turn: turn_, kind };
    forking = isForking() ? forking : null;
    draw();
    container.querySelector("textarea")?.focus();
  }

  function editor(number, kind) {
    const sampled = texts.pieces.filter((piece) => piece.sampled)[number];
    const before = texts.pieces[texts.pieces.indexOf(sampled) - 1];
    const area = h("textarea", { rows: 8, "aria-label": kind === "say" ? `what node ${state.selected} says in turn ${number}` : `what node ${state.selected} reads before turn ${number}` });
    edit.text ??= kind === "say" ? sampled.text : before ? before.message ?? before.text : "";
    area.value = edit.text; // the panel is drawn again whenever something arrives: what was typed stays
    area.addEventListener("input", () => { if (edit) edit.text = area.value; });
    return h(
      "div", { class: "editor" }, area,
      h("p", { class: "switch" },
        h("button", { type: "button", class: "go", disabled: isForking(), onclick: () => fork(number, { [kind]: area.value }) }, kind === "say" ? "say this and go on" : "read this and go on"),
        h("button", { type: "button", onclick: () => { edit = null; forking = isForking() ? forking : null; draw(); } }, "cancel")),
    );
  }

  /** Fork the tree; when the new one begins, the page goes there. */
  async function fork(turn_, changed) {
    const place = { run: state.run, tree: state.shaped.tree.id, node: state.selected, turn: turn_ };
    forking = { ...place, text: "Loading the model. The forked tree is shown as soon as it begins …", failed: false };
    draw();
    try {
      const { job } = await post("fork", { ...place, ...changed });
      for (;;) {
        const known = await ask("job", { job });
        if (known.state === "failed") throw new Error(known.problem);
        if (!container.isConnected) return; // another page is shown by now
        if (known.run) return void onfork(known, place);
        await new Promise((done) => setTimeout(done, 250));
      }
    } catch (error) {
      forking = { ...forking, text: error.message, failed: true };
      draw();
    }
  }

  /** What a node was given: its prompt, or the results of its last turn. */
  function told(node, number, piece) {
    if (edit && edit.turn === number && edit.kind === "tell") return editor(number, "tell");
    const message = piece.message ?? piece.text;
    const edits = isFile || !state.fork || !state.fork.possible || !state.stored ? null : h("button", { type: "button", class: "small", disabled: isForking(), onclick: () => change(number, "tell") }, "edit what it reads");
    if (number === 0) {
      return h("div", { class: "given-group" }, h("p", { class: "turn-head" }, h("span", { class: "what" }, "given"), h("span", { class: "fork" }, edits)), h("div", { class: "got" }, results(message, null)), message !== piece.text ? h("details", {}, h("summary", {}, "whole prompt, with the system prompt"), h("pre", { class: "got", tabindex: "0" }, piece.text)) : null);
    }
    return h("div", { class: "given-group" }, h("p", { class: "turn-head" }, h("span", { class: "what" }, "given"), h("span", { class: "fork" }, edits)), h("div", { class: "got", tabindex: "0" }, results(message, node.turns[number - 1])));
  }

  /** Results, with a link to the clone that each came from. */
  function results(text, turn_) {
    const body = text.replace(/^<tool_response>\n?|\n?<\/tool_response>$/g, "");
    return body.split("\n").map((line) => {
      const found = /^clone (\d+)\.(\d+): /.exec(line);
      const child = found && turn_ ? turn_.children[Number(found[2]) - 1] : undefined;
      if (child === undefined) return [line, "\n"];
      return [h("a", { href: "#", onclick: (event) => { event.preventDefault(); onnode(child); } }, `node ${child}`), line.slice(found[0].length - 2), "\n"];
    });
  }

  function consequences(facts_) {
    const parts = [];
    if (facts_.refusals.length) {
      parts.push(h("ul", { class: "refusals" }, facts_.refusals.map((refusal) => h("li", {}, h("b", {}, `refused${refusal.kind ? ` (${refusal.kind.replace("_", " ")})` : ""}: `), short(refusal.goal, 200), h("span", { class: "reason" }, refusal.reason)))));
    }
    if (facts_.children.length) {
      parts.push(h("p", { class: "started" }, h("span", { class: "soft" }, "started "), facts_.children.map((child) => {
        const node = state.shaped.nodes[child];
        return node ? h("a", { class: "chip", href: "#", title: node.goal, onclick: (event) => { event.preventDefault(); onnode(child); } }, mark(node.verdict ? node.verdict.score : null, node.state), `${child}`) : null;
      })));
    }
    const count = (number, words) => (number ? `${number} ${number === 1 ? words : words.replace("call", "calls")}` : "");
    const notes = [count(facts_.repairs, "malformed call repaired"), count(facts_.faults, "call failed")].filter(Boolean);
    if (notes.length) parts.push(h("p", { class: "warn-text tiny" }, notes.join(", ")));
    return parts;
  }

  function unfinished(node, number, given, running) {
    return h(
      "section", { class: "turn", id: `turn-${number}` }, given.map((piece) => told(node, number, piece)),
      running ? h("div", {}, h("p", { class: "turn-head" }, h("span", {}, `turn ${number}`), h("span", { class: "busy" }, `${node.state} · ${num(node.in_flight || 0)} tokens`)), texts.stream ? h("div", { class: "said streaming", "aria-live": "off" }, h("p", {}, texts.stream, h("span", { class: "cursor" }, "▍"))) : null) : null,
    );
  }

  /** Shade sampled tokens by their log-probs. Their texts need the run's tokenizer, which is loaded now. */
  async function shade() {
    shading = !shading;
    draw();
    if (!shading || isFile || !state.stored || texts.pieces.some((piece) => piece.tokens)) return;
    const key = asked;
    const answer = await ask("node", { run: state.run, tree: state.shaped.tree.id, node: state.selected, tokens: 1 }, { keep: true }).catch(() => null);
    if (answer && asked === key) {
      texts = answer;
      draw();
    }
  }

  return { show, shade: () => state && texts && shade() };
}
