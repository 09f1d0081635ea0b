/** Entry point of the page. */

import { EmbeddedSource } from "./data/source.ts";
import { Profile } from "./data/profile.ts";

async function main(): Promise<void> {
  const embedded = document.getElementById("profile")?.textContent ?? "";
  for await (const json of new EmbeddedSource(embedded).documents()) {
    new Profile(json);
  }
}

void main();
