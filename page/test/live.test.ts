import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, mock, test } from "node:test";
import { LiveSource, PAUSE_MIN, RETRY_MAX, type Browser, type LiveStatus } from "../src/data/live.ts";
import type { Document } from "../src/data/document.ts";

class FakeEvents extends EventTarget {
  isClosed = false;

  close(): void {
    this.isClosed = true;
  }

  send(name: string, data: unknown = {}): void {
    const event = Object.assign(new Event(name), { data: JSON.stringify(data) });
    this.dispatchEvent(event);
  }

  update(sequence: number, recording = true): void {
    this.send("update", { sequence, time: 0, recording });
  }
}

type Answer = Document | number | { readonly status: number; readonly retryAfter: number };

/** A browser whose server answers as told; time is that of `mock.timers`. */
class FakeBrowser implements Browser {
  readonly connections: FakeEvents[] = [];
  readonly requests: string[] = [];
  answer: (sequence: number) => Answer = (sequence) => ({ version: sequence }) as Document;
  sequence = 0;
  free = true;
  private listen: () => void = () => undefined;

  get events(): FakeEvents {
    const last = this.connections.at(-1);
    assert.ok(last !== undefined, "there is a connection");
    return last;
  }

  readonly connect = (url: string): EventSource => {
    assert.equal(url, "api/events");
    this.connections.push(new FakeEvents());
    return this.events as unknown as EventSource;
  };

  readonly fetch = (url: string): Promise<Response> => {
    this.requests.push(url);
    const answer = this.answer(this.sequence);
    if (typeof answer === "number") {
      return answer === 0 ? Promise.reject(new TypeError("network error")) : Promise.resolve(new Response(null, { status: answer }));
    }
    if ("retryAfter" in answer) {
      return Promise.resolve(new Response(null, { status: answer.status, headers: { "Retry-After": String(answer.retryAfter) } }));
    }
    return Promise.resolve(new Response(JSON.stringify(answer), { headers: { "Heapbpf-Sequence": String(this.sequence) } }));
  };

  readonly now = (): number => Date.now();
  readonly delay = (run: () => void, millis: number): void => { setTimeout(run, millis); };
  readonly random = (): number => 0;
  readonly isFree = (): boolean => this.free;
  readonly onFree = (listen: () => void): void => { this.listen = listen; };

  setFree(free: boolean): void {
    this.free = free;
    this.listen();
  }
}

/** Lets all promises that can proceed do so. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 50; turn += 1) {
    await Promise.resolve();
  }
  await new Promise((resolve) => { setImmediate(resolve); });
}

async function pass(millis: number): Promise<void> {
  mock.timers.tick(millis);
  await settle();
}

interface Followed {
  readonly browser: FakeBrowser;
  readonly source: LiveSource;
  readonly shown: number[];
  readonly status: () => LiveStatus;
  readonly isOver: () => boolean;
}

/** Shows documents as the page does; each takes `cost` milliseconds. */
async function followed(cost = 0): Promise<Followed> {
  const browser = new FakeBrowser();
  const source = new LiveSource(browser);
  const shown: number[] = [];
  let status: LiveStatus | null = null;
  let isOver = false;
  source.subscribe((next) => { status = next; });
  void (async () => {
    for await (const { version } of source.documents()) {
      shown.push(version);
      mock.timers.tick(cost);
    }
    isOver = true;
  })();
  await settle();
  return { browser, source, shown, status: () => { assert.ok(status !== null); return status; }, isOver: () => isOver };
}

async function announce({ browser }: Followed, sequence: number): Promise<void> {
  browser.sequence = sequence;
  browser.events.update(sequence);
  await settle();
}

