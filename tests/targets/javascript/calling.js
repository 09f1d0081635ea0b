// Allocates native memory below many kinds of JavaScript frames, with a size of its own for each, and prints the engine's own
// description of each stack in a line of JSON: {"size": ..., "stack": [[FUNCTION, FILE, LINE, FIRST LINE OF FUNCTION], ...]}, the
// innermost frame first.
//
// Usage: calling.js ROUNDS [worker | FILE]. Executes so many rounds with other sizes, for the compilers. Prints `ready`, and answers
// each line of its input with `done`:
//   allocate   allocates all blocks without a stack trace, so that the engine has no reason to prepare line numbers
//   describe   allocates the same blocks again, and prints their descriptions before `done`
// Each prints `step` three times, after rounds of allocations, and waits for a line: the engine may free code later, so whoever reads
// it has to do so before.
// With `worker`, all of this is done by a worker thread. With a file, it allocates once, writes the descriptions there, and exits.
"use strict";

const fs = require("fs");
const { asynchronousRound } = require("./asynchronous.js");
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");

const REPEATS = 10;
const WARM = 1_000;
const LIVE = 20_000;
const kept = [];
let blocks = [];
/** Distinguishes blocks to keep. Added to all sizes, so that optimized code has no branch that it never took. */
let base = WARM;
let tracing = false;

/** The block and its description on one line, which both have. */
function block(number) {
  blocks.push({ size: base + 8 * number, buffer: Buffer.allocUnsafeSlow(base + 8 * number), trace: tracing && new Error() });
}

function recursion(depth, number) {
  if (depth === 0) block(number);
  else recursion(depth - 1, number);
}

function isEven(depth, number) {
  return depth === 0 ? block(number) : isOdd(depth - 1, number);
}

function isOdd(depth, number) {
  return isEven(depth - 1,
    number);
}

class Shape {
  #secret(number) {
    block(number);
  }

  static named(number) {
    block(number);
  }

  static #hidden(number) {
    block(number);
  }

  static callHidden(number) {
    Shape.#hidden(number);
  }

  constructor(number) {
    block(number);
  }

  draw(number) {
    block(number);
  }

  get area() {
    block(10);
    return 1;
  }

  set area(value) {
    block(value);
  }

  callSecret(number) {
    this.#secret(number);
  }

  *[Symbol.iterator]() {
    block(12);
    yield 1;
    block(13);
  }

  toString() {
    block(14);
    return "";
  }

  valueOf() {
    block(15);
    return 1;
  }

  toJSON() {
    block(16);
    return 1;
  }
}

class Square extends Shape {
  field = block(17);

  constructor() {
    super(18);
    block(19);
  }

  draw(number) {
    super.draw(number);
  }
}

class Derived extends Shape {}

function classes() {
  Shape.named(20);
  Shape.callHidden(21);
  const square = new Square();
  new Derived(22).draw(23);
  square.draw(24);
  square.callSecret(25);
  square.area = 26 * square.area;
  for (const each of square) each;
  `${square}`;
  +square;
  JSON.stringify(square);
  Reflect.construct(Shape, [27], Square);
  Shape.prototype.draw.call(square, 28);
  Shape.prototype.draw.apply(square, [29]);
}

const assigned = function (number) {
  block(number);
};
const arrow = (number) => block(number);
const object = {
  method(number) {
    block(number);
  },
  property: function (number) {
    block(number);
  },
  arrow: (number) => {
    block(number);
  },
  get value() {
    block(30);
    return 1;
  },
  ["comp" + "uted"](number) {
    block(number);
  },
};

/** Expressions without a name of their own. */
function unnamed() {
  (function () {
    block(31);
  })();
  (() => {
    block(32);
  })();
  [(number) => block(number)][0](33);
  object.later = function () {
    block(34);
  };
  object.later();
  object.$größe = () => block(35);
  object.$größe();
}

