// The page as a whole: one run, several, a list; live where there is a server behind it.
function overlaid() {
  const [first, ...others] = data.pages;
  if (!others.length) return first;
  const page = { ...first, charts: first.charts.map((chart) => ({ ...chart, lines: [...chart.lines] })) };
  for (const other of others) for (const chart of other.charts) {
    const same = page.charts.find((each) => each.title === chart.title);
    const lines = chart.lines.map((line) => Object.assign(line, { other: true, name: `${line.name} (${other.title})` }));
    if (same) same.lines.push(...lines); else page.charts.push({ ...chart, lines });
  }
  return page;
}
let shownPage = null;
function current() { return shownPage || (shownPage = overlaid()); }
function redraw() {
  const slot = document.getElementById("charts");
  if (slot) slot.replaceChildren(charts(current()));
}
// Another run to lay over this one; the server knows its address.
function comparison() {
  const box = make("select", { id: "compare", "aria-label": "Compare with another run",
    onchange: () => { location.href = box.value; } });
  for (const [name, href, chosen] of data.others) {
    const option = make("option", { value: href }, name); if (chosen) option.selected = true; box.append(option);
  }
  return box;
}
function show() {
  const page = current();
  const bar = make("header", { class: "bar" }, make("span", {}, make("b", {}, "holdfast"),
    data.live ? " · live" : ""), make("span", {},
    data.live && data.others ? make("a", { href: data.home || "./" }, "all runs") : null, " ",
    data.others && data.others.length ? comparison() : null, " ",
    make("button", { onclick: () => zoom(null), id: "reset" }, "Whole run"), " ",
    make("button", { id: "theme", onclick: () => {
      theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); show(); } }, "Dark / light")));
  root.replaceChildren(bar, head(page), make("div", { id: "flags" }, flagList(page)),
    make("div", { id: "charts" }), ...[goodput(page), make("div", { id: "maps" }), ...page.tables.map(plainTable), events(page),
      page.changed.length ? make("details", { open: "" }, make("summary", {}, `Configuration that differs from the last good run${page.comparedWith ? ` (${page.comparedWith})` : ""}`),
        make("div", { class: "scroll" }, table(["name", "here", "there"], page.changed))) : null,
      pairs("Configuration", page.config), pairs("Environment", page.environment),
      page.notes.length ? make("details", {}, make("summary", {}, "How this was read"),
        make("ul", {}, ...page.notes.map((note) => make("li", {}, note)))) : null].filter(Boolean));
  redraw();
}
// Several runs in one file: a table that leads to the page of each.
function choose() {
  const back = () => { data.pages = null; state.open = null; state.range = null; choose(); };
  const pick = (page) => { data.pages = [page]; shownPage = null; show(); scrollTo(0, 0);
    root.querySelector("header.bar span:last-child").prepend(make("button", { id: "all", onclick: back }, "All runs"), " "); };
  const words = { healthy: "healthy", unhealthy: "unhealthy", unknown: "cannot tell" };
  const counts = Object.keys(words).map((name) => [data.choice.filter((page) => page.verdict === name).length, words[name]]);
  root.replaceChildren(make("header", { class: "bar" }, make("span", {}, make("b", {}, "holdfast"))),
    make("h2", {}, `${data.choice.length} runs`),
    make("p", { class: "soft" }, counts.filter(([count]) => count).map(([count, word]) => `${count} ${word}`).join(" · ")),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {},
      ...["run", "verdict", "findings", ""].map((name) => make("th", {}, name)))),
    make("tbody", {}, ...data.choice.map((page) => make("tr", {},
      make("td", {}, make("button", { class: "link", onclick: () => pick(page) }, page.title)),
      make("td", { class: `word ${page.verdict}` }, words[page.verdict] || page.verdict),
      make("td", {}, String(page.flags.length)), make("td", {}, page.lead)))))));
}
function list() {
  root.replaceChildren(make("header", { class: "bar" }, make("span", {}, make("b", {}, "holdfast"))),
    make("h2", {}, "Runs"), make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...["run", "verdict", "steps", "goodput"].map((name) => make("th", {}, name)))),
      make("tbody", {}, ...data.runs.map((run) => make("tr", {}, make("td", {},
        make("a", { href: run.href }, run.name)), make("td", {}, run.verdict), make("td", {}, step(run.steps)),
        make("td", {}, run.goodput === null ? "–" : `${(100 * run.goodput).toFixed(1)}%`)))))));
}
// The next question is asked half a second after the last answer was drawn, later where answering takes long: a slow
// machine is not asked ever more.
async function poll(always) {
  const began = performance.now();
  try { await refresh(always); } catch { /* the server is gone, or busy: ask again */ }
  setTimeout(() => poll(false), Math.max(POLL, 2 * (performance.now() - began)));
}
async function refresh(always) {
  const [first, last] = state.range || ["", ""];
  const columns = Math.max(300, Math.min(1200, root.clientWidth));
  const small = innerWidth > PHONE ? Math.ceil(columns / 2) : columns;
  const answer = await fetch(`${data.live}&columns=${columns}&small=${small}&first=${first}&last=${last}`
    + (always ? "" : `&version=${encodeURIComponent(state.version || "")}`));
  if (answer.status !== 200) return;
  const found = await answer.json();
  state.version = found.version;
  data.pages = found.pages; shownPage = null;
  if (document.getElementById("charts")) {
    const opened = [...document.querySelectorAll("details[open] > summary")].map((node) => node.textContent);
    const top = scrollY; show();
    for (const node of document.querySelectorAll("details > summary"))
      if (opened.includes(node.textContent)) node.parentElement.open = true;
    scrollTo(0, top);
  } else show();
}

document.addEventListener("keydown", (press) => {
  if (press.ctrlKey || press.metaKey || press.altKey || !data.pages || /INPUT|TEXTAREA/.test(press.target.tagName)) return;
  const page = current(), [low, high] = state.range || limits(), middle = (low + high) / 2, width = high - low;
  const flags = page.flags.length;
  if (press.key === "0") zoom(null);
  else if (press.key === "+" || press.key === "=") zoom([middle - width / 4, middle + width / 4]);
  else if (press.key === "-") zoom([middle - width, middle + width]);
  else if (press.key === "ArrowLeft" && state.range) zoom([low - width / 4, high - width / 4]);
  else if (press.key === "ArrowRight" && state.range) zoom([low + width / 4, high + width / 4]);
  else if (press.key === "n" && flags) toggle(page, state.open === null ? 0 : (state.open + 1) % flags);
  else if (press.key === "Escape" && state.open !== null) toggle(page, state.open);
  else return;
  press.preventDefault();
});
let resizing = null;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => data.pages && redraw(), 150); });

theme(initialTheme());
if (data.runs) list();
else if (data.choice) choose();
else if (data.live) poll(true);
else show();
