/** Documents of a running recording: the server announces changes as events, and the page then fetches the document. */

import type { Document } from "./document.ts";
import type { ProfileSource } from "./source.ts";

const EVENTS = "api/events";
const DOCUMENT = "api/document";
/** Sequence number of the document in the response. */
const SEQUENCE_HEADER = "Heapbpf-Sequence";

/** Minimum time between two documents, in milliseconds. */
export const PAUSE_MIN = 2000;
/** A page that shows documents slowly fetches them less often: it is busy for at most one part in this many. */
const IDLE_FACTOR = 8;
/** Delays of reconnection attempts, in milliseconds: doubled with each, and shortened at random by up to a half. */
export const RETRY_MIN = 1000;
export const RETRY_MAX = 30_000;

/** `idle`: the server is there, and records nothing at present. `refused`: the server requires a token. */
export type Connection = "connecting" | "live" | "idle" | "reconnecting" | "refused" | "ended";

export interface LiveStatus {
  readonly connection: Connection;
  readonly isPaused: boolean;
  /** When the document that is shown was received, in milliseconds since 1970; null before the first. */
  readonly updated: number | null;
}

/** What a live source needs from the browser; tests replace it. */
export interface Browser {
  readonly connect: (url: string) => EventSource;
  readonly fetch: (url: string) => Promise<Response>;
  /** Wall clock, in milliseconds since 1970. */
  readonly now: () => number;
  readonly delay: (run: () => void, millis: number) => void;
  readonly random: () => number;
  /** Whether the page is visible and the reader is not in the middle of a gesture. */
  readonly isFree: () => boolean;
  /** Calls back when `isFree` may have changed. */
  readonly onFree: (listen: () => void) => void;
}

interface Update {
  readonly sequence: number;
  readonly recording: boolean;
}

function parsed(data: unknown): Update | null {
  try {
    const { sequence, recording } = JSON.parse(String(data)) as Partial<Update>;
    return typeof sequence === "number" ? { sequence, recording: recording !== false } : null;
  } catch {
    return null;
  }
}

export class LiveSource implements ProfileSource {
  private status: LiveStatus = { connection: "connecting", isPaused: false, updated: null };
  private readonly listeners = new Set<(status: LiveStatus) => void>();
  private events: EventSource | null = null;
  private failures = 0;
  /** Number of connections so far: a delayed reconnection of an older one is void. */
  private connections = 0;
  /** Sequence numbers of the newest document there is, and of the last one received. */
  private wanted = -1;
  private received = -1;
  /** No request before this time. */
  private notBefore = 0;
  private wake: () => void = () => undefined;

  constructor(private readonly browser: Browser) {
    browser.onFree(() => {
      // A reader who returns does not wait for the next attempt.
      if (this.status.connection === "reconnecting" && browser.isFree()) {
        this.connect();
      }
      this.wake();
    });
  }

  /** Calls back with the present status and with every change; returns what ends that. */
  subscribe(listener: (status: LiveStatus) => void): () => void {
    this.listeners.add(listener);
    listener(this.status);
    return () => this.listeners.delete(listener);
  }

  /** While paused, no document is shown. */
  pause(isPaused: boolean): void {
    this.change({ isPaused });
    this.wake();
  }

  /** Connects; yields the next document only after the last one has been shown. */
  async *documents(): AsyncGenerator<Document> {
    this.connect();
    for (;;) {
      await this.until(() => this.isDue());
      const isLast = this.status.connection === "ended";
      const asked = this.browser.now();
      const document = await this.receive();
      if (document !== null) {
        // The reader may have begun a gesture, or paused, in the meantime.
        await this.until(() => this.isShowable());
        this.change({ updated: this.browser.now() });
        const shown = this.browser.now();
        yield document;
        this.notBefore = Math.max(asked + PAUSE_MIN, this.browser.now() + IDLE_FACTOR * (this.browser.now() - shown));
      }
      if (isLast) {
        return;
      }
    }
  }

  /** Whether to fetch now. The last document is fetched at once: the server exits. */
  private isDue(): boolean {
    if (this.status.connection === "ended") {
      return true;
    }
    const wait = this.notBefore - this.browser.now();
    if (this.wanted > this.received && wait > 0) {
      this.browser.delay(() => { this.wake(); }, wait);
    }
    return this.wanted > this.received && wait <= 0 && this.isShowable();
  }

  private isShowable(): boolean {
    return !this.status.isPaused && this.browser.isFree();
  }

