import { Box, Button, CloseButton, Dialog, HStack, Portal, Table, Text, VisuallyHidden } from "@chakra-ui/react";
import { useState } from "react";
import { LuPlus } from "react-icons/lu";
import { api, type Schemas } from "src/api/client";
import { usePipelines } from "src/api/pipelines";
import { Choice, Empty, QueryView, Time } from "src/components";
import { formatCount, shortRun } from "src/format";
import { type ArtifactRef, instanceOf } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

type Add = (ref: ArtifactRef, dataset: string, alone: boolean) => void;
type Summary = Schemas["ArtifactSummary"];

const RUNS = 100;

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
          <Box mb={4} maxHeight="40vh" overflowY="auto" borderWidth={1} borderRadius="md">
            <Table.Root size="sm" stickyHeader aria-label={title}>
              <Table.Header>
                <Table.Row>
                  <Table.ColumnHeader colSpan={2}>{title}</Table.ColumnHeader>
                  <Table.ColumnHeader>Data sets</Table.ColumnHeader>
                  <Table.ColumnHeader>
                    <VisuallyHidden>Shown</VisuallyHidden>
                  </Table.ColumnHeader>
                </Table.Row>
              </Table.Header>
              <Table.Body>
                {entries.map(({ run, artifact }) => (
                  <Table.Row key={`${run.run_id} ${artifact.task_id} ${instanceOf(artifact)}`}>
                    <Table.Cell title={run.run_id} whiteSpace="nowrap">
                      {shortRun(run.run_id)}
                      <Text fontSize="xs" color="fg.muted">
                        {windowOf(artifact) ?? artifact.task_id}
                      </Text>
                    </Table.Cell>
                    <Table.Cell color="fg.muted" whiteSpace="nowrap">
                      <Time at={run.run_after} />
                    </Table.Cell>
                    <Table.Cell>
                      <HStack gap={1} wrap="wrap">
                        {datasetsOf(artifact).map((name) => (
                          <Button
                            key={name}
                            size="2xs"
                            variant="outline"
                            colorPalette="gray"
                            onClick={() => onAdd(artifact, name, false)}
                          >
                            <LuPlus /> {name} {formatCount(rowsOf(artifact, name))}
                            <VisuallyHidden>of {shortRun(run.run_id)}</VisuallyHidden>
                          </Button>
                        ))}
                      </HStack>
                    </Table.Cell>
                    <Table.Cell textAlign="end">
                      <Button
                        size="2xs"
                        variant="ghost"
                        colorPalette="gray"
                        onClick={() => onAdd(artifact, datasetsOf(artifact)[0] ?? "", true)}
                      >
                        Show only this
                      </Button>
                    </Table.Cell>
                  </Table.Row>
                ))}
              </Table.Body>
            </Table.Root>
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
