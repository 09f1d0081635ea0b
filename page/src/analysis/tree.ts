/** Stacks merged by function: the tree of the flame graph and of the tree tables. Like all modules of this folder: pure
 * functions of the profile's columns and of amounts by callsite (`Shown`), without state and without elements. */

import { at } from "../data/columns.ts";
import type { Shown } from "../data/amounts.ts";
import type { Profile } from "../data/profile.ts";
import { baseName } from "../text.ts";

export type Group = "thread" | "command" | "cgroup" | "heap";

export interface TreeOptions {
  /** Labels above the stacks, outermost first. */
  readonly groups: readonly string[];
  /** Stacks from the allocating function outwards. */
  readonly isReversed: boolean;
  /** The function that stacks start at; null for whole stacks. */
  readonly root: number | null;
  /** 1 for each frame that is left out; null for none. */
  readonly hidden: Uint8Array | null;
}

/** Nodes by parent and key, in arrays that grow. A parent is before its children. Node 0 is the root. */
class Nodes {
  size = 1;
  parent: Int32Array;
  key: Int32Array;
  private slots: Int32Array;

  constructor(capacity: number) {
    this.parent = new Int32Array(capacity);
    this.key = new Int32Array(capacity);
    this.key[0] = -1;
    this.slots = new Int32Array(2 ** Math.ceil(Math.log2(capacity * 2)));
  }

  /** Finds or creates the child of a node with this key, in an open-addressing hash table. */
  child(parent: number, key: number): number {
    const slot = this.find(parent, key);
    const known = this.slots[slot] ?? 0;
    if (known !== 0) {
      return known;
    }
    const node = this.size;
    this.size += 1;
    if (this.size > this.parent.length) {
      this.parent = doubled(this.parent);
      this.key = doubled(this.key);
    }
    this.parent[node] = parent;
    this.key[node] = key;
    this.slots[slot] = node;
    if (this.size * 2 > this.slots.length) {
      this.rehash();
    }
    return node;
  }

