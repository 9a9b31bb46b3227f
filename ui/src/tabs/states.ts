/** States of a task instance that do not change any more. */
export const ENDED: ReadonlySet<string> = new Set(["success", "failed", "skipped", "upstream_failed", "removed"]);
