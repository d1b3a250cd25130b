/* The scorecard's filter. Without this script every row is shown; nothing else on any page needs it. */
(() => {
  const form = document.querySelector("form.score-filter");
  const table = document.getElementById("scorecard-table");
  if (!form || !table) return;
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const menus = ["paper", "status", "kind", "scale", "where"];
  const count = form.querySelector("output");

  function apply(remember) {
    const wanted = Object.fromEntries(new FormData(form));
    const words = (wanted.text || "").toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, text } of rows) {
      const kept = menus.every((m) => !wanted[m] || row.dataset[m] === wanted[m]) && words.every((w) => text.includes(w));
      row.hidden = !kept;
      shown += kept;
    }
    count.textContent = shown === rows.length ? `all ${shown} claims` : `${shown} of ${rows.length} claims`;
    offerPlaces(wanted.paper);
    if (!remember) return;
    const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value)).toString();
    try {
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
    } catch {
      /* some browsers refuse this for file:// pages; the filter works without it */
    }
  }

  /* Only tables and figures of the chosen paper. */
  function offerPlaces(paper) {
    const there = new Set(rows.filter(({ row }) => !paper || row.dataset.paper === paper).map(({ row }) => row.dataset.where));
    for (const option of form.elements.where.options) option.hidden = option.value !== "" && !there.has(option.value);
  }

  for (const [name, value] of new URLSearchParams(location.search)) {
    const field = form.elements[name];
    if (field && (menus.includes(name) || name === "text")) field.value = value;
  }
  form.hidden = false;
  form.addEventListener("input", () => apply(true));
  form.addEventListener("reset", () => setTimeout(() => apply(true)));
  form.addEventListener("submit", (event) => event.preventDefault());

  /* A link to a row that the filter hides clears the filter. */
  function reveal() {
    const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!row || !row.hidden) return;
    form.reset();
    apply(true);
    row.scrollIntoView();
  }
  apply(false);
  reveal();
  addEventListener("hashchange", reveal);
})();
