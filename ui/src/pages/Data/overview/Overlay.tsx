import { Box, Grid, HStack, Stack } from "@chakra-ui/react";
import { useCallback, useMemo } from "react";
import { Empty, ErrorAlert, LoadingRows, Notice } from "src/components";
import { formatTime } from "src/format";
import { useQuery, useQueryFlag, useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import { DatasetBar } from "src/pages/Data/overview/DatasetBar";
import { chooseDatasets, labelOf, type Shown } from "src/pages/Data/overview/datasets";
import { FeaturePanel } from "src/pages/Data/overview/FeaturePanel";
import { FeaturesTable } from "src/pages/Data/overview/FeaturesTable";
import {
  type FeatureRow,
  type Group,
  hasTrait,
  isIn,
  labelInWords,
  mergeFeatures,
  nameTest,
  type Roles,
  TRAITS,
  type Trait,
} from "src/pages/Data/overview/features";
import { usePlotStyle } from "src/pages/Data/overview/plot";
import { useDistances, useListings, useTables } from "src/pages/Data/overview/queries";
import { PlotControls, Toolbar } from "src/pages/Data/overview/Toolbar";
import type { ArtifactRef } from "src/routes";

/** The data sets of artifacts over one another. */
export function Overlay({ refs }: { refs: readonly ArtifactRef[] }) {
  const listings = useListings(refs);
  const [named] = useQueryList("show");
  const [split] = useQueryParam("split");
  const known = listings.map(({ data }) => data);
  const chosen = chooseDatasets(known, named, split);
  const key = JSON.stringify([chosen, refs]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key says what is shown
  const shown = useMemo(
    () =>
      chosen.flatMap((dataset, index): Shown[] => {
        const ref = refs[dataset.artifact];
        const label = ref && labelOf(dataset, ref, refs.length > 1);
        return ref && label ? [{ ...dataset, ref, label, index }] : [];
      }),
    [key],
  );
  const first = known.find((listing) => listing !== undefined);
  const roles = useMemo(
    (): Roles => ({
      label: first?.label ?? null,
      labelWords: labelInWords(first?.problem ?? null, first?.classes ?? null),
      weight: first?.weight ?? null,
      time: first?.time ?? null,
    }),
    [first],
  );
  const warnings = [...new Set(known.flatMap((listing) => listing?.warnings ?? []))];
  const weights = known.some((listing) => listing?.datasets.some(({ weighted_rows }) => weighted_rows !== null));
  return (
    <Stack gap={3}>
      <HStack gap={3} wrap="wrap">
        <DatasetBar refs={refs} listings={listings} shown={shown} />
        <PlotControls weights={weights} />
      </HStack>
      {warnings.length > 0 && (
        <Notice status="warning" title="Values to look at">
          {warnings.join("\n")}
        </Notice>
      )}
      {(shown.length > 0 || listings.some(({ isPending }) => isPending)) && (
        <Features shown={shown} roles={roles} weights={weights} />
      )}
    </Stack>
  );
}

function Features({ shown, roles, weights }: { shown: readonly Shown[]; roles: Roles; weights: boolean }) {
  const [weighted] = useQueryFlag("weighted");
  const [, change] = useQuery();
  const [opened] = useQueryParam("feature");
  const [group] = useQueryParam("group", "all");
  const style = usePlotStyle();
  const zone = useTimezone();
  const queries = useTables(shown, weights && weighted);
  const failed = queries.find(({ error }) => error !== null);
  const tables = queries.map(({ data }) => data).filter((table) => table !== undefined);
  const complete = shown.length > 0 && tables.length === shown.length;
  const distances = useDistances(shown, { ready: complete });
  const measured = distances.map(({ dataUpdatedAt }) => dataUpdatedAt).join();
  const version = queries.map(({ dataUpdatedAt }) => dataUpdatedAt).join();
  // biome-ignore lint/correctness/useExhaustiveDependencies: version and measured say what there is
  const rows = useMemo(
    () =>
      complete
        ? mergeFeatures(
            tables,
            distances.map(({ data }) => data),
          )
        : [],
    [version, complete, measured, shown],
  );
  const { found, problem } = useFiltered(rows, group as Group);
  const timeText = useCallback((seconds: number) => formatTime(seconds * 1000, zone).slice(0, 16), [zone]);
  const dayText = useCallback((seconds: number) => formatTime(seconds * 1000, zone).slice(0, 10), [zone]);
  const onOpen = useCallback((row: FeatureRow) => change({ feature: row.name }, { push: true }), [change]);
  if (failed && !complete) {
    return <ErrorAlert error={failed.error} retry={() => void failed.refetch()} />;
  }
  const open = rows.find(({ name }) => name === opened);
  const place = found.findIndex(({ name }) => name === opened);
  const step = (by: number) => {
    const next = found[place + by];
    return next && (() => change({ feature: next.name }));
  };
  return (
    <Grid
      gap={4}
      templateColumns={open ? { base: "minmax(0, 1fr)", lg: "minmax(0, 1fr) minmax(440px, 46%)" } : "minmax(0, 1fr)"}
      alignItems="start"
      data-ready={complete && !distances.some(({ isFetching }) => isFetching) ? "" : undefined}
    >
      <Box minWidth={0}>
        <FeaturesTable
          rows={found}
          shown={shown}
          style={style}
          group={group as Group}
          roles={roles}
          formatTime={dayText}
          opened={open ? opened : null}
          onOpen={onOpen}
          toolbar={<Toolbar all={rows} found={found.length} problem={problem} several={shown.length > 1} />}
        />
        {/* The search keeps its focus while a newer run's statistics are loaded. */}
        {!complete && <LoadingRows rows={12} />}
        {complete && found.length === 0 && (
          <Empty title={rows.length ? "No feature matches" : "There are no features"} />
        )}
      </Box>
      {open && (
        <FeaturePanel
          row={open}
          shown={shown}
          weighted={weights && weighted}
          formatValue={open.name === roles.time ? timeText : undefined}
          onClose={() => change({ feature: null })}
          onPrevious={step(-1)}
          onNext={step(1)}
        />
      )}
    </Grid>
  );
}

function useFiltered(rows: readonly FeatureRow[], group: Group): { found: FeatureRow[]; problem: string | null } {
  const [search] = useQueryParam("search");
  const [types] = useQueryList("type");
  const [only] = useQueryList("only");
  return useMemo(() => {
    const test = nameTest(search);
    const traits = only.filter((trait): trait is Trait => trait in TRAITS);
    const found = rows.filter(
      (row) =>
        isIn(row, group) &&
        (types.length === 0 || types.includes(row.type)) &&
        traits.every((trait) => hasTrait(row, trait)) &&
        (typeof test === "string" || test(row.name)),
    );
    return { found, problem: typeof test === "string" ? test : null };
  }, [rows, group, search, types, only]);
}
