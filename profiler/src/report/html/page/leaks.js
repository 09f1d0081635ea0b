// Growing callsites.

function leakRow(profile, target, candidate, showCallsite) {
  const at = target.first + candidate.callsite;
  const { callsites } = profile;
  const margin = candidate.margin > 0 ? ` ± ${sizeText(candidate.margin)}` : "";
  const where = element(
    "button",
    { type: "button", class: "where", onclick: () => showCallsite(at) },
    chainElement(profile, at),
  );
  return element(
    "tr",
    {},
    element("td", { class: "number" }, `${sizeText(candidate.bytes_per_second)}/s${margin}`),
    element("td", { class: "number" }, sizeText(callsites.live_bytes[at])),
    element("td", { class: "number wide" }, candidate.old_share === null ? "–" : shareText(candidate.old_share, 1)),
    element("td", { class: "number wide" }, candidate.survival === null ? "–" : shareText(candidate.survival, 1)),
    element("td", { class: "where-cell" }, where),
  );
}

function leakElement(profile, target, showCallsite) {
  const { leaks } = target;
  const title = profile.targets.length > 1 ? element("h3", {}, cut(target.name)) : null;
  const suppressed = leaks.suppressed_count > 0 ? `${plural(leaks.suppressed_count, "growing callsite")} (${sizeText(leaks.suppressed_bytes)}) suppressed.` : "";
  if (leaks.too_short) {
    return [title, element("p", {}, `The recording was too short${leaks.span > 0 ? ` (${durationText(leaks.span)})` : ""} to detect growth.`)];
  }
  if (leaks.candidates.length === 0) {
    return [title, element("p", {}, `No callsite grows steadily. ${suppressed}`)];
  }
  const heads = [["Growth", "number"], ["Live", "number"], ["Old", "number wide"], ["Survive", "number wide"], ["Where", ""]];
  return [
    title,
    element("p", { class: "quiet" }, `${plural(leaks.count, "callsite")} grew in ${durationText(leaks.span)}; sorted by score. ${suppressed}`),
    element(
      "div",
      { class: "scroll" },
      element(
        "table",
        { class: "rows" },
        element("thead", {}, element("tr", {}, heads.map(([label, kind]) => element("th", { scope: "col", class: kind }, label)))),
        element("tbody", {}, leaks.candidates.map((candidate) => leakRow(profile, target, candidate, showCallsite))),
      ),
    ),
  ];
}

// Fills the section, for the selected target or for all.
function showLeaks(profile, selection, showCallsite) {
  const targets = profile.targets.filter((target, at) => target.leaks !== null && (selection.target < 0 || selection.target === at));
  if (targets.length === 0) {
    fill(byId("leaks-body"), element("p", { class: "quiet" }, "Growth was not computed for this profile."));
    return;
  }
  const found = targets.some(({ leaks }) => !leaks.too_short && leaks.candidates.length > 0);
  const meaning = "Growth: per second, with its 95 % margin. Old: of its live bytes, those older than half of the recording. Survive: of the blocks of the first half, those still live.";
  fill(byId("leaks-body"), found ? element("p", { class: "quiet" }, meaning) : null, targets.flatMap((target) => leakElement(profile, target, showCallsite)));
}
