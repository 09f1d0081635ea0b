// Where the resident memory of a process was: a stacked area over time, and a table of its parts.

const MEMORY_HUES = [28, 45, 280, 330, 130, 205, 180, 0, 100, 240, 60, 310];

// All parts of the samples, the largest at the end first, each with its bytes at every sample.
function memoryParts(samples) {
  const parts = new Map();
  samples.forEach(({ parts: found }, at) => {
    for (const [title, bytes] of found) {
      if (!parts.has(title)) {
        parts.set(title, new Array(samples.length).fill(0));
      }
      parts.get(title)[at] = bytes;
    }
  });
  return [...parts].map(([title, bytes]) => ({ title, bytes })).sort((one, other) => other.bytes.at(-1) - one.bytes.at(-1));
}

function memoryColour(at, colours) {
  return colours.hue(MEMORY_HUES[at % MEMORY_HUES.length], 70, (at % 3) / 2);
}

// The areas, the first part at the bottom.
function memoryChart(samples, parts, colours) {
  const [width, height] = [1000, 160];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const totals = samples.map((_, at) => parts.reduce((sum, { bytes }) => sum + bytes[at], 0));
  const most = Math.max(1, ...totals);
  svg.setAttribute("aria-label", `resident memory over time by use, at most ${sizeText(most)}`);
  const [from, to] = [samples[0].time, samples.at(-1).time];
  const x = (at) => (width * (samples[at].time - from)) / Math.max(1e-9, to - from);
  const y = (bytes) => height - (height * bytes) / most;
  const below = new Array(samples.length).fill(0);
  parts.forEach(({ title, bytes }, part) => {
    const above = below.map((held, at) => held + bytes[at]);
    const upper = above.map((held, at) => `${x(at).toFixed(1)},${y(held).toFixed(1)}`);
    const lower = below.map((held, at) => `${x(at).toFixed(1)},${y(held).toFixed(1)}`).reverse();
    const area = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
    area.setAttribute("points", [...upper, ...lower].join(" "));
    area.setAttribute("fill", memoryColour(part, colours));
    const name = document.createElementNS("http://www.w3.org/2000/svg", "title");
    name.textContent = title;
    area.append(name);
    svg.append(area);
    above.forEach((held, at) => {
      below[at] = held;
    });
  });
  return svg;
}

function memoryTable(parts, colours) {
  const row = ({ title, bytes }, at) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, element("i", { class: "swatch", style: { background: memoryColour(at, colours) } }), ` ${printable(title)}`),
      element("td", { class: "number" }, sizeText(bytes[0])),
      element("td", { class: "number" }, sizeText(bytes.at(-1))),
      element("td", { class: "number" }, changeText("live-bytes", bytes.at(-1) - bytes[0])),
    );
  const sums = (at) => parts.reduce((sum, { bytes }) => sum + bytes.at(at), 0);
  const all = { title: "resident memory", bytes: [sums(0), sums(-1)] };
  const head = ["Use", "At the start", "At the end", "Change"].map((title, at) => element("th", { scope: "col", class: at > 0 ? "number" : null }, title));
  const total = element(
    "tr",
    { class: "total" },
    element("th", { scope: "row" }, all.title),
    element("td", { class: "number" }, sizeText(all.bytes[0])),
    element("td", { class: "number" }, sizeText(all.bytes[1])),
    element("td", { class: "number" }, changeText("live-bytes", all.bytes[1] - all.bytes[0])),
  );
  return element("table", { class: "memory" }, element("thead", {}, element("tr", {}, head)), element("tbody", {}, parts.map(row), total));
}

// Shows the account of the selected process, or of the one with most memory.
function showMemory(profile, selection) {
  const last = ({ memory }) => memory.at(-1)?.parts.reduce((sum, [, bytes]) => sum + bytes, 0) ?? 0;
  const known = profile.targets.filter(({ memory }) => memory.length > 0);
  const largest = known.reduce((most, target) => (most === null || last(target) > last(most) ? target : most), null);
  const selected = selection.target < 0 ? largest : profile.targets[selection.target];
  const hasAccount = selected !== null && selected !== undefined && selected.memory.length > 0;
  byId("memory").hidden = known.length === 0;
  byId("memory-link").hidden = known.length === 0;
  byId("memory-subject").textContent = hasAccount && profile.targets.length > 1 ? cut(selected.name, 80) : "";
  if (!hasAccount) {
    fill(byId("memory-body"), element("p", { class: "quiet" }, "The memory of this process was not sampled."));
    return;
  }
  const [colours, parts] = [new Colours(), memoryParts(selected.memory)];
  fill(
    byId("memory-body"),
    selected.memory.length > 1 ? element("figure", { class: "memory-chart" }, memoryChart(selected.memory, parts, colours)) : null,
    memoryTable(parts, colours),
  );
}

// Growth that the profile does not show: before everything else.
function showUnexplained(header) {
  byId("unexplained").hidden = header.unexplained.length === 0;
  fill(
    byId("unexplained"),
    header.unexplained.flatMap(({ statement, details }) => [
      element("p", {}, element("strong", {}, capital(printable(statement)), ".")),
      element("ul", {}, details.map((line) => element("li", {}, marked(printable(line))))),
    ]),
  );
}
