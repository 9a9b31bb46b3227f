import { HStack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink, Choice } from "src/components";
import { formatCount, formatTime, shortRun } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import type { SourceRun } from "src/pages/Data/dive/sources";
import { type ArtifactRef, airflowTaskPath, formatArtifact, instanceLabel } from "src/routes";

/** What belongs to the rows that are looked at, and means nothing for others. */
const OF_ROWS = { view: null, select: null, row: null } as const;

interface Props {
  artifact: ArtifactRef;
  runs: readonly SourceRun[];
  splits: Record<string, Schemas["RowsHeader"]> | null;
  split: string;
}

/** The choice of the rows: of which run and artifact, and which split. */
export function SourceBar({ artifact, runs, splits, split }: Props) {
  const [, change] = useQuery();
  const zone = useTimezone();
  const current = formatArtifact(artifact);
  const unlisted = { value: current, label: `${artifact.task_id} · ${artifact.kind} · ${artifact.run_id}` };
  const listed = runs.flatMap(({ run, sources }) =>
    sources.map(({ ref, key, rows }) => ({
      value: key,
      label: `${ref.task_id}${instanceLabel(ref)} · ${ref.kind}${rowsInWords(rows)}`,
      group: `${formatTime(run.started_at ?? run.run_after, zone)} · ${run.run_type} · ${run.state}`,
    })),
  );
  return (
    <HStack gap={3} mb={2} wrap="wrap">
      <Choice
        size="sm"
        maxWidth="md"
        label="Rows of"
        value={current}
        values={listed.some(({ value }) => value === current) ? listed : [unlisted, ...listed]}
        onChange={(key) => change({ ...OF_ROWS, artifact: key, split: null }, { push: true })}
      />
      {splits && Object.keys(splits).length > 0 && (
        <Choice
          size="sm"
          maxWidth="md"
          label="Split"
          value={split}
          values={Object.entries(splits).map(([value, { rows }]) => ({ value, label: `${value}${rowsInWords(rows)}` }))}
          onChange={(name) => change({ ...OF_ROWS, split: name }, { push: true })}
        />
      )}
      <Text fontSize="sm" color="fg.muted" truncate maxW="xl">
        made by{" "}
        <AppLink to={airflowTaskPath(artifact)} display="inline" title={artifact.run_id}>
          {artifact.task_id} of {shortRun(artifact.run_id)}
        </AppLink>
      </Text>
    </HStack>
  );
}

const rowsInWords = (rows: number | null): string => (rows === null ? "" : ` · ${formatCount(rows)} rows`);
