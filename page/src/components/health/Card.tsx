/** A card of the health section. */

import type { ComponentChildren, JSX } from "preact";

export type Grade = "good" | "plain" | "poor" | "bad";

export function Card({ title, grade, children }: { title: string; grade: Grade; children: ComponentChildren }): JSX.Element {
  return (
    <div class={`card ${grade}`}>
      <h3>{title}</h3>
      {children}
    </div>
  );
}
