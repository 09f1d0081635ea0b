// Histograms of sizes, ages and lifetimes, with buckets of powers of two.

const HISTOGRAMS = [
  ["sizes", "Sizes of allocated blocks", (value) => sizeText(value)],
  ["ages", "Ages of live blocks", (value) => durationText(value / 1000)],
  ["lifetimes", "Lifetimes of freed blocks", (value) => durationText(value / 1000)],
];

// Smallest value of a bucket.
function bucketStart(bucket) {
  return bucket === 0 ? 0 : 2 ** (bucket - 1);
}

// A histogram as a list of bars, including empty buckets between the first and the last.
function histogramElement(title, buckets, valueText) {
  const total = buckets.reduce((sum, [, blocks]) => sum + blocks, 0);
  const most = buckets.reduce((highest, [, blocks]) => Math.max(highest, blocks), 0);
  const rows = [];
  const counts = new Map(buckets);
  const last = buckets.length > 0 ? buckets.at(-1)[0] : -1;
  for (let bucket = buckets[0]?.[0] ?? 0; bucket <= last; bucket += 1) {
    const blocks = counts.get(bucket) ?? 0;
    const range = bucket === 0 ? `< ${valueText(1)}` : `${valueText(bucketStart(bucket))} –`;
    rows.push(
      element(
        "tr",
        {},
        element("th", { scope: "row" }, range),
        element("td", { class: "bar" }, element("i", { style: { width: `${most > 0 ? (100 * blocks) / most : 0}%` } })),
        element("td", { class: "number" }, countText(blocks)),
        element("td", { class: "number" }, shareText(blocks, total)),
      ),
    );
  }
  const body = rows.length > 0 ? element("table", {}, element("tbody", {}, rows)) : element("p", { class: "quiet" }, "no data");
  return element("figure", { class: "histogram" }, element("figcaption", {}, title), body);
}

// The three histograms of a callsite.
function histogramElements(profile, callsite) {
  return HISTOGRAMS.map(([name, title, valueText]) => histogramElement(title, profile.histogram(callsite, name), valueText));
}
