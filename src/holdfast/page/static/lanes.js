// What shares the axis of steps with the charts: findings, events, where the time went, heat maps.
function shade(share) {
  const place = Math.max(0, Math.min(1, share)) * (SCALE.length - 1), low = Math.min(SCALE.length - 2, Math.floor(place));
  return `rgb(${SCALE[low].map((part, at) => Math.round(part + (SCALE[low + 1][at] - part) * (place - low)))})`;
}
// A row between the ends of the first chart's axis; `paint` draws it, `say` describes what is under the mouse.
function lane(label, height, paint, say) {
  const canvas = make("canvas", { role: "img", "aria-label": label });
  const row = make("div", { class: "lane" }, make("span", { class: "label", title: label }, label), canvas);
  state.lanes.push(() => {
    const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
    if (!width) return;
    canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
    const [low, high] = shownRange(), pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    paint(pen, (at) => (at - low) / Math.max(high - low, 1e-9) * width, width, height);
  });
  canvas.addEventListener("mousemove", (move) => {
    const box = canvas.getBoundingClientRect(), [low, high] = shownRange(), wide = (high - low) / box.width;
    canvas.title = say(low + (move.clientX - box.left) * wide, 6 * wide, (move.clientY - box.top) / box.height);
  });
  return row;
}
function shownRange() {
  const { min, max } = state.plots[0] ? state.plots[0].scales.x : {};
  return min === undefined || min === null ? state.range || limits() : [min, max];
}
function drawLanes() {
  if (state.plots[0]) {
    const box = state.plots[0].over.getBoundingClientRect(), whole = root.getBoundingClientRect();
    const left = box.left - whole.left - parseFloat(getComputedStyle(root).paddingLeft);
    root.style.setProperty("--axis-left", `${left}px`); root.style.setProperty("--axis-width", `${box.width}px`);
  }
  state.lanes.forEach((drawLane) => drawLane());
}
function eventLane(label, events, mark) {
  return lane(label, 20, (pen, at, width) => {
    pen.font = "13px system-ui"; pen.textAlign = "center"; pen.textBaseline = "middle";
    const [low, high] = shownRange();
    for (const event of events) {
      const x = at(event[0]), [sign, tint] = mark(event);
      if (event[0] < low || event[0] > high + 1) continue;  // what comes after the last step is drawn at its edge
      pen.fillStyle = colour(tint); pen.fillText(sign, Math.max(6, Math.min(width - 6, x)), 11);
    }
  }, (at, reach) => events.filter(([where]) => Math.abs(where - at) <= reach).slice(0, 6).map(([where, kind, text, known]) =>
    `step ${step(where)} · ${kind}${known ? `, ${known}` : ""}: ${text}`).join("\n"));
}
function flagLane(page) {
  const rail = make("div", { class: "rail" });
  page.flags.forEach((flag, place) => {
    if (flag.onset === null) return;
    const pin = make("button", { class: `pin ${flag.severity}`, title: `${flag.title} · from step ${step(flag.onset)}`,
      "aria-label": `${flag.title}, step ${step(flag.onset)}`, onclick: () => toggle(page, place, true) }, "⚑");
    rail.append(pin);
    state.lanes.push(() => {
      const [low, high] = shownRange(), share = (flag.onset - low) / Math.max(high - low, 1e-9);
      pin.hidden = share < 0 || share > 1; pin.style.left = `clamp(11px, ${100 * share}%, calc(100% - 11px))`;
    });
  });
  return make("div", { class: "lane" }, make("span", { class: "label" }, "findings"), rail);
}
function stripLane(page) {
  const { steps, seconds } = page.strip, parts = seconds.map((text) => new Float32Array(bytes(text)));
  return lane("time", 22, (pen, at, width, height) => {
    for (let column = 0; column + 1 < steps.length; column++) {
      const left = at(steps[column]), wide = at(steps[column + 1]) - left;
      const all = parts.reduce((sum, part) => sum + part[column], 0);
      let top = height;
      parts.forEach((part, place) => {
        const high = all ? part[column] / all * height : 0;
        pen.fillStyle = colours()[place % ON_LIGHT.length]; pen.fillRect(left, top - high, wide + 0.6, high); top -= high;
      });
    }
  }, (at) => {
    const column = steps.findIndex((edge, place) => at >= edge && at < steps[place + 1]);
    return column < 0 ? "" : `steps ${step(steps[column])} to ${step(steps[column + 1] - 1)}\n` + page.goodput.map(([name], place) =>
      [name, parts[place][column]]).filter(([, spent]) => spent).map(([name, spent]) => `${name} ${shown(spent)} s`).join("\n");
  });
}
function timeline(page) {
  const saved = page.events.filter(([, kind]) => kind === "checkpoint"), others = page.events.filter(([, kind]) => kind !== "checkpoint");
  const box = make("div", { class: "timeline" });
  if (page.flags.some((flag) => flag.onset !== null)) box.append(flagLane(page));
  if (saved.length) box.append(eventLane("saved", saved, ([, , , known]) => CHECKPOINTS[known] || CHECKPOINTS.saved));
  if (others.length) box.append(eventLane("events", others, ([, kind]) => [EVENT_MARKS[kind] || "•", "--ink"]));
  if (page.goodput.length) box.append(stripLane(page));
  const known = [...new Set(saved.map((event) => event[3]))].filter((word) => CHECKPOINTS[word]);
  const kinds = [...new Set(others.map((event) => event[1]))].slice(0, 12);
  const spent = page.goodput.map(([name, seconds], place) => [name, seconds, place]).filter(([, seconds]) => seconds);
  if (known.length || kinds.length || spent.length) box.append(make("div", { class: "key soft" }, ...known.map((word) => {
    const sign = make("span", {}, CHECKPOINTS[word][0]); sign.style.color = colour(CHECKPOINTS[word][1]);
    return make("span", {}, sign, ` checkpoint ${word}`);
  }), ...kinds.map((kind) => make("span", {}, `${EVENT_MARKS[kind] || "•"} ${kind}`)),
  ...spent.map(([name, , place]) => {
    const square = make("b"); square.style.background = colours()[place % ON_LIGHT.length];
    return make("span", {}, square, name);
  })));
  return box.childElementCount ? box : null;
}
// Distinct labels for the rows of a map: their names without the common prefix and suffix.
function shortened(names) {
  const parts = names.map((name) => name.split(".")), shortest = Math.min(...parts.map((each) => each.length));
  const same = (at) => parts.every((each) => each.at(at) === parts[0].at(at));
  let first = 0, last = 0;
  while (names.length > 1 && first < shortest - 1 && same(first)) first++;
  while (names.length > 1 && last < shortest - 1 - first && same(-1 - last)) last++;
  return parts.map((each) => each.slice(first, each.length - last).join("."));
}
function heatMap(map) {
  const values = new Float32Array(bytes(map.values)), rows = map.rows.length, columns = Math.max(map.steps.length - 1, 0);
  const high = rows > 24 ? 8 : 16, logs = Float64Array.from(values, (value) => value > 0 ? Math.log10(value) : NaN);
  const low = logs.reduce((a, b) => b < a ? b : a, Infinity), top = logs.reduce((a, b) => b > a ? b : a, -Infinity);
  const share = (place) => values[place] > 0 ? (logs[place] - low) / Math.max(top - low, 1e-9) : 0;
  const row = lane(map.title, rows * high, (pen, at) => {
    for (let column = 0; column < columns; column++) for (let number = 0; number < rows; number++) {
      const place = number * columns + column, left = at(map.steps[column]);
      if (Number.isNaN(values[place])) continue;
      pen.fillStyle = Number.isFinite(values[place]) ? shade(share(place)) : colour("--bad");
      pen.fillRect(left, number * high, at(map.steps[column + 1]) - left + 0.6, high - 1);
    }
    pen.strokeStyle = colour("--bad"); pen.lineWidth = 2;
    for (const [number, first, last] of map.marks)
      pen.strokeRect(at(first) - 2, number * high, Math.max(at(last + 1) - at(first) + 4, 6), high - 1);
  }, (at, reach, down) => {
    const number = Math.max(0, Math.min(rows - 1, Math.floor(down * rows)));
    const column = map.steps.findIndex((edge, place) => at >= edge && at < map.steps[place + 1]);
    const marked = map.marks.filter(([own, first, last]) => own === number && at >= first - reach && at <= last + reach);
    return [column < 0 ? map.rows[number] : `${map.rows[number]} · step ${step(map.steps[column])}: ${shown(values[number * columns + column])}`,
      ...marked.map((mark) => mark[3])].join("\n");
  });
  row.lastChild.classList.add("heat");
  row.firstChild.replaceWith(make("span", { class: "label rows", "aria-hidden": "true" }, ...shortened(map.rows).map((name, place) => {
    const line = make("span", { title: map.rows[place] }, make("bdi", {}, name));
    line.style.height = `${high}px`; if (rows > 24) line.style.fontSize = "7px";
    return line;
  })));
  const told = [...new Set(map.marks.map((mark) => mark[3]))].slice(0, 8);
  return make("section", {}, make("h2", {}, map.title), map.note ? make("p", { class: "soft" }, map.note) : null, row,
    told.length ? make("ul", { class: "soft marks" }, ...told.map((text) => make("li", {}, text))) : null,
    Number.isFinite(low) ? make("p", { class: "soft" }, (rows === 1 ? "1 row, " : `${rows} rows, `)
      + (low === top ? `all ${shown(10 ** low)}` : `from ${shown(10 ** low)} (dark) to ${shown(10 ** top)} (light)`)) : null);
}
