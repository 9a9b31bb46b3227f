import { useMemo } from "react";
import type { Schemas } from "src/api/client";
import { featuresOf, type Placement, parseSelection } from "src/pages/Data/dive/settings";

/** So many columns come where all are asked for: those that are shown first. */
const MOST_COLUMNS = 60;

/** The columns to fetch: those of the picture, of a search that which is searched; of a table or a selection, all. */
export function useWanted(
  features: readonly Schemas["ColumnType"][],
  placement: Placement,
  query: URLSearchParams,
): string[] {
  const open = query.getAll("open").join("\n");
  const selection = query.get("select") ?? "";
  const searched = Boolean(query.get("find"));
  const tabled = query.get("display") === "table";
  return useMemo(() => {
    const drawn = parseSelection(selection);
    const named = [...featuresOf(placement), ...(drawn ? featuresOf(drawn.placement) : []), ...open.split("\n")];
    const known = new Set(features.map(({ name }) => name));
    const names = new Set(named.filter((name) => known.has(name)));
    const add = (more: readonly Schemas["ColumnType"][]) => {
      for (const { name } of more.slice(0, MOST_COLUMNS)) {
        names.add(name);
      }
    };
    if (tabled || drawn) {
      add(features);
    }
    if (searched) {
      add(features.filter(({ role }) => role === "category"));
    }
    if (names.size === 0) {
      // A picture of no feature still has its rows.
      add(features.slice(0, 1));
    }
    return [...names];
  }, [features, placement, selection, open, searched, tabled]);
}
