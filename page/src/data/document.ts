/** The embedded document, as profiler/crates/report/src/html.rs and html/columns.rs write it. Times are in milliseconds since the
 * recording started, unless noted otherwise. */

export const VIEWS = ["live-bytes", "live-count", "alloc-bytes", "alloc-count"] as const;
export type View = (typeof VIEWS)[number];

export type Unit = "bytes" | "count";
/** Name of a view's column. */
export type ViewField = "live_bytes" | "live_count" | "alloc_bytes" | "alloc_count";

/** One number for each item of a list; empty where all are 0. */
export type Column = readonly number[];

/** The amount; of estimates also the bounds of the 95 % confidence interval, and the number of samples. */
export type Estimate = readonly [number] | readonly [amount: number, low: number, high: number, samples: number];
export type Estimates = Readonly<Record<ViewField, Estimate>>;

export interface Header {
  readonly subject: string;
  readonly interval: string;
  readonly exact: boolean;
  readonly incomplete: boolean;
  readonly verdict: string;
  readonly started: string;
  /** Length of the recording. */
  readonly span: number;
  readonly duration: string;
  readonly checked: string | null;
  readonly window: string | null;
  readonly older_than: string | null;
  /** Whether this is a report of unreachable blocks. */
  readonly unreachable: boolean;
  readonly beginnings: readonly string[];
  readonly unexplained: readonly { readonly statement: string; readonly details: readonly string[] }[];
  readonly estimates: Estimates;
  readonly freed_bytes: number;
  readonly freed_count: number;
  readonly folded: { readonly processes: string; readonly estimates: Estimates } | null;
  readonly nothing: readonly { readonly view: View; readonly lines: readonly string[] }[];
}

/** All buckets, concatenated, and their `count` by callsite. A bucket is 0, or 1 + log2 of its smallest value. */
export interface HistogramColumns {
  readonly count: Column;
  readonly bucket: Column;
  readonly blocks: Column;
}

export const HISTOGRAMS = ["sizes", "ages", "lifetimes"] as const;
export type HistogramName = (typeof HISTOGRAMS)[number];

export const CALLSITE_COLUMNS = [
  "opening_bytes",
  "opening_count",
  "alloc_bytes",
  "alloc_count",
  "live_bytes",
  "live_count",
  "peak_bytes",
  "at_peak_bytes",
  "alloc_samples",
  "live_samples",
  /** Age of the oldest live block; -1 where nothing is live. */
  "oldest",
  "median",
  /** 1 + number of temporary blocks; 0 where unknown. */
  "temporary",
  "node",
  "gap",
  /** Past the end of the target's heaps where the heap is unknown. */
  "heap",
  /** 1 + index of the target's threads; 0 for none. */
  "thread",
] as const;
export type CallsiteColumn = (typeof CALLSITE_COLUMNS)[number];

export interface CallsiteColumns extends Readonly<Record<CallsiteColumn, Column>>, Readonly<Record<HistogramName, HistogramColumns>> {
  readonly count: number;
  readonly older_bytes?: Column;
  readonly older_count?: Column;
}

/** Live now, and allocated since the recording started. */
export type UsageColumns = Readonly<Record<ViewField, Column>>;

export interface HistoryColumns {
  readonly curve: UsageColumns & { readonly time: Column };
  /** An occasion is 0 for a periodic point, -1 for a mark, else the number of the window that ended. */
  readonly instants: { readonly time: Column; readonly occasion: Column };
  /** Changes by callsite, then by time; `count` is their number for each callsite. */
  readonly changes: UsageColumns & { readonly count: Column; readonly point: Column };
}

export interface Heap {
  readonly name: string;
  readonly interval_bytes: number;
  readonly interval_bytes_max: number;
  readonly estimates: Estimates;
}

export interface Thread {
  readonly tid: number;
  readonly name: string | null;
}

export interface MemoryPoint {
  readonly time: number;
  readonly parts: readonly (readonly [title: string, bytes: number])[];
}

/** Objects of a runtime's heap, by type, when they were last counted. */
export interface ObjectTypes {
  readonly language: string;
  readonly time: number;
  /** Time of the count that growths refer to; null in a first count. */
  readonly since: number | null;
  /** The largest first. Bytes have those of large tables. */
  readonly types: readonly (readonly [name: string, objects: number, bytes: number, grownObjects: number, grownBytes: number])[];
  readonly more_types: number;
  readonly blocks: readonly [blocks: number, bytes: number];
  readonly other: readonly [blocks: number, bytes: number];
  readonly unread: readonly [blocks: number, bytes: number];
  readonly reserved_bytes: number;
  /** Above 1, one of so many blocks was read, and numbers are estimates. */
  readonly one_of: number;
}

export interface LeakCandidate {
  /** Index in the target's callsites. */
  readonly callsite: number;
  readonly bytes_per_second: number;
  readonly margin: number;
  readonly old_share: number | null;
  readonly survival: number | null;
}

