// Leaks buffers of 3,000 bytes, which Node allocates with malloc: a line of input is how many, or `exit 0`.
const held = [];

function leakBuffers(count) {
  for (let i = 0; i < count; i++) held.push(Buffer.allocUnsafeSlow(3000));
}

function handle(line) {
  if (line.startsWith("exit")) process.exit(0);
  for (let left = Number(line); left > 0; left -= 100) leakBuffers(Math.min(left, 100));
  console.log("done");
}

require("readline").createInterface({ input: process.stdin }).on("line", handle);
console.log("ready");
