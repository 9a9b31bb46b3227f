import { Box, Button, CloseButton, Dialog, HStack, Portal, VisuallyHidden } from "@chakra-ui/react";
import { useState } from "react";
import { LuPlus } from "react-icons/lu";
import { api, type Schemas } from "src/api/client";
import { usePipelines } from "src/api/pipelines";
import { Choice, Empty, PlainTable, QueryView, Time, TwoLines } from "src/components";
import { formatCount, shortRun } from "src/format";
import { type ArtifactRef, instanceOf } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

type Add = (ref: ArtifactRef, dataset: string, alone: boolean) => void;
type Summary = Schemas["ArtifactSummary"];

const RUNS = 100;
const SMALL = { size: "2xs", colorPalette: "gray" } as const;

/** Further data sets to lay over those that are shown: of another run, another split, or what was served. */
export function AddData({ onAdd }: { onAdd: Add }) {
  const [open, setOpen] = useState(false);
  return (
    <Dialog.Root open={open} onOpenChange={(change) => setOpen(change.open)} size="xl" lazyMount unmountOnExit>
      <Dialog.Trigger asChild>
        <Button size="sm" variant="outline" colorPalette="gray" alignSelf="center">
          <LuPlus /> Add data
        </Button>
      </Dialog.Trigger>
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content>
            <Dialog.Header>
              <Dialog.Title>Add data</Dialog.Title>
            </Dialog.Header>
            <Dialog.Body>
              <Choices
                onAdd={(...chosen) => {
                  setOpen(false);
                  onAdd(...chosen);
                }}
              />
            </Dialog.Body>
            <Dialog.CloseTrigger asChild>
              <CloseButton size="sm" />
            </Dialog.CloseTrigger>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}

function Choices({ onAdd }: { onAdd: Add }) {
  const own = useDagId();
  const pipelines = usePipelines();
  const [dagId, setDagId] = useState(own);
  const all = pipelines.data?.entries ?? [];
  const monitors = all.find((pipeline) => pipeline.dag_id === dagId)?.monitors.map((each) => each.dag_id) ?? [];
  const ids = new Set([own, ...all.map((pipeline) => pipeline.dag_id)]);
  return (
    <>
      <Box mb={3}>
        <Choice label="Pipeline" value={dagId} onChange={setDagId} values={[...ids].map((value) => ({ value }))} />
      </Box>
      <Entries dagId={dagId} kind="statistics" title="Statistics, newest first" onAdd={onAdd} />
      {[dagId, ...monitors].map((id) => (
        <Entries key={id} dagId={id} kind="skew" title={`Served data, compared by ${id}`} onAdd={onAdd} />
      ))}
    </>
  );
}

interface Props {
  dagId: string;
  kind: "statistics" | "skew";
  title: string;
  onAdd: Add;
}

/** The artifacts of a kind, each with its data sets to add. */
function Entries({ dagId, kind, title, onAdd }: Props) {
  const params = { path: { dag_id: dagId }, query: { with: kind, limit: RUNS } };
  const runs = api.useQuery("get", "/api/dags/{dag_id}/runs", { params });
  return (
    <QueryView query={runs}>
      {(page) => {
        const entries = page.entries.flatMap((run) => run.artifacts.map((artifact) => ({ run, artifact })));
        if (entries.length === 0) {
          return kind === "statistics" ? <Empty title={`${dagId} has no statistics yet`} /> : null;
        }
        return (
          <Box mb={4} borderWidth={1} borderRadius="md">
            <PlainTable
              label={title}
              maxHeight="40vh"
              rows={entries}
              rowKey={({ run, artifact }) => `${run.run_id} ${artifact.task_id} ${instanceOf(artifact)}`}
              rowTitle={({ run }) => run.run_id}
              columns={[
                {
                  label: title,
                  cell: ({ run, artifact }) => (
                    <TwoLines first={shortRun(run.run_id)} second={windowOf(artifact) ?? artifact.task_id} />
                  ),
                },
                { label: <VisuallyHidden>Time</VisuallyHidden>, cell: ({ run }) => <Time at={run.run_after} /> },
                {
                  label: "Data sets",
                  cell: ({ run, artifact }) => (
                    <HStack gap={1} wrap="wrap">
                      {datasetsOf(artifact).map((name) => (
                        <Button key={name} {...SMALL} variant="outline" onClick={() => onAdd(artifact, name, false)}>
                          <LuPlus /> {name} {formatCount(rowsOf(artifact, name))}
                          <VisuallyHidden>of {shortRun(run.run_id)}</VisuallyHidden>
                        </Button>
                      ))}
                    </HStack>
                  ),
                },
                {
                  label: <VisuallyHidden>Shown</VisuallyHidden>,
                  end: true,
                  cell: ({ artifact }) => (
                    <Button
                      {...SMALL}
                      variant="ghost"
                      onClick={() => onAdd(artifact, datasetsOf(artifact)[0] ?? "", true)}
                    >
                      Show only this
                    </Button>
                  ),
                },
              ]}
            />
          </Box>
        );
      }}
    </QueryView>
  );
}

function datasetsOf(artifact: Summary): string[] {
  if (artifact.kind === "skew") {
    return ["current", "reference"];
  }
  const splits: unknown = artifact.properties.splits;
  return Array.isArray(splits) ? splits.filter((split): split is string => typeof split === "string") : [];
}

const rowsOf = ({ kind, metrics }: Summary, name: string): number | null | undefined =>
  kind === "skew" ? metrics[`rows_${name}`] : metrics[`${name}_rows`];

function windowOf(artifact: Summary): string | null {
  const window: unknown = artifact.properties.window;
  return Array.isArray(window) ? window.map((time) => String(time ?? "…").slice(0, 10)).join(" – ") : null;
}
