/* Screen readers read the text on the theme's buttons, not its icons. The theme may draw icons late, so watch for them. */
addEventListener("load", () => {
  document.querySelector(".search-button-field[aria-label]")?.removeAttribute("aria-label");
  for (const button of document.querySelectorAll(".theme-switch-button")) {
    const hush = () => {
      for (const icon of button.querySelectorAll(".theme-switch")) {
        icon.setAttribute("aria-hidden", "true");
        icon.removeAttribute("title");
        icon.querySelector("title")?.remove();
      }
    };
    new MutationObserver(hush).observe(button, { childList: true, subtree: true });
    hush();
  }
});

/* The theme's arrow beside a page of the sidebar has no name. */
for (const summary of document.querySelectorAll(".bd-sidenav summary"))
  summary.setAttribute("aria-label", `Pages below ${summary.closest("li").querySelector("a").textContent.trim()}`);

/* On a phone a table of sentences becomes blocks, with a column's name before each value, and so does one that is wider than the screen.
   A table of the paper with several columns of results is a grid, and scrolls in its box. */
(() => {
  const phone = matchMedia("(max-width: 640px)");
  const isGrid = (table) =>
    new Set([...table.querySelectorAll("span.cell")].map((result) => result.closest("td").cellIndex)).size > 1;
  const toBlocks = () => {
    for (const table of document.querySelectorAll(".bd-article table:not(.claims, .blocks, .paper-rows)")) {
      if (isGrid(table)) continue;
      const heads = [...(table.tHead?.rows ?? [])].map((row) =>
        [...row.cells].flatMap((cell) => Array(cell.colSpan).fill(cell.textContent.trim())));
      const rows = [...(table.tBodies[0]?.rows ?? [])];
      const cells = rows.flatMap((row) => [...row.cells]);
      const wide = phone.matches && table.offsetWidth > table.parentElement.clientWidth;
      if (!heads.length || !(wide || cells.some((cell) => cell.textContent.length > 60))) continue;
      table.classList.add("blocks");
      const numbered = rows.some((row) => /^\d+$/.test(row.cells[0].textContent.trim()));  // a bare number says nothing
      for (const row of rows) {
        const before = heads[0].length - row.cells.length;  // columns whose cell began in a row above
        for (const cell of row.cells) {
          const column = before + cell.cellIndex;
          const isName = column === 0 && !numbered;
          cell.dataset.label = isName ? "" : heads.map((names) => names[column]).filter(Boolean).join(", ");
        }
      }
    }
  };
  toBlocks();
  phone.addEventListener("change", toBlocks);
  document.addEventListener("toggle", () => {  // what a closed fold holds has no width
    toBlocks();
    for (const box of document.querySelectorAll(".bd-article .cell_output > .output"))
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;  // the theme looks when the window changes only
  }, true);
})();

/* A link into a fold opens it. Paper has no folds, and is white. */
(() => {
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    let opened = false;
    for (let at = target.closest("details"); at; at = at.parentElement.closest("details")) {
      opened ||= !at.open;
      at.open = true;
    }
    if (opened) target.scrollIntoView();
  };
  open();
  addEventListener("hashchange", open);
  const root = document.documentElement;
  let screen = "";
  const print = () => {
    document.querySelectorAll("details.fold").forEach((fold) => (fold.open = true));
    screen ||= root.dataset.theme;
    root.dataset.theme = "light";
  };
  const look = () => {
    root.dataset.theme = screen || root.dataset.theme;
    screen = "";
  };
  addEventListener("beforeprint", print);
  addEventListener("afterprint", look);
  matchMedia("print").addEventListener("change", (media) => (media.matches ? print() : look()));
})();

