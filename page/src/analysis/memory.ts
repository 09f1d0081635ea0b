/** Resident memory of a process by use, over time. */

import type { MemoryPoint, Target } from "../data/document.ts";

export interface MemoryPart {
  readonly title: string;
  /** At every sample. */
  readonly bytes: readonly number[];
}

/** All parts of the samples, the largest at the end first. */
export function memoryParts(samples: readonly MemoryPoint[]): MemoryPart[] {
  const parts = new Map<string, number[]>();
  samples.forEach(({ parts: found }, index) => {
    for (const [title, bytes] of found) {
      const known = parts.get(title) ?? new Array<number>(samples.length).fill(0);
      known[index] = bytes;
      parts.set(title, known);
    }
  });
  return [...parts].map(([title, bytes]) => ({ title, bytes })).sort((one, other) => (other.bytes.at(-1) ?? 0) - (one.bytes.at(-1) ?? 0));
}

function residentAtEnd({ memory }: Target): number {
  return memory.at(-1)?.parts.reduce((sum, [, bytes]) => sum + bytes, 0) ?? 0;
}

/** The selected process, or the one with most memory. */
export function memorySubject(targets: readonly Target[], selected: number): Target | null {
  if (selected >= 0) {
    return targets[selected] ?? null;
  }
  const known = targets.filter(({ memory }) => memory.length > 0);
  return known.reduce<Target | null>((most, target) => (most === null || residentAtEnd(target) > residentAtEnd(most) ? target : most), null);
}

/** For each part the lower and upper bounds of its area, the first part at the bottom. */
export function stackedAreas(parts: readonly MemoryPart[], samples: number): { lower: number[]; upper: number[] }[] {
  let below = new Array<number>(samples).fill(0);
  return parts.map(({ bytes }) => {
    const lower = below;
    const upper = lower.map((sum, index) => sum + (bytes[index] ?? 0));
    below = upper;
    return { lower, upper };
  });
}
