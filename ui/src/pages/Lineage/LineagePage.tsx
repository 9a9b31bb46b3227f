import { Box, Grid, HStack, Stack, Text, useBreakpointValue } from "@chakra-ui/react";
import { keepPreviousData } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { LuListTree, LuWorkflow } from "react-icons/lu";
import { api, type Schemas } from "src/api/client";
import { AppLink, Choice, Empty, LoadingBox, QueryView, Segments } from "src/components";
import { useQuery, useQueryParam } from "src/hooks/useQueryState";
import type { Lineage } from "src/pages/Lineage/graph";
import { LineageGraph } from "src/pages/Lineage/LineageGraph";
import { LineageList } from "src/pages/Lineage/LineageList";
import { NodePanel } from "src/pages/Lineage/NodePanel";
import { type ArtifactRef, airflowDagPath, parseArtifact, pathOf } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

/** From an artifact or a served version back to its first data, and on to what was made from it. */
export function LineagePage() {
  const dagId = useDagId();
  const { versions, start, isLoading } = useStart(dagId);
  return (
    <QueryView query={versions} loading={<LoadingBox height="480px" />}>
      {(found) => {
        const begun = start(found);
        if (begun.artifact) {
          return <Loaded begun={begun} artifact={begun.artifact} />;
        }
        if (isLoading) {
          return <LoadingBox height="480px" />;
        }
        return begun.unknown ? (
          <Empty title={`Version ${begun.unknown} was not found`}>
            Its deployment is unknown, or you do not have permission to read the DAG that deployed it.
          </Empty>
        ) : (
          <Empty title="No artifacts yet">
            Run <AppLink to={airflowDagPath(dagId)}>{dagId}</AppLink>: each artifact records the artifacts that it was
            made from.
          </Empty>
        );
      }}
    </QueryView>
  );
}

/** Boxes cannot be read on a phone: there a list is shown unless the graph is asked for. */
function useView() {
  const isNarrow = useBreakpointValue({ base: true, md: false }, { ssr: false });
  return useQueryParam("view", isNarrow ? "list" : "graph");
}

function Loaded({ begun, artifact }: { begun: Start; artifact: ArtifactRef }) {
  const [view] = useView();
  const query = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/lineage",
    { params: { path: pathOf(artifact) } },
    { placeholderData: keepPreviousData, staleTime: 15_000 },
  );
  return (
    <Stack gap={3}>
      <Bar begun={begun} artifact={artifact} />
      <QueryView query={query} loading={<LoadingBox height="520px" />}>
        {(lineage) => (
          <>
            {view === "list" ? <LineageList lineage={lineage} /> : <Graph lineage={lineage} />}
            <Notes lineage={lineage} />
          </>
        )}
      </QueryView>
    </Stack>
  );
}

function Graph({ lineage }: { lineage: Lineage }) {
  const [selected, select] = useQueryParam("node");
  const node = lineage.nodes.find(({ id }) => id === selected) ?? lineage.nodes.find(({ id }) => id === lineage.focus);
  return (
    <Grid templateColumns={{ base: "1fr", lg: "minmax(0, 1fr) 340px" }} gap={4} alignItems="start">
      <LineageGraph lineage={lineage} selected={selected || null} onSelect={(id) => select(id ?? "")} />
      <Box maxHeight={{ lg: "max(420px, calc(100vh - 290px))" }} overflowY="auto">
        {node && <NodePanel lineage={lineage} node={node} />}
      </Box>
    </Grid>
  );
}

/** Which version's lineage it is, and how it is shown. */
function Bar({ begun, artifact }: { begun: Start; artifact: ArtifactRef }) {
  const [, change] = useQuery();
  const [view, setView] = useView();
  const shown = begun.versions.find(
    ({ deployment }) =>
      deployment !== null && deployment.run_id === artifact.run_id && deployment.task_id === artifact.task_id,
  );
  const name = (model: string, version: number) => `${model} ${version}`;
  return (
    <HStack gap={3} wrap="wrap" fontSize="sm">
      {begun.versions.length > 0 && (
        <Choice
          quiet
          size="sm"
          label="Served version"
          value={shown ? name(shown.model, shown.version) : ""}
          values={[
            ...(shown ? [] : [{ value: "", label: "Served versions" }]),
            ...begun.versions.map(({ model, version, role, traffic_percent: share, deployment }) => ({
              value: name(model, version),
              label: `${model} v${version}, ${role === "former" ? "served before" : `${role}, ${share}% of the traffic`}`,
              disabled: deployment === null,
            })),
          ]}
          onChange={(value) => {
            const chosen = begun.versions.find(({ model, version }) => name(model, version) === value);
            if (chosen) {
              change(
                { model: chosen.model, version: String(chosen.version), artifact: null, node: null },
                { push: true },
              );
            }
          }}
        />
      )}
      {!shown && (
        <Text color="fg.muted">
          Lineage of the {artifact.kind.replaceAll("_", " ")} that {artifact.task_id} made in run {artifact.run_id}
        </Text>
      )}
      <Segments
        marginInlineStart="auto"
        label="View"
        value={view}
        onChange={setView}
        items={[
          ["graph", <WithIcon key="graph" icon={<LuWorkflow />} label="Graph" />],
          ["list", <WithIcon key="list" icon={<LuListTree />} label="List" />],
        ]}
      />
    </HStack>
  );
}

function WithIcon({ icon, label }: { icon: ReactNode; label: string }) {
  return (
    <HStack gap={1}>
      {icon}
      {label}
    </HStack>
  );
}

function Notes({ lineage }: { lineage: Lineage }) {
  const notes = lineage.is_whole
    ? lineage.notes
    : ["The lineage continues beyond what is shown here.", ...lineage.notes];
  return (
    <Stack gap={0} fontSize="xs" color="fg.muted">
      {notes.map((note) => (
        <Text key={note}>{note}</Text>
      ))}
    </Stack>
  );
}

interface Start {
  versions: Schemas["DeployedVersion"][];
  /** What the lineage is of; null where there is nothing yet. */
  artifact: ArtifactRef | null;
  /** The version that was asked for and is not known. */
  unknown: string | null;
}

/** Where the lineage begins: the artifact in the address, a version, what serves, or the newest that was made. */
function useStart(dagId: string) {
  const [query] = useQuery();
  const named = parseArtifact(query.get("artifact") ?? "");
  const path = { dag_id: dagId };
  const versions = api.useQuery("get", "/api/dags/{dag_id}/versions", { params: { path } }, { staleTime: 10_000 });
  const isDeployed = (versions.data ?? []).some(({ deployment }) => deployment !== null);
  const runs = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs",
    { params: { path, query: { limit: 20 } } },
    { enabled: named === null && versions.isSuccess && !isDeployed },
  );
  const start = (all: Schemas["DeployedVersion"][]): Start => {
    const version = query.get("version");
    const model = query.get("model");
    if (named) {
      return { versions: all, artifact: named, unknown: null };
    }
    if (version) {
      const asked = all.find((each) => String(each.version) === version && (!model || each.model === model));
      return { versions: all, artifact: asked?.deployment ?? null, unknown: asked?.deployment ? null : version };
    }
    const serving = all.find(({ role, deployment }) => role === "champion" && deployment !== null);
    const deployed = serving ?? all.find(({ deployment }) => deployment !== null);
    const newest = runs.data?.entries.find(({ artifacts }) => artifacts.length > 0)?.artifacts.at(-1) ?? null;
    return { versions: all, artifact: deployed?.deployment ?? newest, unknown: null };
  };
  return { versions, start, isLoading: runs.isLoading };
}
