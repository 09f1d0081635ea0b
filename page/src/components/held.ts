/** State that belongs to one model or tree and is carried over to the next. */

import { useCallback, useRef, useState } from "preact/hooks";
import type { Tree } from "../analysis/tree.ts";

interface Held<Owner, Value> {
  readonly owner: Owner;
  readonly value: Value;
}

/** The value of an owner, and a function that changes it. For another owner, `next` computes it from the value before, in
 * the same render: no component sees indices of another document. */
export function useHeld<Owner, Value>(owner: Owner, next: (before: Held<Owner, Value> | null) => Value): [Value, (change: (before: Value) => Value) => void] {
  const held = useRef<Held<Owner, Value> | null>(null);
  const [, count] = useState(0);
  if (held.current?.owner !== owner) {
    held.current = { owner, value: next(held.current) };
  }
  const change = useCallback((changed: (before: Value) => Value): void => {
    const { current } = held;
    if (current !== null) {
      held.current = { ...current, value: changed(current.value) };
      count((renders) => renders + 1);
    }
  }, []);
  return [held.current.value, change];
}

/** A value of a tree, and its setter. Another tree of the same document starts with `initial`; in a tree of another
 * document, `carry` finds the value again. */
export function useOfTree<Value>(tree: Tree, initial: () => Value, carry: (from: Tree, value: Value, to: Tree) => Value): [Value, (value: Value) => void] {
  const [value, change] = useHeld<Tree, Value>(tree, (before) =>
    before !== null && before.owner.profile !== tree.profile ? carry(before.owner, before.value, tree) : initial());
  return [value, (next) => { change(() => next); }];
}
