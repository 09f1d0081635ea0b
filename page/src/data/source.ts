/** Sources of documents. The rest of the page does not depend on how a document arrives. */

import type { Document } from "./document.ts";

/** Yields documents: one for a finished profile; a live source yields another with every update. */
export interface ProfileSource {
  documents(): AsyncIterable<Document>;
}

/** The document that is embedded in the page: JSON, compressed with gzip, in base64. */
export class EmbeddedSource implements ProfileSource {
  constructor(private readonly text: string) {}

  async *documents(): AsyncGenerator<Document> {
    yield JSON.parse(await unpack(this.text)) as Document;
  }
}

/** Decompresses base64 text. */
export async function unpack(packed: string): Promise<string> {
  if (typeof DecompressionStream === "undefined") {
    throw new Error(
      "This browser cannot open compressed data: it has no DecompressionStream. Chromium 92, Firefox 113 and Safari 16.4 and later can.",
    );
  }
  try {
    const binary = atob(packed.trim());
    const bytes = new Uint8Array(binary.length);
    for (let at = 0; at < binary.length; at += 1) {
      bytes[at] = binary.charCodeAt(at);
    }
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).text();
  } catch (error) {
    // The browser's own message here (`Failed to fetch`) is misleading.
    throw new Error("Its data are damaged: the file was changed on its way here.", { cause: error });
  }
}
