// The charts.
function marks(page) {
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
    pen.font = `${11 * ratio}px system-ui`; pen.textAlign = "center"; pen.fillStyle = colour("--bad");
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
    axes: [{ ...axis, size: 36, values: (_, all) => stepTicks(all), ...(lines.every((line) => line.whole) ? { incrs: WHOLE } : {}) },
      { ...axis, size: 62, values: (_, all) => ticks(all), ...(logarithmic && positive ? { splits: decades, filter: (_, all) => all } : {}) }],
    series: [{ label: "step", value: (_, v) => v === null || v === undefined ? "–" : step(v) }, ...lines.map((line, number) => ({
      label: plain(line.name), stroke: line.faded ? colour("--soft") : colours()[number % ON_LIGHT.length], width: 1.4,
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
  requestAnimationFrame(drawLanes);
}
function limits() {
  const all = current().charts.flatMap((chart) => chart.lines.map(unpack)).filter((line) => line.x.length);
  return [Math.min(...all.map((line) => line.x[0])), Math.max(...all.map((line) => line.x[line.x.length - 1]))];
}
function charts(page) {
  const grid = make("div", { class: "charts" });
  const { left, top } = (state.plots.find((plot) => plot.cursor.left >= 0) || { cursor: {} }).cursor;
  state.plots.forEach((plot) => plot.destroy()); state.plots = []; state.lanes = [];
  const lanes = timeline(page);
  document.getElementById("maps").replaceChildren(...page.heatMaps.map(heatMap));
  if (!page.charts.length && lanes) grid.append(lanes);
  page.charts.forEach((chart, number) => {
    const place = make("div");
    const scale = make("button", { "aria-label": `Logarithmic scale for ${chart.title}`, "aria-pressed": String(isLogarithmic(chart)),
      onclick: () => { state.logarithmic.set(chart.title, !isLogarithmic(chart)); redraw(); } }, "log scale");
    grid.append(make("div", { class: number === 0 ? "chart wide" : "chart" },
      make("h3", {}, chart.title, scale), place, number ? null : lanes));
    requestAnimationFrame(() => {
      const plot = draw(place, chart, [marks(page)], number ? CHART_HEIGHT : FIRST_CHART_HEIGHT, true);
      if (left >= 0) plot.setCursor({ left, top }, false);  // the mouse is where it was
    });
  });
  requestAnimationFrame(drawLanes);  // after the charts, whose axis they share
  return grid;
}