function closures() {
  function inner(number) {
    const innermost = () => {
      block(number);
    };
    innermost();
  }
  inner(36);
  assigned(37);
  arrow(38);
  object.method(39);
  object.property(40);
  object.arrow(41);
  object.value;
  object.computed(42);
  const bound = assigned.bind(null, 43);
  bound();
  bound.bind(null)();
  unnamed();
  名(44);
}

function 名(number) {
  block(number);
}

function callbacks() {
  [1, 2].forEach((value) => block(44 + value));
  [1, 2].map(function mapped() {
    block(47);
  });
  [3, 1, 2].sort((one, other) => {
    block(48);
    return one - other;
  });
  [1].reduce((sum) => block(49), 0), Array.from([1], () => block(50));
  Array.from([1, 2]).flatMap(() => [block(51)]);
  new Map([[1, 2]]).forEach(() => block(52));
  new Set([1]).forEach(() => block(53));
  new Uint8Array(2).forEach(() => block(54));
  JSON.parse("[1]", (key, value) => {
    block(55);
    return value;
  });
  "aXbX".replace(/X/g, () => {
    block(56);
    return "";
  });
  "ab".replace("a", () => block(57));
  new Promise((resolve) => {
    block(58);
    resolve();
  });
}

const proxy = new Proxy(function target() {}, {
  get(target, property) {
    block(60);
    return property;
  },
  set() {
    block(61);
    return true;
  },
  has: () => {
    block(62);
    return true;
  },
  apply: (target, self, values) => block(values[0]),
  construct(target, values) {
    block(values[0]);
    return {};
  },
});

function proxies() {
  proxy.property;
  proxy.property = 1;
  "property" in proxy;
  proxy(63), new proxy(64);
  Reflect.apply(arrow, null, [65]);
  Object.defineProperty({}, "x", { get: () => block(66) }).x;
}

function* generated(number) {
  block(number);
  const sent = yield 1;
  block(number + 1);
  try {
    yield* delegated(number + 2);
  } finally {
    block(number + 3);
  }
  return sent;
}

function* delegated(number) {
  yield block(number);
}

function generators() {
  for (const each of generated(70)) each;
  const generator = generated(74);
  generator.next();
  generator.next();
  generator.return();
  const [first] = generated(78);
  return first;
}

function failing(number) {
  try {
    null.property;
  } catch (error) {
    block(number);
    throw error;
  } finally {
    block(number + 1);
  }
}

function exceptions() {
  try {
    failing(80);
  } catch {
    block(82);
  }
  label: for (const value of [1, 2]) {
    switch (value) {
      case 1:
        block(83);
        continue label;
      default:
        block(84);
    }
  }
}

/** Small functions, which compilers inline: calls of one function on several lines. */
function first(number) {
  let sum = second(number, 1);
  sum += second(number + 1, 2);
  for (
    let i = 0;
    i < 2;
    i = advanced(i, number + 2)
  ) {
    sum += i;
  }
  return sum;
}

function second(number, value) {
  return (
    value +
    third(number, value * 3) +
    value
  );
}

function third(number, value) {
  block(number);
  return value;
}

function advanced(i, number) {
  block(number);
  return i + 1;
}

class Fluent {
  add(number) {
    block(number);
    return this;
  }
}

function fluent(number) {
  new Fluent()
    .add(number)
    .add(number + 1).add(number + 1)
    .add(number + 2);
  third(number + 3,
    third(number + 4,
      1));
}

function rest(...values) {
  block(values[0]);
}

function defaults(number, value = block(number + 1)) {
  block(number);
  return value;
}

function parameters() {
  rest(...[100, 1, 2]);
  rest(101);
  defaults(102);
  defaults.apply(null, [104, 1, 2, 3, 4, 5, 6]);
}

const compiled = new Function("block", "number", "\n\nblock(number)");
/** In the scope of this module. */
const evaluated = eval("(function evaluated(number) {\n  block(number);\n})");

