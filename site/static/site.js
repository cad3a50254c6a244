// What overflows can be scrolled with the keyboard, once it can have the focus.
function reach() {
  for (const box of document.querySelectorAll("article pre, .table-wrapper, .math-wrapper, .output")) {
    const wide = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (wide) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", () => {
  reach();
  window.MathJax?.startup.promise.then(reach);  // formulas are wide once they are drawn
});
addEventListener("resize", reach);
document.addEventListener("toggle", reach, true);
// In a narrow window buttons open the two drawers, and Escape closes them.
const openers = [...document.querySelectorAll("button.opens")];
const boxOf = (button) => document.getElementById(button.dataset.opens);
const say = () => openers.forEach((button) => button.setAttribute("aria-expanded", boxOf(button).checked));
for (const button of openers) {
  boxOf(button).addEventListener("change", say);
  button.addEventListener("click", () => {
    boxOf(button).checked = !boxOf(button).checked;
    say();
  });
}
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const button of openers.filter((each) => boxOf(each).checked)) {
    boxOf(button).checked = false;
    button.focus();
  }
  say();
});
