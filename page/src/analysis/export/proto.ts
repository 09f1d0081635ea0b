/** Writes Protocol Buffers messages. */

const VARINT = 0;
const BYTES = 2;

export class Message {
  private readonly bytes: number[] = [];

  /** A field of a whole number, up to 2^53 in size. Zeros are left out, as in proto3. */
  number(field: number, value: number): this {
    if (value !== 0) {
      this.varint(field * 8 + VARINT);
      this.varint(value);
    }
    return this;
  }

  text(field: number, value: string): this {
    return this.raw(field, new TextEncoder().encode(value));
  }

  message(field: number, value: Message): this {
    return this.raw(field, value.bytes);
  }

  packed(field: number, values: Iterable<number>): this {
    const list = new Message();
    for (const value of values) {
      list.varint(value);
    }
    return list.bytes.length > 0 ? this.message(field, list) : this;
  }

  finish(): Uint8Array<ArrayBuffer> {
    return Uint8Array.from(this.bytes);
  }

  private raw(field: number, value: Uint8Array | readonly number[]): this {
    this.varint(field * 8 + BYTES);
    this.varint(value.length);
    for (const byte of value) {
      this.bytes.push(byte);
    }
    return this;
  }

  /** Negative numbers have the ten bytes of their 64-bit two's complement. */
  private varint(value: number): void {
    if (value < 0) {
      for (let rest = BigInt.asUintN(64, BigInt(value)); ; rest >>= 7n) {
        if (rest < 0x80n) {
          this.bytes.push(Number(rest));
          return;
        }
        this.bytes.push(Number(rest & 0x7fn) | 0x80);
      }
    }
    let rest = value;
    while (rest >= 0x80) {
      this.bytes.push((rest % 0x80) | 0x80);
      rest = Math.floor(rest / 0x80);
    }
    this.bytes.push(rest);
  }
}
