import { useMemo } from "react";
import { ApiError, api, type Schemas } from "src/api/client";
import { Empty, ErrorAlert, LoadingBox, QueryView } from "src/components";
import { useQuery, useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { Controls } from "src/pages/Data/dive/Controls";
import { Picture } from "src/pages/Data/dive/Picture";
import { SourceBar } from "src/pages/Data/dive/SourceBar";
import { type Defaults, featuresOf, type Placement, parseSelection, readPlacement } from "src/pages/Data/dive/settings";
import { sourcesOf } from "src/pages/Data/dive/sources";
import { useRows } from "src/pages/Data/dive/useRows";
import { type ArtifactRef, parseArtifact, pathOf } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

const PATH = "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}" as const;

/** Sampled rows of statistics, placed, faceted and coloured by their features. */
export function Dive() {
  const dagId = useDagId();
  const [artifacts] = useQueryList("artifact");
  const runs = api.useQuery("get", "/api/dags/{dag_id}/runs", {
    params: { path: { dag_id: dagId }, query: { limit: 100, with: "statistics" } },
  });
  const found = useMemo(() => sourcesOf(runs.data?.entries ?? []), [runs.data]);
  const named = artifacts[0];
  const first = found[0]?.sources[0];
  const ref =
    useMemo(() => (named === undefined ? null : parseArtifact(named)), [named]) ?? (named ? null : first?.ref);
  if (named !== undefined && !ref) {
    return <ErrorAlert error={new ApiError(422, `artifact is ${named}, expected kind/dag/task/index/run`)} />;
  }
  if (!ref) {
    return (
      <QueryView query={runs} loading={<LoadingBox height="60vh" />}>
        {() => (
          <Empty title="No rows yet">
            Rows appear here once the StatisticsOperator of a run of {dagId} has sampled them. Trigger the DAG to start
            one.
          </Empty>
        )}
      </QueryView>
    );
  }
  return <OfArtifact key={JSON.stringify(ref)} artifact={ref} runs={found} />;
}

function OfArtifact({ artifact, runs }: { artifact: ArtifactRef; runs: ReturnType<typeof sourcesOf> }) {
  const params = { path: pathOf(artifact) };
  const detail = api.useQuery("get", PATH, { params });
  const splits = api.useQuery("get", `${PATH}/splits`, { params });
  const [chosen] = useQueryParam("split");
  const failed = detail.error ?? splits.error;
  const alert = failed && (
    <ErrorAlert error={failed} retry={() => void Promise.all([detail.refetch(), splits.refetch()])} />
  );
  if (!detail.data || !splits.data) {
    return (
      <>
        <SourceBar artifact={artifact} runs={runs} splits={null} split="" />
        {alert ?? <LoadingBox height="60vh" />}
      </>
    );
  }
  const all = splits.data as Record<string, Schemas["RowsHeader"]>;
  const split = chosen in all ? chosen : firstSplit(all);
  const content = all[split];
  return (
    <>
      <SourceBar artifact={artifact} runs={runs} splits={all} split={split} />
      {alert}
      {content === undefined ? (
        <Empty title="No rows in this artifact">
          {artifact.kind} of {artifact.task_id} has no sampled rows: statistics have them.
        </Empty>
      ) : content.rows === 0 ? (
        <Empty title={`No rows in ${split}`}>Choose another split above.</Empty>
      ) : (
        <Explorer key={split} artifact={artifact} split={split} content={content} properties={detail.data.properties} />
      )}
    </>
  );
}

function firstSplit(splits: Record<string, Schemas["RowsHeader"]>): string {
  const names = Object.keys(splits);
  const largest = names.reduce(
    (most, name) => ((splits[name]?.rows ?? 0) > (splits[most]?.rows ?? -1) ? name : most),
    "",
  );
  return names.includes("train") ? "train" : largest;
}

interface Props {
  artifact: ArtifactRef;
  split: string;
  content: Schemas["RowsHeader"];
  properties: Record<string, unknown>;
}

/** The rows of a split: the plot or the table, what is set above it, and what they say beside it. */
function Explorer({ artifact, split, content, properties }: Props) {
  const [query] = useQuery();
  const roles = useMemo(() => rolesOf(properties, content.columns), [properties, content]);
  const features = useMemo(() => content.columns.filter(({ role }) => role !== null), [content]);
  const names = useMemo(() => content.columns.map(({ name }) => name), [content]);
  const defaults = useMemo(() => defaultsOf(content.columns, roles), [content, roles]);
  const placement = useMemo(() => readPlacement(query, defaults), [query, defaults]);
  const source = useMemo(
    () => ({ ref: artifact, split, time: roles.time, label: roles.label, classes: roles.classes }),
    [artifact, split, roles],
  );
  const wanted = useWanted(features, placement, query);
  const rows = useRows(source, names, wanted);
  const { columns, rows: size } = rows;
  if (size === 0 && rows.error) {
    return <ErrorAlert error={rows.error} retry={rows.retry} />;
  }
  return (
    <>
      <Controls features={features} columns={columns} placement={placement} />
      {rows.error !== null && <ErrorAlert error={rows.error} retry={rows.retry} />}
      {size === 0 ? <LoadingBox height="60vh" /> : <Picture placement={placement} features={features} rows={rows} />}
    </>
  );
}

/** So many columns come where all are asked for: those that are shown first. */
const MOST_COLUMNS = 60;

/** The columns to fetch: those of the picture; of a table or a selection, all. */
function useWanted(features: readonly Schemas["RowsColumn"][], placement: Placement, query: URLSearchParams): string[] {
  const open = query.getAll("open").join("\n");
  const selection = query.get("select") ?? "";
  const tabled = query.get("display") === "table";
  return useMemo(() => {
    const drawn = parseSelection(selection);
    const named = [...featuresOf(placement), ...(drawn ? featuresOf(drawn.placement) : []), ...open.split("\n")];
    const known = new Set(features.map(({ name }) => name));
    const names = new Set(named.filter((name) => known.has(name)));
    // A picture of no feature still has its rows.
    const most = tabled || drawn ? MOST_COLUMNS : names.size === 0 ? 1 : 0;
    for (const { name } of features.slice(0, most)) {
      names.add(name);
    }
    return [...names];
  }, [features, placement, selection, open, tabled]);
}

/** What a pipeline says of an artifact's columns; null where it says nothing. */
interface Roles {
  label: string | null;
  time: string | null;
  /** Names of the label's classes, by number; none where it has none. */
  classes: readonly string[];
}

/** Reads them of an artifact's properties, as far as the columns are there. */
function rolesOf(properties: Record<string, unknown>, columns: readonly RowsColumn[]): Roles {
  const text = (role: string) => columns.find(({ name }) => name === properties[role])?.name ?? null;
  const classes = Array.isArray(properties.classes) ? properties.classes.map(String) : [];
  return { label: text("label"), time: text("time"), classes };
}

type RowsColumn = Schemas["RowsColumn"];

/** Two features on the axes, and the label, or else a prediction, as colour. */
function defaultsOf(columns: readonly RowsColumn[], { label, time }: Roles): Defaults {
  const features = columns.filter(({ name, role }) => role !== null && ![label, time].includes(name));
  const real = features.filter(({ kind }) => kind === "double" || kind === "float");
  const numbers = features.filter(({ role }) => role === "number");
  const categories = features.filter(({ role }) => role === "category" || role === "boolean");
  const [x, y] = real.length > 1 ? real : numbers.length > 1 ? numbers : [numbers[0] ?? categories[0]];
  const named = (name: string | null) => columns.find((column) => column.name === name && column.role !== null);
  const predicted = features.find(({ name }) => /^(label|prediction|predicted|probability|score)/i.test(name));
  return {
    x: x?.name ?? "",
    y: y?.name ?? "",
    color: (named(label) ?? predicted ?? categories[0])?.name ?? "",
  };
}
