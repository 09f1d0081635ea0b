/** Whether the page follows a recording, when it was last updated, and the button that pauses it. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { LiveSource, LiveStatus } from "../data/live.ts";
import { Button } from "./names.tsx";

/** State of a live page in a word. */
export function stateOf({ connection, isPaused }: LiveStatus): string {
  return isPaused && (connection === "live" || connection === "idle") ? "paused" : connection;
}

const TITLES: Readonly<Record<string, string>> = {
  connecting: "Connecting",
  live: "Live",
  paused: "Paused",
  idle: "Not recording",
  reconnecting: "Reconnecting",
  refused: "Access denied",
  ended: "Ended",
};

const MEANINGS: Readonly<Record<string, string>> = {
  live: "The page follows the recording",
  paused: "The recording goes on; the page shows it again after Resume",
  idle: "heapbpf runs, and records nothing at present",
  reconnecting: "heapbpf does not answer",
  refused: "heapbpf requires the token: open the address with it again",
  ended: "The recording has ended; this is its last state",
};

export function useLiveStatus(source: LiveSource): LiveStatus | null {
  const [status, setStatus] = useState<LiveStatus | null>(null);
  useEffect(() => source.subscribe(setStatus), [source]);
  return status;
}

export function Live({ source }: { source: LiveSource }): JSX.Element | null {
  const status = useLiveStatus(source);
  if (status === null) {
    return null;
  }
  const state = stateOf(status);
  const { isPaused, updated } = status;
  return (
    <div id="live" data-state={state}>
      <i aria-hidden="true" />
      <span id="live-state" role="status" title={MEANINGS[state]}>
        {TITLES[state]}
      </span>
      <span id="live-time" title="Time of the last update">{updated === null ? "" : new Date(updated).toLocaleTimeString()}</span>
      {state === "ended" && !isPaused ? null : (
        <Button id="live-pause" pressed={isPaused} onClick={() => { source.pause(!isPaused); }}>
          {isPaused ? "Resume" : "Pause"}
        </Button>
      )}
    </div>
  );
}
