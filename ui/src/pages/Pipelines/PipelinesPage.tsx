import { useMemo } from "react";
import { type Pipeline, useActivity, usePipelines } from "src/api/pipelines";
import { DataTable } from "src/components/DataTable";
import { Empty } from "src/components/Empty";
import { ChoiceFilter, FilterBar, SearchInput } from "src/components/FilterBar";
import { QueryView } from "src/components/QueryView";
import { countOf } from "src/format";
import { useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { pipelineColumns } from "src/pages/Pipelines/columns";
import { HowToStart } from "src/shell/HowToStart";

const NEVER_RUN = "never run";
const NOT_CHECKED = "not checked";
const ROW_HEIGHT = 62;

function runState({ last_run }: Pipeline): string {
  const refused = last_run?.state === "success" ? last_run.refusals[0]?.verdict : undefined;
  return refused ?? last_run?.state ?? NEVER_RUN;
}
const skewVerdict = ({ skew }: Pipeline) => skew?.verdict ?? NOT_CHECKED;

/** All pipelines: how they ran, what serves, whether it has drifted. */
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
  const [states] = useQueryList("state");
  const [verdicts] = useQueryList("skew");
  const ids = useMemo(() => rows.filter((row) => row.model?.champion || row.skew).map((row) => row.dag_id), [rows]);
  const activity = useActivity(ids);
  const columns = useMemo(() => pipelineColumns(activity), [activity]);
  const shown = useMemo(() => {
    const wanted = search.toLowerCase();
    return rows.filter(
      (row) =>
        (states.length === 0 || states.includes(runState(row))) &&
        (verdicts.length === 0 || verdicts.includes(skewVerdict(row))) &&
        [row.dag_id, row.display_name, row.model?.name ?? "", ...row.monitors.map((each) => each.dag_id)].some((name) =>
          name.toLowerCase().includes(wanted),
        ),
    );
  }, [rows, search, states, verdicts]);
  return (
    <>
      <DataTable
        label="Pipelines"
        rows={shown}
        columns={columns}
        rowKey={(row) => row.dag_id}
        rowHeight={ROW_HEIGHT}
        maxHeight="calc(100vh - 120px)"
        initialSort={{ column: "pipeline", descending: false }}
        toolbar={
          <FilterBar summary={countOf(shown.length, rows.length, "pipeline")}>
            <SearchInput placeholder="Search pipelines and models" />
            <ChoiceFilter name="state" label="Last run" choices={choicesOf(rows, runState)} />
            <ChoiceFilter name="skew" label="Skew" choices={choicesOf(rows, skewVerdict)} />
          </FilterBar>
        }
      />
      {shown.length === 0 && <Empty title="No pipeline matches">Remove a filter, or shorten the search.</Empty>}
    </>
  );
}

function choicesOf(rows: readonly Pipeline[], of: (row: Pipeline) => string) {
  const counts = new Map<string, number>();
  for (const value of rows.map(of)) {
    counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  return [...counts].sort().map(([value, count]) => ({ value, label: value.replaceAll("_", " "), count }));
}
