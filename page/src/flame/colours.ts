/** Colours of the flame graph: by module, by kind of function, or by growth. */

import { at } from "../data/columns.ts";
import { NAMELESS, isOwn } from "../data/document.ts";
import type { Tree } from "../analysis/tree.ts";
import type { ColourScheme } from "../state/state.ts";
import { baseName } from "../text.ts";

export const KINDS = ["program", "library", "allocator or runtime", "no name", "generated code", "interpreted", "heapbpf label"];
const LABEL = 6;
const KIND_HUES = [28, 205, 280, 0, 130, 55, 0];
const MEMORY_HUES = [28, 45, 280, 330, 130, 205, 180, 0, 100, 240, 60, 310];

function hueOf(text: string): number {
  let hash = 7;
  for (let index = 0; index < text.length && index < 400; index += 1) {
    hash = (Math.imul(hash, 31) + text.charCodeAt(index)) | 0;
  }
  return (((hash ^ (hash >>> 13)) % 360) + 360) % 360;
}

export class Colours {
  private readonly byFunction = new Map<number, string>();

  constructor(readonly isDark: boolean) {}

  get text(): string {
    return this.isDark ? "#ffffff" : "#17181c";
  }

  get outline(): string {
    return this.isDark ? "#ffffff" : "#000000";
  }

  get match(): string {
    return this.isDark ? "#a2387f" : "#f39ad6";
  }

  /** `shade`: from 0 to 1, to distinguish neighbours. */
  hue(hue: number, saturation: number, shade = 0.5): string {
    const light = this.isDark ? 26 + 8 * shade : 73 + 10 * shade;
    return `hsl(${hue} ${this.isDark ? saturation * 0.6 : saturation}% ${light}%)`;
  }

  grey(step = 0): string {
    return this.isDark ? `hsl(220 6% ${27 + step * 6}%)` : `hsl(220 8% ${85 - step * 6}%)`;
  }

  memory(part: number): string {
    return this.hue(at(MEMORY_HUES, part % MEMORY_HUES.length), 70, (part % 3) / 2);
  }

  ofNode(tree: Tree, node: number, scheme: ColourScheme): string {
    if (tree.before !== null) {
      return this.growth(at(tree.before, node), at(tree.after, node));
    }
    if (!tree.isFunction(node)) {
      return this.grey();
    }
    const key = tree.key(node);
    const known = this.byFunction.get(key);
    if (known !== undefined) {
      return known;
    }
    const made = this.ofFunction(tree, node, scheme);
    this.byFunction.set(key, made);
    return made;
  }

  private ofFunction(tree: Tree, node: number, scheme: ColourScheme): string {
    const shade = (Math.imul(tree.key(node) + 1, 0x9e3779b1) >>> 24) / 255;
    if (scheme === "kind") {
      return this.ofKind(tree.profile.functionKind(tree.key(node)), shade);
    }
    const module = tree.module(node);
    return module === "" ? this.grey(1) : this.ofModule(baseName(module), shade);
  }

  ofModule(name: string, shade?: number): string {
    return this.hue(hueOf(name), 62, shade);
  }

  ofKind(kind: number, shade?: number): string {
    const isGrey = kind === NAMELESS || kind === LABEL;
    return isGrey ? this.grey(kind === NAMELESS ? 1 : 0) : this.hue(at(KIND_HUES, kind), isOwn(kind) ? 85 : 60, shade);
  }

  /** Red for growth, blue for shrinkage; saturation by share. */
  growth(before: number, after: number): string {
    const most = Math.max(before, after);
    const share = most > 0 ? (after - before) / most : 0;
    const strength = Math.min(1, Math.abs(share));
    if (strength < 0.005) {
      return this.grey();
    }
    const hue = share > 0 ? 4 : 214;
    return this.isDark
      ? `hsl(${hue} ${20 + 50 * strength}% ${28 + 10 * strength}%)`
      : `hsl(${hue} ${40 + 50 * strength}% ${88 - 22 * strength}%)`;
  }
}
