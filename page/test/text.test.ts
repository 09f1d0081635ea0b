/** Names that somebody else has chosen. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { printable } from "../src/text.ts";

test("names are one line", () => {
  assert.equal(printable(" a\n\tb\u2028c\u007f "), "a b c");
});

test("characters that are not shown are replaced", () => {
  for (const hidden of ["\u200b", "\u202e", "\u2066", "\ufeff", "\u00ad", "\u115f", "\u{e0041}", "\ufff9", "\uffff"]) {
    assert.equal(printable(`a${hidden}b`), "a\ufffdb", hidden.codePointAt(0)?.toString(16));
  }
});

test("forms of characters are kept", () => {
  for (const name of ["❤\ufe0f", "葛\u{e0100}", "naïve", "日本"]) {
    assert.equal(printable(name), name);
  }
});
