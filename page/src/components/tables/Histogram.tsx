/** Histograms of sizes, ages and lifetimes, with buckets of powers of two. */

import type { JSX } from "preact";
import { bucketBounds } from "../../analysis/histogram.ts";
import type { HistogramName } from "../../data/document.ts";
import type { Bucket } from "../../data/profile.ts";
import { countText, durationText, shareText, sizeText } from "../../text.ts";

export const HISTOGRAM_TITLES: Readonly<Record<HistogramName, string>> = {
  sizes: "Sizes of allocated blocks",
  ages: "Ages of live blocks",
  lifetimes: "Lifetimes of freed blocks",
};

function valueText(name: HistogramName, value: number): string {
  return name === "sizes" ? sizeText(value) : durationText(value / 1000);
}

/** A list of bars, including empty buckets between the first and the last. */
export function Histogram({ name, buckets }: { name: HistogramName; buckets: readonly Bucket[] }): JSX.Element {
  const total = buckets.reduce((sum, [, blocks]) => sum + blocks, 0);
  const most = buckets.reduce((highest, [, blocks]) => Math.max(highest, blocks), 0);
  const counts = new Map(buckets);
  const first = buckets[0]?.[0] ?? 0;
  const last = buckets.at(-1)?.[0] ?? -1;
  const all = Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
  return (
    <figure class="histogram">
      <figcaption>{HISTOGRAM_TITLES[name]}</figcaption>
      {all.length === 0 ? (
        <p class="quiet">no data</p>
      ) : (
        <table aria-label={HISTOGRAM_TITLES[name]}>
          <tbody>
            {all.map((bucket) => {
              const blocks = counts.get(bucket) ?? 0;
              return (
                <tr key={bucket}>
                  <th scope="row">{bucket === 0 ? `< ${valueText(name, 1)}` : `${valueText(name, bucketBounds(bucket)[0])} –`}</th>
                  <td class="bar">
                    <i style={{ width: `${most > 0 ? (100 * blocks) / most : 0}%` }} />
                  </td>
                  <td class="number">{countText(blocks)}</td>
                  <td class="number">{shareText(blocks, total)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      )}
    </figure>
  );
}
