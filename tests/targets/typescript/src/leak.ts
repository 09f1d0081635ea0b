// Leaks buffers of 3,000 bytes and more, which Node allocates with malloc.
interface Held {
  data: Buffer;
}

const held: Held[] = [];

export function leakBuffers(count: number): void {
  for (let index = 0; index < count; index++) {
    held.push({ data: Buffer.allocUnsafeSlow(3000) });
  }
}

export const leakArrow = async (size: number): Promise<void> => {
  held.push({ data: Buffer.allocUnsafeSlow(size) });
};

export class Cache {
  private kept: Buffer[] = [];

  addEntry(size: number): number {
    this.kept.push(Buffer.allocUnsafeSlow(size));
    return this.kept.length;
  }
}
