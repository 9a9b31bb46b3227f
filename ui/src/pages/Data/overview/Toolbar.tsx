import { HStack } from "@chakra-ui/react";
import { useMemo } from "react";
import { Choice, ChoiceFilter, FilterBar, SearchInput, Segments, Toggle } from "src/components";
import { countOf } from "src/format";
import { useQueryFlag, useQueryParam } from "src/hooks/useQueryState";
import { type FeatureRow, type Group, hasTrait, isIn, TRAITS, type Trait } from "src/pages/Data/overview/features";
import { usePlotStyle } from "src/pages/Data/overview/plot";

interface Props {
  all: readonly FeatureRow[];
  found: number;
  /** What is wrong with the search. */
  problem: string | null;
  several: boolean;
}

/** Which features are shown, in which order, and how they are drawn. */
export function Toolbar({ all, found, problem, several }: Props) {
  const [group, setGroup] = useQueryParam("group", "all");
  const { groups, types, traits } = useMemo(() => countAll(all, several), [all, several]);
  const count = all.length ? countOf(found, all.length, "feature") : "";
  return (
    <FilterBar summary={problem ?? count}>
      <Segments label="Feature types" value={group} onChange={setGroup} items={groups} />
      <SearchInput placeholder="Search, or /regular expression/" />
      <ChoiceFilter name="type" label="Type" choices={types} />
      <ChoiceFilter name="only" label="Only" choices={traits} />
      <SortMenu several={several} />
    </FilterBar>
  );
}

const GROUPS: readonly [Group, string][] = [
  ["all", "All"],
  ["numbers", "Numbers"],
  ["words", "Other"],
];

/** The choices of each filter, with how many features there are of each. */
function countAll(all: readonly FeatureRow[], several: boolean) {
  const count = (test: (row: FeatureRow) => boolean) => all.filter(test).length;
  const types = [...new Set(all.map((row) => row.type))].sort();
  const traits = (Object.keys(TRAITS) as Trait[]).filter(
    (trait) => several || (trait !== "differs" && trait !== "absent"),
  );
  return {
    groups: GROUPS.map(([value, text]) => [value, `${text} ${count((row) => isIn(row, value))}`] as const),
    types: types.map((type) => ({ value: type, count: count((row) => row.type === type) })),
    traits: traits.map((trait) => ({
      value: trait,
      label: TRAITS[trait],
      count: count((row) => hasTrait(row, trait)),
    })),
  };
}

/**
 * How distributions are drawn.
 *
 * @param weights whether there are weighted statistics to choose
 */
export function PlotControls({ weights }: { weights: boolean }) {
  const { chart, setChart, log, setLog, counts, setCounts } = usePlotStyle();
  const [weighted, setWeighted] = useQueryFlag("weighted");
  return (
    <HStack gap={2} wrap="wrap" marginInlineStart="auto">
      <Segments
        label="Chart"
        value={chart}
        onChange={setChart}
        items={[
          ["histogram", "Histogram"],
          ["quantiles", "Quantiles"],
        ]}
      />
      <Segments
        label="Heights"
        value={counts ? "counts" : "percent"}
        onChange={(value) => setCounts(value === "counts")}
        items={[
          ["percent", "%"],
          ["counts", "Count"],
        ]}
      />
      <Toggle label="Log" checked={log} onChange={setLog} />
      {weights && <Toggle label="Weighted" checked={weighted} onChange={setWeighted} />}
    </HStack>
  );
}

/** What the table is ordered by, for those orders that have no heading. */
function SortMenu({ several }: { several: boolean }) {
  const [sort, setSort] = useQueryParam("sort");
  const listed = SORTS.filter(({ pair }) => several || !pair);
  const other = { value: sort, label: "a column" };
  return (
    <Choice
      size="sm"
      label="Sort by"
      value={sort}
      onChange={setSort}
      values={listed.some(({ value }) => value === sort) ? listed : [...listed, other]}
    />
  );
}

const SORTS: readonly { value: string; label: string; pair?: boolean }[] = [
  { value: "", label: "feature order" },
  { value: "name", label: "name" },
  { value: "-missing", label: "most missing" },
  { value: "-zeros", label: "most zeros" },
  { value: "-non_uniformity", label: "non-uniformity" },
  { value: "-distance", label: "distance", pair: true },
];
