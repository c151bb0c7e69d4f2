// The parts of a page that are text, tables and strips.
function head(page, beside) {
  const words = { healthy: "HEALTHY", unhealthy: "UNHEALTHY", unknown: "CANNOT TELL" };
  return make("section", { class: `verdict ${page.verdict}` },
    make("div", { class: "word" }, words[page.verdict] || page.verdict),
    make("h1", {}, page.title), make("p", { class: "lead" }, page.lead),
    make("p", { class: "facts" }, page.facts.join(" · ")), ...beside.map((text) => make("p", { class: "facts" }, text)), page.command ? command(page.command) : null);
}

function flagList(page) {
  if (!page.flags.length) return null;
  const list = make("ul", { class: "flags" });
  page.flags.forEach((flag, place) => list.append(make("li", {}, make("button", {
    class: `flag ${flag.severity}`, "aria-expanded": String(state.open === place), "data-flag": place,
    onclick: () => toggle(page, place) }, flag.title,
    make("small", {}, flag.onset === null ? flag.severity : `${flag.severity} · step ${step(flag.onset)}`)))));
  const section = make("section", {}, make("h2", {}, page.flags.length === 1 ? "Finding" : "Findings"), list);
  if (state.open !== null && page.flags[state.open]) section.append(detail(page.flags[state.open]));
  return section;
}
const showFlags = (page) => fill("flags", [page.flags, state.open], () => flagList(page));
function toggle(page, place, open) {
  state.open = state.open === place && !open ? null : place;
  showFlags(page);
  const button = document.querySelector(`[data-flag="${place}"]`); if (button) button.focus();
  redraw();
}
const items = (title, texts) => texts.length
  ? [make("h3", {}, title), make("ul", {}, ...texts.map((text) => make("li", {}, text)))] : [];
function gauge(share) {
  const bar = make("i"); bar.style.width = `${Math.round(share * 100)}%`;
  return make("span", {}, make("span", { class: "gauge", role: "img",
    "aria-label": `${Math.round(share * 100)}%` }, bar), `${Math.round(share * 100)}%`);
}
function detail(flag) {
  const when = [];
  if (flag.onset !== null) when.push(`left its noise at step ${step(flag.onset)}`);
  if (flag.certain !== null) when.push(`certain at step ${step(flag.certain)}`);
  if (flag.last !== null) when.push(`last seen at step ${step(flag.last)}`);
  const box = make("div", { class: "detail", id: "detail" },
    make("p", { class: "soft" }, [flag.signal, ...when].filter(Boolean).join(" · "),
      make("span", {}, " · how sure:"), gauge(flag.confidence)),
    flag.advice && !flag.proof ? make("p", {}, flag.advice) : null, ...items("Evidence", flag.evidence));
  if (flag.suspects.length) {
    box.append(make("h3", {}, "Suspects"), make("div", { class: "scroll" }, stacked(table(
      ["source", "index", "score", "preview"],
      flag.suspects.map(([source, index, score, text]) => [source, step(index), shown(score), text]), 3), 4)));
  }
  if (flag.proof) {
    box.append(make("h3", {}, "Proof"), make("p", {}, flag.proofVerdict));
    const place = make("div"); box.append(place);
    requestAnimationFrame(() => draw(place, place.clientWidth, flag.proof, [], CHART_HEIGHT, false));
  }
  if (flag.command) box.append(make("h3", {}, flag.proof ? "Apply the cure" : "Find out more"), command(flag.command));
  if (flag.causes.length) {
    box.append(make("h3", {}, flag.proof ? "What the series alone suggest" : "Likely causes"));
    for (const [title, confidence, remedy, pro, con] of flag.causes) box.append(make("div", { class: "cause" },
      make("b", {}, title), gauge(confidence), make("div", {}, remedy),
      pro.length ? make("div", { class: "soft" }, `for: ${pro.join("; ")}`) : null,
      con.length ? make("div", { class: "soft" }, `against: ${con.join("; ")}`) : null));
  }
  return box;
}
// A table whose last column is a long text, which gets a separate line on a narrow screen.
function stacked(found, columns) {
  found.className = "stacked"; found.style.setProperty("--columns", columns - 1);
  return found;
}
function table(heads, rows, preview) {
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", {}, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, place) =>
      make("td", place === preview ? { class: "preview" } : {}, cell))))));
}
function goodput(page) {
  const total = page.goodput.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!total) return null;
  const strip = make("div", { class: "strip", role: "img", "aria-label": "Where the time went" });
  const key = make("div", { class: "key" });
  page.goodput.forEach(([name, seconds], place) => {
    const part = make("i", { title: `${name}: ${shown(seconds)} s` });
    part.style.width = `${100 * seconds / total}%`; part.style.background = colours()[place % ON_LIGHT.length];
    strip.append(part);
    const square = make("b"); square.style.background = colours()[place % ON_LIGHT.length];
    if (seconds) key.append(make("span", {}, square, `${name} ${(100 * seconds / total).toFixed(1)}%`));
  });
  return make("section", {}, make("h2", {}, "Where the time went"), strip, key);
}
function events(page) {
  if (!page.events.length) return null;
  return make("details", {}, make("summary", {}, `Events (${page.events.length})`),
    make("div", { class: "scroll" }, table(["step", "what", "", ""],
      page.events.map(([at, kind, text, known]) => [step(at), `${EVENT_MARKS[kind] || "•"} ${kind}`, known, text]))));
}
function pairs(title, entries) {
  const rows = Object.entries(entries);
  return rows.length ? make("details", {}, make("summary", {}, `${title} (${rows.length})`),
    make("div", { class: "scroll" }, table(["name", "value"], rows))) : null;
}
const plainTable = (found) => make("section", {}, make("h2", {}, found.title), make("div", { class: "scroll" }, table(found.heads, found.rows)),
  found.note ? make("p", { class: "soft" }, found.note) : null);