function evaluations() {
  compiled(block, 106);
  evaluated(107);
  eval("block(108)");
  (0, eval)("(block) => {\n\n  block(109);\n}")(block);
  const named = require.resolve("./required.js");
  delete require.cache[named];
  require("./required.js")(block, 110);
}

/** A loop of one call, whose code is replaced while it runs. */
function replaced() {
  let sum = 0;
  for (let i = 0; i < 1 << 20; i++) {
    sum += i ^ (sum >>> 3);
    if ((i & 0xffff) === 0) block(114);
  }
  return sum;
}

function synchronousRound() {
  recursion(5, 1);
  recursion(100, 2);
  isEven(6, 3);
  classes();
  closures();
  callbacks();
  proxies();
  generators();
  exceptions();
  first(90);
  fluent(93);
  parameters();
  evaluations();
}

/** Continues after a step. */
let proceed = null;
let say = console.log;

function step() {
  const next = new Promise((resolve) => (proceed = resolve));
  say("step");
  return next;
}

async function allocate(isTracing) {
  tracing = isTracing;
  base = LIVE;
  for (let i = 0; i < REPEATS; i++) synchronousRound();
  await step();
  replaced();
  await step();
  for (let i = 0; i < REPEATS; i++) await asynchronousRound(block);
  await step();
  base = WARM;
  tracing = false;
  const found = blocks;
  kept.push(found);
  blocks = [];
  return found;
}

/**
 * The frames of JavaScript functions. The engine's own functions have no file, and callers of asynchronous functions are no frames.
 * Code of `eval` has no name, for which the engine writes `eval`.
 */
function frames(sites) {
  const isShown = (site) => !site.isAsync() && (site.isEval() || typeof site.getFileName() === "string");
  return sites.filter(isShown).map((site) => [
    site.isEval() && site.getFunctionName() === "eval" ? null : site.getFunctionName(),
    site.getFileName() ?? null,
    site.getLineNumber(),
    site.getEnclosingLineNumber?.() ?? null,
  ]);
}

function describe(found) {
  const prepare = Error.prepareStackTrace;
  Error.prepareStackTrace = (error, sites) => frames(sites);
  const lines = found.map((block) => JSON.stringify({ size: block.size, stack: block.trace.stack }));
  Error.prepareStackTrace = prepare;
  return lines;
}

/** A line is a command, or the end of a step of the one before. */
async function answer(line) {
  if (proceed === null) return say(await command(line));
  const resume = proceed;
  proceed = null;
  resume();
}

/** Both commands call the same function on the same line. */
async function command(line) {
  const isTracing = line === "describe";
  const found = await allocate(isTracing);
  return [...(isTracing ? describe(found) : []), "done"].join("\n");
}

/** A line can arrive in parts. */
function listen(receive) {
  let line = "";
  process.stdin.setEncoding("utf8").on("data", (part) => {
    line += part;
    if (!line.endsWith("\n")) return;
    receive(line.trim());
    line = "";
  });
}

async function main([rounds, mode]) {
  const isQuiet = isMainThread && mode !== undefined && mode !== "worker";
  globalThis.heapbpfBlock = block;
  Error.stackTraceLimit = Infinity;
  for (let i = Number(rounds); i > 0; i--) {
    synchronousRound();
    // Timers take a millisecond.
    if (i <= 300) await asynchronousRound(block);
    blocks = [];
  }
  if (isQuiet) {
    say = () => setImmediate(() => proceed());
    fs.writeFileSync(mode, await command("describe"));
  } else if (isMainThread) {
    listen(answer);
    console.log("ready");
  } else {
    say = (text) => parentPort.postMessage(text);
    parentPort.on("message", answer);
    parentPort.postMessage("ready");
  }
}

if (isMainThread && process.argv[3] === "worker") {
  const worker = new Worker(__filename, { workerData: process.argv.slice(2) });
  worker.on("message", (text) => console.log(text));
  listen((line) => worker.postMessage(line));
} else {
  main(isMainThread ? process.argv.slice(2) : workerData);
}
