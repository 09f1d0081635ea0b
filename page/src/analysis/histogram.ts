/** Histograms of several callsites. */

import { at } from "../data/columns.ts";
import type { HistogramName } from "../data/document.ts";
import type { Bucket, Profile } from "../data/profile.ts";

/** The sum of the histograms of the callsites in a mask (1 for each; null for all), without gaps between buckets. */
export function histogram(profile: Profile, name: HistogramName, mask: Uint8Array | null): Bucket[] {
  const blocks: number[] = [];
  let smallest = Infinity;
  for (let callsite = 0; callsite < profile.count; callsite += 1) {
    if (mask !== null && mask[callsite] !== 1) {
      continue;
    }
    for (const [bucket, count] of profile.histogram(callsite, name)) {
      blocks[bucket] = (blocks[bucket] ?? 0) + count;
      smallest = Math.min(smallest, bucket);
    }
  }
  return Array.from({ length: Math.max(0, blocks.length - smallest) }, (_, index): Bucket => [smallest + index, at(blocks, smallest + index)]);
}

/** Smallest value of a bucket, and the smallest of the next one: bytes of sizes, microseconds of times. */
export function bucketBounds(bucket: number): readonly [number, number] {
  return bucket === 0 ? [0, 1] : [2 ** (bucket - 1), 2 ** bucket];
}
