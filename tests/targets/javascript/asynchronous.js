// Asynchronous calls for calling.js, in a file of their own.
"use strict";

const fs = require("fs");
const path = require("path");
const { pathToFileURL } = require("url");

const imported = import("./module.mjs").then((module) => module.default);
let imports = 0;
let block;

async function asynchronous(number) {
  block(number);
  await null;
  block(number + 1);
  await inner(number + 2);
  for await (const each of streamed(number + 4)) block(each);
}

async function inner(number) {
  try {
    await Promise.reject(new RangeError());
  } catch {
    block(number);
  }
  await new Promise((resolve) => setTimeout(resolve, 0));
  block(number + 1);
}

async function* streamed(number) {
  block(number);
  yield number + 1;
}

async function promises() {
  await Promise.resolve(1).then(() => block(130));
  await Promise.reject(1).catch(function caught() {
    block(131);
  });
  await Promise.all([1, 2].map(async (value) => {
    await null;
    block(131 + value);
  }));
  await { then(resolve) { block(134); resolve(); } };
  await new Promise((resolve) => queueMicrotask(() => resolve(block(135))));
  await new Promise((resolve) => process.nextTick(() => resolve(block(136))));
}

async function timers() {
  await new Promise((resolve) => setTimeout(() => resolve(block(140)), 0));
  await new Promise((resolve) => setImmediate(() => resolve(block(141))));
  await new Promise((resolve) => fs.stat(__filename, () => resolve(block(142))));
  await (await imported)(block, 143);
  await import(`${pathToFileURL(path.join(__dirname, "module.mjs"))}?${(imports += 1)}`);
}

async function asynchronousRound(allocating) {
  block = allocating;
  await asynchronous(120);
  await promises();
  await timers();
}

module.exports = { asynchronousRound };
