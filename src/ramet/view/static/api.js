// Questions to the server. In an exported file the answers are inside the page.

const INSIDE = readInside();

function readInside() {
  const holder = document.getElementById("data");
  return holder ? JSON.parse(holder.textContent) : null;
}

export const isFile = INSIDE !== null;

const cache = new Map(); // answers that never change: texts of stored nodes

function question(name, query) {
  const parts = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return [name, parts];
}

/** The answer to a question; an Error with one line if there is none. */
export async function ask(name, query, { keep = false } = {}) {
  const [path, parts] = question(name, query);
  if (INSIDE) return inside(path, parts);
  const address = `api/${path}?` + parts.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  if (keep && cache.has(address)) return cache.get(address);
  let response;
  try {
    response = await fetch(address);
  } catch {
    throw new Error("the viewer has ended: start ramet view again");
  }
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
  if (keep) {
    if (cache.size > 400) cache.clear();
    cache.set(address, answer);
  }
  return answer;
}

function inside(name, parts) {
  const known = ["run", "tree", "node"];
  const key = `${name}?` + parts.filter(([part]) => known.includes(part)).map(([part, value]) => `${part}=${value}`).join("&");
  if (name === "search") return { nodes: searchInside(Object.fromEntries(parts)) };
  if (!(key in INSIDE)) throw new Error("this is not in the file: it holds only the trees that were exported");
  return INSIDE[key];
}

function searchInside({ run, tree, q }) {
  const wanted = String(q || "").toLowerCase();
  const found = INSIDE[`tree?run=${run}&tree=${tree}`];
  return found.nodes.map((node) => node.index).filter((index) => {
    const texts = INSIDE[`node?run=${run}&tree=${tree}&node=${index}`];
    const node = found.nodes[index];
    return [node.goal, node.answer, ...texts.pieces.map((piece) => piece.text)].join("\n").toLowerCase().includes(wanted);
  });
}

export async function post(name, body) {
  const response = await fetch(`api/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** Follow a run, or one tree of it, until the returned function is called. */
export function follow(run, tree, onevent) {
  if (INSIDE) return () => {};
  const address = `api/live?run=${encodeURIComponent(run)}` + (tree ? `&tree=${encodeURIComponent(tree)}` : "");
  const source = new EventSource(address);
  source.onmessage = (message) => onevent(JSON.parse(message.data));
  return () => source.close();
}