  /** Waits for a condition, which is checked at every `wake`. */
  private async until(condition: () => boolean): Promise<void> {
    while (!condition()) {
      await new Promise<void>((resolve) => { this.wake = resolve; });
    }
  }

  private change(change: Partial<LiveStatus>): void {
    this.status = { ...this.status, ...change };
    this.listeners.forEach((listener) => { listener(this.status); });
  }

  private connect(): void {
    this.connections += 1;
    this.events?.close();
    const events = this.browser.connect(EVENTS);
    this.events = events;
    events.addEventListener("update", ({ data }: MessageEvent) => {
      const update = parsed(data);
      if (update !== null) {
        this.failures = 0;
        // A server that was started again counts from the start.
        this.received = update.sequence < this.wanted ? -1 : this.received;
        this.wanted = update.sequence;
        this.change({ connection: update.recording ? "live" : "idle" });
        this.wake();
      }
    });
    events.addEventListener("end", () => {
      events.close();
      this.change({ connection: "ended" });
      this.wake();
    });
    events.addEventListener("error", () => { this.reconnect(); });
  }

  /** Connects again after a delay: the browser itself gives up after some errors, and floods the server after others. */
  private reconnect(): void {
    this.events?.close();
    const { connection } = this.status;
    if (connection === "ended") {
      return;
    }
    this.change({ connection: connection === "refused" ? "refused" : "reconnecting" });
    const delay = Math.min(RETRY_MAX, RETRY_MIN * 2 ** this.failures);
    this.failures += 1;
    const { connections } = this;
    this.browser.delay(() => {
      if (this.connections === connections) {
        this.connect();
      }
    }, delay * (1 - this.browser.random() / 2));
  }

  /** Fetches the document; null if there is none that is newer, or if the request failed. */
  private async receive(): Promise<Document | null> {
    this.notBefore = this.browser.now() + PAUSE_MIN;
    try {
      const response = await this.browser.fetch(this.received < 0 ? DOCUMENT : `${DOCUMENT}?since=${this.received}`);
      if (response.status === 401 || response.status === 403) {
        this.change({ connection: "refused" });
      }
      if (!response.ok) {
        const seconds = Number(response.headers.get("Retry-After") ?? "0");
        this.notBefore = this.browser.now() + Math.max(PAUSE_MIN, Math.min(RETRY_MAX, seconds * 1000 || 0));
        return null;
      }
      const { wanted } = this;
      const document = response.status === 204 ? null : ((await response.json()) as Document);
      this.received = Math.max(wanted, Number(response.headers.get(SEQUENCE_HEADER) ?? "-1") || -1);
      return document;
    } catch {
      // The connection of the events reports the loss, and a later update another document.
      return null;
    }
  }
}

/** An open list keeps updates back for at most this long: browsers do not report that it was closed without a choice. */
const LIST_MAX = 15_000;

/** The browser that the page is in. */
export function thisBrowser(): Browser {
  let isPressed = false;
  /** Until when a list may be open, whose options must not change. */
  let listUntil = 0;
  const listeners: (() => void)[] = [];
  const changed = (): void => { listeners.forEach((listen) => { listen(); }); };
  const on = <Name extends keyof WindowEventMap>(name: Name, run: (event: WindowEventMap[Name]) => void): void => {
    addEventListener(name, (event) => { run(event); changed(); }, { capture: true, passive: true });
  };
  const opens = ({ target }: Event): void => { listUntil = target instanceof HTMLSelectElement ? Date.now() + LIST_MAX : 0; };
  const closes = (): void => { listUntil = 0; };
  on("pointerdown", (event) => { isPressed = true; opens(event); });
  on("pointerup", () => { isPressed = false; });
  on("pointercancel", () => { isPressed = false; });
  on("keydown", (event) => { if (event.key === "Escape") { closes(); } else { opens(event); } });
  on("change", closes);
  on("focusout", closes);
  on("blur", () => { isPressed = false; closes(); });
  document.addEventListener("visibilitychange", changed);
  return {
    connect: (url) => new EventSource(url),
    fetch: (url) => fetch(url, { cache: "no-store" }),
    now: () => Date.now(),
    delay: (run, millis) => { setTimeout(run, millis); },
    random: () => Math.random(),
    isFree: () => document.visibilityState === "visible" && !isPressed && Date.now() >= listUntil,
    onFree: (listen) => { listeners.push(listen); },
  };
}
