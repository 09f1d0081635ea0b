/** A stack in a line. */

import type { JSX } from "preact";
import { LIBRARY, isOwn } from "../../data/document.ts";
import type { Profile } from "../../data/profile.ts";
import { baseName, cut } from "../../text.ts";

const CHAIN_MAX = 5;

/** The program's own frames, innermost first; without any, those of libraries too; without any, all. */
function ownFrames(profile: Profile, callsite: number): number[] {
  const frames = profile.stack(callsite);
  const kind = (frame: number): number => profile.functionKind(profile.frameFunction(frame));
  const own = frames.filter((frame) => isOwn(kind(frame)));
  const withLibraries = frames.filter((frame) => isOwn(kind(frame)) || kind(frame) === LIBRARY);
  return [own, withLibraries].find((some) => some.length > 0) ?? frames;
}

/** Names of a stack, innermost first; repeated ones once, with their number. */
function names(profile: Profile, callsite: number, frames: readonly number[]): string[] {
  const runs: { name: string; times: number }[] = [];
  for (const frame of frames) {
    const name = cut(profile.functionShort(profile.frameFunction(frame)), 90);
    const last = runs.at(-1);
    if (last?.name === name) {
      last.times += 1;
    } else if (runs.length === CHAIN_MAX) {
      runs.push({ name: "…", times: 1 });
      break;
    } else {
      runs.push({ name, times: 1 });
    }
  }
  return [...runs.map(({ name, times }) => (times > 1 ? `${name} ×${times}` : name)), ...profile.gap(callsite)];
}

export function Chain({ profile, callsite }: { profile: Profile; callsite: number }): JSX.Element {
  const own = ownFrames(profile, callsite);
  const [first, ...rest] = names(profile, callsite, own);
  const [leaf] = own;
  const position = leaf === undefined ? "" : cut(baseName(profile.sourcePosition(leaf)), 60);
  return (
    <>
      <span class="chain">{first ?? "[no frames]"}</span>
      {position === "" ? null : <span class="quiet place"> {position}</span>}
      {rest.length === 0 ? null : <span class="chain callers"> ← {rest.join(" ← ")}</span>}
    </>
  );
}
