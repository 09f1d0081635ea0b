// An ES module, which allocates while it is loaded, too.

globalThis.heapbpfBlock?.(144);

export default async function exported(block, number) {
  await null;
  block(number);
}

const local = (number) => globalThis.heapbpfBlock?.(number);
local(145);
await null;
local(146);
