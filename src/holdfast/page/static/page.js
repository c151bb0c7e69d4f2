// The whole page: one run, several, or a list; live if there is a server.
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
function redraw(always) {
  const slot = document.getElementById("charts"), page = current();
  if (!slot) return;
  document.getElementById("maps").replaceChildren();
  const before = state.shape, same = !always && state.plots.length === page.charts.length && page.charts.length > 0;
  state.shape = shape(page);
  if (same && before === state.shape && renew(page)) {
    document.getElementById("maps").replaceChildren(...page.heatMaps.map(heatMap));
    requestAnimationFrame(drawLanes);
    return;
  }
  slot.style.minHeight = `${slot.offsetHeight}px`;  // the charts are drawn asynchronously: what is below must not move
  slot.replaceChildren(charts(page));
  document.getElementById("maps").replaceChildren(...page.heatMaps.map(heatMap));
  requestAnimationFrame(() => requestAnimationFrame(() => { slot.style.minHeight = ""; }));
}
// Another run to overlay; the server knows its address.
function comparison() {
  const box = make("select", { id: "compare", "aria-label": "Compare with another run",
    onchange: () => { location.href = box.value; } });
  for (const [name, href, chosen] of data.others) {
    const option = make("option", { value: href }, name); if (chosen) option.selected = true; box.append(option);
  }
  return box;
}
// Part of the page, rebuilt only when its content has changed: a live page must not disturb what is being
// read, chosen, typed into or selected. After a rebuild, the focus and opened folds are kept.
const built = new WeakMap();
const FOCUSABLE = "a, button, select, summary, code[tabindex]";
function fill(id, content, build) {
  const slot = document.getElementById(id), key = JSON.stringify([document.documentElement.dataset.theme, content]);
  if (built.get(slot) === key) return;
  built.set(slot, key);
  const focused = [...slot.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  const wasOpen = slot.querySelector("details") ? slot.querySelector("details").open : null;
  slot.replaceChildren(...[build()].flat().filter(Boolean));
  const fold = slot.querySelector("details");
  if (fold && wasOpen !== null) fold.open = wasOpen;
  if (focused >= 0) slot.querySelectorAll(FOCUSABLE)[focused]?.focus({ preventScroll: true });
}
const themeButton = (redrawn) => make("button", { id: "theme", onclick: () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); redrawn(); } }, "Dark / light");
const bareBar = (redrawn) => make("header", { class: "bar" }, make("span", {}, make("b", {}, "holdfast"), data.list ? " · live" : ""), themeButton(redrawn));
function topBar() {
  return make("header", { class: "bar" }, make("span", {}, make("b", {}, "holdfast"),
    data.live ? " · live" : ""), make("span", {},
    data.live && data.others ? make("a", { href: data.home || "./" }, "all runs") : null, " ",
    data.others && data.others.length ? comparison() : null, " ",
    make("button", { onclick: () => zoomBy(2), "aria-label": "Zoom out", title: "Zoom out" }, "−"), " ",
    make("button", { onclick: () => zoomBy(0.5), "aria-label": "Zoom in", title: "Zoom in, around the mouse or the last tap" }, "+"), " ",
    make("button", { onclick: () => zoom(null), id: "reset", ...(state.range ? {} : { disabled: "" }) }, "Whole run"), " ",
    themeButton(show)));
}
const KEYS = [["+", "-", "zoom"], ["←", "→", "move"], ["0", "whole run"], ["n", "next finding"], ["Esc", "close it"]];
const foot = () => make("footer", { class: "soft" }, "Drag over a chart to zoom, double-click for the whole run.", make("span", { class: "keys" },
  ...KEYS.map((row) => make("span", {}, ...row.slice(0, -1).map((key) => make("kbd", {}, key)), ` ${row.at(-1)}`))));