/* The routing microscope. Every number was computed when the book was built; without this script two routings are shown at one place. */
for (const root of document.querySelectorAll(".microscope")) {
  const form = root.querySelector("form");
  const data = JSON.parse(root.querySelector("script").textContent);
  const put = (parent, name, text) => (parent.querySelector(`[data-put="${name}"]`).textContent = text);
  const set = (element, attributes) => Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  const summaries = root.querySelectorAll(".microscope-summary");
  const drawSide = (side, summary, routing, iterations, place) => {
    const [name, color, size, frames] = data.routings[routing];
    const [pose, activation, coupling, share] = frames[iterations - 1][place];
    const votes = data.moved[place];
    side.style.setProperty("--routing", color);
    side.querySelector(".microscope-name").textContent = name;
    side.querySelectorAll(".microscope-panels > div").forEach((panel, j) => {
      panel.querySelector("b").textContent = activation[j].toFixed(2);
      for (const dot of panel.querySelectorAll(".vote")) {
        const i = dot.dataset.child;
        set(dot, { r: size * Math.sqrt(coupling[j][i]) });
        if (j === 0 && votes[i]) set(dot, { cx: votes[i][0], cy: votes[i][1] });
      }
      const mark = panel.querySelector(".pose");
      set(mark, { transform: `translate(${pose[j]})` });
      mark.style.setProperty("--activation", activation[j]);
    });
    const largest = Math.max(...activation);
    const values = { name, winner: activation.indexOf(largest) + 1, largest: largest.toFixed(2), share: (100 * share).toFixed(0) };
    Object.entries(values).forEach(([name, text]) => put(summary, name, text));
  };
  const draw = () => {
    const { routing, iterations, place } = form.elements;
    const where = data.places[place.value];
    root.querySelectorAll(".microscope-side").forEach((side, k) => drawSide(side, summaries[k], routing[k].value, iterations.value, place.value));
    put(root, "iterations", iterations.value);
    put(root, "place", where);
    form.querySelector("output").textContent = where;
    place.setAttribute("aria-valuetext", where);
  };
  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  draw();
}

/* A digit, routed. Numbers are thousandths. Without this script one image is shown. */
for (const root of document.querySelectorAll(".digits")) {
  const form = root.querySelector("form");
  const data = JSON.parse(root.querySelector("script").textContent);
  const put = (name, text) => (root.querySelector(`[data-put="${name}"]`).textContent = text);
  const fill = (parent, values) => parent.querySelectorAll("rect").forEach((pixel, k) => pixel.setAttribute("fill-opacity", values[k] / 1000));
  const draw = () => {
    const image = form.elements.image.value, iterations = form.elements.iterations.value;
    const [name, color, entries] = data.routings[form.elements.routing.value];
    const [primary, classes, votes, steps] = entries[image];
    const [activation, share, coupling, pose, reconstruction] = steps[iterations - 1];
    root.style.setProperty("--routing", color);
    fill(root.querySelector(".digit-image"), data.images[image]);
    fill(root.querySelector(".digit-reconstruction"), reconstruction);
    fill(root.querySelector(".digit-types"), primary);
    root.querySelectorAll(".digit-bars li").forEach((bar, j) => {
      bar.style.setProperty("--activation", activation[j] / 1000);
      bar.classList.toggle("drawn", classes.includes(j));
      bar.querySelector("b").textContent = (activation[j] / 1000).toFixed(2);
    });
    root.querySelectorAll(".digit-panels > div").forEach((panel, k) => {
      put(`class${k}`, classes[k]);
      panel.querySelectorAll(".child").forEach((child, i) => {
        child.setAttribute("transform", `translate(${votes[k][i].map((x) => x / 1000)})`);
        child.querySelector(".vote").setAttribute("r", 0.14 * Math.sqrt(coupling[k][i] / 1000));
      });
      const mark = panel.querySelector(".pose");
      mark.setAttribute("transform", `translate(${pose[k].map((x) => x / 1000)})`);
      mark.style.setProperty("--activation", activation[classes[k]] / 1000);
    });
    const [first, second] = [...activation.keys()].sort((a, b) => activation[b] - activation[a]);
    const values = { name, iterations, label: data.labels[image], first, second, holder: first };
    values.largest = (activation[first] / 1000).toFixed(2);
    values.next = (activation[second] / 1000).toFixed(2);
    values.share = (share[first] / 10).toFixed(0);
    Object.entries(values).forEach(([name, text]) => put(name, text));
  };
  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  draw();
}

