// A tree that is being written: built from the lines of the run's live file.

/** The state of a running tree. `apply` takes one event and returns whether the drawing changes. */
export function liveTree(run, id) {
  const tree = { run, id, question: "", task_id: "", budget: {}, dialect: "", seconds: 0, now: 0, critical: [], nodes: [], live: true };
  const texts = new Map();
  let begun = false;

  function apply(event) {
    if (event.kind === "begin") {
      Object.assign(tree, { question: event.question, task_id: event.task_id, budget: event.budget, dialect: event.dialect });
      tree.nodes.length = 0;
      texts.clear();
      begun = true;
      return true;
    }
    if (event.kind === "words" && begun && tree.nodes[event.index]) {
      tree.now = Math.max(tree.now, event.now);
      tree.nodes[event.index].in_flight = event.in_flight;
      const known = texts.get(event.index);
      known.stream = known.stream.slice(0, event.stream_at) + event.stream;
      return true;
    }
    if (event.kind !== "node" || !begun) return event.kind === "end" || event.kind === "gone";
    tree.now = Math.max(tree.now, event.now);
    tree.nodes[event.node.index] = event.node;
    const own = texts.get(event.node.index) || { pieces: [], stream: "" };
    own.pieces.length = Math.min(own.pieces.length, event.first_piece);
    for (const piece of event.pieces) own.pieces.push(piece);
    if (event.pieces.length) own.stream = "";
    own.stream = own.stream.slice(0, event.stream_at) + event.stream;
    if (event.node.state !== "sampling") own.stream = "";
    texts.set(event.node.index, own);
    tree.critical = heaviest(tree.nodes);
    return true;
  }

  return { tree, texts, apply, get begun() { return begun && tree.nodes.length > 0 && tree.nodes.every(Boolean); } };
}

/** The nodes on the longest chain of dependent tokens so far. */
function heaviest(nodes) {
  const longest = [];
  const chosen = [];
  for (let i = nodes.length - 1; i >= 0; i--) {
    const node = nodes[i];
    if (!node) return [];
    longest[i] = node.usage.tokens + (node.in_flight || 0);
    chosen[i] = [];
    for (const turn of node.turns) {
      const known = turn.children.filter((child) => longest[child] !== undefined);
      if (!known.length) continue;
      const best = known.reduce((a, b) => (longest[b] > longest[a] ? b : a));
      longest[i] += longest[best];
      chosen[i].push(best);
    }
  }
  const path = [];
  const walk = nodes.length ? [0] : [];
  while (walk.length) {
    const index = walk.pop();
    path.push(index);
    walk.push(...chosen[index]);
  }
  return path;
}
