import type { Health } from "../../data/document.ts";

/** Whether hooks are missing without which a profile is incomplete. */
export function lacksHooks({ hooks, unfound }: Pick<Health, "hooks" | "unfound">): boolean {
  return hooks.some(({ error, required }) => error !== null && required) || unfound.some(({ required }) => required);
}
