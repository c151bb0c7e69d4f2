// Building blocks. Text from logs and samples enters the document only through textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.getElementById("page");
// Okabe and Ito's colours: distinguishable with any colour vision.
const ON_LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6f00", "#666666"];
const ON_DARK = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999"];
const colours = () => document.documentElement.dataset.theme === "dark" ? ON_DARK : ON_LIGHT;
const SEVERITY = { critical: "--bad", warning: "--warn", info: "--accent" };
const EVENT_MARKS = { checkpoint: "◆", restart: "↻", resize: "⇔", rollback: "↩", skip: "⤼", mask: "⤼", alert: "!",
  stall: "⏸", preempted: "⏏", stopped: "■", paused: "⏸", continued: "▶", evaluation: "✓", end: "▪", save_failed: "✕" };
const OPEN_ROWS = 12;  // a longer table of differences is folded
const POLL = 500, POLL_LIST = 2000, PHONE = 760;
// Cividis: from dark blue to yellow, lighter at every step, for any colour vision.
const SCALE = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
const CHECKPOINTS = { verified: ["◆", "--good"], saved: ["◆", "--accent"], removed: ["◇", "--soft"], damaged: ["✕", "--bad"] };
const FINE = 0.5, CHART_HEIGHT = 190, FIRST_CHART_HEIGHT = 260, LEGEND_HEIGHT = 28;
const WHOLE = Array.from({ length: 36 }, (_, place) => [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3));
const WIDE_RANGE = 1e3;  // from this ratio of largest to smallest, a linear scale hides most of a line
const state = { plots: [], lanes: [], range: null, open: null, logarithmic: new Map(), dragged: null, pointed: null, drawing: null, shape: null, held: false, version: null };

// Bidirectional marks and control characters are made visible.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const plain = (text) => String(text).replace(UNSEEN, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
function make(tag, options, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  for (const child of children) if (child !== null && child !== undefined && child !== "")
    node.append(child instanceof Node ? child : document.createTextNode(plain(child)));
  return node;
}
// Read once per theme: every style lookup is expensive.
const known = {};
function colour(name) {
  const theme = document.documentElement.dataset.theme, kept = known[theme] || (known[theme] = {});
  return kept[name] || (kept[name] = getComputedStyle(document.documentElement).getPropertyValue(name).trim());
}
const shown = (value) => value === null || value === undefined ? "–" : !Number.isFinite(value) ? String(value)
  : value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7) ? value.toExponential(3)
  : Number(value.toPrecision(6)).toLocaleString("en");
// The shortest exact labels for the ticks of an axis; if there are none, the shortest distinct ones.
function ticks(values) {
  const within = (low, high) => values.every((v) => !v || Math.abs(v) >= low && Math.abs(v) < high);
  const [low, high] = within(1e-3, 1e5) ? [1e-3, 1e5] : [1e-2, 1e3];  // the same notation for all large ones on an axis
  const ways = [2, 3, 4, 6, 9].flatMap((digits) => [
    (v) => Math.abs(v) >= low && Math.abs(v) < high || v === 0 ? v.toLocaleString("en", { maximumSignificantDigits: digits })
      : v.toExponential(Math.max(0, digits - 2)).replace("e+", "e")]);
  const written = ways.map((way) => values.map((v) => v === null ? "" : way(v)));
  const distinct = new Set(values.filter((v) => v !== null)).size;
  const isExact = (text, v) => v === null || Math.abs(Number(text.replaceAll(",", "")) - v) <= 1e-6 * Math.abs(v);
  return written.find((texts) => texts.every((text, place) => isExact(text, values[place])))
    || written.find((texts) => new Set(texts.filter(Boolean)).size === distinct) || written[written.length - 1];
}
// Ticks of a logarithmic axis: whole powers of ten, at most about six; the ends if there are fewer than two.
function decades(plot) {
  const { min, max } = plot.scales.y, low = Math.ceil(Math.log10(min) - 1e-9), high = Math.floor(Math.log10(max) + 1e-9);
  if (high <= low) return [min, max];
  const by = Math.ceil((high - low + 1) / 6);
  return Array.from({ length: Math.floor((high - low) / by) + 1 }, (_, place) => Number(`1e${low + place * by}`));
}
const LARGE_STEP = 1e5;  // from here, steps are abbreviated if that is exact
const stepTicks = (values) => {
  const unit = (v) => [1e12, 1e9, 1e6, 1e3].find((each) => Math.abs(v) >= each) || 1;
  const isShort = Math.max(...values) >= LARGE_STEP && values.every((v) => Number.isInteger(Math.round(v / unit(v) * 1e8) / 1e6));
  return values.map((v) => v.toLocaleString("en", isShort ? { notation: "compact", maximumFractionDigits: 2 } : {}));
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
function bytes(text) {
  const raw = atob(text), all = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place++) all[place] = raw.charCodeAt(place);
  return all.buffer;
}
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
