/* The page of a run follows the theme that the reader chose in the book, else that of the system. Paper is white. */
(() => {
  let mode = null;
  try {
    mode = localStorage.getItem("mode") === "auto" ? null : localStorage.getItem("mode");
  } catch {
    /* some browsers refuse this for file:// pages */
  }
  const paper = matchMedia("print");
  const night = matchMedia("(prefers-color-scheme: dark)");
  const choose = () => (document.documentElement.dataset.theme = paper.matches ? "light" : mode || (night.matches ? "dark" : "light"));
  for (const media of [paper, night]) media.addEventListener("change", choose);
  choose();
})();
