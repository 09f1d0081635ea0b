/** Lines of source files around frames, where the report was made with `--source`. */

import { at } from "../data/columns.ts";
import type { Profile } from "../data/profile.ts";

/** Number of lines to show above and below: pieces of nearby frames are embedded as one. */
const AROUND = 10;

export interface SourcePiece {
  /** Number of the first line. */
  readonly first: number;
  readonly lines: readonly string[];
}

/** The lines around a frame's; null where they are not embedded. */
export function sourceAround(profile: Profile, frame: number): SourcePiece | null {
  const { sources, frames } = profile.document;
  const [file, line] = [at(frames.file, frame) - 1, profile.sourceLine(frame)];
  if (sources === undefined || file < 0 || line === 0) {
    return null;
  }
  for (let piece = 0; piece < sources.text.length; piece += 1) {
    if (at(sources.file, piece) === file) {
      const first = at(sources.line, piece);
      const lines = (sources.text[piece] ?? "").split("\n");
      if (first <= line && line < first + lines.length) {
        const from = Math.max(0, line - first - AROUND);
        return { first: first + from, lines: lines.slice(from, line - first + AROUND + 1) };
      }
    }
  }
  return null;
}
