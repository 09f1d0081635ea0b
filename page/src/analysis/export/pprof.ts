/** Profiles for pprof, as proto/profile.proto of github.com/google/pprof defines them. */

import { at } from "../../data/columns.ts";
import { VIEWS, field, type View } from "../../data/document.ts";
import type { Profile } from "../../data/profile.ts";
import type { Hidden } from "../functions.ts";
import type { ViewAmounts } from "./csv.ts";
import { Message } from "./proto.ts";

/** Sample types and units as Go's heap profiles name them. */
const SAMPLE_TYPES: Readonly<Record<View, readonly [string, string]>> = {
  "live-bytes": ["inuse_space", "bytes"],
  "live-count": ["inuse_objects", "count"],
  "alloc-bytes": ["alloc_space", "bytes"],
  "alloc-count": ["alloc_objects", "count"],
};

export interface PprofOptions {
  readonly amounts: ViewAmounts;
  /** The sample type that pprof shows first. */
  readonly view: View;
  /** 1 for each callsite to export; null for all. */
  readonly kept: Uint8Array | null;
  readonly hidden: Hidden;
  /** Comments, which `pprof -comments` shows. */
  readonly comments: readonly string[];
}

/** The profile, compressed: the contents of a `.pb.gz` file. */
export async function pprof(profile: Profile, options: PprofOptions): Promise<Blob> {
  const bytes = new Encoder(profile, options).encode().finish();
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Response(stream).blob();
}

class Encoder {
  private readonly message = new Message();
  /** Number 0 is the empty text. */
  private readonly strings = new Map([["", 0]]);
  // Ids count from 1.
  private readonly functions = new Map<string, number>();
  private readonly mappings = new Map<string, number>();
  private readonly locations = new Map<string, number>();
  /** By frame, of frames without inlined calls. */
  private readonly frameLocations = new Map<number, number>();

  constructor(
    private readonly profile: Profile,
    private readonly options: PprofOptions,
  ) {}

  encode(): Message {
    const { amounts, comments, kept, view } = this.options;
    const types = VIEWS.map((name) => SAMPLE_TYPES[name]);
    for (const [type, unit] of types) {
      this.message.message(1, this.valueType(type, unit));
    }
    for (let callsite = 0; callsite < this.profile.count; callsite += 1) {
      const values = VIEWS.map((name) => Math.round(at(amounts[field(name)], callsite)));
      if ((kept === null || kept[callsite] === 1) && values.some((value) => value !== 0)) {
        this.message.message(2, this.sample(callsite, values));
      }
    }
    this.message.packed(13, comments.map((comment) => this.string(comment)));
    this.message.number(14, this.string(SAMPLE_TYPES[view][0]));
    const time = Date.parse(this.profile.header.started);
    if (Number.isFinite(time)) {
      this.message.number(9, time * 1e6);
    }
    this.message.number(10, Math.round(this.profile.header.span * 1e6));
    this.message.message(11, this.valueType("space", "bytes"));
    for (const text of this.strings.keys()) {
      this.message.text(6, text);
    }
    return this.message;
  }

  private valueType(type: string, unit: string): Message {
    return new Message().number(1, this.string(type)).number(2, this.string(unit));
  }

  private string(text: string): number {
    return number(this.strings, text, 0);
  }

  private sample(callsite: number, values: readonly number[]): Message {
    const { profile } = this;
    const gap = [...profile.gap(callsite)].reverse().map((name) => this.location("", [[name, "", 0]]));
    const sample = new Message().packed(1, [...this.stack(callsite), ...gap]).packed(2, values);
    const labels: [string, string][] = [["heap", profile.heapName(callsite)]];
    if (profile.hasThreads) {
      labels.push(["thread", profile.threadName(callsite)]);
    }
    if (profile.targets.length > 1) {
      labels.push(["process", profile.targetOf(callsite).name]);
    }
    for (const [key, text] of labels) {
      sample.message(3, new Message().number(1, this.string(key)).number(2, this.string(text)));
    }
    return sample;
  }

  /** Ids of a stack's locations, leaf first. Inlined calls share the location of the call that contains them. */
  private stack(callsite: number): number[] {
    const { profile } = this;
    const ids: number[] = [];
    let frames: number[] = [];
    for (const frame of profile.stack(callsite)) {
      if (this.options.hidden?.[frame] !== 1) {
        frames.push(frame);
      }
      if (!profile.isInlined(frame) && frames.length > 0) {
        ids.push(this.callLocation(frames));
        frames = [];
      }
    }
    if (frames.length > 0) {
      ids.push(this.callLocation(frames));
    }
    return ids;
  }

  /** The location of a call, whose frame is the last one. */
  private callLocation(frames: readonly number[]): number {
    const { profile } = this;
    const last = frames.at(-1) ?? 0;
    const known = frames.length === 1 ? this.frameLocations.get(last) : undefined;
    if (known !== undefined) {
      return known;
    }
    const lines = frames.map((frame) => [profile.functionName(profile.frameFunction(frame)), profile.sourceFile(frame), profile.sourceLine(frame)] as const);
    const id = this.location(profile.functionModule(profile.frameFunction(last)), lines);
    if (frames.length === 1) {
      this.frameLocations.set(last, id);
    }
    return id;
  }

  private location(module: string, lines: readonly (readonly [string, string, number])[]): number {
    const count = this.locations.size;
    const id = number(this.locations, JSON.stringify([module, lines]), 1);
    if (this.locations.size > count) {
      const location = new Message().number(1, id).number(2, module === "" ? 0 : this.mapping(module));
      for (const [name, file, line] of lines) {
        location.message(4, new Message().number(1, this.function(name, file)).number(2, line));
      }
      this.message.message(4, location);
    }
    return id;
  }

  private mapping(module: string): number {
    const count = this.mappings.size;
    const id = number(this.mappings, module, 1);
    if (this.mappings.size > count) {
      // The names are here already: pprof need not look for them in the file.
      const mapping = new Message().number(1, id).number(5, this.string(module));
      this.message.message(3, [7, 8, 9].reduce((message, has) => message.number(has, 1), mapping));
    }
    return id;
  }

  private function(name: string, file: string): number {
    const count = this.functions.size;
    const id = number(this.functions, JSON.stringify([name, file]), 1);
    if (this.functions.size > count) {
      const text = this.string(name);
      this.message.message(5, new Message().number(1, id).number(2, text).number(3, text).number(4, this.string(file)));
    }
    return id;
  }
}

/** The number of a key in the order of first use. */
function number(known: Map<string, number>, key: string, first: number): number {
  const found = known.get(key) ?? known.size + first;
  known.set(key, found);
  return found;
}
