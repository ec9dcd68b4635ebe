// A drawing of all nodes of a tree at once, as SVG: drawn again when the tree, the filters or the width change.
import { fill, h, s, short } from "./dom.js";

/** Keeps the drawing that `draw(state, width)` makes. If only the selection changes, the elements stay. */
export function pictureView(container, { onselect, draw }) {
  const scroller = h("div", { class: "chart" });
  fill(container, scroller);
  let state = null;
  let drawn = {};
  const wide = () => Math.max(320, scroller.clientWidth - 24);
  const observer = new ResizeObserver(() => state && wide() !== drawn.width && show(state));
  observer.observe(scroller);
  scroller.addEventListener("click", (event) => {
    const found = event.target.closest("[data-node]");
    if (found) onselect(Number(found.dataset.node));
  });
  scroller.addEventListener("mouseover", (event) => name(event.target.closest("[data-node]")));

  function show(next, again = false) {
    state = next;
    const { shaped, shown } = state;
    const width = wide();
    if (again || drawn.shaped !== shaped || drawn.shown !== shown || drawn.width !== width) fill(scroller, draw(state, width));
    drawn = { shaped, shown, width };
    scroller.querySelector(".on")?.classList.remove("on");
    scroller.querySelector(`[data-node="${state.selected}"]`)?.classList.add("on");
  }

  /** The words beside the pointer, made when a node is pointed at: thousands of titles take time. */
  function name(element) {
    if (!element || element.querySelector("title")) return;
    const index = Number(element.dataset.node);
    element.append(s("title", {}, `node ${index}: ${short(state.shaped.nodes[index].goal, 200)}${element.dataset.more ? `\n${element.dataset.more}` : ""}`));
  }

  return {
    show, again: () => show(state, true), focus() {}, toggle() {},
    reveal: () => scroller.querySelector(".on")?.scrollIntoView({ block: "nearest" }),
    order: () => state.shaped.nodes.map((node) => node.index).filter((index) => !state.shown || state.shown.has(index)),
    close: () => observer.disconnect(),
  };
}
