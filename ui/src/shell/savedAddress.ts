import type { Schemas } from "src/api/client";
import { ROOT } from "src/routes";

/** The address that a saved view names: a page of ours, of its own pipeline, whatever its query says. */
export function savedAddress(dagId: string, { page, query }: Pick<Schemas["SavedView"], "page" | "query">): string {
  const parameters = new URLSearchParams(query);
  parameters.set("dag", dagId);
  return `${ROOT}/${page}?${parameters}`;
}
