// What `bundle.js` and its map are made of: `esbuild src/main.ts --bundle --platform=node --minify --sourcemap
// --sources-content=false --outfile=bundle.js` (0.28). A line of input is how often each function leaks, or `exit 0`.
import { Cache, leakArrow, leakBuffers } from "./leak";

const cache: Cache = new Cache();

async function handleLine(line: string): Promise<void> {
  if (line.startsWith("exit")) process.exit(0);
  for (let round = 0; round < Number(line); round++) {
    leakBuffers(10);
    await leakArrow(4000);
    cache.addEntry(5000);
  }
  console.log("done");
}

require("readline").createInterface({ input: process.stdin }).on("line", handleLine);
console.log("ready");
