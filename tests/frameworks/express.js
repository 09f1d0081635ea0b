// Express and sharp: express.js PORT. Appends a line of JSON per block to the file $STACKS: the functions, files and lines of its stack, the
// innermost first. The engine's own functions have no file.
"use strict";

const fs = require("fs");
const express = require("express");
const sharp = require("sharp");

// Bytes of each block, which no other block has.
const SIZE = 40_961;
const output = fs.openSync(process.env.STACKS, "a");
Error.stackTraceLimit = Infinity;

function frames(sites) {
  return sites
    .filter((site) => !site.isAsync() && typeof site.getFileName() === "string")
    .map((site) => [site.getFunctionName() ?? "(anonymous)", site.getFileName(), site.getLineNumber()]);
}

function written(buffer, error) {
  const prepare = Error.prepareStackTrace;
  Error.prepareStackTrace = (_, sites) => frames(sites);
  const stack = error.stack;
  Error.prepareStackTrace = prepare;
  fs.writeSync(output, JSON.stringify(stack) + "\n");
  return buffer;
}

/** The block and its description on one line, which both have. */
function block() {
  return written(Buffer.allocUnsafeSlow(SIZE), new Error());
}

function recursion(depth) {
  return depth === 0 ? block() : recursion(depth - 1);
}

class Model {
  constructor(number) {
    this.number = number;
    block();
  }

  get content() {
    return [1].map(() => block());
  }

  *pieces() {
    yield block();
    yield block();
  }

  static async load(number) {
    block();
    await new Promise((resolve) => setImmediate(resolve));
    block();
    return new Model(number);
  }
}

async function handle(number) {
  const model = await Model.load(number);
  if (number % 3 === 0) return model.content.length;
  if (number % 3 === 1) return [...model.pieces()].length;
  return recursion(number % 23).length;
}

const app = express();
app.use((request, response, next) => {
  block();
  next();
});
app.get("/function/:number", (request, response) => {
  response.send(String(recursion(Number(request.params.number) % 5).length));
});
app.get("/:number", async (request, response) => {
  const image = sharp({ create: { width: 40, height: 30, channels: 3, background: "red" } });
  const pixels = await image.resize(20).raw().toBuffer();
  response.send(String(pixels.length + (await handle(Number(request.params.number)))));
});
app.listen(Number(process.argv[2]), "127.0.0.1");
