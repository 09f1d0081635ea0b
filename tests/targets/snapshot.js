// Nests JavaScript frames of many kinds around a read of its input, and describes them first: a line of JSON with the functions, lines
// and first lines of functions, the innermost first. Runs on Node.js 18 and later.
//
// Usage: snapshot.js [ROUNDS]. Calls the same functions so often before, for the compilers.
"use strict";

const fs = require("fs");

const buffer = Buffer.alloc(1);

function describe() {
  const prepare = Error.prepareStackTrace;
  Error.stackTraceLimit = Infinity;
  Error.prepareStackTrace = (error, sites) => sites;
  const sites = new Error().stack.slice(1);
  Error.prepareStackTrace = prepare;
  return JSON.stringify(
    // The engine's own functions, as `map`, have no file.
    sites.filter((site) => typeof site.getFileName() === "string").map((site) => [
      site.getFunctionName() ?? "(anonymous)",
      site.getLineNumber(),
      site.getEnclosingLineNumber?.() ?? null,
    ]),
  );
}

function wait() {
  return [fs.writeSync(1, `${describe()}\n`), fs.readSync(0, buffer, 0, 1)].length;
}

/** Several, so that no compiler knows which one is called. */
const actions = [() => 1, () => 2, () => 3, () => 4, () => 5];

function nested(depth, action) {
  return depth === 0 ? action() : nested(depth - 1, action);
}

function* generator(action) {
  yield nested(3, action);
}

class Shape {
  constructor(action) {
    this.action = action;
  }

  static of(action) {
    return new Shape(action).area;
  }

  get area() {
    return [...generator(this.action)].reduce((sum, part) => sum + part, 0);
  }
}

function überall(action) {
  return [1].map((number) => number + Shape.of(action))[0];
}

const rounds = Number(process.argv[2] ?? 0);
let sum = 0;
for (let round = 0; round < rounds; round++) {
  sum += überall(actions[round % actions.length]);
}
überall(wait);
