import { Button, HStack } from "@chakra-ui/react";
import { useMemo } from "react";
import { type Activity, type Pipeline, useActivity, usePipelines } from "src/api/pipelines";
import { DataTable, Empty, FilterBar, QueryView, SearchInput } from "src/components";
import { countOf, plural } from "src/format";
import { ticked, useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { pipelineColumns } from "src/pages/Pipelines/columns";
import { findingsOf } from "src/pages/Pipelines/Health";
import { HowToStart } from "src/shell/HowToStart";

const ROW_HEIGHT = 62;
/** What the list is counted and filtered by, the worst first. */
const GROUPS: [name: string, states: readonly string[], words: (count: number) => string][] = [
  ["need", ["broken", "waiting"], (count) => `${count} need${count === 1 ? "s" : ""} you`],
  ["unknown", ["unknown"], (count) => `${count} not known`],
  ["warning", ["warning"], (count) => plural(count, "warning")],
  ["pending", ["pending"], (count) => `${count} not known yet`],
  ["idle", ["idle"], (count) => `${count} not serving yet`],
  ["fine", ["fine"], (count) => `${count} fine`],
];

const groupOf = (row: Pipeline, activity: Activity | undefined): string | undefined =>
  GROUPS.find(([, states]) => states.includes(findingsOf(row, activity)[0].state))?.[0];

/** All pipelines: their health, the worst first, how they ran, and what serves. */
export function PipelinesPage() {
  const pipelines = usePipelines({ live: true });
  return (
    <QueryView query={pipelines}>
      {({ entries: rows }) => (rows.length === 0 ? <HowToStart /> : <PipelineTable rows={rows} />)}
    </QueryView>
  );
}

function PipelineTable({ rows }: { rows: readonly Pipeline[] }) {
  const [search] = useQueryParam("search");
  const [wanted, setWanted] = useQueryList("health");
  const ids = useMemo(() => rows.filter((row) => row.model?.champion).map((row) => row.dag_id), [rows]);
  const activity = useActivity(ids);
  const columns = useMemo(() => pipelineColumns(activity), [activity]);
  const groups = useMemo(() => new Map(rows.map((row) => [row, groupOf(row, activity[row.dag_id])])), [rows, activity]);
  const all = [...groups.values()];
  const shown = useMemo(() => {
    const part = search.toLowerCase();
    return rows.filter(
      (row) =>
        (wanted.length === 0 || wanted.includes(groups.get(row) ?? "")) &&
        [row.dag_id, row.display_name, row.model?.name ?? "", ...row.monitors.map((each) => each.dag_id)].some((name) =>
          name.toLowerCase().includes(part),
        ),
    );
  }, [rows, search, wanted, groups]);
  return (
    <>
      <DataTable
        label="Pipelines"
        rows={shown}
        columns={columns}
        rowKey={(row) => row.dag_id}
        rowHeight={ROW_HEIGHT}
        cards
        maxHeight="calc(100vh - 120px)"
        initialSort={{ column: "pipeline", descending: false }}
        toolbar={
          <FilterBar summary={countOf(shown.length, rows.length, "pipeline")}>
            <SearchInput placeholder="Search pipelines and models" />
            <HStack gap={1} wrap="wrap" role="group" aria-label="Health">
              {GROUPS.map(([name, , words]) => ({ name, words, count: all.filter((each) => each === name).length }))
                .filter(({ name, count }) => count > 0 || wanted.includes(name))
                .map(({ name, words, count }) => (
                  <Button
                    key={name}
                    size="sm"
                    variant={wanted.includes(name) ? "solid" : "outline"}
                    aria-pressed={wanted.includes(name)}
                    onClick={() => setWanted((before) => ticked(before, name, !wanted.includes(name)))}
                  >
                    {words(count)}
                  </Button>
                ))}
            </HStack>
          </FilterBar>
        }
      />
      {shown.length === 0 && <Empty title="No pipeline matches">Remove a filter, or shorten the search.</Empty>}
    </>
  );
}
