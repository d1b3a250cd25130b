/* The page of a run follows the theme that the reader chose in the book, else that of the system. */
(() => {
  let mode = null;
  try {
    mode = localStorage.getItem("mode") === "auto" ? null : localStorage.getItem("mode");
  } catch {
    /* some browsers refuse this for file:// pages */
  }
  document.documentElement.dataset.theme = mode || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
})();
