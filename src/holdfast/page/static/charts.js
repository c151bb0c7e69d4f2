// The charts.
const marks = { hooks: { draw: (plot) => {
    const pen = plot.ctx, { left, top, width, height } = plot.bbox, ratio = devicePixelRatio || 1;
    const at = (value) => Math.round(plot.valToPos(value, "x", true));  // on whole pixels a line is sharp
    pen.save(); pen.beginPath(); pen.rect(left, top, width, height); pen.clip();
    current().flags.forEach((flag, place) => {
      if (flag.onset === null) return;
      const from = at(flag.onset), until = flag.last === null ? from : at(flag.last);
      pen.fillStyle = colour(SEVERITY[flag.severity] || "--soft");
      pen.globalAlpha = state.open === place ? 0.22 : 0.1;
      pen.fillRect(from, top, Math.max(until - from, 2 * ratio), height);
      pen.globalAlpha = 1; pen.fillRect(from, top, Math.ceil(ratio), height);
      if (flag.certain !== null) for (let y = top; y < top + height; y += 8 * ratio)
        pen.fillRect(at(flag.certain), y, Math.ceil(ratio), 4 * ratio);
    });
    pen.font = `${11 * ratio}px system-ui`; pen.textAlign = "center"; pen.fillStyle = colour("--bad");
    const within = (x) => Math.max(left + 6 * ratio, Math.min(left + width - 6 * ratio, x));  // not clipped at the edges
    for (const x of plot.broken || []) if (at(x) >= left && at(x) <= left + width) pen.fillText("✕", within(at(x)), top + 11 * ratio);
    pen.restore();
} } };
function isLogarithmic(chart) {
  if (state.logarithmic.has(chart.title)) return state.logarithmic.get(chart.title);
  const values = chart.lines.map(unpack).flatMap((line) => line.y).filter((value) => value !== null);
  const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), 0);
  return low > 0 && (chart.logarithmic || high / low > WIDE_RANGE);
}
const isPositive = (lines) => !lines.some((line) => line.y.some((value) => value !== null && value <= 0));
const joined = (lines) => lines.length === 1 ? [lines[0].x, lines[0].y]
  : uPlot.join(lines.map((line) => [line.x, line.y]), lines.map(() => [2]));
function draw(place, width, chart, plugins, height, synced) {
  const lines = chart.lines.map(unpack), ink = colour("--ink"), grid = colour("--line");
  const positive = isPositive(lines), logarithmic = isLogarithmic(chart);
  const axis = { stroke: ink, grid: { stroke: grid, width: FINE }, ticks: { stroke: grid }, font: "11px system-ui" };
  const plot = new uPlot({
    width: Math.max(width, 200), height, plugins,
    cursor: synced ? { y: false, sync: { key: "steps" }, drag: { x: true, y: false, setScale: false } } : { y: false },
    scales: { x: { time: false, ...(synced ? { range: () => state.range || extent() } : {}) },  // one axis for all charts
      y: logarithmic && positive ? { distr: 3 } : { range: (_, low, high) => low === 0 && high === 0 ? [0, 1] : uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true) } },
    axes: [{ ...axis, size: 36, values: (_, all) => stepTicks(all), ...(lines.every((line) => line.whole) ? { incrs: WHOLE } : {}) },
      { ...axis, size: (_, texts) => Math.max(62, 24 + 7 * Math.max(0, ...(texts || []).map((text) => text.length))), values: (_, all) => ticks(all), ...(logarithmic && positive ? { splits: decades, filter: (_, all) => all } : {}) }],
    legend: { markers: { dash: (self, number) => self.series[number].dash ? "dashed" : "solid" } },
    series: [{ label: "step", value: (_, v) => v === null || v === undefined ? "" : step(v) }, ...lines.map((line, number) => ({
      label: plain(line.name), stroke: line.faded ? colour("--soft") : colours()[number % ON_LIGHT.length], width: 1.4,
      spanGaps: true, dash: line.other || line.faded ? [6, 4] : undefined, value: (_, v) => v === null || v === undefined ? "" : shown(v), points: { show: (self) => !line.faded && self.data[0].length < 60 } }))],
    hooks: synced ? { setSelect: [(self) => {
      const { left, width } = self.select;  // the other charts follow the same drag and are updated at the end
      self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      if (width > 2 && self === state.dragged) zoom([self.posToVal(left, "x"), self.posToVal(left + width, "x")]);
    }] } : {},
  }, joined(lines), place);
  plot.broken = lines.flatMap((line) => line.broken);  // before the first drawing, which is asynchronous
  if (synced) {
    plot.over.addEventListener("mousedown", () => { state.dragged = plot; state.pointed = plot.posToVal(plot.cursor.left, "x"); });
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
  document.getElementById("reset").disabled = range === null;
  if (data.live) return refresh(true);
  state.plots.forEach(focusOn);
  requestAnimationFrame(drawLanes);
}
// Show `factor` times as many steps, around the mouse or the last tap; moved by `shift` of what is shown.
function zoomBy(factor, shift = 0) {
  const [low, high] = state.range || limits(), [first, last] = extent(), moved = shift * (high - low), width = (high - low) * factor;
  const under = state.plots.find((plot) => plot.cursor.left >= 0), pointed = under ? under.posToVal(under.cursor.left, "x") : state.pointed;
  const at = factor < 1 && pointed !== null && pointed >= low && pointed <= high ? pointed : (low + high) / 2;
  if (width >= 0.999 * (last - first)) return zoom(null);
  const start = Math.max(first, Math.min(last - width, at - (at - low) * factor + moved));
  return zoom([start, start + width]);
}
// The first and last step of the whole run, even if only a part of it was fetched.
function extent() {
  const known = data.pages.map((page) => page.extent).filter((each) => each !== null);
  const [first, last] = known.length ? [Math.min(...known.map((each) => each[0])), Math.max(...known.map((each) => each[1]))] : limits();
  return first < last ? [first, last] : [first - 0.5, first + 0.5];
}
function limits() {
  const all = current().charts.flatMap((chart) => chart.lines.map(unpack)).filter((line) => line.x.length);
  return [Math.min(...all.map((line) => line.x[0])), Math.max(...all.map((line) => line.x[line.x.length - 1]))];
}
// What a chart must be rebuilt for; anything else is new data for the existing one.
const shape = (page) => JSON.stringify([document.documentElement.dataset.theme, page.charts.map((chart) => [chart.title, isLogarithmic(chart),
  isPositive(chart.lines.map(unpack)), chart.lines.map((line) => [line.name, line.faded, line.other, line.whole])])]);
