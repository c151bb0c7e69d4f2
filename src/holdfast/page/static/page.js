"use strict";
// Draws the pages in the data block. Text from logs and samples enters the document through textContent only.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("page");
  // Okabe and Ito's colours: told apart with any colour vision.
  const ON_LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6f00", "#666666"];
  const ON_DARK = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999"];
  const colours = () => document.documentElement.dataset.theme === "dark" ? ON_DARK : ON_LIGHT;
  const SEVERITY = { critical: "--bad", warning: "--warn", info: "--accent" };
  const EVENT_MARKS = { checkpoint: "◆", restart: "↻", resize: "⇔", rollback: "↩", skip: "⤼", mask: "⤼", alert: "!" };
  const FINE = 0.5, CHART_HEIGHT = 190, FIRST_CHART_HEIGHT = 260;
  const WHOLE = Array.from({ length: 36 }, (_, place) => [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3));
  const WIDE_RANGE = 1e3;  // from this ratio of largest to smallest on, a linear scale hides most of a line
  const state = { plots: [], range: null, open: null, logarithmic: new Map(), dragged: null, version: null };

  function make(tag, options, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(options || {})) {
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value);
    }
    for (const child of children) if (child !== null && child !== undefined && child !== "")
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    return node;
  }
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = (value) => value === null || value === undefined ? "–" : !Number.isFinite(value) ? String(value)
    : value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7) ? value.toExponential(3)
    : Number(value.toPrecision(6)).toLocaleString("en");
  // The shortest way to write the ticks of an axis that tells them apart.
  function ticks(values) {
    const ways = [2, 3, 4, 6, 9].flatMap((digits) => [
      (v) => Math.abs(v) >= 1e-3 && Math.abs(v) < 1e5 || v === 0 ? Number(v.toPrecision(digits)).toLocaleString("en")
        : v.toExponential(Math.max(0, digits - 2)).replace("e+", "e")]);
    const written = ways.map((way) => values.map((v) => v === null ? "" : way(v)));
    const distinct = new Set(values.filter((v) => v !== null)).size;
    return written.find((texts) => new Set(texts.filter(Boolean)).size === distinct) || written[written.length - 1];
  }
  // Ticks of a logarithmic axis: whole powers of ten, at most about six; the ends where there are fewer than two.
  function decades(plot) {
    const { min, max } = plot.scales.y, low = Math.ceil(Math.log10(min) - 1e-9), high = Math.floor(Math.log10(max) + 1e-9);
    if (high <= low) return [min, max];
    const by = Math.ceil((high - low + 1) / 6);
    return Array.from({ length: Math.floor((high - low) / by) + 1 }, (_, place) => Number(`1e${low + place * by}`));
  }
  const stepTicks = (values) => {
    const short = values.map((v) => v.toLocaleString("en", { notation: "compact" }));
    return new Set(short).size === short.length ? short : values.map((v) => v.toLocaleString("en"));
  };
  const step = (value) => value === null || value === undefined ? "?" : Number(value).toLocaleString("en");

  function theme(name) {
    document.documentElement.dataset.theme = name;
    try { localStorage.setItem("holdfast-theme", name); } catch { /* a mailed file may have no storage */ }
  }
  function initialTheme() {
    try { const kept = localStorage.getItem("holdfast-theme"); if (kept) return kept; } catch { /* likewise */ }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  function bytes(text) { return Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer; }
  function unpack(line) {
    if (line.x) return line;
    if (line.whole) {
      let step = line.first;
      const gaps = new (line.gap_bytes === 2 ? Uint16Array : Uint32Array)(bytes(line.steps));
      line.x = Array.from(gaps, (gap) => step += gap);
    } else line.x = Array.from(new Float64Array(bytes(line.steps)), (offset) => line.first + offset);
    const values = new Float32Array(bytes(line.values));
    line.y = Array.from(values, (value) => Number.isFinite(value) ? value : null);
    line.broken = line.x.filter((_, place) => !Number.isFinite(values[place]));
    return line;
  }

  async function copy(text) {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = make("textarea"); area.value = text; document.body.append(area); area.select();
      document.execCommand("copy"); area.remove();
    }
    const toast = make("div", { class: "toast", role: "status" }, "Copied");
    document.body.append(toast); setTimeout(() => toast.remove(), 1200);
  }
  const command = (text) => make("div", { class: "command" }, make("code", { tabindex: "0" }, text),
    make("button", { onclick: () => copy(text), "aria-label": "Copy the command" }, "Copy"));

  // --- the parts of a page ---------------------------------------------------------------------------------------

  function head(page) {
    const words = { healthy: "HEALTHY", unhealthy: "UNHEALTHY", unknown: "CANNOT TELL" };
    return make("section", { class: `verdict ${page.verdict}` },
      make("div", { class: "word" }, words[page.verdict] || page.verdict),
      make("h1", {}, page.title), make("p", { class: "lead" }, page.lead),
      make("p", { class: "facts" }, page.facts.join(" · ")), page.command ? command(page.command) : null);
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
  function toggle(page, place) {
    state.open = state.open === place ? null : place;
    document.getElementById("flags").replaceChildren(flagList(page) || "");
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
      box.append(make("h3", {}, "Suspects"), make("div", { class: "scroll" }, table(
        ["source", "index", "score", "preview"],
        flag.suspects.map(([source, index, score, text]) => [source, step(index), shown(score), text]), 3)));
    }
    if (flag.proof) {
      box.append(make("h3", {}, "Proof"), make("p", {}, flag.proofVerdict));
      const place = make("div"); box.append(place);
      requestAnimationFrame(() => draw(place, flag.proof, [], CHART_HEIGHT, false));
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
      make("div", { class: "scroll" }, table(["step", "what", ""],
        page.events.map(([at, kind, text]) => [step(at), `${EVENT_MARKS[kind] || "•"} ${kind}`, text]))));
  }
  function pairs(title, entries) {
    const rows = Object.entries(entries);
    return rows.length ? make("details", {}, make("summary", {}, `${title} (${rows.length})`),
      make("div", { class: "scroll" }, table(["name", "value"], rows))) : null;
  }
  function heatMap(map) {
    const canvas = make("canvas", { class: "heat", role: "img", "aria-label": map.title });
    const values = new Float32Array(bytes(map.values)), rows = map.rows.length, columns = map.steps.length;
    const high = 14; canvas.width = Math.max(columns, 2); canvas.height = Math.max(rows * high, high);
    canvas.style.height = `${rows * high}px`;
    const finite = values.filter((value) => Number.isFinite(value) && value > 0).map(Math.log10);
    const low = finite.reduce((a, b) => Math.min(a, b), Infinity), top = finite.reduce((a, b) => Math.max(a, b), -Infinity);
    const pen = canvas.getContext("2d");
    for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) {
      const value = values[row * columns + column];
      const share = value > 0 ? (Math.log10(value) - low) / Math.max(top - low, 1e-9) : 0;
      pen.fillStyle = Number.isFinite(value) ? `hsl(${230 - 190 * share} 70% ${25 + 45 * share}%)` : colour("--bad");
      pen.fillRect(column, row * high, 1, high - 1);
    }
    canvas.addEventListener("mousemove", (move) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.min(rows - 1, Math.floor((move.clientY - box.top) / box.height * rows));
      const column = Math.min(columns - 1, Math.floor((move.clientX - box.left) / box.width * columns));
      canvas.title = `${map.rows[row]} · step ${step(map.steps[column])}: ${shown(values[row * columns + column])}`;
    });
    return make("section", {}, make("h2", {}, map.title), canvas,
      make("p", { class: "soft" }, `${rows} rows, ${shown(10 ** low)} (dark) to ${shown(10 ** top)} (light)`));
  }

  // --- charts ----------------------------------------------------------------------------------------------------

  function marks(page, withEvents) {
    return { hooks: { draw: (plot) => {
      const pen = plot.ctx, { left, top, width, height } = plot.bbox, ratio = devicePixelRatio || 1;
      const at = (value) => Math.round(plot.valToPos(value, "x", true));  // on whole pixels a line is sharp
      pen.save(); pen.beginPath(); pen.rect(left, top, width, height); pen.clip();
      page.flags.forEach((flag, place) => {
        if (flag.onset === null) return;
        const from = at(flag.onset), until = flag.last === null ? from : at(flag.last);
        pen.fillStyle = colour(SEVERITY[flag.severity] || "--soft");
        pen.globalAlpha = state.open === place ? 0.22 : 0.1;
        pen.fillRect(from, top, Math.max(until - from, 2 * ratio), height);
        pen.globalAlpha = 1; pen.fillRect(from, top, Math.ceil(ratio), height);
        if (flag.certain !== null) for (let y = top; y < top + height; y += 8 * ratio)
          pen.fillRect(at(flag.certain), y, Math.ceil(ratio), 4 * ratio);
      });
      pen.font = `${11 * ratio}px system-ui`; pen.textAlign = "center"; pen.fillStyle = colour("--soft");
      for (const [where, kind] of withEvents ? page.events : [])
        pen.fillText(EVENT_MARKS[kind] || "•", at(where), top + height - 3 * ratio);
      pen.fillStyle = colour("--bad");
      for (const x of plot.broken || []) pen.fillText("✕", at(x), top + 11 * ratio);
      pen.restore();
    } } };
  }
  function isLogarithmic(chart) {
    if (state.logarithmic.has(chart.title)) return state.logarithmic.get(chart.title);
    const values = chart.lines.map(unpack).flatMap((line) => line.y).filter((value) => value !== null);
    const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), 0);
    return low > 0 && (chart.logarithmic || high / low > WIDE_RANGE);
  }
  function draw(place, chart, plugins, height, synced) {
    const lines = chart.lines.map(unpack), ink = colour("--ink"), grid = colour("--line");
    const joined = lines.length === 1 ? [lines[0].x, lines[0].y]
      : uPlot.join(lines.map((line) => [line.x, line.y]), lines.map(() => [2]));
    const positive = !lines.some((line) => line.y.some((value) => value !== null && value <= 0));
    const logarithmic = isLogarithmic(chart);
    const axis = { stroke: ink, grid: { stroke: grid, width: FINE }, ticks: { stroke: grid }, font: "11px system-ui" };
    const plot = new uPlot({
      width: Math.max(place.clientWidth, 200), height, plugins,
      cursor: synced ? { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false } } : {},
      scales: { x: { time: false }, y: logarithmic && positive ? { distr: 3 } : {} },
      axes: [{ ...axis, values: (_, all) => stepTicks(all), ...(lines.every((line) => line.whole) ? { incrs: WHOLE } : {}) },
        { ...axis, size: 62, values: (_, all) => ticks(all), ...(logarithmic && positive ? { splits: decades, filter: (_, all) => all } : {}) }],
      series: [{ label: "step", value: (_, v) => v === null || v === undefined ? "–" : step(v) }, ...lines.map((line, number) => ({
        label: line.name, stroke: line.faded ? colour("--soft") : colours()[number % ON_LIGHT.length], width: 1.4,
        spanGaps: true, dash: line.other || line.faded ? [6, 4] : undefined, value: (_, v) => shown(v), points: { show: !line.faded && line.x.length < 60 } }))],
      hooks: synced ? { setSelect: [(self) => {
        const { left, width } = self.select;  // the other charts follow the same drag and are told at the end
        self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        if (width > 2 && self === state.dragged) zoom([self.posToVal(left, "x"), self.posToVal(left + width, "x")]);
      }] } : {},
    }, joined, place);
    plot.broken = lines.flatMap((line) => line.broken);  // before the first drawing, which comes a moment later
    if (synced) {
      plot.over.addEventListener("mousedown", () => { state.dragged = plot; });
      plot.over.addEventListener("dblclick", () => zoom(null));
      state.plots.push(plot);
      if (state.range) focusOn(plot);
    }
    return plot;
  }
  function focusOn(plot) {
    const [min, max] = state.range || limits();
    plot.setScale("x", { min, max });
  }
  async function zoom(range) {
    state.range = range;
    if (data.live) return refresh(true);
    state.plots.forEach(focusOn);
  }
  function limits() {
    const all = current().charts.flatMap((chart) => chart.lines.map(unpack)).filter((line) => line.x.length);
    return [Math.min(...all.map((line) => line.x[0])), Math.max(...all.map((line) => line.x[line.x.length - 1]))];
  }
  function charts(page) {
    const grid = make("div", { class: "charts" });
    state.plots.forEach((plot) => plot.destroy()); state.plots = [];
    page.charts.forEach((chart, number) => {
      const place = make("div");
      const scale = make("button", { "aria-label": `Logarithmic scale for ${chart.title}`, onclick: () => {
        state.logarithmic.set(chart.title, !isLogarithmic(chart)); redraw(); } }, isLogarithmic(chart) ? "linear" : "log");
      grid.append(make("div", { class: number === 0 ? "chart wide" : "chart" },
        make("h3", {}, chart.title, scale), place));
      requestAnimationFrame(() => draw(place, chart, [marks(page, !number)], number ? CHART_HEIGHT : FIRST_CHART_HEIGHT, true));
    });
    return grid;
  }

  // --- the whole -------------------------------------------------------------------------------------------------

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
      make("div", { id: "charts" }), ...[goodput(page), ...page.heatMaps.map(heatMap), events(page),
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
  // The next question is asked a second after the last answer was drawn, so that a slow machine is not asked ever more.
  async function poll(always) {
    try { await refresh(always); } catch { /* the server is gone, or busy: ask again */ }
    setTimeout(() => poll(false), 1000);
  }
  async function refresh(always) {
    const [first, last] = state.range || ["", ""];
    const columns = Math.max(300, Math.min(1200, root.clientWidth));
    const answer = await fetch(`${data.live}&columns=${columns}&first=${first}&last=${last}`
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
})();
