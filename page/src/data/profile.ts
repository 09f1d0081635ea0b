/** A document as columns over all callsites of all targets, and stacks as a tree of frames. */

import { at, filled, starts } from "./columns.ts";
import { CALLSITE_COLUMNS, HISTOGRAMS, type CallsiteColumn, type Document, type Header, type Health, type HistogramName, type Target } from "./document.ts";
import { baseName } from "../text.ts";

/** Columns by callsite. `shown_bytes` and `shown_count` are live blocks, above the minimum age where one was requested. */
export type Callsites = Readonly<Record<CallsiteColumn | "shown_bytes" | "shown_count", Float64Array>> & {
  readonly target: Int32Array;
  readonly indexInTarget: Int32Array;
};

/** A bucket of a histogram, which is 0, or 1 + log2 of its smallest value; and its blocks. */
export type Bucket = readonly [bucket: number, blocks: number];

export class Profile {
  readonly header: Header;
  readonly health: Health;
  readonly targets: readonly Target[];
  /** Number of callsites. */
  readonly count: number;
  readonly callsites: Callsites;
  /** Index of each target's first callsite. */
  readonly first: readonly number[];
  /** Parent, function and frame of each node of the tree of stacks; a parent is before its children. */
  readonly nodeParent: Int32Array;
  readonly nodeFunction: Int32Array;
  readonly nodeFrame: Int32Array;
  readonly functionCount: number;
  readonly hasHistory: boolean;
  private readonly bucketStarts: readonly Readonly<Record<HistogramName, Uint32Array>>[];

  constructor(readonly document: Document) {
    this.header = document.header;
    this.health = document.health;
    this.targets = document.targets;
    this.functionCount = document.functions.name.length;
    const { back, frame } = document.nodes;
    this.nodeParent = new Int32Array(back.length + 1);
    this.nodeFunction = new Int32Array(back.length + 1);
    this.nodeFrame = new Int32Array(back.length + 1);
    for (let node = 0; node < back.length; node += 1) {
      this.nodeParent[node + 1] = node + 1 - at(back, node);
      this.nodeFrame[node + 1] = at(frame, node);
      this.nodeFunction[node + 1] = at(document.frames.function, at(frame, node));
    }
    const counts = this.targets.map(({ callsites }) => callsites.count);
    const first = starts(counts);
    this.first = Array.from(first);
    this.count = at(first, counts.length);
    this.callsites = this.readCallsites();
    this.bucketStarts = this.targets.map(({ callsites }) => {
      const from = (name: HistogramName): Uint32Array => starts(filled(callsites[name].count, callsites.count));
      return { sizes: from("sizes"), ages: from("ages"), lifetimes: from("lifetimes") };
    });
    this.hasHistory = this.targets.some(({ history }) => history.instants.time.length + history.curve.time.length > 0);
  }

  private readCallsites(): Callsites {
    const columns = Object.fromEntries(
      [...CALLSITE_COLUMNS, "shown_bytes", "shown_count"].map((name) => [name, new Float64Array(this.count)]),
    ) as Record<CallsiteColumn | "shown_bytes" | "shown_count", Float64Array>;
    const target = new Int32Array(this.count);
    const indexInTarget = new Int32Array(this.count);
    this.targets.forEach(({ callsites }, number) => {
      const first = at(this.first, number);
      for (const name of CALLSITE_COLUMNS) {
        columns[name].set(filled(callsites[name], callsites.count), first);
      }
      columns.shown_bytes.set(filled(callsites.older_bytes ?? callsites.live_bytes, callsites.count), first);
      columns.shown_count.set(filled(callsites.older_count ?? callsites.live_count, callsites.count), first);
      for (let index = 0; index < callsites.count; index += 1) {
        target[first + index] = number;
        indexInTarget[first + index] = index;
      }
    });
    return { ...columns, target, indexInTarget };
  }

  string(number: number): string {
    return this.document.strings[number] ?? "";
  }

  functionName(number: number): string {
    return this.string(at(this.document.functions.name, number));
  }

  functionShort(number: number): string {
    return this.string(at(this.document.functions.short, number));
  }

  /** Path of the module; empty for none. */
  functionModule(number: number): string {
    return this.string(at(this.document.functions.module, number) - 1);
  }

  /** One of `PROGRAM`, `LIBRARY`, `PLUMBING`, `NAMELESS`, `JITTED` and `INTERPRETED`. */
  functionKind(number: number): number {
    return at(this.document.functions.kind, number);
  }

  frameFunction(frame: number): number {
    return at(this.document.frames.function, frame);
  }

  isInlined(frame: number): boolean {
    return at(this.document.frames.inlined, frame) === 1;
  }

  /** Path of the source file; empty where unknown. */
  sourceFile(frame: number): string {
    return this.string(at(this.document.frames.file, frame) - 1);
  }

  /** 0 where unknown. */
  sourceLine(frame: number): number {
    return at(this.document.frames.line, frame);
  }

  /** `/src/cache.c:42`, or `libx.so+0x123` where the source is unknown. */
  sourcePosition(frame: number): string {
    const file = this.sourceFile(frame);
    const line = this.sourceLine(frame);
    if (file !== "") {
      return line > 0 ? `${file}:${line}` : file;
    }
    const offset = this.document.frames.offset[frame] ?? -1;
    const module = this.functionModule(this.frameFunction(frame));
    return offset >= 0 && module !== "" ? `${baseName(module)}+0x${offset.toString(16)}` : "";
  }

  /** Frames of a callsite's stack, leaf first. */
  stack(callsite: number): number[] {
    const frames: number[] = [];
    for (let node = at(this.callsites.node, callsite); node > 0; node = at(this.nodeParent, node)) {
      frames.push(at(this.nodeFrame, node));
    }
    return frames;
  }

  /** Labels of the missing part of a callsite's stack, outermost first. */
  gap(callsite: number): readonly string[] {
    return this.document.gaps[at(this.callsites.gap, callsite)] ?? [];
  }

  targetOf(callsite: number): Target {
    const target = this.targets[at(this.callsites.target, callsite)];
    if (target === undefined) {
      throw new RangeError(`there is no callsite ${callsite}`);
    }
    return target;
  }

  heapName(callsite: number): string {
    return this.targetOf(callsite).heaps[at(this.callsites.heap, callsite)]?.name ?? "[heap unknown]";
  }

  threadName(callsite: number): string {
    const thread = this.targetOf(callsite).threads[at(this.callsites.thread, callsite) - 1];
    return thread === undefined ? "[thread unknown]" : `${thread.name ?? "thread"} (${thread.tid})`;
  }

  /** Whether callsites are by thread. */
  get hasThreads(): boolean {
    return this.targets.some(({ threads }) => threads.length > 0);
  }

  histogram(callsite: number, name: HistogramName): Bucket[] {
    const target = at(this.callsites.target, callsite);
    const columns = this.targetOf(callsite).callsites[name];
    const from = this.bucketStarts[target]?.[name] ?? new Uint32Array(0);
    const index = at(this.callsites.indexInTarget, callsite);
    const buckets: Bucket[] = [];
    for (let bucket = at(from, index); bucket < at(from, index + 1); bucket += 1) {
      buckets.push([at(columns.bucket, bucket), at(columns.blocks, bucket)]);
    }
    return buckets;
  }
}

export { HISTOGRAMS };