const SLOTS = ["head", "flags", "charts", "goodput", "maps", "tables", "events", "changed", "config", "environment", "notes"];
function show() {
  const page = current();
  if (!document.getElementById("charts")) root.replaceChildren(topBar(), ...SLOTS.map((id) => make("div", { id })), foot());
  const beside = data.pages.slice(1).map((other) => `dashed: ${other.title}, ${VERDICTS[other.verdict] || other.verdict}, ${other.facts.join(" · ")}`);
  fill("head", [page.verdict, page.title, page.lead, page.facts, page.command, beside], () => head(page, beside));
  showFlags(page);
  fill("goodput", page.goodput, () => goodput(page));
  fill("tables", page.tables, () => page.tables.map(plainTable));
  fill("events", page.events, () => events(page));
  fill("changed", page.changed, () => page.changed.length ? make("details", page.changed.length <= OPEN_ROWS ? { open: "" } : {}, make("summary", {}, `Configuration that differs from the last good run${page.comparedWith ? ` (${page.comparedWith})` : ""}`),
    make("div", { class: "scroll" }, table(["name", "here", "there"], page.changed))) : null);
  fill("config", page.config, () => pairs("Configuration", page.config));
  fill("environment", page.environment, () => pairs("Environment", page.environment));
  fill("notes", page.notes, () => page.notes.length ? make("details", {}, make("summary", {}, "How this was read"),
    make("ul", {}, ...page.notes.map((note) => make("li", {}, note)))) : null);
  redraw();
}
const VERDICTS = { healthy: "healthy", unhealthy: "unhealthy", unknown: "cannot tell" };
// Several runs in one file: a table with links to the page of each.
function choose() {
  const back = () => { data.pages = null; state.open = null; state.range = null; choose(); };
  const pick = (page) => { data.pages = [page]; shownPage = null; show(); scrollTo(0, 0);
    root.querySelector("header.bar span:last-child").prepend(make("button", { id: "all", onclick: back }, "All runs"), " "); };
  const counts = Object.keys(VERDICTS).map((name) => [data.choice.filter((page) => page.verdict === name).length, VERDICTS[name]]);
  root.replaceChildren(bareBar(() => {}), make("h2", {}, `${data.choice.length} runs`),
    make("p", { class: "soft" }, counts.filter(([count]) => count).map(([count, word]) => `${count} ${word}`).join(" · ")),
    make("div", { class: "scroll" }, stacked(make("table", {}, make("thead", {}, make("tr", {},
      ...["run", "verdict", "findings", ""].map((name) => make("th", {}, name)))),
    make("tbody", {}, ...data.choice.map((page) => make("tr", {},
      make("td", {}, make("button", { class: "link", onclick: () => pick(page) }, page.title)),
      make("td", { class: `word ${page.verdict}` }, VERDICTS[page.verdict] || page.verdict),
      make("td", {}, String(page.flags.length)), make("td", {}, page.lead))))), 4)));
}
function list() {
  if (!document.getElementById("runs")) root.replaceChildren(bareBar(list), make("h2", {}, "Runs"), make("div", { class: "scroll", id: "runs" }));
  fill("runs", data.runs, () => stacked(make("table", {},
    make("thead", {}, make("tr", {}, ...["run", "verdict", "last step", "goodput", ""].map((name) => make("th", name === "goodput" ? { title: "The share of the wall time that went into steps" } : {}, name)))),
    make("tbody", {}, ...data.runs.map((run) => make("tr", {}, make("td", {},
      make("a", { href: run.href }, run.name)), make("td", { class: `word ${run.verdict}` }, VERDICTS[run.verdict] || run.verdict),
      make("td", {}, step(run.steps)), make("td", {}, run.goodput === null || run.goodput === undefined ? "–" : `${(100 * run.goodput).toFixed(1)}%`),
      make("td", {}, run.lead))))), 5));
}
async function refreshList() {
  const answer = await fetch(data.list);
  if (answer.status !== 200) return;
  data.runs = await answer.json(); list();
}
// The next request is sent half a second after the last answer was drawn, and later if answering took longer: a
// slow machine is busy with the page at most half of the time. Reading a run for the first time does not count.
async function poll(ask, pause, always) {
  const began = performance.now();
  try { if (!state.held) await ask(always); } catch { /* the server is gone, or busy: ask again */ }
  setTimeout(() => poll(ask, pause, false), always ? pause : Math.max(pause, performance.now() - began));
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
  show();
}
// Nothing is rebuilt while the mouse drags or selects.
addEventListener("pointerdown", () => { state.held = true; });
for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, () => { state.held = false; });

document.addEventListener("keydown", (press) => {
  if (press.ctrlKey || press.metaKey || press.altKey || !data.pages || /INPUT|SELECT|TEXTAREA/.test(press.target.tagName)) return;
  const page = current(), flags = page.flags.length;
  if (press.key === "0") zoom(null);
  else if (press.key === "+" || press.key === "=") zoomBy(0.5);
  else if (press.key === "-") zoomBy(2);
  else if (press.key === "ArrowLeft" && state.range) zoomBy(1, -0.25);
  else if (press.key === "ArrowRight" && state.range) zoomBy(1, 0.25);
  else if (press.key === "n" && flags) toggle(page, state.open === null ? 0 : (state.open + 1) % flags);
  else if (press.key === "Escape" && state.open !== null) toggle(page, state.open);
  else return;
  press.preventDefault();
});
let resizing = null;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => data.pages && redraw(true), 150); });

// The token is now a cookie: remove it from the visible URL.
if (new URLSearchParams(location.search).has("token")) {
  const bare = new URL(location.href); bare.searchParams.delete("token"); history.replaceState(null, "", bare);
}
theme(initialTheme());
if (data.runs) { list(); if (data.list) setTimeout(() => poll(refreshList, POLL_LIST), POLL_LIST); }
else if (data.choice) choose();
else if (data.live) poll(refresh, POLL, true);
else show();
