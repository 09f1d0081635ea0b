// Details of a callsite: full stack, amounts, histograms.

function callsiteDetails(profile, at, points) {
  const { callsites } = profile;
  const target = profile.targets[callsites.target[at]];
  const facts = [
    ["live", `${wholeText("live-bytes", callsites.live_bytes[at])} in ${plural(callsites.live_count[at], "block")}`],
    ["allocated", `${wholeText("alloc-bytes", callsites.alloc_bytes[at])} in ${plural(callsites.alloc_count[at], "block")}`],
    ["highest", `${sizeText(callsites.peak_bytes[at])}; ${sizeText(callsites.at_peak_bytes[at])} at the process's peak`],
    ["heap", cut(profile.heapName(at))],
    ["process", cut(target.name)],
  ];
  if (callsites.opening_bytes[at] > 0) {
    facts.push([points.isWhole ? "inherited" : "live at the start", sizeText(callsites.opening_bytes[at])]);
  }
  if (callsites.thread[at] > 0) {
    facts.push(["thread", cut(profile.threadName(at))]);
  }
  if (!profile.header.exact) {
    facts.push(["samples", `${countText(callsites.alloc_samples[at])} of allocations, ${countText(callsites.live_samples[at])} of live blocks`]);
  }
  if (callsites.temporary[at] > 0) {
    facts.push(["temporary", `${plural(callsites.temporary[at] - 1, "block")}, freed before the next allocation of the same thread`]);
  }
  if (callsites.oldest[at] >= 0) {
    facts.push(["age", `${durationText(callsites.oldest[at])} the oldest, ${durationText(callsites.median[at])} the median`]);
  }
  const growth = points.any ? growthElement(points, at) : null;
  return element(
    "div",
    { class: "callsite" },
    element("div", { class: "stack" }, element("h4", {}, "Stack, the allocating function first"), stackElement(profile, at)),
    element(
      "div",
      { class: "facts" },
      element("dl", {}, facts.flatMap(([term, fact]) => [element("dt", {}, term), element("dd", {}, fact)])),
      growth,
      histogramElements(profile, at),
    ),
  );
}

// All frames, with full names and locations.
function stackElement(profile, at) {
  const gap = profile.gaps[profile.callsites.gap[at]] ?? [];
  const frames = profile.stack(at).map((frame) => {
    const number = profile.frames.function[frame];
    const module = profile.functionModule(number);
    const name = profile.functionName(number);
    return element(
      "li",
      { class: profile.functions.kind[number] === 0 ? "own" : null },
      wholeName(name),
      profile.frames.inlined[frame] ? element("span", { class: "tag" }, "inlined") : null,
      element("span", { class: "quiet", title: cut(module, 1000) }, [profile.sourcePosition(frame), baseName(module)].filter((part) => part !== "").map((part) => cut(part, 400)).join(" · ")),
    );
  });
  return element("ol", {}, frames, gap.map((word) => element("li", { class: "quiet" }, word)).reverse());
}

// A name; if very long, truncated, with a button for the full name.
function wholeName(name) {
  if (name.length <= 600) {
    return element("code", {}, printable(name));
  }
  const code = element("code", {}, cut(name, 400));
  const more = element("button", { type: "button", onclick: () => { code.textContent = name; more.remove(); } }, `full name (${plural(name.length, "character")})`);
  return element("span", {}, code, " ", more);
}

// Live bytes over time, as a sparkline.
function growthElement(points, at) {
  const values = points.list.map((_, point) => points.at(point).live_bytes[at]);
  const most = Math.max(...values, 0);
  if (!(most > 0)) {
    return null;
  }
  const end = points.list.at(-1).time;
  const begin = points.list[0].time;
  const line = points.list.map(({ time }, point) => `${(((time - begin) / (end - begin || 1)) * 240).toFixed(1)},${(46 - (values[point] / most) * 42).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  svg.setAttribute("viewBox", "0 0 240 48");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `live bytes over time, at most ${sizeText(most)}`);
  path.setAttribute("points", line.join(" "));
  svg.append(path);
  return element("figure", { class: "growth" }, element("figcaption", {}, `Live bytes over time, at most ${sizeText(most)}`), svg);
}
