import { Box, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import {
  Choice,
  ChoiceFilter,
  Empty,
  FilterBar,
  formatCount,
  formatNumber,
  formatTime,
  plural,
  QueryView,
  SearchInput,
  ShowMore,
  Toggle,
  useQuery,
  useQueryFlag,
  useQueryList,
  useQueryParam,
  useTimezone,
} from "airflow-hops";
import { useState } from "react";
import { type FleetPage, useFleet, type Wanted } from "src/extensions/fleet/queries";
import { SegmentCard } from "src/extensions/fleet/SegmentCard";
import { SegmentDrawer } from "src/extensions/fleet/SegmentDrawer";
import { STATE_WORDS } from "src/extensions/fleet/story";

const FIRST = 24;

/** The segments of a fleet as small multiples, those that matter first; one of them opened. */
export function FleetTab({ dagId, model }: { dagId: string; model: string }) {
  const [query, change] = useQuery();
  const [search] = useQueryParam("search");
  const [states] = useQueryList("state");
  const [onlyDrifted] = useQueryFlag("drifted");
  const [onlyFailed] = useQueryFlag("failed");
  const [limit, setLimit] = useState(FIRST);
  const version = query.get("in_version");
  const wanted: Wanted = {
    ...(version && { version: Number(version) }),
    ...(search && { search }),
    ...(states.length > 0 && { state: states }),
    ...(onlyDrifted && { only_drifted: true }),
    ...(onlyFailed && { only_failed: true }),
    ...(limit !== FIRST && { limit }),
  };
  const fleet = useFleet(dagId, model, wanted);
  const segment = query.get("segment");
  return (
    <>
      <QueryView query={fleet}>
        {(page) => (
          <Stack gap={3}>
            <Filters page={page} />
            {page.entries.length === 0 ? (
              <Empty title="No segment matches">Search for a part of a key, or take fewer filters.</Empty>
            ) : (
              <SimpleGrid minChildWidth="220px" gap={3}>
                {page.entries.map((entry) => (
                  <SegmentCard
                    key={entry.segment}
                    entry={entry}
                    onOpen={() => change({ segment: entry.segment }, { push: true })}
                  />
                ))}
              </SimpleGrid>
            )}
            <Box>
              <ShowMore
                shown={page.entries.length}
                of={Math.min(page.total_entries, 1000)}
                onMore={(shown) => setLimit(Math.min(shown, 1000))}
              />
            </Box>
          </Stack>
        )}
      </QueryView>
      {segment !== null && (
        <SegmentDrawer dagId={dagId} model={model} segment={segment} onClose={() => change({ segment: null })} />
      )}
    </>
  );
}

function Filters({ page }: { page: FleetPage }) {
  const zone = useTimezone();
  const [onlyDrifted, setOnlyDrifted] = useQueryFlag("drifted");
  const [onlyFailed, setOnlyFailed] = useQueryFlag("failed");
  const [, setVersion] = useQueryParam("in_version");
  const newest = page.versions.at(-1);
  const shown = page.versions.find((each) => each.version === page.version);
  return (
    <Stack gap={1}>
      <FilterBar summary={plural(page.total_entries, "segment")}>
        <SearchInput placeholder="Search segments" />
        <ChoiceFilter
          name="state"
          label="Model"
          choices={Object.entries(STATE_WORDS).map(([value, label]) => ({
            value,
            label,
            count: shown?.states[value] ?? 0,
          }))}
        />
        <Toggle
          label={`Only drifted (${formatNumber(page.drifted)})`}
          checked={onlyDrifted}
          disabled={page.drifted === 0 && !onlyDrifted}
          onChange={setOnlyDrifted}
        />
        <Toggle
          label={`Only failed (${formatNumber(page.failed)})`}
          checked={onlyFailed}
          disabled={page.failed === 0 && !onlyFailed}
          onChange={setOnlyFailed}
        />
        <Choice
          label="Version"
          value={String(page.version)}
          values={page.versions.toReversed().map((each) => ({
            value: String(each.version),
            label: `${each.version} · ${formatTime(each.at, zone)}`,
          }))}
          onChange={(value) => setVersion(value === String(newest?.version) ? "" : value)}
        />
      </FilterBar>
      <Text fontSize="sm" color="fg.muted">
        A model for each {page.segment}; those with the most rows × {page.loss} first. Lines: {page.loss} on held-out
        rows in {formatCount(page.versions.length)} {page.versions.length === 1 ? "version" : "versions"}; dashed: that
        of the pooled model; each on its own scale. In brackets: the difference between both.
      </Text>
    </Stack>
  );
}
