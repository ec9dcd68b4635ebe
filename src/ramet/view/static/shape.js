// What is derived from the nodes of a tree: order, sums, layout. No elements here.

/** A tree as it is drawn: nodes with their children, sums of their subtrees and times. */
export function shape(tree) {
  const nodes = tree.nodes;
  const children = nodes.map(() => []);
  for (const node of nodes) if (node.parent !== null) children[node.parent].push(node.index);
  const spent = nodes.map((node) => used(node));
  const size = nodes.map(() => 1);
  for (let i = nodes.length - 1; i > 0; i--) {
    spent[nodes[i].parent] += spent[i];
    size[nodes[i].parent] += size[i];
  }
  const critical = new Set(tree.critical || []);
  const time = times(tree, children);
  return { tree, nodes, children, spent, size, critical, ...time, prefix: commonStart(nodes.map((node) => node.goal)) };
}

/** Tokens that a node generated itself, with those of the call in flight and those that were lost. */
export function used(node) {
  return node.usage.tokens + node.usage.lost_tokens + (node.in_flight || 0);
}

/** Spans of every node: in seconds, or in tokens along the critical path if no time passed. */
function times(tree, children) {
  const timed = tree.nodes.some((node) => (node.ended_s ?? tree.now ?? 0) > node.started_s);
  if (timed || !tree.nodes.length) {
    const now = tree.now ?? tree.seconds;
    const spans = tree.nodes.map((node) => ({
      start: node.started_s,
      end: node.ended_s ?? Math.max(now, node.started_s),
      turns: [
        ...node.turns.map((turn) => [turn.started_s, turn.sampled_s]),
        ...(node.state === "sampling" ? [[lastEnd(node), Math.max(now, lastEnd(node))]] : []),
      ],
    }));
    return { spans, total: Math.max(now, ...spans.map((span) => span.end), 0.001), unit: "s" };
  }
  const spans = tree.nodes.map(() => ({ start: 0, end: 0, turns: [] }));
  const lay = (index, start) => {
    let at = start;
    const span = spans[index];
    span.start = start;
    for (const turn of tree.nodes[index].turns) {
      span.turns.push([at, at + turn.tokens]);
      at += turn.tokens;
      at = Math.max(at, ...turn.children.map((child) => lay(child, at)));
    }
    span.end = at;
    return at;
  };
  return { spans, total: Math.max(1, lay(0, 0)), unit: "tok", children };
}

function lastEnd(node) {
  const last = node.turns[node.turns.length - 1];
  return last ? Math.max(last.sampled_s, node.started_s) : node.started_s;
}

/** Nodes in the order of the tree, each after its parent; those below folded nodes are left out. */
export function preorder(shaped, folded) {
  const order = [];
  const walk = [0];
  while (walk.length && shaped.nodes.length) {
    const index = walk.pop();
    order.push(index);
    if (!folded.has(index)) for (let i = shaped.children[index].length - 1; i >= 0; i--) walk.push(shaped.children[index][i]);
  }
  return order;
}

/** The words with which most goals begin, if they are several: they are said once. */
export function commonStart(goals) {
  if (goals.length < 3) return "";
  const counts = new Map();
  for (const goal of goals) {
    const words = goal.split(/(?<=\s)/).slice(0, 12);
    let start = "";
    for (const word of words) {
      start += word;
      counts.set(start, (counts.get(start) || 0) + 1);
    }
  }
  // What nearly all begin with is preferred to a longer start of fewer: those left over would stand out by their length.
  for (const least of [0.9, 0.6]) {
    const shared = [...counts].filter(([start, count]) => count >= least * goals.length && /\s$/.test(start) && start.trim().split(/\s+/).length > 1);
    if (shared.length) return shared.reduce((best, [start]) => (start.length > best.length ? start : best), "");
  }
  return "";
}

/** A goal as it is listed: without the words with which most goals begin. */
export function listed(shaped, node) {
  return shaped.prefix && node.goal.startsWith(shaped.prefix) ? node.goal.slice(shaped.prefix.length) : node.goal;
}

/** Whether a node went wrong: its verdict, an error, or a stop that is not an answer. */
export function failed(node) {
  if (node.state && node.state !== "ended") return false;
  if (node.verdict) return node.verdict.score < 1 - 1e-9;
  return Boolean(node.error) || (node.stop !== null && node.stop !== "answered");
}

/** Round steps for an axis of this length. */
export function ticks(total, wanted) {
  return between(0, total, wanted);
}

/** Round numbers between two, about as many as wanted. */
export function between(low, high, wanted) {
  const raw = Math.max(high - low, 1e-12) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * (1 - 1e-9)) || power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-6; at++) found.push(Number((at * step).toPrecision(10)));
  return found;
}
