// The profile: decodes the embedded data into columns.

const VIEWS = ["live-bytes", "live-count", "alloc-bytes", "alloc-count"];
const VIEW_TITLES = {
  "live-bytes": "live bytes",
  "live-count": "live blocks",
  "alloc-bytes": "allocated bytes",
  "alloc-count": "allocated blocks",
};

// Name of a view's column: `live-bytes` to `live_bytes`.
function field(view) {
  return view.replace("-", "_");
}

// Decodes the embedded bytes to text.
async function unpack(packed) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error(
      "This browser cannot open compressed data: it has no DecompressionStream. Chromium 92, Firefox 113 and Safari 16.4 and later can.",
    );
  }
  try {
    const binary = atob(packed.trim());
    const bytes = new Uint8Array(binary.length);
    for (let at = 0; at < binary.length; at += 1) {
      bytes[at] = binary.charCodeAt(at);
    }
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).text();
  } catch (error) {
    // The browser's own message here (`Failed to fetch`) is misleading.
    throw new Error("Its data are damaged: the file was changed on its way here.", { cause: error });
  }
}

// A column; an empty one stands for zeros.
function column(numbers, count, fallback = 0) {
  const filled = new Float64Array(count);
  if (numbers && numbers.length > 0) {
    filled.set(numbers);
  } else if (fallback !== 0) {
    filled.fill(fallback);
  }
  return filled;
}

// Start offsets of each item's parts in the concatenated list of parts.
function starts(counts) {
  const from = new Uint32Array(counts.length + 1);
  for (let at = 0; at < counts.length; at += 1) {
    from[at + 1] = from[at] + counts[at];
  }
  return from;
}

const AMOUNT_COLUMNS = ["opening_bytes", "opening_count", "alloc_bytes", "alloc_count", "live_bytes", "live_count"];
const CALLSITE_COLUMNS = [
  ...AMOUNT_COLUMNS,
  ...["node", "gap", "heap", "thread", "peak_bytes", "at_peak_bytes", "alloc_samples", "live_samples", "oldest"],
  ...["median", "temporary"],
];

// All callsites of all targets, in columns, and stacks as a tree of frames.
class Profile {
  constructor(json) {
    this.json = json;
    this.header = json.header;
    this.health = json.health;
    this.targets = json.targets;
    this.strings = json.strings;
    this.functions = json.functions;
    this.frames = json.frames;
    this.gaps = json.gaps;
    this.readNodes(json.nodes);
    this.readCallsites();
    this.hasHistory = this.targets.some((target) => target.history.instants.time.length + target.history.curve.time.length > 0);
  }

  readNodes({ back, frame }) {
    this.nodeParent = new Int32Array(back.length + 1);
    this.nodeFunction = new Int32Array(back.length + 1);
    this.nodeFrame = new Int32Array(back.length + 1);
    for (let at = 0; at < back.length; at += 1) {
      this.nodeParent[at + 1] = at + 1 - back[at];
      this.nodeFrame[at + 1] = frame[at];
      this.nodeFunction[at + 1] = this.frames.function[frame[at]];
    }
  }

  readCallsites() {
    this.count = this.targets.reduce((sum, target) => sum + target.callsites.count, 0);
    this.callsites = { target: new Int32Array(this.count), indexInTarget: new Int32Array(this.count) };
    for (const name of [...CALLSITE_COLUMNS, "shown_bytes", "shown_count"]) {
      this.callsites[name] = new Float64Array(this.count);
    }
    let first = 0;
    this.targets.forEach((target, number) => {
      const { callsites } = target;
      target.first = first;
      for (const name of CALLSITE_COLUMNS) {
        this.callsites[name].set(column(callsites[name], callsites.count), first);
      }
      for (const unit of ["bytes", "count"]) {
        const older = callsites[`older_${unit}`];
        this.callsites[`shown_${unit}`].set(column(older || callsites[`live_${unit}`], callsites.count), first);
      }
      for (let at = 0; at < callsites.count; at += 1) {
        this.callsites.target[first + at] = number;
        this.callsites.indexInTarget[first + at] = at;
      }
      for (const name of ["sizes", "ages", "lifetimes"]) {
        callsites[name].from = starts(column(callsites[name].count, callsites.count));
      }
      first += callsites.count;
    });
  }

  string(number) {
    return this.strings[number] ?? "";
  }

  functionName(number) {
    return this.string(this.functions.name[number]);
  }

  functionShort(number) {
    return this.string(this.functions.short[number]);
  }

  // Path of the module; empty for none.
  functionModule(number) {
    return this.string(this.functions.module[number] - 1);
  }

  // `/src/cache.c:42`, or `libx.so+0x123` where the source is unknown.
  sourcePosition(frame) {
    const file = this.string(this.frames.file[frame] - 1);
    const line = this.frames.line[frame];
    if (file !== "") {
      return line > 0 ? `${file}:${line}` : file;
    }
    const offset = this.frames.offset[frame];
    const module = this.functionModule(this.frames.function[frame]);
    return offset >= 0 && module !== "" ? `${baseName(module)}+0x${offset.toString(16)}` : "";
  }

  // Frames of a callsite's stack, leaf first.
  stack(callsite) {
    const frames = [];
    for (let node = this.callsites.node[callsite]; node > 0; node = this.nodeParent[node]) {
      frames.push(this.nodeFrame[node]);
    }
    return frames;
  }

  heapName(callsite) {
    const target = this.targets[this.callsites.target[callsite]];
    return target.heaps[this.callsites.heap[callsite]]?.name ?? "[heap unknown]";
  }

  threadName(callsite) {
    const thread = this.targets[this.callsites.target[callsite]].threads[this.callsites.thread[callsite] - 1];
    return thread ? `${thread.name ?? "thread"} (${thread.tid})` : "[thread unknown]";
  }

  // The buckets of a callsite's histogram: `[bucket, blocks]`.
  histogram(callsite, name) {
    const columns = this.targets[this.callsites.target[callsite]].callsites[name];
    const at = this.callsites.indexInTarget[callsite];
    const buckets = [];
    for (let bucket = columns.from[at]; bucket < columns.from[at + 1]; bucket += 1) {
      buckets.push([columns.bucket[bucket], columns.blocks[bucket]]);
    }
    return buckets;
  }
}