/* The scorecard's filter and sorting. Without this script every row is shown. */
(() => {
  const form = document.querySelector("form.score-filter");
  const table = document.getElementById("scorecard-table");
  if (!form || !table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row, place) => ({ row, place, text: row.textContent.toLowerCase() }));
  const menus = ["paper", "status", "kind", "scale", "where"];
  const count = form.querySelector("output");
  const STORED = "scorecard-filter";

  /* A word counts with its group: "own-size reproduced" is not "baseline reproduced". */
  const fitsVerdict = (row, wanted) =>
    wanted === "run" ? row.dataset.run === "yes" : `${row.dataset.group} ${row.dataset.status}` === wanted;
  const fits = (row, menu, wanted) =>
    !wanted || (menu === "status" ? fitsVerdict(row, wanted) : row.dataset[menu] === wanted);

  function apply(remember) {
    const wanted = Object.fromEntries(new FormData(form));
    const words = (wanted.text || "").toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, text } of rows) {
      const fitsAll = menus.every((m) => fits(row, m, wanted[m])) && words.every((w) => text.includes(w));
      row.hidden = !fitsAll;
      shown += fitsAll;
    }
    count.textContent = shown === rows.length ? `all ${shown} claims` : `${shown} of ${rows.length} claims`;
    offerPlaces(wanted.paper);
    if (!remember) return;
    const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value)).toString();
    try {
      sessionStorage.setItem(STORED, query);
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
    } catch {
      /* some browsers refuse one or the other for file:// pages; the filter works without them */
    }
  }

  /* Only tables and figures of the chosen paper. */
  function offerPlaces(paper) {
    for (const group of form.elements.where.querySelectorAll("optgroup"))
      group.hidden = paper !== "" && group.dataset.paper !== paper;
  }

  /* The address says what to show; else what was chosen last; else whatever was run. */
  function chosen() {
    if (location.search) return location.search;
    try {
      return sessionStorage.getItem(STORED) ?? "status=run";
    } catch {
      return "status=run";
    }
  }

  for (const [name, value] of new URLSearchParams(chosen())) {
    const field = form.elements[name];
    if (field && (menus.includes(name) || name === "text")) field.value = value;
  }
  form.hidden = false;
  form.addEventListener("input", () => apply(true));
  form.addEventListener("reset", () => setTimeout(() => apply(true)));
  form.addEventListener("submit", (event) => event.preventDefault());

  /* A column's name sorts by it: numbers as numbers, what has none last, verdicts in the order of their weight. */
  const keys = [
    ({ row }) => row.querySelector(".claim-id").textContent,
    ...["theirs", "ours"].map((whose) => ({ row }) => parseFloat(row.dataset[whose])),
    ({ place }) => place,
  ];
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const value = (r) => keys[column](r);
      const numbered = rows.filter((r) => !Number.isNaN(value(r))).sort((a, b) => (falling ? -1 : 1) * compare(value(a), value(b)) || a.place - b.place);
      body.append(...[...numbered, ...rows.filter((r) => Number.isNaN(value(r)))].map(({ row }) => row));
    });
  });

  /* A link to a row that the filter hides shows all rows. The filter that was chosen is still kept, and so is the address. */
  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const row = target?.closest("#scorecard-table tbody tr");
    if (!row) return;
    if (row.hidden) {
      for (const name of [...menus, "text"]) form.elements[name].value = "";  // a reset would be remembered
      apply(false);
    }
    const why = row.querySelector("details");
    if (why) why.open = true;
    row.scrollIntoView();
  }
  apply(false);
  reveal();
  addEventListener("hashchange", reveal);
})();

/* The squares of a paper are one stop of the tabulator key; arrows lead from one to the next. */
for (const strip of document.querySelectorAll(".verdict-strip")) {
  const squares = [...strip.querySelectorAll("a.vq")];
  squares.forEach((square, place) => (square.tabIndex = place ? -1 : 0));
  strip.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const place = squares.indexOf(document.activeElement);
    if (!step || place < 0 || !squares[place + step]) return;
    event.preventDefault();
    squares[place].tabIndex = -1;
    squares[place + step].tabIndex = 0;
    squares[place + step].focus();
  });
}
