if (navigator.clipboard) document.documentElement.classList.add("js");
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", reveal);
addEventListener("click", (event) => {
  const code = event.target.closest("code.copy");
  if (code && navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(() => {
    code.classList.add("copied");
    setTimeout(() => code.classList.remove("copied"), 1200);
  });
});
if (location.hash) reveal();
function hint(box) {
  const mark = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 8);
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
}
for (const box of document.querySelectorAll(".scroll")) hint(box);
