// A server in TypeScript, which tsc compiles. Describes its stacks as express.js does; without --enable-source-maps, lines are those of
// the compiled file.
import * as fs from "fs";
import * as http from "http";

const SIZE: number = 40_961;
const output: number = fs.openSync(process.env.STACKS as string, "a");
Error.stackTraceLimit = Infinity;

interface Shape {
  readonly name: string;
  draw(depth: number): Buffer;
}

function frames(sites: NodeJS.CallSite[]): unknown[] {
  return sites
    .filter((site: any) => !site.isAsync() && typeof site.getFileName() === "string")
    .map((site) => [site.getFunctionName() ?? "(anonymous)", site.getFileName(), site.getLineNumber()]);
}

function written(buffer: Buffer, error: Error): Buffer {
  const prepare = Error.prepareStackTrace;
  Error.prepareStackTrace = (_, sites) => frames(sites);
  const stack: unknown = error.stack;
  Error.prepareStackTrace = prepare;
  fs.writeSync(output, JSON.stringify(stack) + "\n");
  return buffer;
}

function block(): Buffer {
  return written(Buffer.allocUnsafeSlow(SIZE), new Error());
}

abstract class Base implements Shape {
  constructor(public readonly name: string) {
    block();
  }

  abstract draw(depth: number): Buffer;
}

class Square extends Base {
  draw(depth: number): Buffer {
    return depth > 0 ? this.draw(depth - 1) : block();
  }
}

enum Kind {
  Plain,
  Awaited,
}

async function handle(kind: Kind, number: number): Promise<number> {
  const shape: Shape = new Square("square");
  if (kind === Kind.Awaited) await new Promise<void>((resolve) => setImmediate(resolve));
  return shape.draw(number % 7).length;
}

http
  .createServer(async (request, response) => {
    const number = Number(request.url?.split("/").pop());
    response.end(String(await handle(number % 2 ? Kind.Awaited : Kind.Plain, number)));
  })
  .listen(Number(process.argv[2]), "127.0.0.1");