export interface Leaks {
  readonly span: number;
  readonly too_short: boolean;
  readonly count: number;
  readonly suppressed_count: number;
  readonly suppressed_bytes: number;
  readonly candidates: readonly LeakCandidate[];
}

export interface Target {
  /** Unique, unlike pids. */
  readonly name: string;
  readonly pid: number;
  readonly command: string;
  readonly cgroup: string | null;
  readonly origin: string;
  readonly begun: number;
  readonly exited: boolean;
  readonly replaced: boolean;
  readonly exit_code: number | null;
  readonly detached: number | null;
  readonly estimates: Estimates;
  readonly freed_bytes: number;
  readonly freed_count: number;
  readonly peak_bytes: number;
  readonly peak_time: number | null;
  readonly heaps: readonly Heap[];
  readonly threads: readonly Thread[];
  readonly memory: readonly MemoryPoint[];
  readonly objects: readonly ObjectTypes[];
  readonly leaks: Leaks | null;
  readonly callsites: CallsiteColumns;
  readonly history: HistoryColumns;
}

export interface Hook {
  readonly heap: string;
  readonly function: string;
  readonly module: string;
  readonly backend: string;
  readonly emulated: boolean | null;
  readonly instruction: string | null;
  readonly error: string | null;
  readonly required: boolean;
}

export interface Health {
  readonly lost: readonly { readonly reason: string; readonly count: number; readonly meaning: string | null; readonly remedy: string | null }[];
  readonly unwind: readonly { readonly end: string; readonly count: number; readonly meaning: string | null }[];
  readonly cuts: readonly { readonly cause: string; readonly share: number; readonly advice: string | null }[];
  readonly frame_pointer_modules: readonly string[];
  readonly hooks: readonly Hook[];
  readonly hooks_count: number;
  readonly unfound: readonly { readonly heap: string; readonly function: string; readonly required: boolean }[];
  readonly inlined: readonly string[];
  readonly resyncs: number;
  readonly interval_changes: readonly string[];
  readonly reached: readonly string[];
  readonly memory_bytes_max: number | null;
  readonly memory_bytes_highest: number | null;
  readonly cpu_percent_max: number | null;
  readonly cpu_percent_highest: number | null;
  readonly overhead_percent_max: number | null;
  readonly overheads: readonly { readonly target: string; readonly percent: number; readonly percent_highest: number | null }[];
  readonly events: number;
  readonly agent_cpu: number;
  readonly agent_rss_bytes_max: number;
  readonly skipped: readonly string[];
  readonly symbolization: readonly string[];
}

export interface FunctionColumns {
  /** Strings. */
  readonly name: Column;
  /** Strings: the names without parameters and template arguments. */
  readonly short: Column;
  /** 1 + index of the string; 0 for none. */
  readonly module: Column;
  readonly kind: Column;
}

export interface FrameColumns {
  readonly function: Column;
  /** 1 + index of the string; 0 for none. */
  readonly file: Column;
  /** 0 where unknown. */
  readonly line: Column;
  readonly inlined: Column;
  /** Offset in the module's file where the source file is unknown; -1 for none. */
  readonly offset: Column;
}

/** Pieces of source files. */
export interface SourceColumns {
  /** Strings: paths. */
  readonly file: Column;
  /** Number of the piece's first line. */
  readonly line: Column;
  /** The piece's lines, separated by line feeds. */
  readonly text: readonly string[];
}

export interface Document {
  readonly version: number;
  readonly view: string;
  readonly by: readonly string[];
  readonly header: Header;
  readonly strings: readonly string[];
  readonly functions: FunctionColumns;
  readonly frames: FrameColumns;
  /** Stacks as a tree, outermost frame first: distance of each node to its parent, from node 1 on. Node 0 is the empty stack. */
  readonly nodes: { readonly back: Column; readonly frame: Column };
  /** Labels of stacks' missing parts, by the callsites' column `gap`. */
  readonly gaps: readonly (readonly string[])[];
  readonly targets: readonly Target[];
  readonly health: Health;
  /** Missing without `--source`. */
  readonly sources?: SourceColumns;
}

/** Kinds of functions: values of `FunctionColumns.kind`. */
export const PROGRAM = 0;
export const LIBRARY = 1;
export const PLUMBING = 2;
export const NAMELESS = 3;
export const JITTED = 4;
export const INTERPRETED = 5;

/** Whether functions of a kind are the program's own. */
export function isOwn(kind: number): boolean {
  return kind === PROGRAM || kind === JITTED || kind === INTERPRETED;
}

export function field(view: View): ViewField {
  return view.replace("-", "_") as ViewField;
}

export function isView(name: string): name is View {
  return (VIEWS as readonly string[]).includes(name);
}