describe("live source", () => {
  beforeEach(() => { mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 }); });
  afterEach(() => { mock.timers.reset(); });

  test("a document is fetched for an update, and none without", async () => {
    const page = await followed();
    assert.deepEqual([page.shown, page.browser.requests.length, page.status().connection], [[], 0, "connecting"]);
    await announce(page, 1);
    assert.deepEqual(page.shown, [1]);
    assert.deepEqual(page.status(), { connection: "live", isPaused: false, updated: 1_000_000 });
    await pass(60_000);
    assert.deepEqual(page.browser.requests, ["api/document"]);
    await announce(page, 1);
    assert.equal(page.browser.requests.length, 1, "the document is known");
    await announce(page, 2);
    assert.deepEqual([page.shown, page.browser.requests.at(-1)], [[1, 2], "api/document?since=1"]);
  });

  test("many updates are one document, and slow pages are updated less often", async () => {
    const fast = await followed();
    for (let sequence = 1; sequence <= 20; sequence += 1) {
      await announce(fast, sequence);
      await pass(PAUSE_MIN / 10);
    }
    assert.deepEqual(fast.shown, [1, 10, 20]);
    const slow = await followed(1000);
    await announce(slow, 1);
    await announce(slow, 2);
    await pass(7000);
    assert.deepEqual(slow.shown, [1]);
    await pass(2000);
    assert.deepEqual(slow.shown, [1, 2]);
  });

  test("nothing is fetched while paused, hidden or in a gesture", async () => {
    const page = await followed();
    await announce(page, 1);
    page.source.pause(true);
    await announce(page, 2);
    await pass(10_000);
    assert.deepEqual([page.shown, page.browser.requests.length, page.status().isPaused], [[1], 1, true]);
    page.source.pause(false);
    await settle();
    assert.deepEqual(page.shown, [1, 2]);
    await pass(10_000);
    page.browser.setFree(false);
    await announce(page, 3);
    await pass(10_000);
    assert.deepEqual([page.shown, page.browser.requests.length], [[1, 2], 2]);
    page.browser.setFree(true);
    await settle();
    assert.deepEqual(page.shown, [1, 2, 3]);
  });

  test("a lost connection is made again, ever less often, and at once when the reader returns", async () => {
    const page = await followed();
    await announce(page, 1);
    const { browser } = page;
    const waits: number[] = [];
    for (let attempt = 0; attempt < 7; attempt += 1) {
      const { length } = browser.connections;
      browser.events.send("error");
      assert.ok(browser.events.isClosed);
      assert.equal(page.status().connection, "reconnecting");
      const began = Date.now();
      while (browser.connections.length === length) {
        await pass(500);
      }
      waits.push(Date.now() - began);
    }
    assert.deepEqual(waits, [1000, 2000, 4000, 8000, 16_000, RETRY_MAX, RETRY_MAX]);
    browser.events.send("error");
    browser.setFree(true);
    assert.equal(browser.connections.length, 9);
    await pass(RETRY_MAX);
    assert.equal(browser.connections.length, 9, "the delayed attempt is void");
    await announce(page, 5);
    assert.deepEqual([page.status().connection, page.shown], ["live", [1, 5]]);
    browser.events.send("error");
    await pass(1000);
    assert.equal(browser.connections.length, 10, "delays start again");
  });

  test("a server that was started again counts from the start", async () => {
    const page = await followed();
    await announce(page, 40);
    page.browser.events.send("error");
    await pass(PAUSE_MIN);
    await announce(page, 2);
    assert.deepEqual([page.shown, page.browser.requests.at(-1)], [[40, 2], "api/document"]);
  });

  test("the last document is shown, and nothing after it", async () => {
    const page = await followed();
    await announce(page, 1);
    page.browser.sequence = 2;
    page.browser.events.send("end");
    await settle();
    assert.deepEqual([page.shown, page.status().connection, page.isOver()], [[1, 2], "ended", true]);
    assert.ok(page.browser.events.isClosed);
    await pass(600_000);
    assert.deepEqual([page.browser.connections.length, page.browser.requests.length], [1, 2]);
  });

  test("the end is not shown while paused", async () => {
    const page = await followed();
    await announce(page, 1);
    page.source.pause(true);
    page.browser.sequence = 2;
    page.browser.events.send("end");
    await settle();
    assert.deepEqual([page.shown, page.browser.requests.length, page.isOver()], [[1], 2, false], "it is fetched: the server exits");
    page.source.pause(false);
    await settle();
    assert.deepEqual([page.shown, page.isOver()], [[1, 2], true]);
  });

  test("a server that has gone ends a page too", async () => {
    const page = await followed();
    await announce(page, 1);
    page.browser.answer = () => 0;
    page.browser.events.send("end");
    await settle();
    assert.deepEqual([page.shown, page.isOver()], [[1], true]);
  });

  test("errors are repeated later, and a refusal is shown", async () => {
    const page = await followed();
    page.browser.answer = () => ({ status: 503, retryAfter: 5 });
    await announce(page, 1);
    await pass(4000);
    assert.equal(page.browser.requests.length, 1);
    page.browser.answer = () => 401;
    await pass(1000);
    assert.deepEqual([page.browser.requests.length, page.status().connection], [2, "refused"]);
    page.browser.answer = () => 0;
    await pass(PAUSE_MIN);
    page.browser.answer = (sequence) => ({ version: sequence }) as Document;
    await pass(PAUSE_MIN);
    assert.deepEqual(page.shown, [1]);
  });

  test("damaged events are ignored, and pauses of recording are shown", async () => {
    const page = await followed();
    page.browser.events.dispatchEvent(Object.assign(new Event("update"), { data: "{" }));
    page.browser.events.send("update", { sequence: "1" });
    await settle();
    assert.equal(page.status().connection, "connecting");
    page.browser.events.update(1, false);
    await settle();
    assert.equal(page.status().connection, "idle");
  });
});