function renew(page) {
  state.lanes = [];
  const lanes = timeline(page), before = document.querySelector(".charts .timeline");
  if (lanes && before) before.replaceWith(lanes);
  else if (lanes || before) return false;
  page.charts.forEach((chart, number) => {
    state.plots[number].broken = chart.lines.flatMap((line) => line.broken);
    state.plots[number].setData(joined(chart.lines));
  });
  return true;
}
function charts(page) {
  const grid = make("div", { class: "charts" }), places = [], drawing = state.drawing = {};
  const { left, top } = (state.plots.find((plot) => plot.cursor.left >= 0) || { cursor: {} }).cursor;
  state.plots.forEach((plot) => plot.destroy()); state.plots = []; state.lanes = [];
  const lanes = timeline(page), heights = page.charts.map((_, number) => number ? CHART_HEIGHT : FIRST_CHART_HEIGHT);
  if (!page.charts.length && lanes) grid.append(lanes);
  page.charts.forEach((chart, number) => {
    const place = make("div", { class: "plot" });
    place.style.minHeight = `${heights[number] + LEGEND_HEIGHT}px`; places.push(place);
    const scale = make("button", { "aria-label": `Logarithmic scale for ${chart.title}`, "aria-pressed": String(isLogarithmic(chart)),
      onclick: () => { state.logarithmic.set(chart.title, !isLogarithmic(chart)); redraw(); } }, "log scale");
    grid.append(make("div", { class: number === 0 ? "chart wide" : "chart" },
      make("h3", {}, chart.title, scale), place, number ? null : lanes));
  });
  // What is in view is drawn first, the others in the next frame. Widths are read together: each read forces a layout.
  const next = (widths, from, many) => {
    if (state.drawing !== drawing) return;  // rebuilt in the meantime
    for (const number of places.keys()) if (number >= from && number < from + many) {
      const plot = draw(places[number], widths[number], page.charts[number], [marks], heights[number], true);
      if (left >= 0) plot.setCursor({ left, top }, false);  // the mouse has not moved
    }
    if (!from) requestAnimationFrame(drawLanes);  // once the first chart, whose axis they share, has its position
    if (from + many < places.length) requestAnimationFrame(() => next(widths, from + many, places.length));
  };
  requestAnimationFrame(() => {
    const widths = places.map((place) => place.clientWidth), seen = places.filter((place) => place.getBoundingClientRect().top < innerHeight).length;
    next(widths, 0, Math.max(1, seen));
  });
  return grid;
}