  /** The slot of a node, or the free slot for it. */
  private find(parent: number, key: number): number {
    const mask = this.slots.length - 1;
    let slot = (Math.imul(parent, 0x9e3779b1) ^ Math.imul(key + 1, 0x85ebca6b)) >>> 0;
    slot = (slot ^ (slot >>> 15)) & mask;
    for (let node = this.slots[slot] ?? 0; node !== 0; node = this.slots[slot] ?? 0) {
      if (this.parent[node] === parent && this.key[node] === key) {
        return slot;
      }
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  private rehash(): void {
    this.slots = new Int32Array(this.slots.length * 2);
    for (let node = 1; node < this.size; node += 1) {
      this.slots[this.find(this.parent[node] ?? 0, this.key[node] ?? 0)] = node;
    }
  }
}

function doubled(numbers: Int32Array): Int32Array {
  const larger = new Int32Array(numbers.length * 2);
  larger.set(numbers);
  return larger;
}

/** The shape of the tree: which nodes there are, independent of amounts. */
export class TreeShape {
  readonly size: number;
  readonly parent: Int32Array;
  /** Function of each node; labels follow the functions; -1 for the root. */
  readonly key: Int32Array;
  /** The last node of each callsite; -1 if it is not in the tree. */
  readonly end: Int32Array;
  /** Labels other than functions: groups, processes, missing frames. */
  readonly words: readonly string[];
  private readonly childFrom: Int32Array;
  private readonly childList: Int32Array;

  constructor(
    readonly profile: Profile,
    private readonly options: TreeOptions,
  ) {
    // Capacity for full stacks; reversed ones can need more.
    const nodes = new Nodes(profile.nodeParent.length + 1024);
    const labels = new Labels(profile, options.groups);
    this.end = new Int32Array(profile.count).fill(-1);
    for (let callsite = 0; callsite < profile.count; callsite += 1) {
      this.end[callsite] = addStack(profile, callsite, options, nodes, labels);
    }
    this.words = labels.words;
    this.size = nodes.size;
    this.parent = nodes.parent;
    this.key = nodes.key;
    [this.childFrom, this.childList] = this.linkChildren();
  }

  private linkChildren(): [Int32Array, Int32Array] {
    const from = new Int32Array(this.size + 1);
    for (let node = 1; node < this.size; node += 1) {
      const slot = (this.parent[node] ?? 0) + 1;
      from[slot] = (from[slot] ?? 0) + 1;
    }
    for (let node = 0; node < this.size; node += 1) {
      from[node + 1] = (from[node + 1] ?? 0) + (from[node] ?? 0);
    }
    const next = from.slice();
    const list = new Int32Array(this.size);
    for (let node = 1; node < this.size; node += 1) {
      const parent = this.parent[node] ?? 0;
      list[next[parent] ?? 0] = node;
      next[parent] = (next[parent] ?? 0) + 1;
    }
    return [from, list];
  }

  /** 1 for each node that stands for one of these frames. */
  nodesOf(frames: Uint8Array): Uint8Array {
    const found = new Uint8Array(this.size);
    for (let callsite = 0; callsite < this.profile.count; callsite += 1) {
      const inStack = framesFromRoot(this.profile, callsite, this.options) ?? [];
      let place = inStack.length - 1;
      // Labels are above or below all frames.
      for (let node = at(this.end, callsite); node > 0; node = at(this.parent, node)) {
        if (at(this.key, node) < this.profile.functionCount) {
          found[node] = at(found, node) | at(frames, inStack[place] ?? -1);
          place -= 1;
        }
      }
    }
    return found;
  }

  children(node: number): Int32Array {
    return this.childList.subarray(at(this.childFrom, node), at(this.childFrom, node + 1));
  }

  /** Sums by node: its own callsites and those of all nodes below. */
  sums(amounts: Float64Array): Float64Array {
    const sums = new Float64Array(this.size);
    for (let callsite = 0; callsite < amounts.length; callsite += 1) {
      const end = this.end[callsite] ?? -1;
      if (end >= 0) {
        sums[end] = (sums[end] ?? 0) + (amounts[callsite] ?? 0);
      }
    }
    for (let node = this.size - 1; node > 0; node -= 1) {
      const parent = this.parent[node] ?? 0;
      sums[parent] = (sums[parent] ?? 0) + (sums[node] ?? 0);
    }
    return sums;
  }
}

/** Labels of stacks, as keys that follow the functions'. */
class Labels {
  readonly words: string[] = [];
  private readonly keys = new Map<string, number>();

  constructor(
    private readonly profile: Profile,
    private readonly groups: readonly string[],
  ) {}

  private word(text: string): number {
    let key = this.keys.get(text);
    if (key === undefined) {
      key = this.profile.functionCount + this.words.length;
      this.keys.set(text, key);
      this.words.push(text);
    }
    return key;
  }

  /** Keys of the labels above a callsite's stack, outermost first. */
  above(callsite: number): number[] {
    const { profile } = this;
    const target = profile.targetOf(callsite);
    const named: Readonly<Record<Group, () => string>> = {
      thread: () => profile.threadName(callsite),
      command: () => target.command,
      cgroup: () => target.cgroup ?? "[control group unknown]",
      heap: () => profile.heapName(callsite),
    };
    const words = this.groups.filter((group): group is Group => group in named).map((group) => named[group]());
    if (profile.targets.length > 1) {
      words.push(target.name);
    }
    words.push(...profile.gap(callsite));
    return words.map((word) => this.word(word));
  }
}

/** Frames of a callsite's stack that are in the tree, in the order of its nodes from the root on; null if the stack does not contain the root function. */
function framesFromRoot(profile: Profile, callsite: number, { isReversed, root, hidden }: TreeOptions): number[] | null {
  const leafFirst: number[] = [];
  let outermost = -1;
  let innermost = -1;
  for (let node = profile.callsites.node[callsite] ?? 0; node > 0; node = profile.nodeParent[node] ?? 0) {
    const frame = profile.nodeFrame[node] ?? 0;
    if (profile.nodeFunction[node] === root) {
      innermost = innermost < 0 ? leafFirst.length : innermost;
      outermost = leafFirst.length;
    } else if (hidden !== null && hidden[frame] === 1) {
      continue;
    }
    leafFirst.push(frame);
  }
  if (root !== null && outermost < 0) {
    return null;
  }
  if (isReversed) {
    return leafFirst.slice(Math.max(innermost, 0));
  }
  return leafFirst.slice(0, root === null ? leafFirst.length : outermost + 1).reverse();
}

/** Adds a callsite's stack, and returns its last node; -1 if the stack does not contain the root function. */
function addStack(profile: Profile, callsite: number, options: TreeOptions, nodes: Nodes, labels: Labels): number {
  const frames = framesFromRoot(profile, callsite, options);
  if (frames === null) {
    return -1;
  }
  let last = 0;
  for (const key of options.root === null && !options.isReversed ? labels.above(callsite) : []) {
    last = nodes.child(last, key);
  }
  for (const frame of frames) {
    last = nodes.child(last, profile.frameFunction(frame));
  }
  for (const key of options.isReversed ? labels.above(callsite).reverse() : []) {
    last = nodes.child(last, key);
  }
  return last;
}

/** A tree with amounts. Without `before` a node is as wide as `after`; with it, as wide as its callsites' larger amounts. */
export class Tree {
  readonly profile: Profile;
  readonly after: Float64Array;
  readonly before: Float64Array | null;
  readonly width: Float64Array;

  constructor(
    readonly shape: TreeShape,
    { after, before }: Shown,
  ) {
    this.profile = shape.profile;
    this.after = shape.sums(after);
    this.before = before === null ? null : shape.sums(before);
    this.width = before === null ? this.after : shape.sums(after.map((amount, index) => Math.max(amount, at(before, index), 0)));
  }

  parent(node: number): number {
    return at(this.shape.parent, node);
  }

  key(node: number): number {
    return at(this.shape.key, node);
  }

  /** Children that have a width, the widest first. */
  children(node: number): number[] {
    const shown = Array.from(this.shape.children(node)).filter((child) => at(this.width, child) > 0);
    return shown.sort((one, other) => at(this.width, other) - at(this.width, one) || one - other);
  }

  isFunction(node: number): boolean {
    const key = this.key(node);
    return key >= 0 && key < this.profile.functionCount;
  }

  name(node: number): string {
    const key = this.key(node);
    if (key < 0) {
      return "all";
    }
    return this.isFunction(node) ? this.profile.functionName(key) : (this.shape.words[key - this.profile.functionCount] ?? "");
  }

  shortName(node: number): string {
    return this.isFunction(node) ? this.profile.functionShort(this.key(node)) : this.name(node);
  }

  module(node: number): string {
    return this.isFunction(node) ? this.profile.functionModule(this.key(node)) : "";
  }

  /** Base names of modules by their widest nodes, the widest first, up to a limit. */
  modules(most: number): string[] {
    const widest = new Float64Array(this.profile.functionCount);
    for (let node = 1; node < this.shape.size; node += 1) {
      const key = this.key(node);
      if (key < widest.length && at(this.width, node) > at(widest, key)) {
        widest[key] = at(this.width, node);
      }
    }
    const byModule = new Map<string, number>();
    widest.forEach((width, key) => {
      const module = baseName(this.profile.functionModule(key));
      if (module !== "" && width > (byModule.get(module) ?? 0)) {
        byModule.set(module, width);
      }
    });
    return [...byModule].sort((one, other) => other[1] - one[1]).slice(0, most).map(([module]) => module);
  }

  /** 1 for each node of a matching frame, or whose label matches. */
  find(frames: Uint8Array, matches: (label: string) => boolean): Uint8Array {
    const words = Uint8Array.from(this.shape.words, (word) => (matches(word) ? 1 : 0));
    const found = this.shape.nodesOf(frames);
    for (let node = 1; node < this.shape.size; node += 1) {
      if (!this.isFunction(node)) {
        found[node] = at(words, this.key(node) - this.profile.functionCount);
      }
    }
    return found;
  }
}
