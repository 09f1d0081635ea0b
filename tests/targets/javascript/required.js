// A CommonJS module. Its function is in another file than its caller.
"use strict";

globalThis.heapbpfBlock(111);

module.exports = function required(block, number) {
  block(number);
};
